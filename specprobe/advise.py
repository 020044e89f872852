"""`recommend`: from a run to a recommendation, with a cost that is read, kept from before, or measured now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specprobe.arrivals import poisson_arrivals, read_trace
from specprobe.cost import CostPoint, CostTable, DraftingPoint
from specprobe.cost_files import read_cost_file, read_drafting, read_point, read_seconds
from specprobe.drafters import MODEL_FREE, Drafter, HybridSpec, ModelSpec, parse_drafter
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.paths import state_folder, write_private
from specprobe.profiles import resolve_profile
from specprobe.progress import Stages
from specprobe.recommend import Preference, Recommendation, recommend
from specprobe.recommendation_document import recommendation_document
from specprobe.run import ResponseRecord, Run
from specprobe.serving import Traffic
from specprobe.speedup import cost_keys
from specprobe.temperature_verdicts import TemperatureVerdicts, by_temperature

if TYPE_CHECKING:
    from specprobe.measure import CostGrid, Prefill
    from specprobe.measure_drafters import TimedDrafter
    from specprobe.target import Target


TIMINGS_SCHEMA = "specprobe.timings/3"
MOST_CONCURRENCIES = 32
# More than a replica of any engine runs at once; the simulation takes seconds there.
LARGEST_CONCURRENCY = 8192
MOST_DOLLARS = 1e6
SLOWEST_RATE, FASTEST_RATE = 1e-3, 1e5
# Enough for the queue to show what it does, and no more than seconds of simulation for each depth.
FEWEST_ARRIVALS, MOST_ARRIVALS = 1000, 5000
# Batches that arrivals may lead to: what is timed for them, or predicted.
ARRIVAL_BATCHES = (1, 4, 16, 64, 256)
MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class CostOptions:
    """Where the cost comes from: a file, the roofline of a GPU that need not be here, or the target timed on a device.

    `target`: the model, where it is not the run's own; `dtype`: its precision on the device, or with `gpu` how its
    weights are stored there (fp8, awq ...). `devices`: over how many GPUs it is split.
    """

    file: Path | None = None
    gpu: str | None = None
    devices: int | None = None
    target: str | None = None
    dtype: str | None = None
    device: str | None = None
    remeasure: bool = False

    def __post_init__(self) -> None:
        timing = {"--device": self.device, "--remeasure": self.remeasure or None}
        model = {"--target": self.target, "--dtype": self.dtype}
        if self.file is not None:
            without = {"--gpu": self.gpu, "--tp": self.devices, **model, **timing}
            _refuse("--cost", "with a cost file nothing is timed or predicted", without)
        elif self.gpu is not None:
            _refuse("--gpu", "what another machine would take is predicted, not timed", timing)
        elif self.devices is not None:
            raise SpecprobeError("--tp: is how many of --gpu share the target; name the GPU, for example --gpu h200")
        if self.devices is not None and not 1 <= self.devices <= MOST_DEVICES:
            raise SpecprobeError(f"--tp {self.devices}: must be from 1 to {MOST_DEVICES}")


@dataclass(frozen=True, slots=True)
class ArrivalOptions:
    """Requests that come by the clock: so many a second, at random, or at the times of a trace."""

    rate: float | None = None
    trace: Path | None = None

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.trace is None):
            raise SpecprobeError("--rate and --trace: both say when requests come; give one")
        if self.rate is not None and not SLOWEST_RATE <= self.rate <= FASTEST_RATE:
            raise SpecprobeError(f"--rate {self.rate:g}: requests a second, from {SLOWEST_RATE:g} to {FASTEST_RATE:g}")

    def seconds(self, num_responses: int) -> NDArray[np.float64]:
        """When requests arrive, rising; those of the log are served over and over."""
        if self.trace is not None:
            return read_trace(self.trace).arrival_seconds[:MOST_ARRIVALS]
        num_requests = min(max(num_responses, FEWEST_ARRIVALS), MOST_ARRIVALS)
        return poisson_arrivals(self.rate or FASTEST_RATE, num_requests)


def _refuse(option: str, why: str, others: Mapping[str, object]) -> None:
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise SpecprobeError(f"{option}: {why}; leave {' and '.join(given)} out")


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation, and how its verdicts move with temperature, where the run has several."""

    recommendation: Recommendation
    temperatures: tuple[TemperatureVerdicts, ...]

    def to_json(self) -> dict[str, Any]:
        """The `specprobe.recommendation/1` document."""
        return recommendation_document(self.recommendation, self.temperatures)


