"""`--precision`: when tokens per round is known well enough, and what a run that stopped then says about it.

The precision of a result is the distance from tokens per round to the farther end of its interval, as a share of it,
at the depth where that is largest. Every drafter, way of drafting and temperature must reach the precision asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specprobe.acceptance import Acceptance
from specprobe.interval import LEVEL, Interval
from specprobe.looks import interval_level, look_sizes
from specprobe.notices import Notice
from specprobe.prompt import Prompt
from specprobe.strata import draw_order
from specprobe.temperature import intervals_at

METHOD = "repeated confidence intervals, one bound at all looks, over a stratified random order"
# A level this near to 1 and a log this long are no run's.
MOST_CERTAIN, MOST_PROMPTS = 1e-6, 10**12
# From so many prompts on the coverage of intervals was measured.
FEWEST_PROMPTS = 32


@dataclass(frozen=True, slots=True)
class Reached:
    """How well tokens per round of one result is known, at the depth where it is known least.

    `within`: see the module; None where there is no interval. `prompts`: different ones that it rests on.
    """

    drafter: str
    label: str
    draft_sampling: str
    temperature: float
    depth: int
    within: float | None
    prompts: int

    def is_within(self, asked: float) -> bool:
        """Whether that is well enough."""
        return self.within is not None and self.within <= asked and self.prompts >= FEWEST_PROMPTS


@dataclass(frozen=True, slots=True)
class Precision:
    """What a run says of its stopping.

    `prompts_used` of `prompts` that could have been. `looks`: those planned, by prompts in use; `looked`: at how many
    of them was looked. `interval_level`: of each look's interval. `seed`: of the order.
    """

    asked: float
    reached: tuple[Reached, ...]
    prompts_used: int
    prompts: int
    looks: tuple[int, ...]
    looked: int
    interval_level: float
    seed: int
    method: str = METHOD

    @property
    def is_reached(self) -> bool:
        """Whether every result is known well enough."""
        return all(one.is_within(self.asked) for one in self.reached)

    def to_json(self) -> dict[str, Any]:
        """For the settings of a run."""
        return {**asdict(self), "reached": [asdict(one) for one in self.reached], "looks": list(self.looks)}

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Precision:
        """Raises KeyError, TypeError or ValueError where that is no such record."""
        found = Precision(
            asked=float(entry["asked"]),
            reached=tuple(map(_reached_from_json, entry["reached"])),
            prompts_used=int(entry["prompts_used"]),
            prompts=int(entry["prompts"]),
            looks=tuple(map(int, entry["looks"])),
            looked=int(entry["looked"]),
            interval_level=float(entry["interval_level"]),
            seed=int(entry["seed"]),
            method=str(entry["method"]),
        )
        if not (0 < found.asked < 1 and LEVEL <= found.interval_level < 1 - MOST_CERTAIN):
            raise ValueError("precision out of range")
        if not found.reached or not 0 < found.prompts_used <= found.prompts <= MOST_PROMPTS:
            raise ValueError("precision of nothing")
        return found


@dataclass(frozen=True, slots=True)
class Looks:
    """The looks of a run, at `sizes` prompts of `order`. Without `asked` there is one look, at all prompts."""

    asked: float | None
    order: Sequence[Prompt]
    sizes: tuple[int, ...]
    interval_level: float
    seed: int

    def prompts_at(self, size: int) -> Sequence[Prompt]:
        """The prompts of one look; the last one's hold those that cannot be replayed, too, so that they are counted."""
        return self.order if size == self.sizes[-1] else self.order[:size]

    def precision(self, results: Sequence[Acceptance], size: int) -> Precision | None:
        """How well the results of the look at `size` prompts are known; None where nobody asked."""
        if self.asked is None:
            return None
        return Precision(
            asked=self.asked,
            reached=tuple(map(reached, results)),
            prompts_used=size,
            prompts=self.sizes[-1],
            looks=self.sizes,
            looked=1 + self.sizes.index(size),
            interval_level=self.interval_level,
            seed=self.seed,
        )


