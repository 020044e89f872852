"""Answers of an engine with counters in them, request by request: one function for each kind of answer.

vLLM 0.30 to 0.32 (`--per-request-spec-decode-metrics summary|detailed`; v1/metrics/stats.py, RequestSpecDecodeMetrics):
`metrics.speculative_decoding`, rounds without a draft left out, the last round counted before the text is cut.
SGLang 0.5.23: `meta_info` of `/generate`, and `sglext.spec_tokens_details` of the OpenAI API. `spec_accept_length` is
completion_tokens / spec_verify_ct there, with the prefill's token in it, and is not taken; the counts are.
llama.cpp 2026-10 (tools/server/server-common.cpp): `timings.draft_n`, `draft_n_accepted`; rounds are not in it.
AIPerf 0.13 and later: `spec_decode_acceptance` of each row of profile_export.jsonl, vLLM's definitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from specprobe.engine_numbers.figures import Figures, at_least
from specprobe.engine_numbers.numbers import EngineCounts, EngineNumbers, RequestCounts, checked, summed
from specprobe.errors import SpecprobeError
from specprobe.json_rows import Located
from specprobe.notices import Notice, inert
from specprobe.units import format_plural

LONGEST_ID = 400
# vLLM's ids of answers: a prefix and what the request's X-Request-Id header said.
ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "resp_")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer's counters; `depth` where it says."""

    engine: str
    counts: EngineCounts
    depth: int | None


def _vllm(row: Figures) -> Answer | None:
    metrics = row.inside("metrics") or row
    found = metrics.inside("speculative_decoding") or row.inside("spec_decode_metrics")
    return _record(found, row, "vllm") if found else None


def _aiperf(row: Figures) -> Answer | None:
    found = row.inside("spec_decode_acceptance")
    if found is None:
        return None
    engine = found.values.get("engine")
    answer = _record(found, row, inert(engine) if isinstance(engine, str) else "unknown")
    metrics = row.inside("metrics") or row
    lengths: dict[str, Any] = {
        key: value
        for key, names in (
            ("prompt_tokens", ("usage_prompt_tokens", "input_sequence_length")),
            ("output_tokens", ("usage_completion_tokens", "output_sequence_length")),
        )
        if (value := next((m.count("value") for name in names if (m := metrics.inside(name))), None)) is not None
    }
    return replace(answer, counts=replace(answer.counts, **lengths))


def _record(found: Figures, row: Figures, engine: str) -> Answer:
    """vLLM's fields, which AIPerf's record has, too."""
    depth = found.count("num_spec_tokens")
    histogram = found.counts("acceptance_histogram")
    accepted, drafted = found.counts("per_step_accepted"), found.counts("per_step_drafted")
    rounds, tokens = found.needed("num_spec_steps"), found.needed("num_draft_tokens")
    accepted_tokens = found.needed("num_accepted_draft_tokens")
    at = at_least(histogram) if histogram is not None else None
    if histogram is not None and sum(histogram) != rounds:
        raise SpecprobeError(f"{row.where}: acceptance_histogram: holds {sum(histogram)} of {rounds} rounds")
    counts = EngineCounts(rounds, tokens, accepted_tokens, accepted_at=at, **_lengths(row))
    if accepted is not None and drafted is not None:
        counts = _by_step(counts, drafted, accepted, depth or max(drafted, default=0), row.where)
    return Answer(engine, checked(counts, row.where, depth), depth)


def _by_step(
    counts: EngineCounts, drafted: tuple[int, ...], accepted: tuple[int, ...], depth: int, where: str
) -> EngineCounts:
    """Exact counters by position, from the engine's own record of each round with a draft."""
    if len(drafted) != len(accepted) or any(a > d for a, d in zip(accepted, drafted, strict=True)):
        raise SpecprobeError(f"{where}: per_step_accepted: does not fit per_step_drafted; keep both as they were")
    at = tuple(sum(a >= i for a in accepted) for i in range(1, depth + 1))
    totals = (len(drafted), sum(drafted), sum(accepted))
    if totals != (counts.drafted_rounds, counts.drafted_tokens, counts.accepted_tokens) or max(drafted, default=0) > (
        depth
    ):
        raise SpecprobeError(f"{where}: per_step_drafted: does not add up to the totals beside it")
    if counts.accepted_at is not None and counts.accepted_at != at:
        raise SpecprobeError(f"{where}: per_step_accepted: does not add up to acceptance_histogram")
    return replace(
        counts,
        accepted_at=at,
        drafted_at=tuple(sum(d >= i for d in drafted) for i in range(1, depth + 1)),
        at_risk_at=tuple(
            sum(d >= i and a >= i - 1 for d, a in zip(drafted, accepted, strict=True)) for i in range(1, depth + 1)
        ),
    )


def _sglang(row: Figures) -> Answer | None:
    outer = row.inside("sglext")
    found = row.inside("meta_info") or (outer.inside("spec_tokens_details") if outer else None)
    if found is None or found.count("spec_verify_ct") is None:
        return None
    rounds = found.needed("spec_verify_ct")
    accepted = found.needed("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
    drafted = found.needed("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
    histogram = found.counts("spec_correct_drafts_histogram") or found.counts("spec_accept_histogram")
    # Chains draft alike in every round; what is no whole number has drafts of several lengths.
    depth = drafted // rounds if rounds and drafted % rounds == 0 else None
    lengths = _lengths(row) | {
        name: value
        for name, key in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))
        if (value := found.count(key)) is not None
    }
    counts = EngineCounts(rounds, drafted, accepted, accepted_at=at_least(histogram) if histogram else None, **lengths)
    return Answer("sglang", checked(counts, row.where, depth), depth)


