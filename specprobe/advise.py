"""`recommend`: from a run to a recommendation, with a cost that is read, kept from before, or measured now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprobe.arrivals import Arrivals, mean_rate, poisson_arrivals, read_trace
from specprobe.cost import CostTable
from specprobe.cost_sources import CostOptions, find_cost
from specprobe.defaults import LARGEST_CONCURRENCY
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice, inert
from specprobe.profiles import resolve_profile
from specprobe.progress import Stages
from specprobe.recommend import Preference, Recommendation, recommend
from specprobe.recommendation_document import recommendation_document
from specprobe.roofline import MOST_DEVICES
from specprobe.run import Run
from specprobe.serving import MAX_SEQUENCES, Traffic
from specprobe.temperature_verdicts import TemperatureVerdicts, by_temperature

MOST_CONCURRENCIES = 32
MOST_DOLLARS = 1e6
SLOWEST_RATE, FASTEST_RATE = 1e-3, 1e5
# More than a server has slots, or no queue would show that they are too many; and no more than seconds of simulation
# for each depth.
FEWEST_ARRIVALS, MOST_ARRIVALS = 2 * MAX_SEQUENCES, 5000
# Batches that arrivals may lead to: to time more of them takes minutes, to predict them nothing.
TIMED_ARRIVAL_BATCHES, PREDICTED_ARRIVAL_BATCHES = (1, 4, 16, 64), (1, 4, 16, 64, 256, 1024)


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

    def traffic(self, num_responses: int) -> tuple[Traffic, tuple[Notice, ...]]:
        """The requests as they arrive, and what of a trace was not used."""
        seconds, notices = self._seconds(num_responses)
        told = Arrivals(self.rate) if self.trace is None else Arrivals(mean_rate(seconds), self.trace.name)
        return Traffic(arrival_seconds=seconds, arrivals=told), notices

    def _seconds(self, num_responses: int) -> tuple[NDArray[np.float64], tuple[Notice, ...]]:
        """When requests arrive, rising, and what of a trace was not used; requests of the log are served in turn."""
        if self.trace is None:
            num_requests = min(max(num_responses, FEWEST_ARRIVALS), MOST_ARRIVALS)
            return poisson_arrivals(self.rate or FASTEST_RATE, num_requests), ()
        trace = read_trace(self.trace)
        seconds, skipped = trace.arrival_seconds[:MOST_ARRIVALS], sum(trace.skipped.values())
        if seconds.size == trace.arrival_seconds.size and not skipped:
            return seconds, ()
        said = f"--trace: {seconds.size:,} of its {trace.arrival_seconds.size:,} usable rows are served"
        return seconds, (Notice("trace_in_part", f"{said}; {skipped:,} were skipped" if skipped else said),)


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
    concurrencies: Sequence[int] | None,
    temperature: float | None,
    engine: str | None,
    cost_options: CostOptions,
    stages: Stages,
    prefer: Preference = "simple",
    gpu_price: float | None = None,
    arrivals: ArrivalOptions | None = None,
) -> Advice:
    """The recommendation for one of the run's temperatures, and the verdicts at all of them.

    `gpu_price`: dollars for an hour of one GPU. `arrivals`: requests come by the clock; `concurrencies` are None then,
    else 1 where they are.
    """
    if gpu_price is not None and not 0 < gpu_price <= MOST_DOLLARS:
        raise SpecprobeError(f"--gpu-price {gpu_price:g}: dollars for an hour of one GPU, above 0")
    concurrencies, temperature, batches = check_request(
        run, concurrencies, temperature, engine, cost_options=cost_options, arrivals=arrivals
    )
    cost = find_cost(run, cost_options, batches, run.responses_at(temperature), stages)
    traffics = [Traffic(concurrency) for concurrency in dict.fromkeys(concurrencies)]
    arrival_notices: tuple[Notice, ...] = ()
    if arrivals is not None:
        traffic, arrival_notices = arrivals.traffic(len(run.responses_at(temperature).ids))
        traffics = [traffic]
    dollars = None if gpu_price is None else gpu_price * _devices(cost, cost_options)
    found = [
        recommend(run, value, cost, traffics, prefer=prefer, dollars_per_hour=dollars, stages=stages)
        for value in (temperature, *(other for other in _decidable(run) if other != temperature))
    ]
    asked = found[0]
    # What limits a verdict at another temperature limits where it turns.
    notices = dict.fromkeys((*_other_target(run, cost_options), *asked.notices, *arrival_notices))
    for other in found[1:]:
        at = f"temperature {other.temperature:g}: "
        notices.update(dict.fromkeys(n if n in notices else replace(n, message=at + n.message) for n in other.notices))
    same_requests = not run.settings.get("temperatures_from_log")
    return Advice(replace(asked, notices=tuple(notices)), by_temperature(found, same_requests=same_requests))


def check_request(
    run: Run,
    concurrencies: Sequence[int] | None,
    temperature: float | None,
    engine: str | None,
    *,
    cost_options: CostOptions,
    arrivals: ArrivalOptions | None,
) -> tuple[Sequence[int], float, list[int]]:
    """What is decided: the concurrencies, the temperature, and the batches that a cost is needed of.

    Raises SpecprobeError for what the run cannot answer.
    """
    if arrivals is not None and concurrencies is not None:
        raise SpecprobeError("--concurrency: with --rate or --trace requests come by the clock; leave one out")
    concurrencies = (1,) if concurrencies is None else concurrencies
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
    batches = sorted(set(concurrencies))
    if arrivals is not None:
        batches = list(PREDICTED_ARRIVAL_BATCHES if cost_options.gpu else TIMED_ARRIVAL_BATCHES)
    return concurrencies, temperature, batches


def _other_target(run: Run, options: CostOptions) -> list[Notice]:
    """Acceptance of one model under the cost of another is a what-if, and must not pass for more."""
    recorded = (run.target or {}).get("name")
    if options.target is None or recorded is None or options.target == recorded:
        return []
    of, costed = inert(str(recorded), 80), inert(options.target, 80)
    said = f"acceptance is that of {of}, the cost is that of {costed}: a what-if, unless both write alike"
    return [Notice("other_target", f"{said}; analyze with --target {costed}, or a log that it answered")]


def _devices(cost: CostTable, options: CostOptions) -> int:
    """How many GPUs are paid for: as asked for, or as the cost file says."""
    told = cost.conditions.get("devices")
    if options.devices is None and type(told) is int and 1 <= told <= MOST_DEVICES:
        return told
    return options.devices or 1


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
