"""Where a cost comes from: a file, the roofline of a GPU that need not be here, or timings on this device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specprobe.cost import CostTable
from specprobe.cost_files import read_cost_file
from specprobe.drafters import MODEL_FREE, HybridSpec, ModelSpec, parse_drafter
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.profiles import resolve_profile
from specprobe.progress import Stages
from specprobe.roofline import MOST_DEVICES
from specprobe.run import ResponseRecord, Run
from specprobe.speedup import cost_keys
from specprobe.timings import measured_cost

if TYPE_CHECKING:
    from specprobe.measure import CostGrid
    from specprobe.target import Target


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


def _refuse(option: str, why: str, others: Mapping[str, object]) -> None:
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise SpecprobeError(f"{option}: {why}; leave {' and '.join(given)} out")


def find_cost(
    run: Run, options: CostOptions, concurrencies: list[int], lengths: ResponseRecord, stages: Stages
) -> CostTable:
    """The cost of the run's target and drafters at these concurrencies, from the source that the options name."""
    if options.file is not None:
        return read_cost_file(options.file)
    if options.gpu is not None:
        return _predicted(run, options.gpu, options, concurrencies, lengths)
    return _measured(run, options, concurrencies, lengths, stages)


def _predicted(
    run: Run, gpu: str, options: CostOptions, concurrencies: Sequence[int], lengths: ResponseRecord
) -> CostTable:
    """The roofline of the run's target on GPUs that need not be here, under the engine that was replayed."""
    from specprobe.hardware import one_kind
    from specprobe.model_shape import shape_of
    from specprobe.roofline import Deployment, engine_overhead
    from specprobe.roofline_cost import drafter_of, roofline_cost
    from specprobe.shapes import quantisation_of

    hardware = one_kind(gpu)
    name = options.target or (run.target or {}).get("name")
    if name is None:
        raise SpecprobeError("recommend: the run names no target; say with --target which model --gpu is to serve")
    shape = shape_of(name)
    quantisation = quantisation_of(options.dtype or "", shape)
    engine = engine_overhead(run.engine_profile)
    deployment = Deployment(shape, quantisation, hardware, options.devices or 1, engine)
    if shape.heads % deployment.ways:
        raise SpecprobeError(f"--tp {deployment.ways}: does not divide the {shape.heads} heads of {shape.name}")
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
        mean_context=lengths.mean_context,
    )


def _measured(
    run: Run, options: CostOptions, concurrencies: list[int], lengths: ResponseRecord, stages: Stages
) -> CostTable:
    """Time the run's target and drafters here, or go on from timings that were kept."""
    from specprobe.causal_lm import LoadOptions
    from specprobe.measure_drafters import open_timed

    target = load_timed(run, options, stages)
    depth = max(acceptance.depth for acceptance in run.results)
    grid = timed_grid(run, target, concurrencies, lengths)
    profile = resolve_profile(run.engine_profile)
    specs = drafter_specs(run)
    # A user's own class is not made here: a run may come from elsewhere, and naming it would run its code.
    parsed = [parse_drafter(spec, profile) for spec in specs if spec.partition(":")[0] in MODEL_FREE]
    drafters = [drafter for drafter in parsed if not isinstance(drafter, ModelSpec | HybridSpec)]
    load = LoadOptions(options.device, _dtype(run, options))
    models = open_timed(specs, target, profile, depth, load, stages)
    return measured_cost(target, grid, drafters, depth, stages, models=models, remeasure=options.remeasure)


def drafter_specs(run: Run) -> list[str]:
    """How the run's drafters were named."""
    # The first runs did not say; they had only such as need no more than their name.
    return list(run.settings.get("drafters") or dict.fromkeys(acceptance.drafter for acceptance in run.results))


def timed_name(run: Run, options: CostOptions) -> str:
    """The model to time: as asked, else the run's own. Raises SpecprobeError where neither is known, or is a server."""
    recorded = run.target or {}
    name = options.target or recorded.get("name")
    if options.target is None and recorded.get("kind") == "endpoint":
        raise SpecprobeError(
            "recommend: the run's target is a server, which cannot be timed here: predict it with --gpu NAME, time it "
            "with specprobe calibrate --server URL and give the --cost file, or time a model here with --target"
        )
    if name is None:
        raise SpecprobeError(
            "recommend: the run names no target to time; give --gpu NAME --target MODEL to predict it, --target MODEL "
            "to time it here, or --cost FILE"
        )
    return str(name)


def timed_grid(run: Run, target: Target, concurrencies: Sequence[int], lengths: ResponseRecord) -> CostGrid:
    """What is timed for these concurrencies; refused where the memory does not hold it."""
    from specprobe.measure import check_memory, plan_grid

    depth = max(acceptance.depth for acceptance in run.results)
    grid = plan_grid(concurrencies, depth, lengths.mean_context, target.record.max_position_embeddings)
    check_memory(target, grid)
    return grid


def _dtype(run: Run, options: CostOptions) -> str | None:
    """An option counts; what the run recorded holds for the run's own target only."""
    return options.dtype or (None if options.target else (run.target or {}).get("dtype"))


def load_timed(run: Run, options: CostOptions, stages: Stages) -> Target:
    """The target that is timed."""
    from specprobe.target import load_target

    name = timed_name(run, options)
    stages.say(f"loading {inert(name, 200)} to time its rounds on this device")
    return load_target(name, device=options.device, dtype=_dtype(run, options))