def plan_looks(prompts: Sequence[Prompt], asked: float | None, *, logged: bool, step: int, seed: int) -> Looks:
    """The order of the prompts and when to look: at multiples of `step`, where responses are generated in such blocks.

    Of a log whose answers are replayed (`logged`) prompts without one come last and count for no look.
    """
    usable = [] if asked is None else [prompt for prompt in prompts if prompt.has_answer or not logged]
    if asked is None or not usable:
        return Looks(None, prompts, (len(prompts),), LEVEL, seed)
    others = [prompt for prompt in prompts if logged and not prompt.has_answer]
    sizes = look_sizes(len(usable), step)
    return Looks(asked, (*draw_order(usable, seed), *others), sizes, interval_level(sizes), seed)


def reached(result: Acceptance) -> Reached:
    """How well a result is known."""
    depths = range(result.first_depth, result.depth + 1)
    known = dict(zip(depths, map(_within, intervals_at(result, depths), depths, [result] * len(depths)), strict=True))
    # A depth without an interval is not known at all.
    depth = max(depths, key=lambda one: (known[one] is None, known[one] or 0.0))
    return Reached(
        drafter=result.drafter,
        label=result.label,
        draft_sampling=result.draft_sampling,
        temperature=result.temperature,
        depth=depth,
        within=known[depth],
        prompts=result.num_prompts,
    )


def _reached_from_json(entry: Mapping[str, Any]) -> Reached:
    return Reached(
        drafter=str(entry["drafter"]),
        label=str(entry["label"]),
        draft_sampling=str(entry["draft_sampling"]),
        temperature=float(entry["temperature"]),
        depth=int(entry["depth"]),
        within=None if entry["within"] is None else float(entry["within"]),
        prompts=int(entry["prompts"]),
    )


def precision_notices(precision: Precision) -> list[Notice]:
    """What the order and the number of the prompts mean for the results."""
    notices = []
    if any(one.drafter == "suffix" or one.drafter.startswith("hybrid:suffix+") for one in precision.reached):
        notices.append(
            Notice(
                "suffix_tree_of_a_sample",
                f"suffix: its shared tree saw {precision.prompts_used} of {precision.prompts} prompts, in the random "
                "order of --precision; in the order of the traffic, and over more of it, it may accept more",
            )
        )
    fewest = min(one.prompts for one in precision.reached)
    if not precision.is_reached and fewest < FEWEST_PROMPTS:
        notices.append(
            Notice(
                "precision_not_reached",
                f"--precision {precision.asked:g}: tokens per round rests on {fewest} different prompts, and fewer "
                f"than {FEWEST_PROMPTS} never count as enough, however alike they are",
            )
        )
    elif not precision.is_reached:
        notices.append(
            Notice(
                "precision_not_reached",
                f"--precision {precision.asked:g}: tokens per round is not known that well after all of "
                f"{precision.prompts} prompts; only more of them would narrow it",
            )
        )
    return notices


def _within(interval: Interval | None, depth: int, result: Acceptance) -> float | None:
    point = result.totals(depth).tokens_per_round
    if interval is None or point is None:
        return None
    seen = max(interval.high - point, point - interval.low) / point
    return max(seen, within_of_unseen(point, result.num_prompts, depth, 1 - result.interval_level))


def within_of_unseen(point: float, prompts: int, depth: int, error: float) -> float:
    """By which share of it tokens per round may be off for prompts of a kind that none of those used was of.

    An interval tells of the spread that was seen: alike prompts make it as narrow as can be, whatever the others are. A
    share q of prompts stays unseen with probability (1 - q)^prompts, which is `error` at the largest q that is to be
    reckoned with (the rule of three; Clopper & Pearson, Biometrika 26, 1934). These may write their share of the tokens
    in rounds of depth + 1, the best there is, or of 1, the worst.
    """
    unseen = 1 - error ** (1 / prompts)
    best = 1 / (1 - unseen + unseen * point / (depth + 1)) - 1
    worst = 1 - 1 / (1 - unseen + unseen * point)
    return max(best, worst)
