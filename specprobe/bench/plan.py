"""What `bench` measures, in which order: two arms, each concurrency, several repeats, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from specprobe.errors import SpecprobeError

Arm = Literal["plain", "speculative"]
ARMS: tuple[Arm, ...] = get_args(Arm)
LARGEST_CONCURRENCY = 1024
MOST_CONCURRENCIES = 16
MOST_REPEATS = 100
LONGEST_OUTPUT = 2**16
HOTTEST = 5.0


@dataclass(frozen=True, slots=True, order=True)
class Pass:
    """All prompts once, in one arm at one concurrency; `repeat` counts from 0."""

    repeat: int
    concurrency: int
    arm: Arm


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The levels of a bench. `max_new_tokens`: where answers are cut. `seed`: of the prompts' order and of samples."""

    concurrencies: tuple[int, ...]
    repeats: int
    max_new_tokens: int
    temperature: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.concurrencies or not 1 <= min(self.concurrencies) <= max(self.concurrencies) <= LARGEST_CONCURRENCY:
            raise SpecprobeError(f"--concurrency: numbers from 1 to {LARGEST_CONCURRENCY}, for example 1,4,16")
        if len(set(self.concurrencies)) != len(self.concurrencies) or len(self.concurrencies) > MOST_CONCURRENCIES:
            raise SpecprobeError(f"--concurrency: at most {MOST_CONCURRENCIES} numbers, each once")
        if not 1 <= self.repeats <= MOST_REPEATS:
            raise SpecprobeError(f"--repeats {self.repeats}: from 1 to {MOST_REPEATS}")
        if not 2 <= self.max_new_tokens <= LONGEST_OUTPUT:
            raise SpecprobeError(f"--max-new-tokens {self.max_new_tokens}: from 2 to {LONGEST_OUTPUT}")
        if not 0 <= self.temperature <= HOTTEST:
            raise SpecprobeError(f"--temperature {self.temperature:g}: from 0 to {HOTTEST:g}")

    def passes(self, *, restarts: bool) -> list[Pass]:
        """Every pass in order: plain, speculative, speculative, plain, and so on (ABBA), so that a steady drift of the
        machine falls on both arms alike. `restarts`: one server is restarted to change the arm, which takes minutes,
        so all concurrencies of an arm run in one block.
        """
        return list(self._blocks() if restarts else self._alternating())

    def order(self, repeat: int, num_prompts: int) -> list[int]:
        """The order of the prompts in a repeat, the same for both arms and all concurrencies; the first as given."""
        if repeat == 0:
            return list(range(num_prompts))
        return np.random.default_rng([self.seed, repeat]).permutation(num_prompts).tolist()

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "concurrencies": list(self.concurrencies),
            "repeats": self.repeats,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }

    def _alternating(self) -> Iterator[Pass]:
        for repeat in range(self.repeats):
            for number, concurrency in enumerate(self.concurrencies):
                for arm in _arms(repeat + number):
                    yield Pass(repeat, concurrency, arm)

    def _blocks(self) -> Iterator[Pass]:
        for repeat in range(self.repeats):
            for arm in _arms(repeat):
                for concurrency in self.concurrencies:
                    yield Pass(repeat, concurrency, arm)


def _arms(turn: int) -> tuple[Arm, ...]:
    return ARMS if turn % 2 == 0 else ARMS[::-1]