def advise(
    run: Run,
    *,
    concurrencies: Sequence[int],
    temperature: float | None,
    engine: str | None,
    cost_options: CostOptions,
    stages: Stages,
    prefer: Preference = "simple",
    gpu_price: float | None = None,
    arrivals: ArrivalOptions | None = None,
) -> Advice:
    """The recommendation for one of the run's temperatures, and the verdicts at all of them.

    `gpu_price`: dollars for an hour of one GPU. `arrivals`: requests come by the clock, and `concurrencies` are not
    asked.
    """
    if gpu_price is not None and not 0 < gpu_price <= MOST_DOLLARS:
        raise SpecprobeError(f"--gpu-price {gpu_price:g}: dollars for an hour of one GPU, above 0")
    if not concurrencies or len(set(concurrencies)) > MOST_CONCURRENCIES:
        raise SpecprobeError(f"--concurrency: name 1 to {MOST_CONCURRENCIES} numbers, for example 1,8,64")
    if not 1 <= min(concurrencies) <= max(concurrencies) <= LARGEST_CONCURRENCY:
        raise SpecprobeError(f"--concurrency: numbers from 1 to {LARGEST_CONCURRENCY}, for example 1,8,64")
    _check_engine(run, engine)
    if not run.temperatures:
        raise SpecprobeError("recommend: the run holds no responses; analyze again")
    if temperature is None:
        # What most of the traffic asks for; of a run at several temperatures over the same prompts, the first.
        temperature = max(run.temperatures, key=lambda value: (run.responses_at(value).samples == 0).sum())
    if temperature not in run.temperatures:
        known = ", ".join(f"{value:g}" for value in run.temperatures)
        raise SpecprobeError(f"--temperature {temperature:g}: the run has {known}")
    if temperature not in _decidable(run):
        raise SpecprobeError(
            f"recommend: the run holds no rounds at temperature {temperature:g} (no response is longer than one "
            "token); analyze more"
        )
    batches = sorted(set(concurrencies)) if arrivals is None else list(ARRIVAL_BATCHES)
    cost = _cost(run, cost_options, batches, run.responses_at(temperature), stages)
    traffics = (
        [Traffic(concurrency) for concurrency in dict.fromkeys(concurrencies)]
        if arrivals is None
        else [Traffic(arrival_seconds=arrivals.seconds(len(run.responses_at(temperature).ids)))]
    )
    dollars = None if gpu_price is None else gpu_price * (cost_options.devices or 1)
    found = [
        recommend(run, value, cost, traffics, prefer=prefer, dollars_per_hour=dollars)
        for value in (temperature, *(other for other in _decidable(run) if other != temperature))
    ]
    asked = found[0]
    # What limits a verdict at another temperature limits where it turns.
    notices = tuple(dict.fromkeys(notice for one in found for notice in one.notices))
    same_requests = not run.settings.get("temperatures_from_log")
    return Advice(replace(asked, notices=notices), by_temperature(found, same_requests=same_requests))


def _decidable(run: Run) -> list[float]:
    """The temperatures of a run that have rounds to decide on."""
    return [t for t in run.temperatures if any(a.temperature == t and a.rounds.any() for a in run.results)]


def _check_engine(run: Run, engine: str | None) -> None:
    if engine is None:
        return
    asked = resolve_profile(engine)
    if "@" not in engine:
        matches = asked.engine == run.engine_profile.partition("@")[0]
    else:
        matches = asked.name == run.engine_profile
    if not matches:
        raise SpecprobeError(
            f"--engine {engine}: the run was replayed by the rules of {run.engine_profile}; "
            f"run `specprobe analyze ... --engine {engine}` first"
        )


