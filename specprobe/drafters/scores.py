"""From a drafter's logits to what would have been accepted: the only place where p and q meet. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specprobe.drafters.base import Limits, Proposals
from specprobe.errors import SpecprobeError
from specprobe.trajectory import Trajectory

# Values of logits that are worked on at once (256 MB in float32).
_LOGIT_VALUES = 2**26


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
    """How drafts are drawn: greedily, and, where `sampled`, also from the draft distribution at `temperature`."""

    temperature: float
    sampled: bool


def draft_rule(trajectory: Trajectory, sampled: bool) -> DraftRule:
    """How drafts are drawn while a trajectory is written: at temperature 0 a sampled draft is the greedy one."""
    return DraftRule(trajectory.temperature, sampled and trajectory.temperature > 0)


def score_rows(
    logits: torch.Tensor, wanted: torch.Tensor, rule: DraftRule, vocabulary: DraftVocabulary | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What drafts from `logits` [R, draft vocabulary] are worth where the target wrote `wanted` [R] (target ids).

    Returns whether the greedy draft is that token, bool [R], and log q of it, float32 [R] (zeros where not sampled;
    -inf where it cannot be drafted). Sampled drafts come from softmax(logits / temperature) without top-k, top-p
    and penalties (vLLM 0.33 v1/worker/gpu/spec_decode).
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
    if not rule.sampled:
        return hits, torch.zeros_like(hits, dtype=torch.float32)
    log_q = torch.log_softmax(logits.float() / rule.temperature, dim=-1)
    chosen = log_q.gather(-1, wanted.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
    return hits, torch.where(possible, chosen, -torch.inf)


def chunk_rows(num_rows: int, vocab_size: int) -> Sequence[slice]:
    """Slices of rows whose logits are few enough to be held at once."""
    step = max(1, _LOGIT_VALUES // max(1, vocab_size))
    return [slice(start, start + step) for start in range(0, num_rows, step)]


def outside_mass(
    vocabulary: DraftVocabulary,
    trajectory: Trajectory,
    states: torch.Tensor | None = None,
    head: torch.nn.Module | None = None,
) -> float:
    """The target's probability outside the draft vocabulary, summed over the output tokens after the first.

    Above temperature 0, from what the target's `head` reads before each, `states` [N - 1, H]; without them, and at 0,
    where all of it is on the token that was written, by whether that token is outside.
    """
    covered = vocabulary.covered
    if trajectory.temperature == 0 or states is None or head is None:
        wanted = torch.from_numpy(trajectory.output_ids[1:].astype(np.int64)).to(covered.device)
        return float((vocabulary.wanted(wanted) < 0).sum())
    total = 0.0
    for rows in chunk_rows(len(states), covered.numel()):
        p = torch.softmax(head(states[rows]).float() / trajectory.temperature, dim=-1)
        total += float(p[:, : covered.numel()][:, ~covered].sum()) + float(p[:, covered.numel() :].sum())
    return total


def acceptance_probability(log_q: NDArray[np.float32], log_p: NDArray[np.float32]) -> NDArray[np.float64]:
    """min(1, q(x) / p(x)): that the token x, which the target wrote, came from an accepted draft.

    DESIGN section 2; Leviathan et al., arXiv 2211.17192, section 2.3: x is drafted and accepted with probability
    min(p(x), q(x)), and committed with p(x).
    """
    # What cannot be drafted is never accepted, however unlikely the text.
    ratio = np.where(np.isneginf(log_q), -np.inf, log_q.astype(np.float64) - np.maximum(log_p, -1e30))
    return np.exp(np.minimum(ratio, 0.0))


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


def prefix_proposals(
    trajectory: Trajectory,
    depth: int,
    longest: NDArray[np.int64],
    hits: NDArray[np.bool_],
    accept: NDArray[np.float64] | None,
    outside: float | None = None,
) -> Proposals:
    """Proposals of a drafter whose q depends on the tokens before it alone: what holds at a token holds in any round.

    `hits` [N + tail]: whether the greedy draft at each output token is right; `accept` [N]: a of sampled drafts there.
    """
    num_output = trajectory.output_ids.size
    right = np.zeros((depth, num_output), dtype=bool)
    for i in range(depth):
        shifted = hits[i : i + num_output]
        right[i, : shifted.size] = shifted
    chance = None
    if accept is not None:
        chance = np.zeros((depth, num_output))
        for i in range(depth):
            chance[i, : max(0, num_output - i)] = accept[i:num_output]
    return nested_proposals(depth, longest, right, chance, outside)


def nested_proposals(
    depth: int,
    longest: NDArray[np.int64],
    hits: NDArray[np.bool_],
    accept: NDArray[np.float64] | None,
    outside: float | None = None,
) -> Proposals:
    """Proposals whose shallower drafts are the beginnings of deeper ones, always as long as allowed.

    `hits` [K, N] and `accept` [K, N]: position i of a round that starts at s, given that all before it were accepted.
    """
    depths = np.arange(1, depth + 1)[:, None]
    drafted = np.minimum(depths, longest).astype(np.int16)
    right_so_far = np.cumprod(hits, axis=0, dtype=np.int16).sum(axis=0, dtype=np.int16)
    survival = None
    if accept is not None:
        survival = np.broadcast_to(np.cumprod(accept, axis=0, dtype=np.float64), (depth, *accept.shape))
    return Proposals(drafted, np.minimum(drafted, right_so_far), survival, outside)


def separate_proposals(
    longest: NDArray[np.int64],
    hits: NDArray[np.bool_],
    accept: NDArray[np.float64] | None,
) -> Proposals:
    """Proposals that differ from depth to depth: `hits`, `accept` [K, K, N] with the depth first."""
    depth = hits.shape[0]
    drafted = np.minimum(np.arange(1, depth + 1)[:, None], longest).astype(np.int16)
    right_so_far = np.cumprod(hits, axis=1, dtype=np.int16).sum(axis=1, dtype=np.int16)
    survival = None if accept is None else np.cumprod(accept, axis=1, dtype=np.float64)
    return Proposals(drafted, np.minimum(drafted, right_so_far), survival)
