"""From a drafter's logits to what would have been accepted: the only place where p and q meet. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from specprobe.distribution import RowProcessors
from specprobe.drafters.base import Limits, Proposals
from specprobe.drafters.models import DraftContext
from specprobe.errors import SpecprobeError
from specprobe.processors import DEFAULT_RULE, PLAIN, Processors, Step
from specprobe.profiles import SampledRule
from specprobe.trajectory import Trajectory

if TYPE_CHECKING:
    from specprobe.target_distribution import ResponseDistribution, TargetDistribution

# Values of logits that are worked on at once (256 MB in float32).
_LOGIT_VALUES = 2**26
# On a CPU, rows of them: a product with the head's matrix is at its fastest by then, and what it gives is still warm in
# the caches when it is read.
_CPU_ROWS = 128
# float32's rounding of 1.
LEAST_SURVIVAL = 2.0**-24
"""A round that gets further with less chance than this is taken for over: q itself is known no better."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftVocabulary:
    """How the drafter's token ids correspond to the target's.

    `to_target` [draft vocabulary] and `to_draft` [target vocabulary], -1 where there is no counterpart.
    """

    to_target: torch.Tensor
    to_draft: torch.Tensor

    @classmethod
    def from_target_ids(cls, to_target: torch.Tensor, target_size: int) -> DraftVocabulary:
        """From the target's id of every draft id."""
        to_draft = torch.full((target_size,), -1, dtype=torch.long)
        known = to_target >= 0
        to_draft[to_target[known]] = torch.arange(to_target.numel())[known]
        return cls(to_target, to_draft)

    @classmethod
    def checked(cls, to_target: torch.Tensor, target_size: int, where: str) -> DraftVocabulary:
        """The same from a checkpoint's table; raises SpecprobeError, beginning with `where`, for what does not fit."""
        if to_target.dim() != 1 or not to_target.numel():
            raise SpecprobeError(f"{where} is no list of tokens; get the checkpoint again")
        wrong = to_target[(to_target < 0) | (to_target >= target_size)]
        if wrong.numel():
            raise SpecprobeError(
                f"{where} leads to token {int(wrong[0])}, the target has {target_size}; "
                "it was trained for another target"
            )
        return cls.from_target_ids(to_target, target_size)

    @property
    def covered(self) -> torch.Tensor:
        """[target vocabulary] bool: what can be drafted."""
        return self.to_draft >= 0

    def to(self, device: torch.device) -> DraftVocabulary:
        """The same on a device."""
        return DraftVocabulary(self.to_target.to(device), self.to_draft.to(device))

    def wanted(self, target_ids: torch.Tensor) -> torch.Tensor:
        """The draft ids of target ids, -1 where there is none."""
        inside = target_ids.clamp(max=self.to_draft.numel() - 1)
        return torch.where(target_ids < self.to_draft.numel(), self.to_draft[inside], -1)


@dataclass(frozen=True, slots=True)
class DraftRule:
    """How drafts are drawn: greedily, and, where `sampled`, also from the draft distribution.

    That is the softmax of the drafter's logits after the steps of `order`. `accept`: the rule by which sampled drafts
    are accepted.
    """

    temperature: float
    sampled: bool
    processors: Processors = PLAIN
    order: tuple[Step, ...] = ("temperature",)
    accept: SampledRule = "rejection"

    def log_q(self, logits: torch.Tensor) -> torch.Tensor:
        """Log of the draft distribution [R, draft vocabulary]."""
        rows = RowProcessors([self.processors], DEFAULT_RULE, logits.device)
        return torch.log_softmax(rows.cut(logits.float(), self.temperature, self.order), dim=-1)


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a drafter's drafts are drawn, whatever the response: `DraftRule` without what the request asks for.

    `distribution`: p of the target, where it is known.
    """

    sampled: bool
    order: tuple[Step, ...] = ("temperature",)
    accept: SampledRule = "rejection"
    distribution: TargetDistribution | None = None

    def rule(self, trajectory: Trajectory) -> DraftRule:
        """While this response was written: at temperature 0 a sampled draft is the greedy one."""
        sampled = self.sampled and trajectory.temperature > 0
        return DraftRule(trajectory.temperature, sampled, trajectory.processors, self.order, self.accept)

    def p(self, trajectory: Trajectory, vocabulary: DraftVocabulary | None) -> ResponseDistribution | None:
        """p of the target while it wrote, where it is known and of use: to sampled drafts, and to what lies outside."""
        is_of_use = self.sampled or vocabulary is not None
        return self.distribution.of(trajectory) if self.distribution and is_of_use else None


def drawing(context: DraftContext, drafter: str) -> Drawing:
    """By the rules of the engine."""
    profile = context.profile
    return Drawing(
        context.sampled,
        profile.draft_orders.get(drafter, profile.draft_order),
        profile.sampled_drafts or "rejection",
        context.distribution,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What drafts are worth where the target wrote a token, [R] each.

    `hits`: whether the greedy draft is that token; `choice`: the greedy draft, a target id. `log_q`: log q of the
    token, zeros where drafts are not sampled, -inf where it cannot be drafted. `overlap`: see `overlaps`; None where
    p is not known or drafts are not sampled.
    """

    hits: torch.Tensor
    choice: torch.Tensor
    log_q: torch.Tensor
    overlap: torch.Tensor | None = None


