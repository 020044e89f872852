"""A run: everything `analyze` found, as a document that `recommend` and scripts read.

The document stores raw counts per prompt and depth; totals, intervals and curves in it are derived from them, and
are derived again when it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprobe import __version__
from specprobe.acceptance import Acceptance, Counts, DepthTotals
from specprobe.curve import CurveFit, fit_counts
from specprobe.documents import read_document
from specprobe.drafters.base import ADOPTION_WORDS, Adoption
from specprobe.errors import SpecprobeError
from specprobe.interval import Interval, ratio_intervals, tokens_per_round_intervals
from specprobe.ladder import Rung, climb
from specprobe.notices import Notice

SCHEMA = "specprobe.run/1"
LEVEL = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class ResponseLengths:
    """The responses of one temperature: where they come from and how long they are, int32 [P]."""

    temperature: float
    source: str
    ids: tuple[str | int, ...]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]

    @property
    def mean_context(self) -> float:
        """Tokens in the KV cache, averaged over all output tokens."""
        weights = np.maximum(self.output_tokens, 1).astype(np.float64)
        return float(np.average(self.prompt_tokens + self.output_tokens / 2, weights=weights))


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One `analyze`. `workload`, `target` and `settings` are records for people and scripts, kept as they are."""

    workload: Mapping[str, Any]
    target: Mapping[str, Any] | None
    engine_profile: str
    settings: Mapping[str, Any]
    responses: tuple[ResponseLengths, ...]
    results: tuple[Acceptance, ...]
    notices: tuple[Notice, ...]
    version: str = __version__

    def responses_at(self, temperature: float) -> ResponseLengths:
        """The responses of one of the run's temperatures."""
        return {lengths.temperature: lengths for lengths in self.responses}[temperature]

    @property
    def temperatures(self) -> list[float]:
        """The temperatures of the run, in the order asked for."""
        return [lengths.temperature for lengths in self.responses]


@dataclass(frozen=True, slots=True, eq=False)
class ResultSummary:
    """What is derived from one result: totals and intervals of tokens per round by depth, and the curve.

    `conditional` holds the intervals of conditional acceptance at each position of the largest depth. `curve` is None
    for drafters that choose their own draft length: what they did not draft is missing for a reason, so no curve over
    depths is fitted.
    """

    acceptance: Acceptance
    totals: tuple[DepthTotals, ...]
    tokens_per_round: tuple[Interval | None, ...]
    conditional: tuple[Interval | None, ...]
    curve: CurveFit | None


def summarize(acceptance: Acceptance, *, seed: int = 0) -> ResultSummary:
    """Totals, 90 % intervals over prompts, and the fitted curve at the largest depth."""
    totals = tuple(acceptance.totals(k) for k in range(1, acceptance.depth + 1))
    emitted = np.broadcast_to(acceptance.emitted_tokens[:, None], acceptance.rounds.shape)
    intervals = tokens_per_round_intervals(
        emitted.astype(np.float64), acceptance.rounds.astype(np.float64), level=LEVEL, seed=seed
    )
    return ResultSummary(
        acceptance=acceptance,
        totals=totals,
        tokens_per_round=tuple(
            _within_bounds(interval, total) for interval, total in zip(intervals, totals, strict=True)
        ),
        conditional=tuple(_conditional_intervals(acceptance, seed)),
        curve=fit_counts(acceptance.at_risk_at[:, -1, :], acceptance.accepted_at[:, -1, :])
        if acceptance.fixed_length
        else None,
    )


def _conditional_intervals(acceptance: Acceptance, seed: int) -> list[Interval | None]:
    """Of accepted / at risk at each position, cut to [0, 1]."""
    intervals = ratio_intervals(
        acceptance.accepted_at[:, -1, :].astype(np.float64),
        acceptance.at_risk_at[:, -1, :].astype(np.float64),
        level=LEVEL,
        seed=seed,
        scale="linear",
    )
    return [
        replace(interval, low=max(interval.low, 0.0), high=min(interval.high, 1.0)) if interval else None
        for interval in intervals
    ]


def _within_bounds(interval: Interval | None, totals: DepthTotals) -> Interval | None:
    """No round emits more than its drafts and the bonus token; and an interval of no width is its point."""
    point = totals.tokens_per_round
    if interval is None or point is None:
        return None
    high = min(interval.high, totals.depth + 1.0)
    return replace(interval, low=min(interval.low, point), high=max(high, point))