def _cost(
    run: Run, options: CostOptions, concurrencies: list[int], lengths: ResponseRecord, stages: Stages
) -> CostTable:
    if options.file is not None:
        return read_cost_file(options.file)
    if options.gpu is not None:
        return _predicted(run, options.gpu, options, concurrencies, lengths)
    return _measured(run, options, concurrencies, lengths, stages)


def _predicted(
    run: Run, gpu: str, options: CostOptions, concurrencies: Sequence[int], lengths: ResponseRecord
) -> CostTable:
    """The roofline of the run's target on GPUs that need not be here, under the engine that was replayed."""
    from specprobe.hardware import find_hardware
    from specprobe.model_shape import shape_of
    from specprobe.roofline import Deployment, engine_overhead
    from specprobe.roofline_cost import drafter_of, roofline_cost
    from specprobe.shapes import quantisation_of

    hardware = find_hardware(gpu)
    name = options.target or (run.target or {}).get("name")
    if name is None:
        raise SpecprobeError("recommend: the run names no target; say with --target which model --gpu is to serve")
    shape = shape_of(name)
    quantisation = quantisation_of(options.dtype or "", shape)
    engine = engine_overhead(run.engine_profile)
    deployment = Deployment(shape, quantisation, hardware, options.devices or 1, engine)
    found = {cost_keys(acceptance)[0]: drafter_of(acceptance, deployment) for acceptance in run.results}
    longest = int((lengths.prompt_tokens + lengths.output_tokens).max())
    batches = {2**i for i in range(32) if 2**i <= max(concurrencies)} | set(concurrencies)
    contexts = {4**i for i in range(2, 32) if 4**i <= 4 * longest} | {max(1, round(lengths.mean_context))}
    return roofline_cost(
        deployment,
        {key: drafter for key, drafter in found.items() if drafter is not None},
        max(acceptance.depth for acceptance in run.results),
        sorted(batches),
        sorted(contexts),
    )


def _measured(
    run: Run, options: CostOptions, concurrencies: list[int], lengths: ResponseRecord, stages: Stages
) -> CostTable:
    """Time the run's target and drafters here, or go on from timings that were kept."""
    from specprobe.causal_lm import LoadOptions
    from specprobe.measure import check_memory, plan_grid
    from specprobe.measure_drafters import open_timed
    from specprobe.target import load_target

    recorded = run.target or {}
    name = options.target or recorded.get("name")
    if name is None:
        raise SpecprobeError(
            "recommend: the run names no target to time; give --target MODEL to time it here, or --cost FILE"
        )
    stages.say(f"loading {inert(name, 200)} to time its rounds on this device")
    # An option counts; what the run recorded holds for the run's own target only.
    dtype = options.dtype or (None if options.target else recorded.get("dtype"))
    target = load_target(name, device=options.device, dtype=dtype)
    depth = max(acceptance.depth for acceptance in run.results)
    grid = plan_grid(concurrencies, depth, lengths.mean_context, target.record.max_position_embeddings)
    check_memory(target, grid)
    profile = resolve_profile(run.engine_profile)
    specs = run.settings["drafters"]
    # A user's own class is not made here: a run may come from elsewhere, and naming it would run its code.
    parsed = [parse_drafter(spec, profile) for spec in specs if spec.partition(":")[0] in MODEL_FREE]
    drafters = [drafter for drafter in parsed if not isinstance(drafter, ModelSpec | HybridSpec)]
    models = open_timed(specs, target, profile, depth, LoadOptions(options.device, dtype), stages)
    return measured_cost(target, grid, drafters, depth, stages, models=models, remeasure=options.remeasure)


