"""One report of each kind, from invented counts and costs: the same on every machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from simulated_runs import acceptance, draw_prompts, run_of, shifted
from test_docs import ROOT

from specprobe.advise import Advice
from specprobe.backtest import backtest
from specprobe.backtest_report import render_backtest
from specprobe.blocks import Block
from specprobe.calibrate_report import render_calibration
from specprobe.calibrate_run import CalibrateOptions, run_calibration
from specprobe.compare import compare
from specprobe.compare_report import render_comparison
from specprobe.cost import CostPoint, CostTable, Memory
from specprobe.curve import fit_rates
from specprobe.doctor import Check, Checkup
from specprobe.doctor_report import render_checkup
from specprobe.gate import GateSettings, run_gate
from specprobe.gate_report import render_gate
from specprobe.inspect_report import render_inspection
from specprobe.notices import Notice
from specprobe.progress import Silent
from specprobe.recommend import recommend
from specprobe.recommend_report import render_advice
from specprobe.report import render_fit, render_run
from specprobe.run import Run
from specprobe.scan import FileSummary
from specprobe.serving import Traffic
from specprobe.sketches import Spread
from specprobe.summary import summarize_run
from specprobe.temperature_verdicts import by_temperature
from specprobe.workload import Inspection

POINTS = """batch,context,seconds,tokens_per_second,method,drafter,depth,acceptance_length
1,1024,0.0083,,,,,
32,1024,,2860,,,,
1,1024,,196,draft_model,Llama-3.2-1B,3,2.6
"""
NGRAM = {"min": 2, "max": 4}
EAGLE = {"model": "someone/Invented-8B-EAGLE3"}
USUAL_NOTICES = (
    Notice(
        "degenerate_loops",
        "4 of 40 responses end in a loop, so acceptance is too high; drafts from the text guess nearly all of what "
        "repeats the same tokens: check model, template, token limit",
    ),
    Notice(
        "responses_cut",
        "31 of 40 responses were cut at the token limit; late text often drafts better than early text: raise "
        "--max-new-tokens towards what you serve",
    ),
    Notice(
        "suffix_in_flight", "suffix's shared tree was replayed with 1 request in flight; analyze with --in-flight 8"
    ),
)


def invented_run(
    *, temperatures=(0.0,), num_prompts: int = 40, depth: int = 6, groups: bool = False, notices=()
) -> Run:
    """An n-gram drafter and a better head, both worse at higher temperatures."""
    rng = np.random.default_rng(5)
    p, output = draw_prompts(rng, num_prompts, median=120)
    results = [
        acceptance(rng, shifted(p, worse - temperature), output, depth, drafter, temperature=temperature, config=config)
        for temperature in temperatures
        for drafter, config, worse in (("ngram", NGRAM, -1.0), ("eagle3", EAGLE, 0.6))
    ]
    run = run_of(*results, notices=tuple(notices))
    run = replace(run, workload={**run.workload, "prompts": num_prompts, "rows": num_prompts + 2})
    if not groups:
        return run
    labels = tuple(("support", "code", None)[i % 3] for i in range(num_prompts))
    return replace(run, responses=tuple(replace(one, groups=labels) for one in run.responses))


def invented_cost(query_seconds: float, **further) -> CostTable:
    """A round takes 10 ms, and more where all its query tokens take longer than that."""
    points = tuple(
        CostPoint(batch, query, context, max(0.010, query_seconds * batch * query))
        for batch in (1, 8, 64)
        for query in (1, 2, 4, 7)
        for context in (8, 2048)
    )
    return CostTable("file", points, prefill_token_seconds=1e-5, drafter_seconds={"eagle3": 0.001}, **further)


def advice(run: Run, cost: CostTable, *concurrencies: int, **further) -> Advice:
    traffics = [Traffic(concurrency) for concurrency in concurrencies]
    found = [recommend(run, temperature, cost, traffics, **further) for temperature in run.temperatures]
    return Advice(found[0], by_temperature(found))


def an_inspection() -> Inspection:
    file = FileSummary(
        path="logs/2026-11/support-and-code.jsonl.gz", container="jsonl", compression="gzip", rows=1204,
        first_turns=1198, answers=1190, prompts=1190, formats={"openai-messages": 1204}, columns={"messages": 1204},
        skipped={"no_user_turn": 6, "empty_answer": 8}, lines={"no_user_turn": (17, 90, 333), "empty_answer": (5,)},
        cut={}, repaired=0, structured_outputs=0, models={}, joined=0, notices=(), error=None,
    )  # fmt: skip
    strange = replace(
        file, path="логи/表.json", compression=None, rows=3, first_turns=3, answers=0, prompts=3, skipped={}
    )
    duplicates = Notice("many_duplicates", "301 of 1,193 prompts repeat an earlier one; --dedupe leaves them out")
    return Inspection((file, strange), 1193, 301, True, Spread(3, 412, 50_321), Spread(1, 977, 8_001), (duplicates,))


def a_calibration() -> Block:
    points = Path("points.csv")
    points.write_text(POINTS)
    options = CalibrateOptions(
        points=(points,), server=None, model="Llama-3.1-8B", gpu="h100", devices=1, dtype=None, engine="vllm", depth=5,
        drafters=(), out=Path("calibrated.json"),
    )  # fmt: skip
    calibration, _ = run_calibration(options, Silent())
    return render_calibration(calibration, Path("calibrated.json"))


def a_comparison() -> Block:
    return render_comparison(compare(invented_run(), invented_run(temperatures=(0.3,)), force=True))


def two_runs() -> tuple[Run, Run]:
    rng = np.random.default_rng(2)
    p, output = draw_prompts(rng, 60, median=120)
    before, after = (run_of(acceptance(rng, shifted(p, by), output, 4, config=EAGLE)) for by in (0.0, -0.5))
    return before, after


def a_gate() -> Block:
    before, _ = two_runs()
    return render_gate(run_gate(before, GateSettings(min_acceptance_length=2.0, min_tokens_per_round=2.35)))


def a_checkup() -> Block:
    checks = (
        Check("python", "ok", "3.12.1, Linux x86_64"),
        Check("memory", "note", "3.1 GB free of 8.0 GB", "a target of 7B parameters needs more: close other programs"),
        Check("gguf", "missing", "not installed; gguf>=0.10 is needed", "pip install 'gguf>=0.10'"),
    )
    return render_checkup(Checkup(checks))


def analyzed(run: Run, *, details: bool = False) -> Block:
    return render_run(run, summarize_run(run), details=details)


def recommended(found: Advice, *, details: bool = False) -> Block:
    return render_advice(found, details=details)


def turning(**further) -> Advice:
    """Speculate at 1, close or not at 8, don't at 64."""
    return advice(invented_run(notices=USUAL_NOTICES), invented_cost(0.00045), 1, 8, 64, **further)


