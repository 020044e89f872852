"""One result of a run, at one depth: how results are called, and which one is meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from specprobe.acceptance import Acceptance
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.run import Run


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user says of the result that is meant; None leaves it open. `drafter`: a name of `result_names`."""

    drafter: str | None = None
    depth: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChosenResult:
    """A result of a run and a depth of it; `name` tells it from the run's others at that temperature."""

    name: str
    acceptance: Acceptance
    depth: int


def result_names(results: Sequence[Acceptance]) -> list[str]:
    """What each of these results is called: its label, with the settings that differ where several have one label."""
    names = []
    for result in results:
        same = [other for other in results if other.label == result.label]
        keys = [key for key in result.config if any(other.config.get(key) != result.config[key] for other in same)]
        settings = ",".join(f"{key}={result.config[key]}" for key in keys)
        names.append(f"{result.label}:{settings}" if settings else result.label)
    return names


def choose_result(run: Run, choice: Choice) -> ChosenResult:
    """The result meant; with drafter or depth left open, the one with the most tokens per round.

    Of depths that are equal in that, the shallowest. Raises SpecprobeError, with what there is to choose from, where
    nothing matches, where several temperatures do, or where several drafters write equally many tokens per round.
    """
    temperature = _temperature(run, choice.temperature)
    results = [result for result in run.results if result.temperature == temperature and result.rounds.any()]
    if not results:
        raise SpecprobeError(
            f"the run holds no rounds at temperature {temperature:g}; analyze more, or longer responses"
        )
    named = dict(zip(result_names(results), results, strict=True))
    if len(named) < len(results):
        raise SpecprobeError("the run holds two results of the same drafter and settings; analyze again")
    wanted = {name: found for name, found in named.items() if choice.drafter in (None, name, found.label)}
    if not wanted:
        raise SpecprobeError(f"--drafter {inert(str(choice.drafter), 60)}: the run has {_listed(named)}")
    deepest = max(wanted.values(), key=attrgetter("depth")).depth
    if choice.depth is not None and not 1 <= choice.depth <= deepest:
        raise SpecprobeError(f"--depth {choice.depth}: the run has depths 1 to {deepest}")
    shallowest = min(result.first_depth for result in wanted.values())
    if choice.depth is not None and choice.depth < shallowest:
        raise SpecprobeError(f"--depth {choice.depth}: the engine ran at depth {shallowest}, and counted no other")
    found = [
        _at_best_depth(name, result, choice.depth)
        for name, result in wanted.items()
        if choice.depth is None or result.first_depth <= choice.depth <= result.depth
    ]
    most = max(map(_tokens_per_round, found))
    best = [one for one in found if _tokens_per_round(one) == most]
    if len(best) > 1:
        raise SpecprobeError(
            f"--drafter: {_listed([one.name for one in best])} write {most:.2f} tokens per round each; name one"
        )
    return best[0]


def _temperature(run: Run, asked: float | None) -> float:
    known = ", ".join(f"{value:g}" for value in run.temperatures)
    if not run.temperatures:
        raise SpecprobeError("the run holds no responses; analyze again")
    if asked is None and len(run.temperatures) > 1:
        raise SpecprobeError(f"--temperature: the run has {known}; name one")
    if asked is not None and asked not in run.temperatures:
        raise SpecprobeError(f"--temperature {asked:g}: the run has {known}")
    return run.temperatures[0] if asked is None else asked


def _at_best_depth(name: str, acceptance: Acceptance, asked: int | None) -> ChosenResult:
    depths = range(acceptance.first_depth, acceptance.depth + 1) if asked is None else [asked]
    return max((ChosenResult(name, acceptance, depth) for depth in depths), key=_tokens_per_round)


def _tokens_per_round(chosen: ChosenResult) -> float:
    return chosen.acceptance.totals(chosen.depth).tokens_per_round or 1.0


def _listed(names: Sequence[str] | dict[str, Acceptance]) -> str:
    return ", ".join(inert(name, 60) for name in names)
