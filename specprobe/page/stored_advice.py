"""A recommendation as it was kept: what a page shows of a `specprobe.recommendation/1` document."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import drafter_label
from specprobe.arrivals import Arrivals
from specprobe.documents import read_own_document
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice
from specprobe.recommendation_document import SCHEMA
from specprobe.run import has_sums
from specprobe.run_files import kept_at
from specprobe.speedup_grid import SpeedupGrid
from specprobe.units import VERDICT_WORDS

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StoredServed:
    """What the simulated server did, in seconds and tokens; None where nothing of the kind was seen."""

    output_tokens_per_second: float
    request_latency_seconds: float | None
    ttft_p50_seconds: float | None
    itl_p50_seconds: float | None
    itl_p95_seconds: float | None
    tpot_seconds: float | None
    dollars_per_million_tokens: float | None


@dataclass(frozen=True, slots=True)
class StoredOption:
    """One drafter at one depth; `speedup` with its interval, None where there is none."""

    label: str
    config: Mapping[str, Any]
    depth: int
    adoption: int
    speedup: float
    low: float | None
    high: float | None
    tokens_per_round: float
    losing_share: float
    drafter_bytes: float | None
    served: StoredServed


@dataclass(frozen=True, slots=True, eq=False)
class Distributions:
    """Over requests (gaps: over chunks), in seconds at the quantiles `at` [Q]; `gap` None where no chunk had a next."""

    at: Floats
    latency: Floats
    ttft: Floats
    gap: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class StoredVerdict:
    """The answer for one traffic; `options` are the best first, then the fastest.

    `arrivals`: how requests come `by_clock`; None in documents of older versions, as are `without`, `with_it` and
    `request_speedup` [Q]. `sensitivity`: speed-up by
    (factor on prompts, factor on outputs).
    """

    concurrency: int
    by_clock: bool
    arrivals: Arrivals | None
    verdict: str
    enough_prompts: bool
    break_even_tokens_per_round: float
    baseline: StoredServed
    options: tuple[StoredOption, ...]
    export: Mapping[str, Mapping[str, Any]]
    sensitivity: Mapping[tuple[float, float], float]
    without: Distributions | None
    with_it: Distributions | None
    request_speedup: Floats | None

    @property
    def best(self) -> StoredOption:
        """What the verdict is about."""
        return self.options[0]

    @property
    def runner_up(self) -> StoredOption | None:
        """The best option of another drafter."""
        best = self.best
        others = (o for o in self.options if (o.label, o.config) != (best.label, best.config))
        return next(others, None)

    @property
    def traffic(self) -> str:
        """In words."""
        if not self.by_clock:
            return f"concurrency {self.concurrency}"
        arrivals = self.arrivals.in_words if self.arrivals else "these arrivals"
        return f"{arrivals} (some {self.concurrency} in flight)"


@dataclass(frozen=True, slots=True)
class AtTemperature:
    """The verdict at one temperature and concurrency, in short."""

    temperature: float
    concurrency: int
    verdict: str
    label: str
    depth: int
    speedup: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, eq=False)
class StoredAdvice:
    """A recommendation; `sha256` is of its file, `file` its name, `kept_at` when it was kept, where that says so.

    `break_even`: (concurrency, temperatures where the best crosses 1).
    """

    sha256: str
    file: str
    kept_at: str | None
    cost_source: str
    conditions: Mapping[str, Any]
    log_deviation: float
    batches: tuple[int, ...]
    run_digest: str
    engine_profile: str
    temperature: float
    verdicts: tuple[StoredVerdict, ...]
    crossover_concurrency: int | None
    grids: tuple[SpeedupGrid, ...]
    by_temperature: tuple[AtTemperature, ...]
    break_even: tuple[tuple[int, tuple[float, ...]], ...]
    notices: tuple[Notice, ...]
    undecided: str | None

    @property
    def is_of_sums(self) -> bool:
        """Whether its run was made of an engine's sums, which do not tell requests apart."""
        return has_sums(self.notices)


def load_advice(path: Path) -> StoredAdvice:
    """Read a recommendation. Raises SpecprobeError for a file that is none of a version this one knows."""
    document = read_own_document(
        path, SCHEMA, "name a recommendation, as `specprobe recommend --json` prints it", "recommend again"
    )
    try:
        return _advice(document, path)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise SpecprobeError(
            f"{path}: damaged recommendation ({type(error).__name__}: {error}); recommend again"
        ) from None


def _advice(document: Mapping[str, Any], path: Path) -> StoredAdvice:
    cost, undecided = document["cost"], document["undecided"]
    verdicts = tuple(_verdict(entry) for entry in document["by_concurrency"])
    if not verdicts:
        raise ValueError("no verdict")
    return StoredAdvice(
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        file=path.name,
        kept_at=kept_at(path),
        cost_source=str(document["cost_source"]),
        conditions=dict(cost["conditions"]),
        log_deviation=float(cost["log_deviation"]),
        batches=tuple(int(batch) for batch in cost["batches"]),
        run_digest=str(document.get("run_digest", "")),
        engine_profile=str(document["engine_profile"]),
        temperature=float(document["temperature"]),
        verdicts=verdicts,
        crossover_concurrency=document["crossover_concurrency"],
        grids=tuple(_grid(entry) for entry in document.get("speedup_grids", ())),
        by_temperature=tuple(
            _at_temperature(entry, table["concurrency"])
            for table in document["by_temperature"]
            for entry in table["verdicts"]
        ),
        break_even=tuple(
            (int(table["concurrency"]), tuple(float(t) for t in table["break_even_temperatures"]))
            for table in document["by_temperature"]
        ),
        notices=tuple(Notice(str(entry["code"]), str(entry["message"])) for entry in document["warnings"]),
        undecided=str(undecided["message"]) if undecided else None,
    )