def memory_runs_out() -> Advice:
    room = Memory(available_bytes=3000.0, weight_bytes=0.0, kv_token_bytes=1.0)
    return advice(invented_run(), invented_cost(0.0001, memory=room), 64)


REPORTS: Mapping[str, Callable[[], Block]] = {
    "analyze": lambda: analyzed(invented_run(notices=USUAL_NOTICES)),
    "analyze-details": lambda: analyzed(invented_run(notices=USUAL_NOTICES, groups=True), details=True),
    "analyze-temperatures": lambda: analyzed(invented_run(temperatures=(0.0, 0.5, 1.0), groups=True)),
    "analyze-temperatures-details": lambda: analyzed(
        invented_run(temperatures=(0.0, 0.5, 1.0), depth=3), details=True
    ),
    "backtest": lambda: render_backtest(backtest(ROOT / "tests" / "published_invented.csv")),
    "calibrate": a_calibration,
    "compare": lambda: render_comparison(compare(*two_runs())),
    "doctor": a_checkup,
    "fit": lambda: render_fit(fit_rates({2: 0.454, 3: 0.356})),
    "gate": a_gate,
    "inspect": lambda: render_inspection(an_inspection()),
    "recommend": lambda: recommended(turning()),
    "recommend-price": lambda: recommended(advice(invented_run(), invented_cost(0.0001), 1, dollars_per_hour=2.0)),
    "recommend-details": lambda: recommended(turning(dollars_per_hour=2.0), details=True),
    "recommend-few-prompts": lambda: recommended(advice(invented_run(num_prompts=6), invented_cost(0.0001), 1)),
    "recommend-kv-cache": lambda: recommended(memory_runs_out()),
    "recommend-close": lambda: recommended(advice(invented_run(), invented_cost(0.0004, log_deviation=0.3), 8)),
    "recommend-temperatures": lambda: recommended(
        advice(invented_run(temperatures=(0.0, 0.5, 1.0)), invented_cost(0.0009), 1, 8)
    ),
}  # fmt: skip