def run_document(run: Run, summaries: Sequence[ResultSummary]) -> dict[str, Any]:
    """The `specprobe.run/1` document. Same run, same bytes: it holds no time and no path of its own."""
    return {
        "schema": SCHEMA,
        "specprobe_version": run.version,
        "workload": dict(run.workload),
        "target": run.target,
        "engine_profile": run.engine_profile,
        "settings": dict(run.settings),
        "responses": [
            {
                "temperature": lengths.temperature,
                "source": lengths.source,
                "ids": list(lengths.ids),
                "prompt_tokens": lengths.prompt_tokens.tolist(),
                "output_tokens": lengths.output_tokens.tolist(),
            }
            for lengths in run.responses
        ],
        "results": [_result_json(summary) for summary in summaries],
        "ladder": [
            {"temperature": temperature, "rungs": [rung.to_json() for rung in rungs]}
            for temperature, rungs in ladders(run)
        ],
        "warnings": [{"code": notice.code, "message": notice.message} for notice in run.notices],
    }


def ladders(run: Run) -> list[tuple[float, tuple[Rung, ...]]]:
    """By temperature, what each step up to a dearer drafter bought."""
    return [
        (temperature, climb([result for result in run.results if result.temperature == temperature]))
        for temperature in run.temperatures
    ]


