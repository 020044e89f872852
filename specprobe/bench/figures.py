"""From the raw requests of a bench to its figures: rates, latencies, speed-ups, drift.

The rate of a pass is taken while all C requests are in flight, as the load simulation takes it. The speed-up is the
ratio of the mean rates of the arms. Its interval: in a full closed loop the sum of latencies is C times the duration,
so tokens over summed latency, speculative to plain, is the same ratio, and made of sums over prompts; it is
bootstrapped over prompts, paired, with the variance between repeats added (see `specprobe.interval`), and moved to the
point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specprobe.bench.client import Served
from specprobe.interval import LEVEL, MIN_PROMPTS, Interval, bootstrap_t
from specprobe.load import Times
from specprobe.recommend import VerdictName, decide

Floats = NDArray[np.float64]
Standing = Literal["faster", "slower", "not significant", "one repeat"]


@dataclass(frozen=True, slots=True)
class PassFigures:
    """One pass. Rates are output tokens per second: `rate` while all slots are busy, of the whole pass otherwise."""

    rate: float
    whole_rate: float
    is_steady: bool


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm at one concurrency, over its repeats; times in seconds."""

    passes: tuple[PassFigures, ...]
    ttft: Times
    itl: Times | None
    tpot: Times | None
    latency: Times
    output_tokens: int

    @property
    def rate(self) -> float:
        """Mean output tokens per second."""
        return float(np.mean([one.rate for one in self.passes]))

    @property
    def whole_rate(self) -> float:
        """Likewise from the first request to the last token."""
        return float(np.mean([one.whole_rate for one in self.passes]))

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "output_tokens_per_second": self.rate,
            "output_tokens_per_second_by_repeat": [one.rate for one in self.passes],
            "whole_run_output_tokens_per_second": self.whole_rate,
            "steady": all(one.is_steady for one in self.passes),
            "ttft_p50_ms": 1e3 * self.ttft.p50,
            "ttft_p95_ms": 1e3 * self.ttft.p95,
            "itl_p50_ms": 1e3 * self.itl.p50 if self.itl else None,
            "itl_p95_ms": 1e3 * self.itl.p95 if self.itl else None,
            "tpot_ms": 1e3 * self.tpot.mean if self.tpot else None,
            "request_latency_s": self.latency.mean,
            "request_latency_p95_s": self.latency.p95,
            "output_tokens": self.output_tokens,
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """Both arms at one concurrency. `prompts`: how many, a conversation for one. `by_repeat`: the speed-up of each;
    `drift`: how far the plain arm's rate moved from the first repeat to the last, by a straight line through its
    logarithm, None of one repeat.
    """

    concurrency: int
    plain: ArmFigures
    speculative: ArmFigures
    prompts: int
    by_repeat: tuple[float, ...]
    interval: Interval | None
    drift: float | None

    @property
    def speedup(self) -> float:
        """Ratio of the mean rates."""
        return self.speculative.rate / self.plain.rate

    @property
    def low(self) -> float | None:
        """Of the interval."""
        return self.interval.low if self.interval else None

    @property
    def high(self) -> float | None:
        """Of the interval."""
        return self.interval.high if self.interval else None

    @property
    def spread(self) -> float:
        """The largest less the smallest speed-up that pairs of repeats give, as a share of the speed-up."""
        plain, speculative = ([one.rate for one in arm.passes] for arm in (self.plain, self.speculative))
        return (max(speculative) / min(plain) - min(speculative) / max(plain)) / self.speedup

    @property
    def standing(self) -> Standing:
        """Whether the arms differ by more than chance."""
        if len(self.by_repeat) < 2:
            return "one repeat"
        if self.low is None or self.high is None or self.low <= 1 <= self.high:
            return "not significant"
        return "faster" if self.low > 1 else "slower"

    @property
    def verdict(self) -> VerdictName:
        """As `recommend` decides, on what was measured; one repeat decides nothing."""
        if len(self.by_repeat) < 2:
            return "close"
        return decide(self.speedup, self.low, self.high, enough_prompts=self.prompts >= MIN_PROMPTS)

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "concurrency": self.concurrency,
            "plain": self.plain.to_json(),
            "speculative": self.speculative.to_json(),
            "speedup": {"point": self.speedup, "low": self.low, "high": self.high, "level": LEVEL},
            "speedup_by_repeat": list(self.by_repeat),
            "spread": self.spread,
            "standing": self.standing.replace(" ", "_"),
            "verdict": self.verdict,
            "drift": self.drift,
        }


def busy_window(requests: Sequence[Served], concurrency: int) -> tuple[float, float] | None:
    """From the first moment with `concurrency` requests in flight to the last; None where there never are so many."""
    events = sorted([(one.start_seconds, 1) for one in requests] + [(one.end_seconds, -1) for one in requests])
    in_flight, begin, end = 0, None, None
    for at, change in events:
        if in_flight == concurrency and change < 0:
            end = at
        in_flight += change
        if in_flight == concurrency and begin is None:
            begin = at
    return None if begin is None or end is None or end <= begin else (begin, end)


