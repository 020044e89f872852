"""Counters in Prometheus text: what an engine's /metrics said, once or before and after.

vLLM 0.11 to 0.33 (v1/spec_decode/metrics.py): `vllm:spec_decode_num_drafts` (rounds with a draft), `_num_draft_tokens`,
`_num_accepted_tokens` (without the target's own token), `_num_accepted_tokens_per_pos{position="0"}`.
llama.cpp 2026-10 (tools/server/server-task.cpp): the same under `llamacpp:`, verification steps as `num_drafts`.
SGLang 0.5.23: counters `spec_verify_calls_total`, `generation_tokens_total` and `num_requests_total` only; what was
accepted follows from them, since each request has its first token from the prefill and one more from every round. The
gauges `spec_accept_length` (accepted + 1 by round) and `spec_accept_rate` are of the last logging interval; without
counters they are all there is.
TensorRT-LLM 1.2: `trtllm_spec_decode_num_draft_tokens_total` and `_num_accepted_tokens_total`; rounds are not counted,
and the gauge `trtllm_spec_decode_acceptance_length` is of the last step, so it is not taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specprobe.engine_numbers.figures import LARGEST_COUNT
from specprobe.engine_numbers.numbers import DEEPEST, EngineCounts, EngineNumbers, checked
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice, inert

# What follows the value, a time or an exemplar with labels of its own, is left alone.
_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\})?[ \t]+(\S+)')
# Python's float takes more: 1_000, and the digits of every script.
_NUMBER = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity)|nan", re.IGNORECASE | re.ASCII)
# From the beginning of a word only: a long one would else be tried from each of its letters.
_LABEL = re.compile(r'\b([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
# How the names of counters end that are read beside those of speculation.
COUNTERS = (
    *("_tokens", "tokens_predicted", "prompt_tokens_cached", "num_requests", "request_success"),
    *("prefix_cache_queries", "prefix_cache_hits"),
)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer of /metrics: the value of each name and label set; counters without their `_total`."""

    where: str
    values: Mapping[str, Mapping[Labels, float]]

    def total(self, name: str) -> int | None:
        """A counter, all label sets together; None where there is none."""
        found = self.values.get(name)
        return None if found is None else round(sum(found.values()))

    def by_position(self, name: str) -> tuple[int, ...] | None:
        """A counter with a label `position` from 0."""
        sums: dict[int, float] = {}
        for labels, value in self.values.get(name, {}).items():
            position = dict(labels).get("position", "")
            if not re.fullmatch(r"[0-9]{1,4}", position) or int(position) >= DEEPEST:
                raise SpecprobeError(f"{self.where}: {name}: {inert(position)!r} is no position; take the scrape again")
            sums[int(position)] = sums.get(int(position), 0.0) + value
        if not sums:
            return None
        return tuple(round(sums.get(position, 0.0)) for position in range(max(sums) + 1))

    def gauge(self, name: str) -> float | None:
        """A gauge above 0 that all label sets agree on; None where there is none."""
        values = {value for value in self.values.get(name, {}).values() if value > 0}
        if len(values) > 1:
            raise SpecprobeError(
                f"{self.where}: {name}: {len(values)} ranks say different things, and their weights are not known; "
                "scrape one rank, or give answers with meta_info"
            )
        return values.pop() if values else None


def is_prometheus(text: str) -> bool:
    """Whether the first lines are of the exposition format."""
    for line in text.split("\n", 50)[:50]:
        if line.startswith(("# HELP ", "# TYPE ")):
            return True
        if line.strip() and not line.startswith("#"):
            found = _SAMPLE.match(line)
            return found is not None and _is_number(found[3])
    return False


