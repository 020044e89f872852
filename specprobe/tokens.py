"""Text to token ids, as an engine would: chat template, special tokens, and the tokens of a logged answer.

The only place that calls transformers' tokenizers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprobe.embedded import EMBEDDED_NAME, HUB_NAME, embedded_folder, is_embedded, missing_error
from specprobe.errors import SpecprobeError, UnreachableError
from specprobe.model_folder import check_config
from specprobe.prompt import Message, Prompt
from specprobe.quiet import quick_imports, quiet_transformers
from specprobe.trajectory import TokenIds, token_ids

# What a template raises for a conversation it does not take: its own raise_exception and undefined names (jinja2's
# TemplateError is added where jinja2 is imported), or Python's errors for a value of another type than it expects.
_PYTHON_FAILURES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_RESERVED_KWARGS = frozenset(
    {"conversation", "messages", "tools", "chat_template", "tokenize", "add_generation_prompt", "return_dict",
     "return_tensors", "padding", "truncation", "max_length", "continue_final_message"}
)  # fmt: skip
_EMPTY_BLOCK = re.compile(r"<(\w+)>\s*</\1>")
_BETWEEN_TURNS = "\n\n"


class UnrenderableError(Exception):
    """The chat template refuses this conversation (roles must alternate, no system role, ...)."""


SPACE_MARKS = ("Ġ", "▁")


@dataclass(frozen=True, slots=True)
class TokenizerRecord:
    """How text became tokens; results with different records are not comparable.

    `chat_template` is the first 16 hex digits of the template's SHA-256, or None for a base model, whose turns are
    joined by blank lines. `adds_bos` says whether raw text gets a beginning-of-text token (a template brings its
    own). `uses_date`: the template writes today's date, so tokens differ from day to day.
    """

    name: str
    vocab_size: int
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any]
    eos_ids: tuple[int, ...]
    adds_bos: bool
    uses_date: bool


class Tokenizer:
    """A tokenizer with its chat template, and the rules of serving engines around it."""

    def __init__(
        self,
        backend: Any,
        *,
        name: str,
        template_kwargs: Mapping[str, Any] | None = None,
        eos_ids: Iterable[int] = (),
    ) -> None:
        """`backend`: a tokenizer of transformers, or a LightTokenizer.

        `eos_ids`: what the model's generation config stops at. `end_id` is what ends an answer by its template, else
        the tokenizer's end token.
        """
        from jinja2.exceptions import TemplateError

        self._backend = backend
        self._kwargs = _checked_kwargs(template_kwargs or {})
        self._failures = (TemplateError, *_PYTHON_FAILURES)
        special = sorted((t.content for t in backend.added_tokens_decoder.values() if t.special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special))) if special else None
        self._bos_id: int | None = backend.bos_token_id
        self._anchor = self._line_anchor()
        end_of_turn = self._end_of_turn()
        self.end_id: int | None = backend.eos_token_id if end_of_turn is None else end_of_turn
        known = {*eos_ids, backend.eos_token_id, end_of_turn}
        self.eos_ids = tuple(sorted(i for i in known if i is not None))
        self.name = name

    @property
    def has_template(self) -> bool:
        """Whether conversations are rendered by a chat template (a base model has none)."""
        return bool(self._backend.chat_template)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included (the model's own matrix may be padded to more)."""
        return len(self._backend)

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of every token, by how the tokenizer spells it."""
        return dict(self._backend.get_vocab())

    @property
    def space_marks(self) -> tuple[str, ...]:
        """How tokens spell the space before a word: Ġ in byte-level vocabularies, ▁ in SentencePiece's.

        Asked of the tokenizer itself, as vLLM does (0.33 v1/spec_decode/vocab_mapping.py); both where it does not say.
        """
        ids = self._raw_ids(" a")
        token = self._backend.convert_ids_to_tokens(ids)[0] if ids else None
        if isinstance(token, str) and len(token) > 1 and token.endswith("a") and token[0] not in " \t":
            return (token[:-1],)
        return SPACE_MARKS

    @property
    def unknown_id(self) -> int | None:
        """What stands for text that no token covers: the unknown token, else the end token (vLLM 0.33's choice)."""
        unknown, end = self._backend.unk_token_id, self._backend.eos_token_id
        return end if unknown is None else unknown

    @property
    def record(self) -> TokenizerRecord:
        """What has to be the same for two results to be comparable."""
        template = json.dumps(self._backend.chat_template, sort_keys=True) if self.has_template else None
        return TokenizerRecord(
            name=self.name,
            vocab_size=self.vocab_size,
            chat_template=hashlib.sha256(template.encode()).hexdigest()[:16] if template else None,
            chat_template_kwargs=dict(self._kwargs),
            eos_ids=self.eos_ids,
            adds_bos=self._bos_id is not None and self._raw_ids("a")[:1] == [self._bos_id],
            uses_date=template is not None and "strftime_now" in template,
        )

    def encode_prompt(self, prompt: Prompt) -> TokenIds:
        """The ids [P] that the target is given; raises UnrenderableError where the template refuses the prompt."""
        if prompt.token_ids is not None:
            return token_ids(prompt.token_ids)
        if prompt.messages and self.has_template:
            return token_ids(self._ids(self._render(prompt, prompt.messages, add_generation_prompt=True)))
        return token_ids(self._raw_ids(_plain_text(prompt)))

    def encode_all(self, prompts: Sequence[Prompt]) -> list[TokenIds | UnrenderableError]:
        """`encode_prompt` of each; in place of the ids of one that the template refuses, why."""

        def encode(prompt: Prompt) -> TokenIds | UnrenderableError:
            try:
                return self.encode_prompt(prompt)
            except UnrenderableError as error:
                return error

        return [encode(prompt) for prompt in prompts]

    def encode_continuation(self, text: str) -> TokenIds | None:
        """The ids of text that follows a prompt; None where they do not give that text back."""
        ids = self._continuation_ids(text)
        return token_ids(ids) if self.decode(ids) == text else None

    def encode_answer(self, prompt: Prompt) -> tuple[TokenIds, bool]:
        """The ids [N] that the target would have written for the logged answer, and whether they are exact.

        They are what the template adds to the rendered prompt for that turn: reasoning, tool calls and the
        end-of-turn token included, what follows it not. Not exact: the template drops or changes part of the
        answer, or adds what the model may not have written (an empty block of thinking).
        """
        if prompt.answer_token_ids is not None:
            return token_ids(prompt.answer_token_ids), True
        if prompt.answer is None:
            return token_ids(), True
        if prompt.messages and self.has_template:
            turn, exact = self._answer_turn(prompt, prompt.answer)
            return token_ids(self._up_to_end(self._continuation_ids(turn))), exact
        exact = not prompt.answer.reasoning and not prompt.answer.tool_calls
        return token_ids(self._continuation_ids(prompt.answer.content)), exact

    def has_special_text(self, prompt: Prompt) -> bool:
        """Whether a turn spells one of the tokenizer's special tokens, which engines read as control tokens."""
        pattern = self._special
        texts = [prompt.text or "", *(m.content for m in prompt.messages)]
        return pattern is not None and any(pattern.search(text) for text in texts)

    def decode(self, ids: Sequence[int] | TokenIds) -> str:
        """The text of some ids, special tokens spelled out."""
        decoded: str = self._backend.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return decoded

    def _answer_turn(self, prompt: Prompt, answer: Message) -> tuple[str, bool]:
        """The text of the answer's turn after the generation prompt, and whether it is exact."""
        start = self._render(prompt, prompt.messages, add_generation_prompt=True)
        try:
            whole = self._render(prompt, (*prompt.messages, answer), add_generation_prompt=False)
        except UnrenderableError:
            return self._raw_turn(answer), False
        if whole.startswith(start):
            turn = whole[len(start) :]
            return turn, _is_faithful(turn, answer)
        header = self._shared_header(prompt, start, whole)
        if header is None:
            return self._raw_turn(answer), False
        return whole[header:], False

    def _shared_header(self, prompt: Prompt, start: str, whole: str) -> int | None:
        """Where the answer begins in `whole`, if it departs from `start` only inside the generation prompt.

        The two may share a few letters by chance past the header ("<think>" and "<tool_call>"), so the place is
        taken back to the end of a line or of a special token.
        """
        before = self._render(prompt, prompt.messages, add_generation_prompt=False)
        shared = _common_start(start, whole)
        if not start.startswith(before) or len(shared) < len(before):
            return None
        ends = [shared.rfind("\n") + 1, *(m.end() for m in self._special.finditer(shared))] if self._special else [0]
        return max([len(before), *ends])

    def _raw_turn(self, answer: Message) -> str:
        """The answer's texts without template, ended as the model would end them."""
        calls = (json.dumps(call.get("function", call), default=dict) for call in answer.tool_calls)
        parts = [answer.reasoning or "", answer.content, *calls]
        return "\n".join(part for part in parts if part) + (self._backend.eos_token or "")

    def _up_to_end(self, ids: list[int]) -> list[int]:
        """`ids` without the blank text that a template writes after the end-of-turn token."""
        ends = [i for i, token in enumerate(ids) if token in self.eos_ids]
        if ends and not self.decode(ids[ends[-1] + 1 :]).strip():
            return ids[: ends[-1] + 1]
        return ids

    def _render(self, prompt: Prompt, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The template's text; tool arguments are given as mappings, and where it fails so, as text."""
        failure: Exception | None = None
        for as_mapping in (True, False) if any(m.tool_calls for m in messages) else (True,):
            try:
                rendered: str = self._backend.apply_chat_template(
                    [_to_dict(m, arguments_as_mapping=as_mapping) for m in messages],
                    tools=[_thaw(tool) for tool in prompt.tools] or None,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    **self._kwargs,
                )
                return rendered
            except self._failures as error:
                failure = failure or error
        raise UnrenderableError(str(failure)) from failure

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._backend(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _raw_ids(self, text: str) -> list[int]:
        """Ids of text without template: with the tokens that the tokenizer itself adds, the first not doubled."""
        ids: list[int] = self._backend(text, add_special_tokens=True, verbose=False)["input_ids"]
        return ids[1:] if self._bos_id is not None and ids[:2] == [self._bos_id, self._bos_id] else ids

    def _continuation_ids(self, text: str) -> list[int]:
        """Ids of text that follows other text, tokenised by itself."""
        if not self._anchor:
            return self._ids(text)
        return self._ids("\n" + text)[len(self._anchor) :]

    def _line_anchor(self) -> list[int]:
        """Ids of a line feed, for tokenizers that put a space before any text: it takes the space upon itself."""
        marker = self._backend.convert_ids_to_tokens(self._ids("a")[:1])
        return self._ids("\n") if marker and marker[0].startswith("▁") else []

    def _end_of_turn(self) -> int | None:
        """The special token that the template writes right after an answer."""
        if not self.has_template or self._special is None:
            return None
        probe = "specprobe-answer"
        messages = (Message("user", "a"), Message("assistant", probe))
        try:
            rendered = self._render(Prompt("", "", 0, "", messages=messages), messages, add_generation_prompt=False)
        except UnrenderableError:
            return None
        match = self._special.match(rendered[rendered.rfind(probe) + len(probe) :].lstrip())
        found: int | None = self._backend.convert_tokens_to_ids(match.group()) if match else None
        return found


def load_tokenizer(
    name: str | None = None,
    *,
    template_kwargs: Mapping[str, Any] | None = None,
    eos_ids: Iterable[int] = (),
    trust_remote_code: bool = False,
) -> Tokenizer:
    """The tokenizer of a model id or folder, or of the embedded target; `eos_ids` adds to those it finds."""
    folder = embedded_folder() if is_embedded(name) else None
    location = str(folder) if folder else HUB_NAME if is_embedded(name) else str(name)
    with quick_imports():
        try:
            backend, ends = _embedded_backend(folder) if folder else _backend(location, trust_remote_code)
        except OSError as error:
            raise missing_error() if is_embedded(name) else unreachable_error("tokenizer", location, error) from error
        except SpecprobeError:
            raise
        except Exception as error:  # a damaged folder makes transformers raise anything
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise SpecprobeError(f"tokenizer {location}: cannot be loaded ({reason}); name another") from error
    return Tokenizer(
        backend, name=EMBEDDED_NAME if folder else location, template_kwargs=template_kwargs, eos_ids={*eos_ids, *ends}
    )


def unreachable_error(kind: str, name: str, error: Exception) -> UnreachableError:
    """One line for a model that transformers found neither as a folder nor on the Hub."""
    text = str(error)
    if "gated repo" in text:
        remedy = "accept its licence on huggingface.co and log in with `hf auth login`"
    elif _exists(name):
        return UnreachableError(f"{kind} {name}: {first_line(error)}; give the folder of a Hugging Face checkpoint")
    else:
        remedy = "give a folder or a Hub id (OWNER/NAME), and check the network"
    return UnreachableError(f"{kind} {name}: neither a folder here nor a model the Hub gave; {remedy}")


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:
        return False


def first_line(error: Exception) -> str:
    """The first line of a library's message, without a final full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".:") if lines else type(error).__name__


def _backend(location: str, trust_remote_code: bool) -> tuple[Any, list[int]]:
    """transformers' tokenizer, and the ids that the model's generation config stops at, where there is one."""
    from transformers import AutoTokenizer
    from transformers.utils.hub import cached_file

    with quiet_transformers():
        check_config("tokenizer", location)
        backend = AutoTokenizer.from_pretrained(location, trust_remote_code=trust_remote_code)
        path = cached_file(
            location, "generation_config.json",
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )  # fmt: skip
    return backend, _generation_eos(Path(path)) if path else []


def _embedded_backend(folder: Path) -> tuple[Any, list[int]]:
    """The same, in a fraction of the time."""
    from specprobe.light_tokenizer import LightTokenizer

    return LightTokenizer(folder), _generation_eos(folder / "generation_config.json")


def _generation_eos(path: Path) -> list[int]:
    return as_ids(json.loads(path.read_text(encoding="utf-8")).get("eos_token_id"))


def as_ids(value: int | Sequence[int] | None) -> list[int]:
    """A config's token id, list of ids or nothing, as a list."""
    ids = [] if value is None else [value] if isinstance(value, int) else list(value)
    if not all(isinstance(i, int) for i in ids):
        raise ValueError("a token id that is no whole number")
    return ids


def _common_start(a: str, b: str) -> str:
    differing = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return a[: next(differing, min(len(a), len(b)))]


def _checked_kwargs(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    if taken := sorted(_RESERVED_KWARGS & kwargs.keys()):
        raise SpecprobeError(f"--chat-template-kwargs: {taken[0]!r} is set by specprobe; leave it out")
    return kwargs


def _plain_text(prompt: Prompt) -> str:
    """A raw completion prompt, or turns for a base model: their texts with a blank line between them."""
    if prompt.text is not None:
        return prompt.text
    return _BETWEEN_TURNS.join(m.content for m in prompt.messages if m.content)


def _to_dict(message: Message, *, arguments_as_mapping: bool) -> dict[str, Any]:
    """The message as templates read it; reasoning under each of the names that they use."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        fields |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), message.reasoning)
    if message.tool_calls:
        fields["tool_calls"] = [_call(_thaw(call), as_mapping=arguments_as_mapping) for call in message.tool_calls]
    optional = {"tool_call_id": message.tool_call_id, "name": message.name}
    return fields | {key: value for key, value in optional.items() if value is not None}


def _call(call: dict[str, Any], *, as_mapping: bool) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or "arguments" not in function:
        return call
    arguments = function["arguments"]
    if as_mapping and isinstance(arguments, str):
        arguments = _parsed(arguments)
    elif not as_mapping and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _thaw(value: Any) -> Any:
    """Plain dicts and lists, which templates' `tojson` needs, out of read-only ones."""
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_thaw(item) for item in value]
    return value


def _is_faithful(turn: str, answer: Message) -> bool:
    """Whether the rendered turn holds the whole answer and no thinking that the answer did not have."""
    texts = [answer.content, answer.reasoning or ""]
    if not all(text in turn for text in texts):
        return False
    if not answer.reasoning and _EMPTY_BLOCK.search(turn.partition(answer.content)[0] if answer.content else turn):
        return False
    return all(_spelled(value, turn) for call in answer.tool_calls for value in _leaves(_call_content(call)))


def _call_content(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function", call)
    arguments = function.get("arguments", {})
    return [function.get("name", ""), _parsed(arguments) if isinstance(arguments, str) else arguments]


def _leaves(value: Any) -> Iterable[str]:
    """Every text inside a JSON value, keys included; numbers and truth values are spelled in too many ways."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (str(key), *_leaves(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)


def _spelled(text: str, turn: str) -> bool:
    """Whether `text` stands in the turn as it is or as a JSON string."""
    return any(form in turn for form in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]))
