"""Two runs side by side: what makes them incomparable, which prompts both have, and which results belong together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance
from specprobe.notices import inert
from specprobe.run import ResponseRecord, Run

# With fewer of the smaller run's prompts in the other one, what both have is a chance remainder of two workloads.
SHARED_PROMPTS = 0.5


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that has to be the same in comparable runs and is not, in words."""

    what: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, eq=False)
class PairedPrompts:
    """The prompts that two sets of responses have in common, by id.

    `units_a` [P_A], `units_b` [P_B]: the number of the prompt that each response is to, -1 where the other run lacks
    it. `count`: how many different prompts; equal ones under several ids are one, and so are those of a conversation.
    `only_a`, `only_b`: ids left out. `other_length`: common ids whose prompt has another number of tokens in each run,
    so is not the same prompt.
    """

    units_a: NDArray[np.intp]
    units_b: NDArray[np.intp]
    count: int
    only_a: int
    only_b: int
    other_length: int

    def sums(self, counts_a: NDArray[Any], counts_b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Counts [P, ...] of each run's responses, summed by common prompt: [count, ...] twice, in one order."""
        return self._sum(self.units_a, counts_a), self._sum(self.units_b, counts_b)

    def _sum(self, units: NDArray[np.intp], counts: NDArray[Any]) -> NDArray[Any]:
        summed = np.zeros((self.count, *counts.shape[1:]), dtype=np.float64)
        np.add.at(summed, units[units >= 0], counts[units >= 0])
        return summed


def pair_prompts(a: ResponseRecord, b: ResponseRecord) -> PairedPrompts:
    """Pair responses by the id of their prompt; which ids are one prompt, run A says."""
    ids_a, ids_b = set(a.ids), set(b.ids)
    common = ids_a & ids_b
    numbers: dict[int, int] = {}
    unit_of: dict[str | int, int] = {}
    for identity, prompt in zip(a.ids, a.prompts.tolist(), strict=True):
        if identity in common and identity not in unit_of:
            unit_of[identity] = numbers.setdefault(prompt, len(numbers))
    lengths_a, lengths_b = _prompt_lengths(a), _prompt_lengths(b)
    return PairedPrompts(
        units_a=np.array([unit_of.get(identity, -1) for identity in a.ids], dtype=np.intp),
        units_b=np.array([unit_of.get(identity, -1) for identity in b.ids], dtype=np.intp),
        count=len(numbers),
        only_a=len(ids_a - common),
        only_b=len(ids_b - common),
        other_length=sum(lengths_a[identity] != lengths_b[identity] for identity in common),
    )


def find_differences(a: Run, b: Run) -> tuple[Difference, ...]:
    """What has to be the same for a difference between two runs to be the drafters', and is not.

    Drafters, depths, seeds of responses, numbers of samples and batch sizes may differ. What a run of an older version
    does not record counts as not set.
    """
    records_a, records_b = _comparable(a), _comparable(b)
    found = [
        Difference(what, _shown(a, what, records_a[what]), _shown(b, what, records_b[what]))
        for what in records_a
        if records_a[what] != records_b[what]
    ]
    if not set(a.temperatures) & set(b.temperatures):
        found.append(Difference("temperature", *(", ".join(f"{t:g}" for t in run.temperatures) for run in (a, b))))
    return (*found, *_prompt_differences(a, b))


def pair_temperatures(a: Run, b: Run) -> list[tuple[float, float]]:
    """Temperatures that both runs have; where they share none and each has one, these two."""
    common = [(value, value) for value in a.temperatures if value in b.temperatures]
    if not common and len(a.temperatures) == len(b.temperatures) == 1:
        return [(a.temperatures[0], b.temperatures[0])]
    return common


def pair_results(a: Sequence[Acceptance], b: Sequence[Acceptance]) -> list[tuple[Acceptance, Acceptance]]:
    """Results with the same label, of one temperature: first those with equal settings, then the only ones left."""
    pairs = []
    left = list(b)
    unmatched = []
    for result in a:
        same = next((o for o in left if (o.label, o.config) == (result.label, result.config)), None)
        if same is None:
            unmatched.append(result)
            continue
        left.remove(same)
        pairs.append((result, same))
    for result in unmatched:
        others = [other for other in left if other.label == result.label]
        if len(others) == 1 and sum(other.label == result.label for other in unmatched) == 1:
            pairs.append((result, others[0]))
    return pairs


def _comparable(run: Run) -> dict[str, Any]:
    """What two runs must agree on, by the words of a message."""
    settings, target = run.settings, run.target or {}
    tokenizer = settings.get("tokenizer") or target.get("tokenizer") or {}
    return {
        # By name: the same log lies in another folder on another machine, and prompts are compared besides.
        "workload": [PurePath(str(source)).name for source in run.workload.get("sources", ())],
        "first turns only": settings.get("first_turn", False),
        "target": [target.get(key) for key in _identity(target)] if target else None,
        # A target's fingerprint says more than the name of its tokenizer, which may be a folder.
        "tokenizer": None if target else tokenizer.get("name"),
        "chat template": tokenizer.get("chat_template"),
        "chat template arguments": tokenizer.get("chat_template_kwargs") or {},
        "responses": settings.get("responses"),
        "sampling settings": settings.get("processors"),
        "temperatures from the log": settings.get("temperatures_from_log", False),
        "engine rules": run.engine_profile,
        "longest response": settings.get("max_new_tokens"),
        "context limit": settings.get("max_model_len"),
        "requests in flight": run.in_flight,
        # What requests share, such as suffix decoding's tree, is filled in that order.
        "order of prompts": f"drawn by --precision, seed {run.precision.seed}" if run.precision else "the log's",
    }


def _identity(target: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells one target from another: a server may move, but not change its model."""
    kinds = {"endpoint": ("model", "engine", "version"), "backend": ("name", "engine", "version", "dtype")}
    return kinds.get(str(target.get("kind")), ("fingerprint", "dtype"))


def _prompt_differences(a: Run, b: Run) -> list[Difference]:
    found = []
    for temperature_a, temperature_b in pair_temperatures(a, b)[:1]:
        responses_a, responses_b = a.responses_at(temperature_a), b.responses_at(temperature_b)
        pairs = pair_prompts(responses_a, responses_b)
        distinct_a, distinct_b = len(set(responses_a.ids)), len(set(responses_b.ids))
        common = distinct_a - pairs.only_a
        if common < SHARED_PROMPTS * min(distinct_a, distinct_b):
            found.append(Difference("prompts", f"{distinct_a}, {common} of them in B", f"{distinct_b}"))
        if pairs.other_length:
            found.append(Difference("length of prompts", f"{common} in common", f"{pairs.other_length} of them differ"))
    return found


def _prompt_lengths(responses: ResponseRecord) -> Mapping[str | int, int]:
    return dict(zip(responses.ids, responses.prompt_tokens.tolist(), strict=True))


def _shown(run: Run, what: str, value: Any) -> str:
    if what == "target" and run.target:
        what_it_is = ", ".join(f"{key} {run.target.get(key)}" for key in _identity(run.target))
        value = f"{run.target.get('name')} ({what_it_is})"
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return inert("none" if value is None else text, 120)