def read_scrapes(texts: Sequence[tuple[Path, str]]) -> EngineNumbers:
    """What was counted between two scrapes, in this order, or since the server started.

    Raises SpecprobeError for more than two, for counters that fell in between, and where no engine's are there.
    """
    if len(texts) > 2:
        raise SpecprobeError("numbers of an engine: give one scrape of /metrics, or two: before, and after")
    scrapes = [parse_scrape(str(path), text) for path, text in texts]
    engines = [_engine(scrape) for scrape in scrapes]
    if engines[0] != engines[-1]:
        raise SpecprobeError(
            f"numbers of an engine: {engines[0]} before, {engines[-1]} after; give two scrapes of one server"
        )
    scrape, scope = scrapes[-1], "since the server started"
    if len(scrapes) == 2:
        scrape, scope = _difference(*scrapes), "between two scrapes"
    numbers = ENGINES[engines[0]](scrape, scope)
    return numbers if len(scrapes) == 2 else _with_notice(numbers)


def _with_notice(numbers: EngineNumbers) -> EngineNumbers:
    notice = Notice(
        "since_start",
        "one scrape counts everything since the server started, warm-up and other users included; give one from before "
        "the requests that are meant, and one from after",
    )
    return replace(numbers, notices=(*numbers.notices, notice))


