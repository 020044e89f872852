"""What each request asks of sampling: the settings of the command line, or those that its row of the log says."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specprobe.defaults import SMALLEST_TEMPERATURE
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice
from specprobe.processors import PLAIN, ProcessingRule, Processors
from specprobe.prompt import Prompt
from specprobe.spool import Part
from specprobe.units import format_plural

# What OpenAI's API and vLLM take where a request says nothing.
UNSAID_TEMPERATURE = 1.0
# Each has results of its own; more would be too many to look at, and too few responses each.
MOST_TEMPERATURES = 12


@dataclass(frozen=True, slots=True)
class Asked:
    """One request's sampling besides its temperature. `max_new_tokens`: its own limit, where it has one."""

    processors: Processors = PLAIN
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RequestSet:
    """The requests of one temperature: their prompts, and what each of them asks for."""

    temperature: float
    prompts: Sequence[Prompt]
    asked: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class RequestSets:
    """All requests by temperature, ascending, and those that the engine would refuse.

    `prompts` and `of` tell prompts by which object they are, so they are for prompts that are held in memory.
    """

    sets: tuple[RequestSet, ...]
    refused: int = 0
    notices: tuple[Notice, ...] = ()

    @property
    def prompts(self) -> list[Prompt]:
        """Each prompt that occurs, once."""
        return list({id(prompt): prompt for group in self.sets for prompt in group.prompts}.values())

    def of(self, prompts: Sequence[Prompt]) -> RequestSets:
        """The requests of these prompts alone, in their order."""
        places = {id(prompt): place for place, prompt in enumerate(prompts)}
        return replace(self, sets=tuple(_in_places(group, places) for group in self.sets))


def _in_places(group: RequestSet, places: Mapping[int, int]) -> RequestSet:
    asked = {id(prompt): ask for prompt, ask in zip(group.prompts, group.asked, strict=True)}
    there = [prompt for prompt in group.prompts if id(prompt) in places]
    prompts = tuple(sorted(there, key=lambda prompt: places[id(prompt)]))
    return replace(group, prompts=prompts, asked=tuple(asked[id(prompt)] for prompt in prompts))


def requests_at(prompts: Sequence[Prompt], temperatures: Sequence[float], processors: Processors) -> RequestSets:
    """Every prompt at every temperature, all with the same settings."""
    asked = (Asked(processors),) * len(prompts)
    return RequestSets(tuple(RequestSet(temperature + 0.0, prompts, asked) for temperature in temperatures))


def requests_as_logged(prompts: Sequence[Prompt], temperature: float, otherwise: Processors) -> RequestSets:
    """Every prompt at one temperature, with the other settings of its row."""
    once = _Once()
    asked = tuple(once.of(Asked(Processors.from_settings(prompt.settings, otherwise))) for prompt in prompts)
    return RequestSets((RequestSet(temperature, prompts, asked),))


def requests_of_log(prompts: Sequence[Prompt], otherwise: Processors, rule: ProcessingRule) -> RequestSets:
    """Every prompt once, at the temperature of its row; settings that it does not say are `otherwise`.

    Raises SpecprobeError where the log says more temperatures than a report can hold, or no request is left.
    """
    by_temperature: dict[float, tuple[array[int], list[Asked]]] = {}
    once = _Once()
    obstacles: Counter[str] = Counter()
    unsaid = 0
    for place, prompt in enumerate(prompts):
        processors = Processors.from_settings(prompt.settings, otherwise)
        if obstacle := rule.obstacle(processors):
            obstacles[f"{obstacle.setting}: {obstacle.reason}"] += 1
            continue
        unsaid += "temperature" not in prompt.settings
        temperature = float(prompt.settings.get("temperature", UNSAID_TEMPERATURE))
        # 0.1 + 0.2 is no temperature of its own, nor is -0.
        temperature = round(max(temperature, SMALLEST_TEMPERATURE), 4) if temperature else 0.0
        limit = prompt.settings.get("max_tokens")
        asked = Asked(processors, None if limit is None else int(limit))
        places, all_asked = by_temperature.setdefault(temperature, (array("q"), []))
        places.append(place)
        all_asked.append(once.of(asked))
    if len(by_temperature) > MOST_TEMPERATURES:
        raise SpecprobeError(
            f"--temperature log: the log says {len(by_temperature)} temperatures, each with results of its own; "
            f"name up to {MOST_TEMPERATURES} that matter, such as --temperature 0,0.7"
        )
    if not by_temperature:
        raise SpecprobeError(f"--temperature log: no request is left ({'; '.join(obstacles)})")
    notices = [
        Notice("requests_refused", f"{format_plural(count, 'request')} left out for {reason}")
        for reason, count in sorted(obstacles.items())
    ]
    if unsaid:
        notices.append(
            Notice(
                "temperature_unsaid",
                f"{unsaid} of {len(prompts)} requests say no temperature: {UNSAID_TEMPERATURE:g} was taken, as "
                "OpenAI's API and vLLM do (vLLM takes what the model's generation_config.json says, where it does)",
            )
        )
    sets = tuple(
        RequestSet(temperature, Part(prompts, places), tuple(asked))
        for temperature, (places, asked) in sorted(by_temperature.items(), key=lambda item: item[0])
    )
    return RequestSets(sets, sum(obstacles.values()), tuple(notices))


class _Once:
    """One object for all that are equal: most rows of a log ask for the same."""

    def __init__(self) -> None:
        self._known: dict[Asked, Asked] = {}

    def of(self, asked: Asked) -> Asked:
        return self._known.setdefault(asked, asked)
