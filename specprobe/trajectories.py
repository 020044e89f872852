"""Prompts to trajectories: responses that the target writes now, or those that the log holds."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import TYPE_CHECKING

from specprobe.asked import Asked
from specprobe.defaults import BATCH_SIZE, MAX_NEW_TOKENS
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice
from specprobe.processors import DEFAULT_RULE, ProcessingRule
from specprobe.prompt import Prompt
from specprobe.spool import Spool, beside
from specprobe.tokens import Tokenizer, UnrenderableError
from specprobe.trajectory import TokenIds, Trajectory, token_ids
from specprobe.writing import Generated, Progress, Request, Sampling, Writer, output_limit

if TYPE_CHECKING:
    from specprobe.store import Damage, TrajectoryStore

_NOTHING = token_ids()
ENCODED_TOGETHER = 256
# Why a server's response was left out, after the number of them.
LOST = {
    "not_round_trip": "whose text the tokenizer does not cut into the tokens that the server counted; a server that "
    "gives token ids (vLLM, SGLang, llama.cpp) has none of these",
    "prompt_tokens_differ": "whose prompt has other tokens for the server than for --tokenizer: tokenizer, template or "
    "--chat-template-kwargs are not the served model's",
    "reasoning_apart": "whose reasoning or tool calls the server keeps apart from the text, so that their tokens are "
    "not known; turn its parser off, or use a server that gives token ids",
    "content_filter": "that the server's filter cut",
}


@dataclass(frozen=True, slots=True)
class TrajectorySet:
    """Trajectories in the order of the prompts, and what became of the prompts that gave none.

    `skipped` counts by reason: too_long, template_error, empty_prompt, no_answer, empty_answer, and what of a server's
    responses cannot be told in tokens (`LOST`). `inexact`:
    trajectories whose template dropped or changed part of the answer. `special_token_prompts`: prompts whose text
    spells a special token. `structured_prompts`: prompts that asked for structured output. `reused`: responses that
    were on the disk already. The last three kinds, and more, are worded in `notices`. `damage`: of stored responses
    that had to be made again; it says nothing about the result, which is as if there had been none. `trajectories` of a
    large log wait on the disk: see `specprobe.spool`.
    """

    trajectories: Sequence[Trajectory]
    skipped: Mapping[str, int]
    inexact: int = 0
    special_token_prompts: int = 0
    structured_prompts: int = 0
    reused: int = 0
    notices: tuple[Notice, ...] = ()
    damage: tuple[Damage, ...] = ()


def generated_trajectories(
    prompts: Sequence[Prompt],
    writer: Writer,
    *,
    temperature: float,
    asked: Sequence[Asked] | None = None,
    samples: int = 1,
    rule: ProcessingRule = DEFAULT_RULE,
    seed: int = 0,
    max_new_tokens: int = MAX_NEW_TOKENS,
    max_model_len: int | None = None,
    batch_size: int = BATCH_SIZE,
    store: TrajectoryStore | None = None,
    on_prompt: Callable[[], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> TrajectorySet:
    """What `writer` answers to the prompts; each finished response is kept in `store` at once.

    Above temperature 0 each prompt gives `samples` responses, first one to each, then another one to each. A prompt
    that occurs several times gives one response at temperature 0, and above others for each time. `asked`: what each
    prompt asks for besides the temperature; `rule`: how the engine applies it. `on_prompt` is called as each prompt is
    cut into tokens.
    """
    sampling = Sampling(temperature, seed, max_new_tokens, max_model_len, batch_size)
    sieve = _Sieve(writer.tokenizer)
    wanted = _wanted(prompts, writer, sampling, sieve, asked, samples, rule, on_prompt)
    generated = writer.write(wanted.distinct, sampling, store=store, on_progress=on_progress)
    trajectories: Spool[Trajectory] = Spool()
    for sample, (prompt, ids, ask), place in wanted.each():
        response = generated.responses[place]
        if response.obstacle:
            sieve.skip(response.obstacle)
            continue
        trajectories.append(
            Trajectory(
                id=prompt.id,
                prompt_ids=ids,
                output_ids=response.output_ids,
                source="generated",
                temperature=temperature,
                tail_ids=_NOTHING,
                log_probs=response.log_probs,
                # A request that ends at its own limit ends as it would be served.
                finish_reason=None if response.output_ids.size == ask.max_new_tokens else response.finish_reason,
                processors=ask.processors,
                entropy=response.entropy,
                sample=sample,
                group=prompt.group,
                conversation=prompt.conversation,
            )
        )
    return sieve.into_set(trajectories, generated, writer.notices)


def wanted_requests(
    prompts: Sequence[Prompt],
    writer: Writer,
    sampling: Sampling,
    *,
    asked: Sequence[Asked] | None = None,
    samples: int = 1,
    rule: ProcessingRule = DEFAULT_RULE,
) -> list[Request]:
    """The distinct requests that `generated_trajectories` would answer."""
    return list(_wanted(prompts, writer, sampling, _Sieve(writer.tokenizer), asked, samples, rule).distinct)


_Used = tuple[Prompt, TokenIds, Asked]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The prompts that fit, and the different requests for them: equal ones share one.

    `places`: which of the requests is that of each prompt, for its first sample, then for its second...
    """

    used: Sequence[_Used]
    distinct: Sequence[Request]
    places: Sequence[int]

    def each(self) -> Iterator[tuple[int, _Used, int]]:
        """The number of a sample, a prompt, and the place of its request."""
        places = iter(self.places)
        for sample in range(len(self.places) // max(len(self.used), 1)):
            yield from ((sample, prompt, place) for prompt, place in zip(self.used, places, strict=False))


def _wanted(
    prompts: Sequence[Prompt],
    writer: Writer,
    sampling: Sampling,
    sieve: _Sieve,
    asked: Sequence[Asked] | None,
    samples: int,
    rule: ProcessingRule,
    on_prompt: Callable[[], None] | None = None,
) -> _Wanted:
    """A request for each prompt that fits; above temperature 0 equal ones are samples 0, 1, 2... of one."""
    used, distinct, places = beside(prompts), beside(prompts), array("q")
    for prompt, ids, ask in sieve.encoded(prompts, asked, writer.encode_all, on_prompt):
        too_long = output_limit(writer.max_positions, len(ids), sampling) < 1
        if sieve.admits(prompt, "too_long" if too_long else None):
            used.append((prompt, ids, ask))
    is_warm = sampling.temperature > 0
    seen: Counter[str] = Counter()
    known: dict[str, int] = {}
    for prompt, ids, ask in chain.from_iterable(repeat(used, samples if is_warm else 1)):
        request = Request(ids, 0, ask.processors, ask.max_new_tokens, rule, prompt)
        if is_warm:
            content = request.key
            request = replace(request, sample=seen[content])
            seen[content] += 1
        place = known.setdefault(request.key, len(distinct))
        if place == len(distinct):
            distinct.append(request)
        places.append(place)
    return _Wanted(used, distinct, places)


def logged_trajectories(
    prompts: Sequence[Prompt],
    tokenizer: Tokenizer | None,
    *,
    temperature: float,
    asked: Sequence[Asked] | None = None,
    max_model_len: int | None = None,
    on_prompt: Callable[[], None] | None = None,
) -> TrajectorySet:
    """The logged answers, sampled at `temperature` and as `asked`; rows of token ids need no tokenizer.

    `on_prompt` is called as each prompt is cut into tokens.
    """
    sieve = _Sieve(tokenizer)
    trajectories: Spool[Trajectory] = Spool()
    for prompt, ids, ask in sieve.encoded(prompts, asked, lambda given: _encode_all(given, tokenizer), on_prompt):
        output_ids, exact = _answer_ids(prompt, tokenizer)
        length = len(ids) + len(output_ids)
        if sieve.admits(prompt, _obstacle(prompt, len(output_ids), length, max_model_len), exact=exact):
            trajectories.append(
                Trajectory(
                    id=prompt.id,
                    prompt_ids=ids,
                    output_ids=output_ids,
                    source="logged",
                    temperature=temperature,
                    tail_ids=_ids(prompt.tail_token_ids, prompt) if prompt.tail_token_ids else _NOTHING,
                    finish_reason="stop" if tokenizer and output_ids[-1] in tokenizer.eos_ids else None,
                    exact=exact,
                    processors=ask.processors,
                    group=prompt.group,
                    conversation=prompt.conversation,
                )
            )
    return sieve.into_set(trajectories)


class _Sieve:
    """Which prompts are used, why the others are not, and what is odd about those that are."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._skipped: Counter[str] = Counter()
        self._special = self._structured = self._inexact = 0

    def encoded(
        self,
        prompts: Sequence[Prompt],
        asked: Sequence[Asked] | None,
        encode_all: Callable[[Sequence[Prompt]], Iterable[TokenIds | UnrenderableError]],
        on_prompt: Callable[[], None] | None = None,
    ) -> Iterator[tuple[Prompt, TokenIds, Asked]]:
        """The prompts that can be rendered and are not empty, with their tokens and what they ask for."""
        plain = repeat(Asked(), len(prompts))
        for (prompt, ids), ask in zip(_encoded(prompts, encode_all, on_prompt), asked or plain, strict=True):
            if isinstance(ids, UnrenderableError):
                self._skipped["template_error"] += 1
            elif len(ids):
                yield prompt, ids, ask
            else:
                self._skipped["empty_prompt"] += 1

    def skip(self, reason: str) -> None:
        """Count a response that was given, but cannot be replayed."""
        self._skipped[reason] += 1

    def admits(self, prompt: Prompt, obstacle: str | None, *, exact: bool = True) -> bool:
        """Count the prompt as used, or as skipped for the reason given; `exact`: see `Trajectory`."""
        if obstacle:
            self._skipped[obstacle] += 1
            return False
        self._inexact += not exact
        self._structured += prompt.structured_output
        if self._tokenizer is not None and prompt.token_ids is None:
            self._special += self._tokenizer.has_special_text(prompt)
        return True

    def into_set(
        self,
        trajectories: Sequence[Trajectory],
        generated: Generated | None = None,
        told: Sequence[Notice] = (),
    ) -> TrajectorySet:
        """The result, with a notice for each thing that makes it less sure."""
        changed = generated.changed if generated else 0
        notices = (
            *_notices(len(trajectories), self._inexact, self._special, self._structured, changed),
            *self._tokenizer_notices(),
            *told,
        )
        return TrajectorySet(
            trajectories=trajectories,
            skipped=dict(self._skipped),
            inexact=self._inexact,
            special_token_prompts=self._special,
            structured_prompts=self._structured,
            reused=generated.reused if generated else 0,
            notices=notices,
            damage=generated.damage if generated else (),
        )

    def _tokenizer_notices(self) -> Iterator[Notice]:
        if failed := self._skipped["template_error"]:
            yield Notice(
                "template_error",
                f"{_count(failed)} left out, since the chat template refuses the conversation (a system turn, or turns "
                "that do not alternate); an engine would refuse it too",
            )
        for reason, words in LOST.items():
            if lost := self._skipped[reason]:
                yield Notice(reason, f"{lost} responses left out, {words}")
        if self._tokenizer is None:
            return
        record = self._tokenizer.record
        if record.chat_template is None:
            yield Notice(
                "no_chat_template",
                f"{record.name} has no chat template (a base model): turns were joined by blank lines, "
                "which is not how a chat server would prompt it",
            )
        if record.uses_date:
            yield Notice(
                "template_uses_date",
                "the chat template writes today's date, so tokens differ from day to day; "
                'fix it with --chat-template-kwargs (often {"date_string": "..."})',
            )


def _notices(used: int, inexact: int, special: int, structured: int, changed: int) -> Iterator[Notice]:
    if inexact:
        yield Notice(
            "inexact_answers",
            f"{inexact} of {used} logged answers are near to what was served, not equal: the chat template drops or "
            "changes part of them (reasoning, tool calls, blanks); generate responses to be sure",
        )
    if special:
        yield Notice(
            "special_tokens_in_text",
            f"{_count(special)} of {used} spell special tokens of the tokenizer in their text; engines read them as "
            "control tokens, and so does this result",
        )
    if structured:
        yield Notice(
            "structured_output",
            f"{_count(structured)} of {used} ask for structured output; an engine constrains the text to a grammar, "
            "which is not done here, so their acceptance may differ",
        )
    if changed:
        yield Notice(
            "not_reproducible",
            f"{changed} responses of an interrupted batch came out differently when it ran again (the stored ones "
            "count); this device does not compute the same twice",
        )


def _count(prompts: int) -> str:
    return "1 prompt" if prompts == 1 else f"{prompts} prompts"


def _obstacle(prompt: Prompt, output_tokens: int, tokens: int, max_model_len: int | None) -> str | None:
    if not prompt.has_answer:
        return "no_answer"
    if output_tokens == 0:
        return "empty_answer"
    return "too_long" if max_model_len is not None and tokens > max_model_len else None


def _encoded(
    prompts: Sequence[Prompt],
    encode_all: Callable[[Sequence[Prompt]], Iterable[TokenIds | UnrenderableError]],
    on_prompt: Callable[[], None] | None,
) -> Iterator[tuple[Prompt, TokenIds | UnrenderableError]]:
    """In parts, so that progress is seen and a server still has many prompts at once."""
    for start in range(0, len(prompts), ENCODED_TOGETHER):
        some = list(prompts[start : start + ENCODED_TOGETHER])
        for prompt, ids in zip(some, encode_all(some), strict=True):
            if on_prompt:
                on_prompt()
            yield prompt, ids


def _encode_all(prompts: Sequence[Prompt], tokenizer: Tokenizer | None) -> Iterator[TokenIds | UnrenderableError]:
    for prompt in prompts:
        try:
            yield _prompt_ids(prompt, tokenizer)
        except UnrenderableError as error:
            yield error


def _prompt_ids(prompt: Prompt, tokenizer: Tokenizer | None) -> TokenIds:
    if prompt.token_ids is not None:
        return _ids(prompt.token_ids, prompt)
    return _needed(tokenizer, prompt).encode_prompt(prompt)


def _answer_ids(prompt: Prompt, tokenizer: Tokenizer | None) -> tuple[TokenIds, bool]:
    if prompt.answer_token_ids is not None:
        return _ids(prompt.answer_token_ids, prompt), True
    if prompt.answer is None:
        return _NOTHING, True
    return _needed(tokenizer, prompt).encode_answer(prompt)


def _needed(tokenizer: Tokenizer | None, prompt: Prompt) -> Tokenizer:
    if tokenizer is None:
        raise SpecprobeError(
            f"{prompt.source}:{prompt.line}: the row holds text, not token ids; "
            "name the model that wrote it with --target or --tokenizer"
        )
    return tokenizer


def _ids(ids: Sequence[int], prompt: Prompt) -> TokenIds:
    """A read-only vector; what a reader has packed is not copied."""
    try:
        return token_ids(ids if isinstance(ids, array) else array("i", ids))
    except (OverflowError, TypeError) as error:
        raise SpecprobeError(f"{prompt.source}:{prompt.line}: not token ids ({error}); fix the row") from error
