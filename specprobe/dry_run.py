"""`--dry-run`: what `analyze` and `recommend` would do, and what it would take. Nothing is written, or downloaded.

Times rest on what was just measured here: reading, loading, a probe of the target's pace, a few replays. What cannot
be foreseen so is said to be unknown.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specprobe.advise import ArrivalOptions, check_request
from specprobe.analyze import drawn_from, planned_drafters, planned_looks
from specprobe.cost_sources import CostOptions, drafter_specs, load_timed, timed_grid, timed_name
from specprobe.drafters import MODEL_FREE, HybridSpec, ModelSpec, Parsed, is_model_free, parse_drafter
from specprobe.embedded import find_embedded, is_embedded
from specprobe.errors import SpecprobeError
from specprobe.measure import MAX_REPEATS, MIN_REPEATS, SECONDS_PER_BLOCK, WARMUPS, CostGrid, measure_drafter
from specprobe.memory import used_bytes
from specprobe.options import AnalyzeOptions
from specprobe.plan import Plan, Step, Stopping
from specprobe.precision import Looks
from specprobe.profiles import Profile, resolve_profile
from specprobe.progress import Stages
from specprobe.prompt import Prompt
from specprobe.responses import Origin, context_limit, open_origin
from specprobe.run import Run
from specprobe.timings import kept_points
from specprobe.trajectories import logged_trajectories, wanted_requests
from specprobe.workload import read_workload
from specprobe.writing import Request, Sampling

if TYPE_CHECKING:
    from specprobe.generate import PlannedBatch
    from specprobe.pace import Pace
    from specprobe.store import TrajectoryStore
    from specprobe.target import Target

JUST_NOW = "measured just now"
PROBE = "a probe just now; at most, if every response runs to its limit"
NOT_HERE = "the model is not on this machine yet, or not unpacked"
ELSEWHERE = "an engine writes them, whose pace is not probed"
OWN_MODEL = "drafts with a model, whose pace is not probed"


def plan_analyze(options: AnalyzeOptions, stages: Stages, store: TrajectoryStore | None) -> Plan:
    """Reads the workload, loads the target where it is here, and looks what is stored."""
    if options.ray is not None:
        raise SpecprobeError("--dry-run: foresees what one process takes, not a cluster; leave --ray out")
    profile = resolve_profile(options.engine)
    drafters = planned_drafters(options, profile)
    begin = time.perf_counter()
    workload = read_workload(options.prompts, **asdict(options.read))
    read = Step("read the prompts", len(workload.prompts), "prompts", JUST_NOW, time.perf_counter() - begin)
    model_free = all(is_model_free(drafter) for drafter in drafters)
    if options.is_served or options.backend == "vllm":
        return _without_model(options, read, workload.prompts, drafters, ELSEWHERE, model_free=model_free)
    if not _is_here(options.tokenizer if options.tokenizer is not None else options.target):
        return _without_model(options, read, workload.prompts, drafters, NOT_HERE, model_free=model_free)
    begin = time.perf_counter()
    origin = open_origin(options, profile, workload.prompts, stages, model_free=model_free)
    loaded = time.perf_counter() - begin
    load = [Step("load the model or tokenizer", 1, "model", JUST_NOW, loaded)] if origin.tokenizer else []
    looks = planned_looks(options, drawn_from(options, workload.prompts, origin), logged=origin.mode == "logged")
    if looks.asked is not None:
        # Batches, and what of them is kept, depend on the order.
        origin = replace(origin, requests=origin.requests.of(looks.order))
    if origin.mode == "logged":
        return _plan_logged(options, origin, drafters, [read, *load], looks)
    return _plan_generated(options, profile, origin, drafters, [read, *load], stages, store, looks)


def plan_recommend(
    run: Run,
    *,
    concurrencies: Sequence[int] | None,
    temperature: float | None,
    engine: str | None,
    cost_options: CostOptions,
    arrivals: ArrivalOptions | None,
    stages: Stages,
) -> Plan:
    """Which rounds would be timed; none with a cost file or a GPU that is predicted."""
    concurrencies, temperature, batches = check_request(
        run, concurrencies, temperature, engine, cost_options=cost_options, arrivals=arrivals
    )
    simulate = Step(
        "simulate the server", sum(r.depth for r in run.results), "candidates", "not timed yet on this machine"
    )
    if cost_options.file is not None or cost_options.gpu is not None:
        return Plan("recommend", (simulate,), peak_basis="nothing is loaded or timed")
    if not _is_here(timed_name(run, cost_options)):
        return Plan("recommend", (Step("time rounds", len(batches), "batch sizes", NOT_HERE), simulate))
    begin = time.perf_counter()
    target = load_timed(run, cost_options, stages)
    load = Step("load the target", 1, "model", JUST_NOW, time.perf_counter() - begin)
    grid = timed_grid(run, target, batches, run.responses_at(temperature))
    points = None if cost_options.remeasure else kept_points(target)
    have = {(p.batch, p.query_tokens, p.context) for p in points or ()}
    missing = {
        (batch, context): queries
        for batch, context in grid.blocks
        if (queries := [q for q in grid.query_tokens if (batch, q, context) not in have])
    }
    num_missing = sum(len(queries) for queries in missing.values())
    kept = len(grid.blocks) * len(grid.query_tokens) - num_missing
    stages.say("probing the target's pace")
    seconds = _timing_seconds(target, grid, missing) if missing else 0.0
    basis = "a probe just now, and the rule of repeats" if missing else "kept in .specprobe/costs"
    rounds = Step("time rounds", num_missing, "kinds of rounds", basis, seconds, kept)
    steps = [load, rounds]
    if points is None:
        # Three lengths take turns until this much has passed.
        steps.append(Step("time prefills", 3, "lengths", "the rule of repeats", SECONDS_PER_BLOCK))
    profile = resolve_profile(run.engine_profile)
    free = [parse_drafter(spec, profile) for spec in drafter_specs(run) if spec.partition(":")[0] in MODEL_FREE]
    others = [spec for spec in drafter_specs(run) if spec.partition(":")[0] not in MODEL_FREE]
    depth = max(result.depth for result in run.results)
    for drafter in free:
        if not isinstance(drafter, ModelSpec | HybridSpec):
            begin = time.perf_counter()
            measure_drafter(drafter, depth)
            steps.append(Step(f"time {drafter.name}", 1, "drafter", JUST_NOW, time.perf_counter() - begin))
    steps += [Step(f"time {spec}", len(grid.blocks), "blocks of rounds", OWN_MODEL) for spec in others]
    return Plan("recommend", (*steps, simulate), *_peak_timing(target, grid))


def _plan_generated(
    options: AnalyzeOptions,
    profile: Profile,
    origin: Origin,
    drafters: Sequence[Parsed],
    before: list[Step],
    stages: Stages,
    store: TrajectoryStore | None,
    looks: Looks,
) -> Plan:
    from specprobe.generate import planned_batches
    from specprobe.pace import batch_bytes, probe_pace

    target = origin.target
    assert target is not None
    planned: list[tuple[float, list[PlannedBatch]]] = []
    requests: list[Request] = []
    for group in origin.requests.sets:
        sampling = Sampling(
            group.temperature, options.seed, options.max_new_tokens, options.max_model_len, options.batch_size
        )
        asked = wanted_requests(
            group.prompts,
            target,
            sampling,
            asked=group.asked,
            samples=options.samples,
            rule=profile.processing,
        )
        requests += asked
        planned.append((group.temperature, planned_batches(target, asked, sampling, store)))
    batches = [batch for _, some in planned for batch in some]
    to_write = [batch for batch in batches if batch.num_kept < batch.size]
    pace = None
    if to_write or any(temperature > 0 for temperature, _ in planned):
        stages.say("probing the target's pace")
        middle = sorted(requests, key=lambda request: len(request.prompt_ids))[len(requests) // 2]
        sizes = [batch.size for batch in to_write] or [1]
        pace = probe_pace(target, middle.prompt_ids, [min(sizes), max(sizes)])
    steps = [*before]
    for temperature, some in planned:
        # A batch of which a part is stored runs as a whole.
        left = sum(batch.size for batch in some if batch.num_kept < batch.size)
        seconds = sum(pace.seconds(batch) for batch in some) if pace and left else 0.0
        kept = sum(batch.size for batch in some) - left
        basis = PROBE if left else "all of them are stored"
        steps.append(Step(f"generate at temperature {temperature:g}", left, "responses", basis, seconds, kept))
    tokens = sum(sum(batch.limits) for batch in batches)
    again = [*_passes(planned, pace, target), *_replays(drafters, options.depth, len(requests), tokens)]
    steps += _at_every_look(again, looks)
    if not to_write:
        return Plan("analyze", tuple(steps), used_bytes(), "in use after loading", stopping=_stopping(looks))
    peak = _peak(target, max(batch_bytes(target, batch) for batch in to_write))
    return Plan("analyze", tuple(steps), *peak, stopping=_stopping(looks))


def _passes(planned: Sequence[tuple[float, list[PlannedBatch]]], pace: Pace | None, target: Target) -> list[Step]:
    """Above temperature 0 the target reads all text once more, for its distribution."""
    warm = [batch for temperature, batches in planned if temperature > 0 for batch in batches]
    if not warm or pace is None or not target.shows_states:
        return []
    tokens = sum(sum(batch.prompt_tokens) + sum(batch.limits) for batch in warm)
    count = sum(batch.size for batch in warm)
    return [Step("read the target's hidden states", count, "responses", PROBE, tokens * pace.prefill_token_seconds)]


def _at_every_look(steps: Sequence[Step], looks: Looks) -> list[Step]:
    """What begins anew with each look, at more prompts each time."""
    times = sum(looks.sizes) / looks.sizes[-1]
    return [step if step.seconds is None else replace(step, seconds=times * step.seconds) for step in steps]


def _stopping(looks: Looks) -> Stopping | None:
    return Stopping(looks.asked, looks.sizes) if looks.asked is not None else None


def _plan_logged(
    options: AnalyzeOptions, origin: Origin, drafters: Sequence[Parsed], before: list[Step], looks: Looks
) -> Plan:
    begin = time.perf_counter()
    limit = context_limit(options, origin)
    sets = [
        logged_trajectories(
            group.prompts, origin.tokenizer, temperature=group.temperature, asked=group.asked, max_model_len=limit
        )
        for group in origin.requests.sets
    ]
    works = [trajectory for found in sets for trajectory in found.trajectories]
    took = time.perf_counter() - begin
    again = [Step("cut the logged answers into tokens", len(works), "responses", JUST_NOW, took)]
    peak: tuple[int | None, str, str] = (used_bytes(), "in use just now", "this machine")
    if origin.target is not None and works:
        from specprobe.pace import probe_pace

        middle = sorted(works, key=lambda work: work.prompt_ids.size)[len(works) // 2]
        pace = probe_pace(origin.target, middle.prompt_ids, [1])
        tokens = sum(work.prompt_ids.size + work.output_ids.size for work in works)
        passes = 1 + any(work.temperature > 0 for work in works)
        seconds = passes * tokens * pace.prefill_token_seconds
        again.append(Step("score the answers", len(works), "responses", "a probe just now", seconds))
        peak = (None, "scoring depends on the lengths of answers", origin.target.record.device)
    tokens = sum(work.output_ids.size for work in works)
    again += _replays(drafters, options.depth, len(works), tokens)
    return Plan("analyze", (*before, *_at_every_look(again, looks)), *peak, stopping=_stopping(looks))


def _without_model(
    options: AnalyzeOptions,
    read: Step,
    prompts: Sequence[Prompt],
    drafters: Sequence[Parsed],
    why: str,
    *,
    model_free: bool,
) -> Plan:
    """All that can be said before there is a tokenizer; `why` there is none."""
    answered = sum(prompt.has_answer for prompt in prompts)
    is_logged = why != ELSEWHERE and (
        options.responses == "logged" or (options.responses == "auto" and answered == len(prompts) and model_free)
    )
    temperatures = options.temperatures if isinstance(options.temperatures, tuple) else (0.0,)
    count = answered if is_logged else sum(len(prompts) * (options.samples if t else 1) for t in temperatures)
    what = "cut the logged answers into tokens" if is_logged else "generate"
    replays = [Step(f"replay {drafter.name}", count, "responses", why) for drafter in drafters]
    stopping = _stopping(planned_looks(options, prompts, logged=is_logged))
    return Plan("analyze", (read, Step(what, count, "responses", why), *replays), stopping=stopping)


def _replays(drafters: Sequence[Parsed], depth: int, count: int, tokens: int) -> list[Step]:
    """Model-free drafters are timed on a short text; others are not known before they are loaded."""
    steps = []
    for drafter in drafters:
        name = f"replay {drafter.name}"
        if not isinstance(drafter, ModelSpec | HybridSpec) and drafter.name in MODEL_FREE:
            seconds = tokens * measure_drafter(drafter, depth)
            steps.append(Step(name, count, "responses", "a short text just now", seconds))
        else:
            steps.append(Step(name, count, "responses", OWN_MODEL))
    return steps


def _timing_seconds(target: Target, grid: CostGrid, missing: dict[tuple[int, int], list[int]]) -> float:
    """All blocks: rounds by the pace of a step and of a prompt token, repeated as often as `measure` repeats them."""
    from specprobe.pace import probe_pace

    context = max(grid.contexts)
    pace = probe_pace(target, np.ones(context, dtype=np.int32), [grid.batches[0], grid.batches[-1]])
    total = 0.0
    for (batch, _), queries in missing.items():
        turn = sum(pace.step(batch) + (query - 1) * batch * pace.prefill_token_seconds for query in queries)
        repeats = min(max(MIN_REPEATS, np.ceil(SECONDS_PER_BLOCK / turn)), MAX_REPEATS)
        total += (WARMUPS + repeats) * turn
    return float(total)


def _peak(target: Target, further: int) -> tuple[int | None, str, str]:
    """What is in use now, the target loaded, and what comes on top."""
    if target.device.type != "cpu":
        weights = sum(weight.numel() * weight.element_size() for weight in target.model.parameters())
        return weights + further, "weights, and the largest batch by its sizes", target.record.device
    used = used_bytes()
    if used is None:
        return None, "this system does not say what is in use", "this machine"
    return used + further, "in use after loading, and the largest batch by its sizes", "this machine"


def _peak_timing(target: Target, grid: CostGrid) -> tuple[int | None, str, str]:
    from specprobe.generate import PlannedBatch
    from specprobe.pace import batch_bytes

    batch, context, query = grid.batches[-1], max(grid.contexts), grid.query_tokens[-1]
    largest = PlannedBatch((query,) * batch, (context,) * batch, 0)
    logits = 2 * batch * query * target.record.vocab_size * target.model.dtype.itemsize
    return _peak(target, batch_bytes(target, largest) + logits)


def _is_here(name: str | None) -> bool:
    """Whether a model can be loaded without writing or downloading anything."""
    if is_embedded(name):
        return find_embedded() == "cache"
    if Path(str(name)).exists():
        return True
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(str(name), "config.json"), str)
    except ValueError:
        # No name of the Hub: loading it says so.
        return True
