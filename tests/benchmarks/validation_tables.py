"""The tables of docs/validation.md: the back-test cold and calibrated, constants perturbed, and the worst rows.

    python -m tests.benchmarks.validation_tables ../shared/data/published/results.csv

prints Markdown. Each constant is moved by a fifth both ways with all others as they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from specprobe.backtest import GROUPS, Backtest, Score, Scored, judge
from specprobe.hardware import find_hardware
from specprobe.predict import Predictor
from specprobe.published import Table, read_table
from specprobe.roofline import Deployment, Draft, engine_overhead, find_drafter, round_seconds, step_seconds
from specprobe.roofline_constants import EFFICIENCIES, Overhead
from specprobe.shapes import find_shape, quantisation_of

# Of a repository, before its name.
OWNER = re.compile(r"^[\w.-]+/")
STEP = 0.2
WORST_ERROR = 0.25
FIT_BATCHES = (1, 4, 16, 32, 64, 128, 256)
FIT_KV_TOKENS = (0, 50_000, 100_000, 200_000, 400_000)
GPT_OSS_RATES = {2: 0.454, 3: 0.356, 4: 0.283}
GPT_OSS_CONTEXT = 2000


def main(path: Path) -> None:
    """Print every table."""
    table = read_table(path)
    cold, calibrated = judge(table, Predictor()), judge(table, Predictor(), calibrated=True)
    for title, result in (("Cold", cold), ("Calibrated, median over 5 draws, seed 0", calibrated)):
        print(f"### {title}\n")
        print_scores("group", ((name, score) for name, score in result.groups.items()))
        print_scores("engine", named(result.by_engine))
        print_scores("source", named(result.by_source))
    print("### Guessed shape left out\n")
    print_scores("group", without_guesses(table).groups.items())
    print("### Constants moved by 20 %\n")
    print_perturbed(table)
    print("### Furthest off\n")
    print_worst(cold)
    print("### A plain forward of Llama-3.1-8B on H100 against a published fit\n")
    print_fit()
    print("### gpt-oss-120B with EAGLE-3 on H200\n")
    print_gpt_oss()


def percent(share: float | None) -> str:
    """One decimal, a dash for none."""
    return "-" if share is None else f"{100 * share:.1f}"


def named(scores: Mapping[tuple[str, str], Score]) -> Iterable[tuple[str, Score]]:
    """Repositories without their owner."""
    for (name, group), score in scores.items():
        yield f"{OWNER.sub('', name)} ({group})", score


def print_row(cells: Sequence[str]) -> None:
    print("| " + " | ".join(cells) + " |")


def print_header(cells: Sequence[str]) -> None:
    print_row(cells)
    print_row(["---", *["--:" for _ in cells[1:]]])


def print_scores(what: str, scores: Iterable[tuple[str, Score]]) -> None:
    titles = ("rows", "verdict", "losses", "median", "p90", "null 1", "null length", "regret", "crossovers")
    print_header([what, *titles])
    for name, score in scores:
        if score.rows_used:
            shares = (getattr(score, field.name) for field in fields(Score)[1:])
            print_row([name, str(round(score.rows_used)), *(percent(share) for share in shares)])
    print()


def without_guesses(table: Table) -> Backtest:
    """The back-test without rows whose shape is a guess from a related model."""
    sure = tuple(cell for cell in table.cells if not cell.shape.source.startswith("taken to be"))
    return judge(Table(sure, table.refused), Predictor())


def perturbed(table: Table) -> Iterable[tuple[str, tuple[Backtest, Backtest]]]:
    ways = (1 - STEP, 1 + STEP)
    for field in fields(EFFICIENCIES):
        moved = [replace(EFFICIENCIES, **{field.name: getattr(EFFICIENCIES, field.name) * by}) for by in ways]
        low, high = (judge(table, Predictor(efficiencies=efficiencies)) for efficiencies in moved)
        yield field.name, (low, high)
    for field in fields(Overhead):
        if field.type == "float":
            low, high = (judge(table, Predictor(overhead_factors=((field.name, by),))) for by in ways)
            yield f"overhead: {field.name}", (low, high)


def print_perturbed(table: Table) -> None:
    titles = [f"{name} {what}" for name in GROUPS for what in ("verdict", "median")]
    print_header(["constant, -20 % / +20 %", *titles, "modern losses", "anchored regret"])
    as_is = judge(table, Predictor())
    for name, (low, high) in [("as it is", (as_is, as_is)), *perturbed(table)]:

        def both(group: str, field: str, low: Backtest = low, high: Backtest = high) -> str:
            values = [percent(getattr(result.groups[group], field)) for result in (low, high)]
            return values[0] if values[0] == values[1] else " / ".join(values)

        cells = [both(group, field) for group in GROUPS for field in ("verdict_accuracy", "median_abs_error")]
        print_row([name, *cells, both("modern", "loss_accuracy"), both("anchored", "mean_depth_regret")])
    print()


def print_worst(result: Backtest) -> None:
    """Rows further off than a quarter, and wrong verdicts outside the band, those of one set-up together."""
    print_header(["set-up", "rows", "predicted", "measured"])
    wrong: dict[tuple[str, ...], list[Scored]] = {}
    for row in result.rows:
        cell = row.cell
        outside = not 0.95 <= cell.speedup <= 1.05
        if abs(row.error) > WORST_ERROR or (outside and (row.predicted > 1) != (cell.speedup > 1)):
            depth = f"{cell.draft.depth}" + (f" (tree of {cell.draft.tokens:g})" if cell.draft.width > 1 else "")
            key = (cell.engine, cell.model.rsplit("/", 1)[-1], cell.hardware.name, cell.method, f"depth {depth}")
            wrong.setdefault((*key, f"C = {cell.concurrency:g}"), []).append(row)
    for key, rows in sorted(wrong.items()):
        predicted, measured = sorted(row.predicted for row in rows), sorted(row.cell.speedup for row in rows)
        print_row([", ".join(key), str(len(rows)), span(predicted), span(measured)])
    print()


def span(values: Sequence[float]) -> str:
    """The ends of sorted values."""
    low, high = f"{values[0]:.2f}", f"{values[-1]:.2f}"
    return low if low == high else f"{low} to {high}"


def print_fit() -> None:
    deployment = deploy("meta-llama/Llama-3.1-8B-Instruct", "h100", 1)
    print_header(["batch", *(f"{kv:,} KV tokens" for kv in FIT_KV_TOKENS)])
    for batch in FIT_BATCHES:
        published = [5.886e-3 + 2.101e-5 * batch + 3.926e-8 * kv for kv in FIT_KV_TOKENS]
        ours = [step_seconds(deployment, batch, 1, kv / batch) for kv in FIT_KV_TOKENS]
        print_row([str(batch), *(f"{100 * (a / b - 1):+.1f} %" for a, b in zip(ours, published, strict=True))])
    print()


def print_gpt_oss() -> None:
    levels = (1, 4, 8, 16, 32, 64, 100, 200)
    print_header(["independence, GPUs", *(f"C = {level}" for level in levels)])
    for independence in (1.0, 0.5, 0.3):
        for devices in (1, 2, 4, 8):
            there = replace(
                deploy("openai/gpt-oss-120b", "h200", devices),
                efficiencies=replace(EFFICIENCIES, expert_independence=independence),
            )
            drafter = find_drafter("eagle3", "", there.shape, there.quantisation)
            cells = []
            for level in levels:
                base = step_seconds(there, level, 1, GPT_OSS_CONTEXT)
                speedups = {
                    depth: (1 + depth * rate)
                    * base
                    / round_seconds(there, drafter, Draft(depth, depth), level, GPT_OSS_CONTEXT)
                    for depth, rate in GPT_OSS_RATES.items()
                }
                best = max(speedups, key=speedups.__getitem__)
                cells.append(f"{speedups[best]:.2f} (K = {best})")
            print_row([f"{independence:g}, {devices}", *cells])
    print()


def deploy(model: str, gpu: str, devices: int) -> Deployment:
    """A target on vLLM, at the precision of its checkpoint."""
    shape = find_shape(model)
    return Deployment(shape, quantisation_of("", shape), find_hardware(gpu), devices, engine_overhead("vllm"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