def _llama_cpp(row: Figures) -> Answer | None:
    found = row.inside("timings")
    if found is None or found.count("draft_n") is None:
        return None
    drafted, accepted = found.needed("draft_n"), found.needed("draft_n_accepted")
    # `prompt_n` leaves out what the cache held.
    prompt = found.needed("prompt_n") + (found.count("cache_n") or 0)
    lengths: dict[str, Any] = {"prompt_tokens": prompt, "output_tokens": found.needed("predicted_n"), "requests": 1}
    counts = EngineCounts(drafted_tokens=drafted, accepted_tokens=accepted, **(lengths | _lengths(row)))
    return Answer("llama.cpp", checked(counts, row.where), None)


ANSWERS: Mapping[str, Callable[[Figures], Answer | None]] = {
    "AIPerf records": _aiperf,
    "answers of vLLM": _vllm,
    "answers of SGLang": _sglang,
    "answers of llama.cpp": _llama_cpp,
}
"""What a file may hold -> its reader, which returns None for a row that is no such answer."""


def read_answer(body: Mapping[str, Any], where: str) -> tuple[str, Answer | None]:
    """The kind of one answer, and its counters; None where it has none.

    Raises SpecprobeError, naming `where`, for counters that contradict each other.
    """
    row = Figures(body, where)
    return next(((kind, found) for kind, read in ANSWERS.items() if (found := read(row)) is not None), ("", None))


def read_answers(rows: Iterable[Located]) -> EngineNumbers | None:
    """The counters of all answers; None where none has any.

    Raises SpecprobeError for counters that contradict each other, or of several engines or kinds together.
    """
    requests: list[RequestCounts] = []
    seen: set[tuple[str, str]] = set()
    samples: Counter[str] = Counter()
    answers: list[Answer] = []
    kinds: set[str] = set()
    without = again = 0
    for where, row in rows:
        body = _body(row)
        kind, answer = read_answer(body, where)
        if answer is None:
            without += 1
            continue
        kinds.add(kind)
        identity, own = _ids(row, body, len(answers))
        if (identity, own) in seen:
            again += 1
            continue
        seen.add((identity, own))
        answers.append(answer)
        requests.append(RequestCounts(identity, answer.counts, samples[identity]))
        samples[identity] += 1
    if not answers:
        return None
    engines = {answer.engine for answer in answers}
    if len(kinds) > 1 or len(engines) > 1:
        raise SpecprobeError(
            f"numbers of an engine: {', '.join(sorted(kinds | engines))} together; read each by itself"
        )
    return EngineNumbers(
        engine=engines.pop(),
        source=kinds.pop(),
        scope=f"{format_plural(len(requests), 'request')}",
        counts=summed([request.counts for request in requests]),
        depth=_depth(answers),
        requests=tuple(requests),
        notices=_notices(without, again, len(requests)),
    )


def _depth(answers: Iterable[Answer]) -> int | None:
    """What all agree on; where some do not say, that of the others."""
    depths = {answer.depth for answer in answers if answer.depth is not None}
    if len(depths) > 1:
        raise SpecprobeError(
            f"numbers of an engine: answers with {', '.join(map(str, sorted(depths)))} draft tokens a "
            "round; read each by itself"
        )
    return depths.pop() if depths else None


def _notices(without: int, again: int, kept: int) -> tuple[Notice, ...]:
    notices = []
    if without:
        said = f"{format_plural(without, 'row')} beside {kept} with counters have none (n above 1, an error, a stream's"
        notices.append(Notice("rows_without_counters", f"{said} earlier chunks) and are left out"))
    if again:
        notices.append(Notice("rows_twice", f"{format_plural(again, 'row')} came twice and count once"))
    return tuple(notices)


def _body(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer itself, wherever a log or a batch file keeps it."""
    for key in ("response", "body", "output"):
        inner = row.get(key)
        if isinstance(inner, dict):
            return _body(inner)
    return row


def _ids(row: Mapping[str, Any], body: Mapping[str, Any], number: int) -> tuple[str, str]:
    """The prompt's id, as the user's log has it where it does, and the answer's own."""
    meta, about = _object(body, "meta_info"), _object(row, "metadata")
    own = next((str(one) for one in (body.get("id"), meta.get("id")) if isinstance(one, str | int)), f"#{number}")
    outer = (row.get("custom_id"), row.get("request_id"), row.get("id"), about.get("conversation_id"))
    named = next((str(one) for one in (*outer, about.get("x_request_id")) if isinstance(one, str | int)), own)
    for prefix in ANSWER_PREFIXES:
        named = named.removeprefix(prefix)
    return inert(named, LONGEST_ID), own if own != f"#{number}" else str(about.get("x_request_id") or own)


def _object(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def _lengths(row: Figures) -> dict[str, Any]:
    usage = row.inside("usage")
    found = {"requests": 1}
    if usage is not None:
        for name, key in (("prompt_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
            if (value := usage.count(key)) is not None:
                found[name] = value
    return found
