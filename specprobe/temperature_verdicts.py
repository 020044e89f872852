"""Verdicts at every temperature of a run, and where the best option breaks even."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specprobe.interval import LEVEL
from specprobe.recommend import Recommendation, Verdict
from specprobe.temperature import break_even_temperatures


@dataclass(frozen=True, slots=True)
class TemperatureVerdicts:
    """One concurrency: the verdict at each temperature, ascending.

    `same_requests`: whether all temperatures have the same requests, so that only the temperature differs.
    """

    concurrency: int
    verdicts: tuple[tuple[float, Verdict], ...]
    same_requests: bool = True

    @property
    def break_even(self) -> list[float]:
        """Temperatures at which the best option's speed-up crosses 1: between two measured ones, interpolated.

        Of the points alone: where their intervals hold 1, so may the true speed-up at another temperature.
        """
        if not self.same_requests:
            return []
        return break_even_temperatures([(temperature, verdict.best.speedup) for temperature, verdict in self.verdicts])

    def to_json(self) -> dict[str, Any]:
        """For the recommendation's document."""
        return {
            "concurrency": self.concurrency,
            "verdicts": [
                {
                    "temperature": temperature,
                    "verdict": verdict.verdict,
                    "drafter": verdict.best.drafter,
                    "draft_sampling": verdict.best.draft_sampling,
                    "depth": verdict.best.depth,
                    "speedup": {
                        "point": verdict.best.speedup,
                        "low": verdict.best.low,
                        "high": verdict.best.high,
                        "level": LEVEL,
                    },
                }
                for temperature, verdict in self.verdicts
            ],
            "break_even_temperatures": self.break_even,
        }


def by_temperature(
    recommendations: Sequence[Recommendation], *, same_requests: bool = True
) -> tuple[TemperatureVerdicts, ...]:
    """One for each concurrency; recommendations from the same run and cost. Empty with fewer than two temperatures."""
    ordered = sorted(recommendations, key=lambda found: found.temperature)
    if len(ordered) < 2:
        return ()
    return tuple(
        TemperatureVerdicts(
            verdict.concurrency,
            tuple((found.temperature, found.by_concurrency[number]) for found in ordered),
            same_requests,
        )
        for number, verdict in enumerate(ordered[0].by_concurrency)
    )