def measured_cost(
    target: Target,
    grid: CostGrid,
    drafters: Sequence[Drafter],
    depth: int,
    stages: Stages,
    *,
    models: Sequence[TimedDrafter] = (),
    remeasure: bool = False,
) -> CostTable:
    """The cost table of a grid; each block of points is kept in `.specprobe/costs` as soon as it is measured.

    `drafters`: without a model; `models`: those with one.
    """
    from specprobe.measure import forward_kind, measure_drafter, measure_grid, measure_prefill, timing_conditions
    from specprobe.measure_drafters import drafting_depths, measure_drafting

    forward = forward_kind(target)
    conditions = timing_conditions(target, forward)
    digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16]
    path = state_folder() / "costs" / f"{digest}.json"
    timings = None if remeasure else _read_timings(path)
    if timings is None:
        timings = _Timings((), (), measure_prefill(target), {})
    with stages.track("timing rounds", grid.total_weight) as advance:
        for block in measure_grid(target, grid, timings.points, forward, on_block=lambda done: advance(done, "")):
            timings = replace(timings, points=(*timings.points, *block))
            _write_timings(path, timings)
    for drafter in drafters:
        key = _drafter_key(drafter, depth)
        if key not in timings.drafter_seconds:
            seconds = {**timings.drafter_seconds, key: measure_drafter(drafter, depth)}
            timings = replace(timings, drafter_seconds=seconds)
    _write_timings(path, timings)
    for model in models:
        for added in measure_drafting(target, model, grid, depth, timings.drafting, forward, stages):
            timings = replace(timings, drafting=(*timings.drafting, *added))
            _write_timings(path, timings)
    drafter_seconds: dict[str, float] = {}
    for drafter in drafters:
        # Two settings of one drafter share a name in the cost table: the slower one's time holds for both.
        seconds_now = timings.drafter_seconds[_drafter_key(drafter, depth)]
        drafter_seconds[drafter.name] = max(seconds_now, drafter_seconds.get(drafter.name, 0.0))
    depths = drafting_depths(depth)
    return CostTable(
        source="measured",
        points=tuple(
            point
            for point in timings.points
            if point.batch in grid.batches
            and point.query_tokens in grid.query_tokens
            and point.context in grid.contexts
        ),
        # By name: the same model named with two settings drafts in the same time.
        drafting=tuple(
            point
            for model in {model.name: model for model in models}.values()
            for point in _full_drafting(timings.drafting, model, grid, depths)
        ),
        drafter_seconds=drafter_seconds,
        prefill_token_seconds=timings.prefill.token_seconds,
        prefill_step_seconds=timings.prefill.step_seconds,
        conditions=conditions,
    )


def _full_drafting(
    points: Sequence[DraftingPoint], model: TimedDrafter, grid: CostGrid, depths: Sequence[int]
) -> list[DraftingPoint]:
    """A drafter's points of a grid under its name in the cost table; none where one is missing."""
    found = [
        replace(point, drafter=model.name)
        for point in points
        if point.drafter == model.key and (point.batch, point.context) in grid.blocks and point.depth in depths
    ]
    return found if len(found) == len(grid.blocks) * len(depths) else []


def _drafter_key(drafter: Drafter, depth: int) -> str:
    return f"{drafter.name} {json.dumps(dict(drafter.config), sort_keys=True)} depth {depth}"


@dataclass(frozen=True, slots=True)
class _Timings:
    """What was timed so far under one set of conditions; not yet a full grid, so not yet a cost table."""

    points: tuple[CostPoint, ...]
    drafting: tuple[DraftingPoint, ...]
    prefill: Prefill
    drafter_seconds: Mapping[str, float]


def _write_timings(path: Path, timings: _Timings) -> None:
    write_private(path, json.dumps({"schema": TIMINGS_SCHEMA, **asdict(timings)}) + "\n")


def _read_timings(path: Path) -> _Timings | None:
    """Timings kept before; None where there are none, or none that this version can read (they are timed again)."""
    from specprobe.measure import Prefill

    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != TIMINGS_SCHEMA:
            return None
        # The same checks as for a cost file; a full grid is not asked of timings.
        points = tuple(read_point(point, number) for number, point in enumerate(document["points"], 1))
        drafting = tuple(read_drafting(point, number) for number, point in enumerate(document["drafting"], 1))
        if len({(p.batch, p.query_tokens, p.context) for p in points}) < len(points):
            return None
        if len({(p.drafter, p.batch, p.depth, p.context) for p in drafting}) < len(drafting):
            return None
        prefill = document["prefill"]
        return _Timings(
            points,
            drafting,
            Prefill(*(read_seconds(prefill[name], name) for name in ("token_seconds", "step_seconds"))),
            {key: read_seconds(value, key) for key, value in document["drafter_seconds"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, AttributeError, SpecprobeError):
        return None