def load_run(path: Path) -> Run:
    """Read a run again. Raises SpecprobeError for a file that is not a run of a version this one knows."""
    document = read_document(path, SCHEMA, "name a run that `analyze` wrote")
    try:
        return _run_from_json(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise SpecprobeError(f"{path}: damaged run ({type(error).__name__}: {error}); analyze again") from None


def _result_json(summary: ResultSummary) -> dict[str, Any]:
    acceptance = summary.acceptance
    return {
        "drafter": acceptance.drafter,
        "config": dict(acceptance.config),
        "temperature": acceptance.temperature,
        "draft_sampling": acceptance.draft_sampling,
        "fixed_length": acceptance.fixed_length,
        "adoption": ADOPTION_WORDS[Adoption(acceptance.adoption)],
        "outside_share": acceptance.outside_share,
        "depths": [
            _depth_json(totals, interval)
            for totals, interval in zip(summary.totals, summary.tokens_per_round, strict=True)
        ],
        "curve": _curve_json(summary),
        "per_prompt": _per_prompt_json(acceptance),
    }


def _depth_json(totals: DepthTotals, interval: Interval | None) -> dict[str, Any]:
    return {
        "depth": totals.depth,
        "responses": totals.responses,
        "emitted_tokens": totals.emitted_tokens,
        "rounds": totals.rounds,
        "drafted_rounds": totals.drafted_rounds,
        "drafted_tokens": totals.drafted_tokens,
        "accepted_tokens": totals.accepted_tokens,
        "drafted_at": list(totals.drafted_at),
        "accepted_at": list(totals.accepted_at),
        "coverage": totals.coverage,
        "acceptance_rate": totals.acceptance_rate,
        "mean_acceptance_length": totals.mean_acceptance_length,
        "tokens_per_round": totals.tokens_per_round,
        "interval": {
            "tokens_per_round": [interval.low, interval.high] if interval else None,
            "level": LEVEL,
        },
    }


def _curve_json(summary: ResultSummary) -> dict[str, Any]:
    """The fitted models, or, where the drafter sets its own length, what it drafted and kept; intervals with both."""
    intervals = {
        "conditional": [[interval.low, interval.high] if interval else None for interval in summary.conditional],
        "level": LEVEL,
    }
    if summary.curve is not None:
        return {"fitted": True, **summary.curve.to_json(summary.acceptance.depth), "interval": intervals}
    deepest = summary.totals[-1]
    rounds = max(deepest.rounds, 1)
    at_least = (deepest.rounds, *deepest.drafted_at, 0)
    return {
        "fitted": False,
        "reason": "the drafter chooses its own draft length, so depths are not nested and not fitted across",
        "conditional": list(deepest.conditional),
        # Of all rounds, those without a draft included: P(the draft reached position i and was accepted up to it).
        "survival": [accepted / rounds for accepted in deepest.accepted_at],
        "draft_length_shares": [(at_least[i] - at_least[i + 1]) / rounds for i in range(deepest.depth + 1)],
        "interval": intervals,
    }


def _per_prompt_json(acceptance: Acceptance) -> list[dict[str, Any]]:
    rounds = acceptance.rounds.tolist()
    drafted_tokens = acceptance.drafted_tokens.tolist()
    drafted_at = acceptance.drafted_at.tolist()
    at_risk_at = acceptance.at_risk_at.tolist()
    accepted_at = acceptance.accepted_at.tolist()
    return [
        {
            "id": prompt_id,
            "depth": k + 1,
            "rounds": rounds[p][k],
            "drafted_rounds": drafted_at[p][k][0],
            "drafted_tokens": drafted_tokens[p][k],
            "drafted_at": drafted_at[p][k][: k + 1],
            "at_risk_at": at_risk_at[p][k][: k + 1],
            "accepted_at": accepted_at[p][k][: k + 1],
        }
        for p, prompt_id in enumerate(acceptance.ids)
        for k in range(acceptance.depth)
    ]


def _run_from_json(document: Mapping[str, Any]) -> Run:
    responses = tuple(
        ResponseLengths(
            temperature=float(entry["temperature"]),
            source=str(entry["source"]),
            ids=tuple(entry["ids"]),
            prompt_tokens=np.array(entry["prompt_tokens"], dtype=np.int32),
            output_tokens=np.array(entry["output_tokens"], dtype=np.int32),
        )
        for entry in document["responses"]
    )
    output_tokens = {lengths.temperature: lengths.output_tokens for lengths in responses}
    if not all(len(r.ids) == r.prompt_tokens.size == r.output_tokens.size for r in responses):
        raise ValueError("responses of unequal length")
    _expect(document["workload"], dict, "workload")
    _expect(document["target"] or {}, dict, "target")
    _expect((document["target"] or {}).get("name", ""), str, "target name")
    _expect(document["engine_profile"], str, "engine_profile")
    _expect(document["settings"], dict, "settings")
    return Run(
        workload=document["workload"],
        target=document["target"],
        engine_profile=document["engine_profile"],
        settings=document["settings"],
        responses=responses,
        results=tuple(_acceptance_from_json(entry, output_tokens) for entry in document["results"]),
        notices=tuple(Notice(entry["code"], entry["message"]) for entry in document["warnings"]),
        version=document["specprobe_version"],
    )


def _expect(value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what} is no {kind.__name__}")


def _acceptance_from_json(entry: Mapping[str, Any], output_tokens: Mapping[float, NDArray[np.int32]]) -> Acceptance:
    depth = len(entry["depths"])
    rows = entry["per_prompt"]
    num_prompts = len(output_tokens[entry["temperature"]])
    if len(rows) != num_prompts * depth or not math.isfinite(entry["temperature"]):
        raise ValueError(f"{len(rows)} rows for {num_prompts} prompts and {depth} depths")

    # One-hot drafts are counted, sampled ones expected.
    kind: type = np.int32 if entry["draft_sampling"] == "greedy" else np.float64

    def table(key: str) -> Counts:
        counts: Counts = np.zeros((len(rows), depth), dtype=kind)
        for row, values in enumerate(rows):
            counts[row, : len(values[key])] = values[key]
        return counts.reshape(num_prompts, depth, depth)

    _expect(entry["drafter"], str, "drafter")
    _expect(entry["config"], dict, "config")
    return Acceptance(
        drafter=entry["drafter"],
        config=entry["config"],
        fixed_length=entry["fixed_length"],
        temperature=entry["temperature"],
        draft_sampling=entry["draft_sampling"],
        ids=tuple(row["id"] for row in rows[::depth]),
        output_tokens=output_tokens[entry["temperature"]],
        rounds=np.array([row["rounds"] for row in rows], dtype=kind).reshape(num_prompts, depth),
        drafted_at=table("drafted_at"),
        at_risk_at=table("at_risk_at"),
        accepted_at=table("accepted_at"),
        # Runs of the first version had model-free drafters only.
        adoption={words: level for level, words in ADOPTION_WORDS.items()}[entry.get("adoption", "flag")],
        outside_share=entry.get("outside_share"),
    )
