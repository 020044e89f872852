"""The document of a run, which `recommend` and scripts read.

It stores raw counts per response and depth; totals, intervals and curves in it are derived from them, and are derived
again when it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specprobe.acceptance import Acceptance, Counts, DepthTotals, Expectation
from specprobe.documents import dump_value, read_own_document
from specprobe.drafters.base import ADOPTION_WORDS, Adoption
from specprobe.entropy import EntropyQuartile, EntropySummary
from specprobe.errors import SpecprobeError
from specprobe.interval import LEVEL, Interval, interval_json
from specprobe.notices import Notice, inert
from specprobe.precision import Precision
from specprobe.processors import Processors
from specprobe.progress import SILENT, Stages, where_long
from specprobe.run import ResponseRecord, Run
from specprobe.summary import LowerVariance, ResultSummary, RunSummary
from specprobe.tables import give_back
from specprobe.units import format_bytes

SCHEMA = "specprobe.run/1"
# Reading so many takes a second or two.
LARGE_RUN_BYTES = 10_000_000
# Responses whose rows are in memory at once while a run is written.
BLOCK_RESPONSES = 256


def run_text(run: Run, summary: RunSummary) -> Iterator[str]:
    """`run_document` as `dump_document` writes it, in pieces: the rows of all responses at once would take many times
    the memory of the counts themselves.
    """
    document = run_document(run, summary, with_rows=False)
    keys = list(document)
    place = keys.index("results")
    yield dump_value({key: document[key] for key in keys[:place]})[:-1] + ',"results":['
    for number, (shown, result) in enumerate(zip(document["results"], summary.results, strict=True)):
        # Its rows are the last of a result.
        yield ("," if number else "") + dump_value(shown)[: -len("]}")]
        acceptance = result.acceptance
        for block, rows in enumerate(_row_blocks(acceptance, run.responses_at(acceptance.temperature))):
            yield ("," if block else "") + dump_value(rows)[1:-1]
        yield "]}"
    yield "]," + dump_value({key: document[key] for key in keys[place + 1 :]})[1:]


def run_document(run: Run, summary: RunSummary, *, with_rows: bool = True) -> dict[str, Any]:
    """The `specprobe.run/1` document. Same run, same bytes: it holds no time and no path of its own.

    `with_rows`: False for one whose `per_prompt` is empty.
    """
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
                "prompts": lengths.prompts.tolist(),
                "samples": lengths.samples.tolist(),
                "groups": list(lengths.groups) if lengths.groups else None,
                "entropy": lengths.entropy.to_json() if lengths.entropy else None,
                "looping": lengths.looping,
                **({} if lengths.temperature_is_known else {"temperature_is_known": False}),
                **_texts_json(lengths),
            }
            for lengths in run.responses
        ],
        "results": [_result_json(run, result, with_rows) for result in summary.results],
        "temperature_curves": [curve.to_json() for curve in summary.temperature_curves],
        "ladder": [
            {"temperature": temperature, "rungs": [rung.to_json() for rung in rungs]}
            for temperature, rungs in summary.ladders
        ],
        "warnings": [{"code": notice.code, "message": notice.message} for notice in run.notices],
    }


def load_run(path: Path, stages: Stages = SILENT) -> Run:
    """Read a run again. Raises SpecprobeError for a file that is not a run of a version this one knows."""
    num_bytes = path.stat().st_size if path.is_file() else 0
    where_long(stages, num_bytes >= LARGE_RUN_BYTES).say(f"reading {inert(path.name, 200)} ({format_bytes(num_bytes)})")
    document = read_own_document(path, SCHEMA, "name a run that `analyze` wrote", "analyze again")
    try:
        return _run_from_json(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise SpecprobeError(f"{path}: damaged run ({type(error).__name__}: {error}); analyze again") from None


def _texts_json(responses: ResponseRecord) -> dict[str, Any]:
    if responses.texts is None:
        return {}
    return {"texts": [{"prompt": prompt, "response": response} for prompt, response in responses.texts]}


def _result_json(run: Run, summary: ResultSummary, with_rows: bool) -> dict[str, Any]:
    acceptance = summary.acceptance
    blocks = _row_blocks(acceptance, run.responses_at(acceptance.temperature)) if with_rows else ()
    return {
        "drafter": acceptance.drafter,
        "config": dict(acceptance.config),
        "temperature": acceptance.temperature,
        "draft_sampling": acceptance.draft_sampling,
        "fixed_length": acceptance.fixed_length,
        **({"first_depth": acceptance.first_depth} if acceptance.first_depth > 1 else {}),
        "adoption": ADOPTION_WORDS[Adoption(acceptance.adoption)],
        "outside_share": acceptance.outside_share,
        "depths": [
            _depth_json(totals, interval)
            for totals, interval in zip(summary.totals, summary.tokens_per_round, strict=True)
        ],
        "curve": _curve_json(summary),
        "lower_variance": [_lower_variance_json(found) for found in summary.lower_variance]
        if summary.lower_variance
        else None,
        "by_entropy": [quartile.to_json() for quartile in acceptance.by_entropy] if acceptance.by_entropy else None,
        "concentration": summary.concentration.to_json() if summary.concentration else None,
        "groups": [group.to_json() for group in summary.groups],
        "per_prompt": [row for block in blocks for row in block],
    }


def _lower_variance_json(found: LowerVariance) -> dict[str, Any]:
    return {
        "depth": found.depth,
        "at_risk_at": list(found.at_risk_at),
        "accepted_at": list(found.accepted_at),
        "conditional": list(found.conditional),
        "tokens_per_round": found.tokens_per_round,
        "interval": interval_json(found.interval),
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
        "interval": interval_json(interval),
    }


def _curve_json(summary: ResultSummary) -> dict[str, Any]:
    """The fitted models, or, where the drafter sets its own length, what it drafted and kept; intervals with both."""
    intervals = {
        "conditional": [
            [interval.low, interval.high] if interval else None for interval in summary.conditional_intervals
        ],
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
        "conditional": list(summary.conditional),
        # Of all rounds, those without a draft included: P(the draft reached position i and was accepted up to it).
        "survival": [min(1.0, accepted / rounds) for accepted in deepest.accepted_at],
        "draft_length_shares": [
            # Sums of expectations may miss their bounds by a rounding.
            min(1.0, max(0.0, (at_least[i] - at_least[i + 1]) / rounds))
            for i in range(deepest.depth + 1)
        ],
        "interval": intervals,
    }


def _row_blocks(acceptance: Acceptance, responses: ResponseRecord) -> Iterator[list[dict[str, Any]]]:
    """One row for each response and depth: one for each prompt, where each has one response."""
    for start in range(0, len(acceptance.ids), BLOCK_RESPONSES):
        yield _rows(acceptance, responses, slice(start, start + BLOCK_RESPONSES))
        give_back(acceptance.accepted_at)


def _rows(acceptance: Acceptance, responses: ResponseRecord, some: slice) -> list[dict[str, Any]]:
    rounds = acceptance.rounds[some].tolist()
    drafted = acceptance.drafted_at[some]
    drafted_tokens = drafted.sum(axis=2, dtype=drafted.dtype).tolist()
    drafted_at = drafted.tolist()
    at_risk_at = acceptance.at_risk_at[some].tolist()
    accepted_at = acceptance.accepted_at[some].tolist()
    samples = responses.samples[some].tolist()
    expected = acceptance.expectation
    tables = (expected.at_risk_at[some].tolist(), expected.accepted_at[some].tolist()) if expected else None
    return [
        {
            "id": prompt_id,
            "sample": samples[p],
            "depth": k + 1,
            "rounds": rounds[p][k],
            "drafted_rounds": drafted_at[p][k][0],
            "drafted_tokens": drafted_tokens[p][k],
            "drafted_at": drafted_at[p][k][: k + 1],
            "at_risk_at": at_risk_at[p][k][: k + 1],
            "accepted_at": accepted_at[p][k][: k + 1],
            **(
                {
                    "expected_at_risk_at": tables[0][p][k][: k + 1],
                    "expected_accepted_at": tables[1][p][k][: k + 1],
                }
                if tables
                else {}
            ),
        }
        for p, prompt_id in enumerate(acceptance.ids[some])
        for k in range(acceptance.depth)
    ]


def _run_from_json(document: Mapping[str, Any]) -> Run:
    responses = tuple(_responses_from_json(entry) for entry in document["responses"])
    by_temperature = {record.temperature: record for record in responses}
    settings = document["settings"]
    # Whoever reads the run makes this of them.
    Processors(**settings.get("processors", {}))
    level = Precision.from_json(settings["precision"]).interval_level if settings.get("precision") else LEVEL
    return Run(
        workload=document["workload"],
        target=document["target"],
        engine_profile=document["engine_profile"],
        settings=settings,
        responses=responses,
        results=tuple(_acceptance_from_json(entry, by_temperature, level) for entry in document["results"]),
        notices=tuple(Notice(str(entry["code"]), str(entry["message"])) for entry in document["warnings"]),
        version=document["specprobe_version"],
    )


def _responses_from_json(entry: Mapping[str, Any]) -> ResponseRecord:
    count = len(entry["ids"])
    entropy = entry.get("entropy")
    record = ResponseRecord(
        temperature=float(entry["temperature"]),
        source=str(entry["source"]),
        ids=tuple(entry["ids"]),
        prompt_tokens=np.array(entry["prompt_tokens"], dtype=np.int32),
        output_tokens=np.array(entry["output_tokens"], dtype=np.int32),
        # Older runs had one response to each prompt.
        prompts=np.array(entry.get("prompts", range(count)), dtype=np.int32),
        samples=np.array(entry.get("samples", [0] * count), dtype=np.int32),
        groups=tuple(entry["groups"]) if entry.get("groups") else None,
        entropy=EntropySummary(entropy["tokens"], entropy["mean"], tuple(entropy["quartiles"])) if entropy else None,
        looping=int(entry.get("looping", 0)),
        texts=tuple((str(text["prompt"]), str(text["response"])) for text in entry["texts"])
        if "texts" in entry
        else None,
        temperature_is_known=bool(entry.get("temperature_is_known", True)),
    )
    sizes = {r.size for r in (record.prompt_tokens, record.output_tokens, record.prompts, record.samples)}
    sizes |= {len(labels) for labels in (record.groups, record.texts) if labels is not None}
    if sizes != {count} or (record.prompts < 0).any():
        raise ValueError("responses of unequal length")
    if (record.prompts >= max(count, 1)).any() or (record.output_tokens < 0).any() or (record.prompt_tokens < 0).any():
        raise ValueError("numbers out of range")
    return record


LARGEST_ROUNDING = 0.5


def _acceptance_from_json(
    entry: Mapping[str, Any], responses: Mapping[float, ResponseRecord], interval_level: float
) -> Acceptance:
    depth = len(entry["depths"])
    rows = entry["per_prompt"]
    record = responses[entry["temperature"]]
    num_prompts = len(record.ids)
    if len(rows) != num_prompts * depth or not math.isfinite(entry["temperature"]):
        raise ValueError(f"{len(rows)} rows for {num_prompts} prompts and {depth} depths")

    # One-hot drafts are counted, sampled ones expected.
    kind: type = np.int32 if entry["draft_sampling"] == "greedy" else np.float64

    def table(key: str, kind: type = kind) -> Any:
        counts: Counts = np.zeros((len(rows), depth), dtype=kind)
        for row, values in enumerate(rows):
            counts[row, : len(values[key])] = values[key]
        return counts.reshape(num_prompts, depth, depth)

    rounds = np.array([row["rounds"] for row in rows], dtype=np.float64)
    if not (np.isfinite(rounds) & (rounds >= 0) & (rounds < 2**31)).all():
        raise ValueError("rounds out of range")
    # A last round may run past the end by what it drafted; expectations are rounded as they are summed.
    written = rounds.reshape(num_prompts, depth) + table("accepted_at", np.float64).sum(axis=2)
    left = written - np.maximum(record.output_tokens - 1, 0)[:, None]
    first_depth = entry.get("first_depth", 1)
    if type(first_depth) is not int or not 1 <= first_depth <= depth:
        raise ValueError("first_depth out of range")
    beyond = (left < -LARGEST_ROUNDING) | (left > np.arange(1, depth + 1) + LARGEST_ROUNDING)
    if beyond[:, first_depth - 1 :].any():
        raise ValueError("rounds and accepted tokens that do not write the responses")
    return Acceptance(
        drafter=entry["drafter"],
        config=entry["config"],
        fixed_length=entry["fixed_length"],
        temperature=entry["temperature"],
        draft_sampling=entry["draft_sampling"],
        ids=tuple(row["id"] for row in rows[::depth]),
        output_tokens=record.output_tokens,
        rounds=np.array([row["rounds"] for row in rows], dtype=kind).reshape(num_prompts, depth),
        drafted_at=table("drafted_at"),
        at_risk_at=table("at_risk_at"),
        accepted_at=table("accepted_at"),
        # Runs of the first version had model-free drafters only.
        adoption={words: level for level, words in ADOPTION_WORDS.items()}[entry.get("adoption", "flag")],
        outside_share=entry.get("outside_share"),
        first_depth=first_depth,
        interval_level=interval_level,
        prompts=record.prompts,
        expectation=Expectation(table("expected_at_risk_at", np.float64), table("expected_accepted_at", np.float64))
        if rows and all("expected_accepted_at" in row for row in rows)
        else None,
        by_entropy=tuple(EntropyQuartile(q["low"], q["high"], q["at_risk"], q["accepted"]) for q in entry["by_entropy"])
        if entry.get("by_entropy")
        else None,
    )