def parse_scrape(where: str, text: str) -> Scrape:
    """The samples of one answer. Raises SpecprobeError for counters that are none, or that stand there twice."""
    values: dict[str, dict[Labels, float]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _SAMPLE.match(line)
        if found is None or not _is_number(found[3]):
            if "spec_" not in line:
                continue
            raise SpecprobeError(f"{where}:{number}: {inert(line, 60)!r} is no sample; is the file cut? scrape again")
        name, value = found[1].removesuffix("_total"), float(found[3])
        is_ours = "spec_" in name or name.endswith(COUNTERS)
        if is_ours and not name.endswith("_created") and not 0 <= value <= LARGEST_COUNT:
            raise SpecprobeError(f"{where}:{number}: {inert(name, 80)}: {found[3]} is no count; take the scrape again")
        labels = tuple(sorted(_LABEL.findall(found[2] or "")))
        series = values.setdefault(name, {})
        if labels in series and is_ours:
            raise SpecprobeError(f"{where}:{number}: {inert(name, 80)}: given twice; are two scrapes in one file?")
        series[labels] = value
    return Scrape(where, values)


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _engine(scrape: Scrape) -> str:
    found = [engine for engine, marks in _MARKS.items() if any(mark in scrape.values for mark in marks)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SpecprobeError(f"{scrape.where}: counters of {' and '.join(found)}; give one engine's")
    raise SpecprobeError(
        f"{scrape.where}: no counters of speculative decoding; start the server with speculation (SGLang: "
        "--enable-metrics, llama.cpp: --metrics), or ask the engine itself, not a gateway"
    )


def _difference(before: Scrape, after: Scrape) -> Scrape:
    """Series by series; raises SpecprobeError where one fell or began anew: the server was restarted in between."""
    values: dict[str, dict[Labels, float]] = {}
    for name, series in after.values.items():
        earlier = before.values.get(name, {})
        if name in _GAUGES:
            values[name] = dict(series)
            continue
        values[name] = {labels: value - earlier.get(labels, 0.0) for labels, value in series.items()}
        if "spec_" not in name:
            continue
        began_anew = name.endswith("_created") and any(series[key] != earlier.get(key, series[key]) for key in series)
        fell = any(value < 0 for value in values[name].values()) or not set(earlier) <= set(series)
        if began_anew or (fell and not name.endswith("_created")):
            raise SpecprobeError(
                f"{after.where}: {name}: begins anew after {before.where}: the server was restarted in between, or the "
                "scrapes are in the wrong order"
            )
    return Scrape(after.where, values)


def _vllm_like(engine: str, prefix: str, written: str) -> Callable[[Scrape, str], EngineNumbers]:
    def read(scrape: Scrape, scope: str) -> EngineNumbers:
        at = scrape.by_position(f"{prefix}spec_decode_num_accepted_tokens_per_pos")
        counts = EngineCounts(
            drafted_rounds=scrape.total(f"{prefix}spec_decode_num_drafts"),
            drafted_tokens=scrape.total(f"{prefix}spec_decode_num_draft_tokens"),
            accepted_tokens=scrape.total(f"{prefix}spec_decode_num_accepted_tokens"),
            accepted_at=at,
            requests=scrape.total(f"{prefix}request_success"),
            prompt_tokens=scrape.total(f"{prefix}prompt_tokens"),
            output_tokens=scrape.total(prefix + written),
        )
        # vLLM has a counter for each position from the start, llama.cpp for those that were reached.
        depth = len(at) if at and engine == "vllm" else None
        return EngineNumbers(
            engine, "Prometheus counters", scope, checked(counts, scrape.where, depth), depth, notices=_models(scrape)
        )

    return read


def _sglang(scrape: Scrape, scope: str) -> EngineNumbers:
    steps, width = scrape.gauge("sglang:spec_num_steps"), scrape.gauge("sglang:spec_num_draft_tokens")
    # The verified width has the root in it; a wider one is a tree, in which drafted tokens are no positions.
    depth = round(steps) if steps and width == steps + 1 else None
    rounds = scrape.total("sglang:spec_verify_calls")
    requests, written = scrape.total("sglang:num_requests"), scrape.total("sglang:generation_tokens")
    accepted = None
    if rounds and requests is not None and written is not None:
        accepted = written - requests - rounds
        if accepted < 0:
            raise SpecprobeError(
                f"{scrape.where}: {written} tokens of {requests} requests in {rounds} rounds; requests were running at "
                "a scrape: take both while the server is idle"
            )
    counts = EngineCounts(
        drafted_rounds=rounds or None,
        drafted_tokens=rounds * depth if rounds and depth else None,
        accepted_tokens=accepted,
        requests=requests,
        prompt_tokens=scrape.total("sglang:prompt_tokens"),
        output_tokens=written,
    )
    if accepted is not None:
        return EngineNumbers("sglang", "Prometheus counters", scope, checked(counts, scrape.where, depth), depth)
    return EngineNumbers(
        "sglang",
        "Prometheus gauges",
        "the last logging interval",
        EngineCounts(),
        depth,
        stated_length=scrape.gauge("sglang:spec_accept_length"),
        stated_rate=scrape.gauge("sglang:spec_accept_rate") if depth else None,
    )


def _tensorrt_llm(scrape: Scrape, scope: str) -> EngineNumbers:
    def total(*names: str) -> int | None:
        return next(
            (value for name in names if (value := scrape.total(f"trtllm_spec_decode_{name}")) is not None), None
        )

    counts = EngineCounts(
        drafted_tokens=total("num_draft_tokens", "drafted_tokens"),
        accepted_tokens=total("num_accepted_tokens", "accepted_tokens"),
        requests=scrape.total("trtllm_request_success"),
    )
    return EngineNumbers("tensorrt-llm", "Prometheus counters", scope, checked(counts, scrape.where))


def _models(scrape: Scrape) -> tuple[Notice, ...]:
    names = {dict(labels).get("model_name") for labels in scrape.values.get("vllm:spec_decode_num_drafts", {})}
    if len(names) < 2:
        return ()
    return (Notice("several_models", f"counters of {len(names)} models are summed; scrape a server with one"),)


ENGINES: Mapping[str, Callable[[Scrape, str], EngineNumbers]] = {
    "vllm": _vllm_like("vllm", "vllm:", "generation_tokens"),
    "sglang": _sglang,
    "llama.cpp": _vllm_like("llama.cpp", "llamacpp:", "tokens_predicted"),
    "tensorrt-llm": _tensorrt_llm,
}
_MARKS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm:spec_decode_num_drafts",),
    "sglang": ("sglang:spec_accept_length", "sglang:spec_verify_calls"),
    "llama.cpp": ("llamacpp:spec_decode_num_draft_tokens",),
    "tensorrt-llm": ("trtllm_spec_decode_num_draft_tokens", "trtllm_spec_decode_drafted_tokens"),
}
_GAUGES = frozenset(
    f"sglang:spec_{name}" for name in ("accept_length", "accept_rate", "num_steps", "num_draft_tokens")
) | {"trtllm_spec_decode_acceptance_length", "trtllm_spec_decode_draft_overhead"}
