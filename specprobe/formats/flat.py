"""Rows that hold a prompt in a column of its own, and rows of token ids."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from specprobe.containers import Skip, plain_name
from specprobe.formats.chat import complete, has_media, logged_answer, system_turn
from specprobe.formats.conversation import Conversation, Parsed, TokenRow
from specprobe.formats.turns import Turn, turns

Row = Mapping[str, Any]


def is_blank(value: Any) -> bool:
    """Null or a text of nothing but white space."""
    return value is None or (isinstance(value, str) and (not value or value.isspace()))


def column(row: Row, name: str) -> Parsed | Skip | None:
    """A prompt column: a text, a list of user texts, or a list of messages."""
    value = row.get(name)
    if is_blank(value):
        return Skip("empty") if name in row else None
    if isinstance(value, str):
        return _asked(row, name, value)
    if not isinstance(value, list):
        return Skip("no_prompt")
    if not value:
        return Skip("empty")
    if isinstance(value[0], str):
        # The later user turns of a question file follow answers that are not in it.
        return _asked(row, name, value[0])
    if not isinstance(value[0], dict):
        return Skip("no_prompt")
    if has_media(row):
        return Skip("multimodal")
    if "role" in value[0] or "from" in value[0]:
        return Parsed([complete(row, name, turns(value))], row)
    text = value[0].get("text")
    return _asked(row, name, text) if isinstance(text, str) else Skip("no_prompt")


def _asked(row: Row, name: str, text: str) -> Parsed | Skip:
    if has_media(row):
        return Skip("multimodal")
    found = [*system_turn(row), *_history(row), Turn("user", text), *logged_answer(row)]
    return Parsed([Conversation(name, found)], row)


def _history(row: Row) -> list[Turn]:
    """Earlier turns as [question, answer] pairs."""
    raw = row.get("history")
    pairs = raw if isinstance(raw, list) else []
    found = []
    for pair in pairs:
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair):
            found += [Turn("user", pair[0]), Turn("assistant", pair[1])]
    return found


def prompt(row: Row) -> Parsed | Skip | None:
    """`{"prompt"}`: one user turn."""
    return column(row, "prompt")


def question_turns(row: Row) -> Parsed | Skip | None:
    """`{"turns": [user text, ...]}` of MT-Bench and its kin."""
    return column(row, "turns") if isinstance(row.get("turns"), list) else None


def swe_bench(row: Row) -> Parsed | Skip | None:
    """SWE-bench: `text` is the ready prompt, `problem_statement` the bare issue; two workloads, never mixed up."""
    if "instance_id" in row and isinstance(row.get("text"), str) and not is_blank(row["text"]):
        return column(row, "text")
    return column(row, "problem_statement")


def alpaca(row: Row) -> Parsed | Skip | None:
    """`{"instruction", "input"}`; `context` in Dolly."""
    if not isinstance(row.get("instruction"), str):
        return column(row, "instruction")
    extras = (key for key in ("input", "context") if isinstance(row.get(key), str))
    extra = next((key for key in extras if not is_blank(row[key])), None)
    if extra is None:
        return column(row, "instruction")
    joined = row["instruction"] + "\n" + row[extra] if not is_blank(row["instruction"]) else row[extra]
    return _asked(row, f"instruction+{extra}", joined)


def question(row: Row) -> Parsed | Skip | None:
    """`{"question"}`, after its `context` where there is one."""
    context, asked = row.get("context"), row.get("question")
    is_pair = isinstance(asked, str) and isinstance(context, str)
    if is_pair and not is_blank(context) and not is_blank(asked):
        return _asked(row, "context+question", f"{context}\n\n{asked}")
    return column(row, "question")


def problem(row: Row) -> Parsed | Skip | None:
    """NeMo-Skills `{"problem", "generation"}`, MATH."""
    return column(row, "problem")


def sample(row: Row) -> Parsed | Skip | None:
    """An Inspect sample: `{"input": text or messages, "target"}`."""
    return column(row, "input")


def query(row: Row) -> Parsed | Skip | None:
    """`{"query"}`."""
    return column(row, "query")


def text(row: Row) -> Parsed | Skip | None:
    """`{"text"}` of MBPP."""
    return column(row, "text")


def tokens(row: Row) -> Parsed | Skip | None:
    """`{"prompt_token_ids", "output_token_ids", "tail_token_ids"}`."""
    if not isinstance(row.get("prompt_token_ids"), list):
        return None
    ids = {key: _ids(row.get(key)) for key in ("prompt_token_ids", "output_token_ids", "tail_token_ids")}
    prompt_ids, output_ids = ids["prompt_token_ids"], ids["output_token_ids"]
    if prompt_ids is None or (row.get("output_token_ids") is not None and output_ids is None):
        return Skip("no_prompt")
    if not prompt_ids:
        return Skip("empty")
    item = TokenRow("prompt_token_ids", prompt_ids, output_ids or None, ids["tail_token_ids"] or ())
    return Parsed([item], row)


LARGEST_TOKEN_ID = 2**31 - 1


def _ids(value: Any) -> array[int] | None:
    """Packed: as Python's own numbers, the tokens of many rows would take ten times the memory."""
    # By sets and extremes, not item by item: rows of token ids are the long ones. (bool is not int here.)
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return None
    if value and not 0 <= min(value) <= max(value) <= LARGEST_TOKEN_ID:
        return None
    return array("i", value)


LENGTH_COLUMNS = frozenset(
    [
        "inputlength",
        "outputlength",
        "inputtokens",
        "outputtokens",
        "contexttokens",
        "generatedtokens",
        "requesttokens",
        "responsetokens",
        "prompttokens",
        "completiontokens",
        "promptlen",
        "outputlen",
        "inputlen",
        "promptlength",
        "hashids",
        "numprefilltokens",
        "numdecodetokens",
    ]
)


def has_lengths_only(row: Row) -> bool:
    """Whether a row without any prompt column says how long the prompt was."""
    if any(plain_name(key) in LENGTH_COLUMNS for key in row):
        return True
    nested = row.get("requests")
    return isinstance(nested, list) and any(isinstance(item, dict) and "hash_ids" in item for item in nested)