def score_rows(
    logits: torch.Tensor,
    wanted: torch.Tensor,
    rule: DraftRule,
    vocabulary: DraftVocabulary | None = None,
    p: torch.Tensor | None = None,
) -> Scores:
    """Score drafts from `logits` [R, draft vocabulary] against the tokens `wanted` [R] (target ids).

    `p` [R', target vocabulary]: of the target at the first R' of these rows, where it is known.
    """
    if vocabulary is not None:
        wanted = vocabulary.wanted(wanted)
        logits = logits.masked_fill(vocabulary.to_target < 0, float("-inf"))
    possible = (wanted >= 0) & (wanted < logits.shape[-1])
    largest, choice = logits.max(-1)
    if torch.isnan(largest).any():
        raise SpecprobeError(
            f"the drafter's logits are not numbers in {logits.dtype}; its weights are damaged, or try --dtype"
        )
    hits = (choice == wanted) & possible
    drafted = choice if vocabulary is None else vocabulary.to_target[choice]
    if not rule.sampled:
        return Scores(hits, drafted, torch.zeros_like(hits, dtype=torch.float32))
    log_q = rule.log_q(logits)
    chosen = log_q.gather(-1, wanted.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
    overlap = None if p is None else overlaps(log_q[: len(p)].exp_(), p, rule.accept, vocabulary)
    return Scores(hits, drafted, torch.where(possible, chosen, -torch.inf), overlap)


def overlaps(
    q: torch.Tensor, p: torch.Tensor, accept: SampledRule, vocabulary: DraftVocabulary | None = None
) -> torch.Tensor:
    """The chance [R] that a draft drawn from `q` [R, draft vocabulary] is accepted where the target has `p` [R, V].

    sum_x min(p(x), q(x)) under rejection sampling (Leviathan et al., arXiv 2211.17192, section 3.1); sum_x p(x) q(x)
    where the target is sampled and compared.
    """
    if vocabulary is not None:
        # What has no counterpart has q = 0.
        p = p[:, vocabulary.to_target.clamp(min=0)]
    else:
        # One of the two may have rows that no token uses.
        width = min(q.shape[-1], p.shape[-1])
        q, p = q[:, :width], p[:, :width]
    return (torch.minimum(p, q) if accept == "rejection" else p * q).sum(-1)


def chunk_rows(num_rows: int, vocab_size: int, device: torch.device) -> Sequence[slice]:
    """Slices of rows whose logits are few enough to be held at once."""
    step = max(1, _LOGIT_VALUES // max(1, vocab_size))
    if device.type == "cpu":
        step = min(step, _CPU_ROWS)
    return [slice(start, start + step) for start in range(0, num_rows, step)]


def outside_mass(vocabulary: DraftVocabulary, trajectory: Trajectory, p: ResponseDistribution | None = None) -> float:
    """The target's probability outside the draft vocabulary, summed over the output tokens after the first.

    Where p is not known, and at temperature 0, where all of it is on the token that was written: by whether that
    token is outside.
    """
    covered = vocabulary.covered
    if p is None:
        wanted = torch.from_numpy(trajectory.output_ids[1:].astype(np.int64)).to(covered.device)
        return float((vocabulary.wanted(wanted) < 0).sum())
    total = 0.0
    positions = torch.arange(1, trajectory.output_ids.size, device=covered.device)
    for rows in chunk_rows(len(positions), covered.numel(), covered.device):
        inside = p.log_p(positions[rows])[:, : covered.numel()][:, covered].exp().sum()
        total += len(positions[rows]) - float(inside)
    return total


def acceptance_probability(
    log_q: NDArray[np.float32], log_p: NDArray[np.float32], rule: SampledRule = "rejection"
) -> NDArray[np.float64]:
    """That the token x, which the target wrote, came from an accepted draft.

    min(1, q(x) / p(x)) under rejection sampling (DESIGN section 2; Leviathan et al., arXiv 2211.17192, section 2.3: x
    is drafted and accepted with probability min(p(x), q(x)), and committed with p(x)); q(x) under an exact-match
    rule, where drafts do not matter for what the target samples.
    """
    if rule == "exact_match":
        return np.exp(log_q.astype(np.float64))
    # What cannot be drafted is never accepted, however unlikely the text.
    ratio = np.where(np.isneginf(log_q), -np.inf, log_q.astype(np.float64) - np.maximum(log_p, -1e30))
    return np.exp(np.minimum(ratio, 0.0))


def surviving(accept: NDArray[np.float64]) -> NDArray[np.float64]:
    """`accept` [K, ...] by position, 0 from where a round would get with less chance than LEAST_SURVIVAL."""
    return np.where(np.cumprod(accept, axis=0) < LEAST_SURVIVAL, 0.0, accept)


def target_log_probs(trajectory: Trajectory) -> NDArray[np.float32]:
    """log p [N] of the response's tokens; every trajectory that sampled drafts are replayed over has them."""
    assert trajectory.log_probs is not None
    return trajectory.log_probs


def longest_by_depth(
    trajectory: Trajectory, depth: int, limits: Limits, max_positions: int | None
) -> NDArray[np.int64]:
    """The most tokens that each depth may draft at each output token, [K, N].

    `max_positions`: the drafter's own context, None where an engine does not look at it. vLLM's V1 runner drafts
    nothing where the tokens the target has run on and the depth do not fit into it (v1/worker/gpu_model_runner.py).
    """
    num_prompt, num_output = trajectory.prompt_ids.size, trajectory.output_ids.size
    longest = np.broadcast_to(limits.longest_drafts(num_prompt, num_output), (depth, num_output))
    if max_positions is None:
        return longest
    seen = num_prompt + np.arange(num_output) - 1
    fits = seen + np.arange(1, depth + 1)[:, None] <= max_positions
    return np.where(fits, longest, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Chances of sampled drafts, of shape [..., N] as `hits` beside them.

    `accept`: a of the text there; `overlap`: the chance before the text is known, see `overlaps`, where p is known.
    """

    accept: NDArray[np.float64]
    overlap: NDArray[np.float64] | None = None


def prefix_proposals(
    trajectory: Trajectory,
    depth: int,
    longest: NDArray[np.int64],
    hits: NDArray[np.bool_],
    choices: NDArray[np.int32],
    draws: Draws | None,
    outside: float | None = None,
) -> Proposals:
    """Proposals of a drafter whose q depends on the tokens before it alone: what holds at a token holds in any round.

    `hits`, `choices` [N + tail]: whether the greedy draft at each output token is right, and which it is; `draws` [N].
    """
    num_output = trajectory.output_ids.size

    def by_position(values: NDArray[Any], fill: int) -> NDArray[Any]:
        """[K, N]: of a round that starts at s, what lies at s, s + 1, ..."""
        padded = np.concatenate([values, np.full(depth, fill, dtype=values.dtype)])
        return np.lib.stride_tricks.sliding_window_view(padded, num_output)[:depth]

    chances = None
    if draws is not None:
        overlap = None if draws.overlap is None else by_position(draws.overlap[:num_output], 0)
        chances = Draws(by_position(draws.accept[:num_output], 0), overlap)
    return nested_proposals(depth, longest, by_position(hits, 0), by_position(choices, -1), chances, outside)


def nested_proposals(
    depth: int,
    longest: NDArray[np.int64],
    hits: NDArray[np.bool_],
    choices: NDArray[np.int32],
    draws: Draws | None,
    outside: float | None = None,
) -> Proposals:
    """Proposals whose shallower drafts are the beginnings of deeper ones, always as long as allowed.

    `hits`, `choices`, `draws` [K, N]: position i of a round that starts at s, given that all before it were accepted.
    """
    depths = np.arange(1, depth + 1)[:, None]
    drafted = np.minimum(depths, longest).astype(np.int16)
    right_so_far = np.cumprod(hits, axis=0, dtype=np.int16).sum(axis=0, dtype=np.int16)
    accepted = np.minimum(drafted, right_so_far)
    survival = overlap = None
    if draws is not None:
        shape = (depth, *draws.accept.shape)
        survival = np.broadcast_to(np.cumprod(draws.accept, axis=0, dtype=np.float64), shape)
        overlap = None if draws.overlap is None else np.broadcast_to(draws.overlap, shape)
    return Proposals(drafted, accepted, survival, outside, _missed(drafted, accepted, choices), overlap)


def separate_proposals(
    longest: NDArray[np.int64],
    hits: NDArray[np.bool_],
    choices: NDArray[np.int32],
    draws: Draws | None,
) -> Proposals:
    """Proposals that differ from depth to depth: `hits`, `choices`, `draws` [K, K, N] with the depth first."""
    depth = hits.shape[0]
    drafted = np.minimum(np.arange(1, depth + 1)[:, None], longest).astype(np.int16)
    right_so_far = np.cumprod(hits, axis=1, dtype=np.int16).sum(axis=1, dtype=np.int16)
    accepted = np.minimum(drafted, right_so_far)
    missed = np.stack([_missed(d, a, c) for d, a, c in zip(drafted, accepted, choices, strict=True)])
    survival = None if draws is None else np.cumprod(draws.accept, axis=1, dtype=np.float64)
    return Proposals(drafted, accepted, survival, missed=missed, overlap=None if draws is None else draws.overlap)


def _missed(drafted: NDArray[np.int16], accepted: NDArray[np.int16], choices: NDArray[np.int32]) -> NDArray[np.int32]:
    """The draft behind the accepted ones, -1 where there is none; `drafted`, `accepted` [..., N], `choices` [K, N]."""
    index = np.minimum(accepted, len(choices) - 1)
    behind = np.take_along_axis(choices, np.atleast_2d(index).astype(np.intp), axis=0).reshape(accepted.shape)
    missed: NDArray[np.int32] = np.where(accepted < drafted, behind, -1).astype(np.int32)
    return missed