def pass_figures(requests: Sequence[Served], concurrency: int) -> PassFigures:
    """The rates of one pass."""
    tokens = sum(one.output_tokens for one in requests)
    begin, end = min(one.start_seconds for one in requests), max(one.end_seconds for one in requests)
    whole = tokens / (end - begin)
    window = busy_window(requests, concurrency)
    if window is None:
        return PassFigures(whole, whole, is_steady=False)
    inside = sum(one.tokens_until(window[1]) - one.tokens_until(window[0]) for one in requests)
    return PassFigures(inside / (window[1] - window[0]), whole, is_steady=True)


def round_gaps(requests: Sequence[Served], concurrency: int) -> list[float]:
    """Seconds of rounds of a full batch: gaps between chunks while all slots are busy and no prompt is computed.

    A prompt may be computed from when its request is sent until its first token comes.
    """
    window = busy_window(requests, concurrency)
    if window is None:
        return []
    prefills = sorted((one.start_seconds, one.chunk_seconds[0]) for one in requests)
    starts, ends = np.array(prefills).T
    latest_end = np.maximum.accumulate(ends)
    gaps = []
    for one in requests:
        for earlier, later in pairwise(one.chunk_seconds):
            # The last prompt that was sent before this gap ended, or one before it, may still be computed in it.
            before = int(np.searchsorted(starts, later)) - 1
            is_disturbed = before >= 0 and latest_end[before] > earlier
            if window[0] <= earlier and later <= window[1] and not is_disturbed:
                gaps.append(later - earlier)
    return gaps


def arm_figures(passes: Sequence[Sequence[Served]], concurrency: int) -> ArmFigures:
    """One arm at one concurrency, by repeat."""
    requests = [one for repeat in passes for one in repeat]
    gaps = [later - earlier for one in requests for earlier, later in pairwise(one.chunk_seconds)]
    tpots = [one.tpot_seconds for one in requests if one.tpot_seconds is not None]
    ttft, latency = (
        Times.of(np.array(values))
        for values in ([one.ttft_seconds for one in requests], [one.latency_seconds for one in requests])
    )
    assert ttft is not None
    assert latency is not None
    return ArmFigures(
        passes=tuple(pass_figures(repeat, concurrency) for repeat in passes),
        ttft=ttft,
        itl=Times.of(np.array(gaps)),
        tpot=Times.of(np.array(tpots)),
        latency=latency,
        output_tokens=sum(one.output_tokens for one in requests),
    )


def measured(
    concurrency: int,
    plain: Sequence[Sequence[Served]],
    speculative: Sequence[Sequence[Served]],
    *,
    units: Sequence[int] | None = None,
    seed: int = 0,
) -> Measured:
    """Both arms at one concurrency; `plain`, `speculative`: requests by repeat, as many of each.

    `units`: which prompts are drawn together, by number of the prompt (see `specprobe.conversations.units`); None: each
    by itself.
    """
    arms = arm_figures(plain, concurrency), arm_figures(speculative, concurrency)
    by_repeat = np.array([b.rate / a.rate for a, b in zip(arms[0].passes, arms[1].passes, strict=True)])
    point = arms[1].rate / arms[0].rate
    repeats = len(by_repeat)
    between = float(np.log(by_repeat).var(ddof=1)) / repeats if repeats > 1 else 0.0
    counts = _by_unit(plain, speculative, units)
    interval = bootstrap_t(counts, _latency_ratio, seed=seed, level=LEVEL, extra_log_variance=between)
    if interval is not None:
        moved = point / interval.point
        interval = Interval(point, interval.low * moved, interval.high * moved, LEVEL, interval.standard_error)
    return Measured(
        concurrency=concurrency,
        plain=arms[0],
        speculative=arms[1],
        prompts=len(counts),
        by_repeat=tuple(by_repeat.tolist()),
        interval=interval,
        drift=_drift([one.rate for one in arms[0].passes]),
    )


def _by_unit(
    plain: Sequence[Sequence[Served]], speculative: Sequence[Sequence[Served]], units: Sequence[int] | None
) -> Floats:
    """Tokens and summed latency of each prompt, or conversation, in either arm, [U, 4]."""

    def unit(one: Served) -> int:
        return one.prompt if units is None else units[one.prompt]

    numbers = sorted({unit(one) for repeat in plain for one in repeat})
    row = {number: i for i, number in enumerate(numbers)}
    counts = np.zeros((len(numbers), 4))
    for column, arm in ((0, plain), (2, speculative)):
        for one in (one for repeat in arm for one in repeat):
            counts[row[unit(one)], column] += one.output_tokens
            counts[row[unit(one)], column + 1] += one.latency_seconds
    return counts


def _latency_ratio(sums: Floats) -> Floats:
    ratio: Floats = sums[..., 2] / sums[..., 3] * sums[..., 1] / sums[..., 0]
    return ratio


def _drift(rates: Sequence[float]) -> float | None:
    if len(rates) < 2:
        return None
    slope = np.polyfit(np.arange(len(rates)), np.log(rates), 1)[0]
    return float(np.expm1(slope * (len(rates) - 1)))
