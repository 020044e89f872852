"""What is read the quick way is what is read the plain way: values, errors, counts, prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from odd import ODD_VALUES, bent, dumped, fuzz, one_line_or
from samples import ROWS

from specprobe import scan
from specprobe.formats import parse
from specprobe.formats.plain import PlainChats
from specprobe.json_values import is_clean, mend, read_value
from specprobe.workload import Workload, inspect_workload, read_workload

NUMBERS = (
    *(
        "0",
        "-0",
        "-0.0",
        "01",
        "1.",
        ".5",
        "-",
        "+1",
        "1e5",
        "1E+05",
        "0e0",
        "1e22",
        "0.1",
        "123456789.123456789123456789",
    ),
    *("9007199254740993", "9007199254740993.0", "9223372036854775807", "9223372036854775808", "-9223372036854775809"),
    *("18446744073709551615", "18446744073709551616", "123456789012345678901234567890", "1" * 4300, "1" * 4301),
    *("5e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "1e-400", "1.7976931348623157e308"),
    *("1.7976931348623159e308", "1e400", "-1e400", "0e99999999999999999999", "1e99999999999999999999"),
    *("1" * 400 + ".5", "NaN", "Infinity", "-Infinity", "nan", "true", "null", "nul", "True"),
)
PIECES = (
    *("a", " ", "é", "日本", "😀", "\u2028", "\x7f", "\x00", "\x1f", "\t", "\n", "\r", "'", "{", "]"),
    *(
        r"\n",
        r"\"",
        r"\\",
        r"\/",
        r"\u0000",
        r"\u00e9",
        r"\u00E9",
        r"\ud83d\ude00",
        r"\ud83d",
        r"\ude00",
        r"\ud83d\ud83d\ude00",
    ),
    *(r"\x41", r"\U0041", r"\u00", r"\u+0e9", r"\u 0e9"),
)

numbers = st.one_of(
    st.sampled_from(NUMBERS),
    st.integers().map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
strings = st.lists(st.sampled_from(PIECES), max_size=4).map(lambda pieces: f'"{"".join(pieces)}"')
spaces = st.sampled_from(("", "", "", " ", "\t\r\n ", "\x0b", "\u00a0", "\ufeff", ","))


def joined(pieces: tuple[str, ...]) -> str:
    return "".join(pieces)


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    # Few keys, so that some occur twice.
    keys = st.one_of(st.sampled_from(('"a"', '"b"', '"\\u0061"')), strings)
    pairs = st.tuples(keys, st.just(":"), spaces, values).map(joined)
    return st.lists(pairs, max_size=4).map(lambda items: "{" + ",".join(items) + "}")


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=4).map(lambda items: "[" + ",".join(items) + "]")


texts = st.tuples(
    spaces,
    st.recursive(st.one_of(numbers, strings), lambda inner: st.one_of(objects(inner), arrays(inner)), max_leaves=12),
    spaces,
).map(joined)


def outcome(read: Callable[[bytes], Any], text: bytes) -> Any:
    """What is read, in a form that tells 1 from 1.0, True and -0.0; the kind of the error where it is refused."""
    try:
        return repr(read(text))
    except UnicodeDecodeError:
        return UnicodeDecodeError
    except (ValueError, RecursionError):
        return ValueError


def read_by_json(text: bytes) -> tuple[Any, bool]:
    value = json.loads(text.decode("utf-8"))
    return (value, False) if is_clean(value) else mend(value)


@fuzz(1000)
@given(texts)
def test_json_of_any_kind(text):
    encoded = text.encode("utf-8")
    assert outcome(read_value, encoded) == outcome(read_by_json, encoded)


@fuzz(500)
@given(texts, st.integers(0, 1 << 16), st.binary(max_size=3))
def test_json_that_was_damaged(text, place, bytes_in_it):
    encoded = text.encode("utf-8")
    place %= len(encoded) + 1
    damaged = encoded[:place] + bytes_in_it + encoded[place + len(bytes_in_it) :]
    assert outcome(read_value, damaged) == outcome(read_by_json, damaged)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_any_size(number):
    for text in (number, f'{{"a":{number}}}', f"[{number},{number}]"):
        assert outcome(read_value, text.encode()) == outcome(read_by_json, text.encode())


@pytest.mark.parametrize("levels", [1, 2, 199, 200, 201, 202, 203, 400, 990, 1000, 3000, 100_000])
@pytest.mark.parametrize(
    ("start", "inside", "end"), [("[", "1", "]"), ("[", "", "]"), ('{"a":', "[]", "}"), ('[{"a":', "1", "}]")]
)
def test_nesting_of_any_depth(levels, start, inside, end):
    text = (start * levels + inside + end * levels).encode()
    assert outcome(read_value, text) == outcome(read_by_json, text)


class NoPlainChats:
    """Leaves every line to the reader of any JSON."""

    def read(self, _line: bytes) -> None:
        return None


def read_both_ways(path: Path, **options: Any) -> None:
    def read() -> list[str]:
        counts = one_line_or(lambda: inspect_workload([str(path)]))
        workload = one_line_or(lambda: read_workload([str(path)], **options))
        if isinstance(workload, Workload):
            prompts = list(workload.prompts)
            return [repr(counts), repr(replace(workload, prompts=())), repr(prompts)]
        return [repr(counts), repr(workload)]

    quick = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "PlainChats", NoPlainChats)
        assert read() == quick


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("same") / "log.jsonl"


said = st.one_of(
    st.sampled_from(("", " ", "q", "too many requests", "redacted", "é\U0001f600", "x" * 500)), st.text(max_size=5)
)
roles = st.sampled_from(
    ("user", "assistant", "human", "gpt", "system", "tool", "User", "function_call", "narrator", "observation", "")
)
messages = st.fixed_dictionaries({"role": roles, "content": said})
shares = st.fixed_dictionaries({"from": roles, "value": said})
nearly = st.one_of(
    messages,
    shares,
    bent([{"role": "user", "content": "q"}, {"from": "gpt", "value": "a", "weight": 1}], most=1),
)
chats = st.one_of(*(st.lists(turn, max_size=5) for turn in (messages, shares, nearly)))
# Every key that decides what a row is, is tried beside a chat.
beside = sorted(
    {
        *scan.ID_KEYS,
        "model",
        "temperature",
        "system",
        "output",
        "chosen",
        "tools",
        "response_format",
        "prompt",
        "question",
    }
    | {key for row in ROWS if isinstance(row, dict) for key in row}
    | {
        "type",
        "custom_id",
        "recordId",
        "body",
        "params",
        "request",
        "input",
        "images",
        "data",
        "spans",
        "gen_ai.prompt",
    }
)
scalars = st.one_of(
    st.sampled_from((None, True, 0, 1.5, "", "x", "GENERATION", "[]", '[{"role":"user","content":"j"}]')), ODD_VALUES
)
rows = st.builds(
    lambda more, column, chat: {**more, column: chat},
    st.dictionaries(st.sampled_from(beside), scalars, max_size=3),
    st.sampled_from(("messages", "conversations", "conversation", "prompt")),
    chats,
)


@fuzz(400)
@given(st.lists(st.one_of(rows, rows, bent(ROWS)), min_size=1, max_size=5))
@example(
    [
        {
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
            "custom_id": "x",
            "response": "r",
        }
    ]
)
@example([{"from": "x", "messages": [{"role": "user", "content": "q"}]}])
@example([{"messages": [{"from": "human", "value": "q"}]}, {"conversations": [{"role": "user", "content": "q"}]}])
def test_rows_of_chats(log, rows):
    log.write_bytes(b"\n".join(map(dumped, rows)) + b"\n")
    read_both_ways(log)
    read_both_ways(log, group_by="messages", dedupe=True)


PLAIN = {
    "id": 1,
    "model": "m",
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
}
SHARED = {"id": "a", "system": "s", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}


@pytest.mark.parametrize("row", [PLAIN, SHARED])
def test_plain_chats_are_understood_at_once(row):
    found = PlainChats().read(dumped(row))
    assert found is not None
    assert (found.name, found.found.items) == (parse(row)[0], parse(row)[1].items)
    assert found.row.keys() == row.keys()


@pytest.mark.parametrize(
    "more",
    [
        {"type": "GENERATION"},
        {"images": []},
        {"trace": 1},
        {"body": 1},
        {"custom_id": "c"},
        {"tools": []},
        {"extra": {}},
        {"n": 1e400},
    ],
)
def test_what_else_may_matter_is_left_to_the_reader_of_any_row(more):
    assert PlainChats().read(dumped({**PLAIN, **more})) is None


def test_other_lines_are_seldom_tried():
    chats = PlainChats()
    for _ in range(500):
        assert chats.read(b'{"prompt": "p"}') is None
    plain = dumped(PLAIN)
    waited = next(number for number in range(1000) if chats.read(plain) is not None)
    assert 0 < waited < 64
    assert chats.read(plain) is not None