def _verdict(entry: Mapping[str, Any]) -> StoredVerdict:
    told: Mapping[str, Any] = entry.get("distributions") or {}
    at = _floats(told["quantiles"]) if told else None
    options = tuple(_option(option) for option in entry["options"])
    if not options or entry["verdict"] not in VERDICT_WORDS:
        raise ValueError("a verdict without an option or with an unknown word")
    return StoredVerdict(
        concurrency=int(entry["concurrency"]),
        by_clock=bool(entry["by_clock"]),
        arrivals=Arrivals(_known(coming["rate"]), coming["trace"]) if (coming := entry.get("arrivals")) else None,
        verdict=entry["verdict"],
        enough_prompts=bool(entry["enough_prompts"]),
        break_even_tokens_per_round=float(entry["break_even_tokens_per_round"]),
        baseline=_served(entry["baseline"]),
        options=options,
        export={str(engine): dict(settings) for engine, settings in entry["export"].items()},
        sensitivity={
            (float(one["prompt_factor"]), float(one["output_factor"])): float(one["speedup"])
            for one in entry["sensitivity"]
        },
        without=_distributions(told["baseline"], at) if at is not None else None,
        with_it=_distributions(told["best"], at) if at is not None else None,
        request_speedup=_of_length(told["request_speedup"], at) if at is not None else None,
    )


def _distributions(entry: Mapping[str, Any], at: Floats) -> Distributions:
    gaps = entry["itl_ms"]
    return Distributions(
        at=at,
        latency=_of_length(entry["request_latency_s"], at),
        ttft=_of_length(entry["ttft_ms"], at) / 1e3,
        gap=None if gaps is None else _of_length(gaps, at) / 1e3,
    )


def _option(entry: Mapping[str, Any]) -> StoredOption:
    low, high = entry["interval"]["speedup"]
    return StoredOption(
        label=drafter_label(str(entry["drafter"]), entry["config"], entry["draft_sampling"]),
        config=dict(entry["config"]),
        depth=int(entry["depth"]),
        adoption=int(entry["adoption"]),
        speedup=float(entry["speedup"]),
        low=_known(low),
        high=_known(high),
        tokens_per_round=float(entry["tokens_per_round"]),
        losing_share=float(entry["losing_share"]),
        drafter_bytes=_known(entry["drafter_bytes"]),
        served=_served(entry),
    )


def _served(entry: Mapping[str, Any]) -> StoredServed:
    return StoredServed(
        output_tokens_per_second=float(entry["output_tokens_per_second"]),
        request_latency_seconds=_known(entry["request_latency_s"]),
        ttft_p50_seconds=_seconds(entry["ttft_p50_ms"]),
        itl_p50_seconds=_seconds(entry["itl_p50_ms"]),
        itl_p95_seconds=_seconds(entry["itl_p95_ms"]),
        tpot_seconds=_seconds(entry["tpot_ms"]),
        dollars_per_million_tokens=_known(entry["dollars_per_million_output_tokens"]),
    )


def _grid(entry: Mapping[str, Any]) -> SpeedupGrid:
    speedup = np.array(entry["speedup"], dtype=np.float64)
    if speedup.ndim != 2 or speedup.shape[0] != len(entry["concurrency"]) or not np.isfinite(speedup).all():
        raise ValueError("a grid of speed-ups that is no table of numbers")
    return SpeedupGrid(
        drafter=str(entry["drafter"]),
        config=dict(entry["config"]),
        draft_sampling=str(entry["draft_sampling"]),
        batches=tuple(int(batch) for batch in entry["concurrency"]),
        first_depth=int(entry["first_depth"]),
        speedup=speedup,
    )


def _at_temperature(entry: Mapping[str, Any], concurrency: int) -> AtTemperature:
    # The document names the drafter without its model here.
    label = str(entry["drafter"]) + (" sampled" if entry["draft_sampling"] == "sampled" else "")
    speedup = entry["speedup"]
    return AtTemperature(
        temperature=float(entry["temperature"]),
        concurrency=int(concurrency),
        verdict=entry["verdict"],
        label=label,
        depth=int(entry["depth"]),
        speedup=float(speedup["point"]),
        low=_known(speedup["low"]),
        high=_known(speedup["high"]),
    )


def _of_length(values: Sequence[float], at: Floats) -> Floats:
    found = _floats(values)
    if found.shape != at.shape or not np.isfinite(found).all():
        raise ValueError("quantiles of unequal number")
    return found


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else float(milliseconds) / 1e3


def _known(value: float | None) -> float | None:
    return None if value is None else float(value)
