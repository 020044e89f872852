"""The replay of heads that draft from the target's states: all round starts in parallel, one pass a position.

A head keeps its own keys and values. A round that starts after token n sees the context up to there, computed from
the target's states, and the entries of its own round. So passes 2, 3, ... over all starts add entries to the cache
that only their own round may see: the mask is causal over the context and diagonal over rounds (as in training with
several steps, EAGLE-3, arXiv 2503.01840, section 3.2). Greedy drafts of a round matter until the first miss, sampled
ones while there is a chance that all before them were accepted: later passes run over the rounds that are still alive.
Imports torch and transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from specprobe.batches import in_order, padded_ids
from specprobe.drafters.base import Adoption, Limits, Proposals, known_tokens
from specprobe.drafters.models import DraftContext, OpenModel, describe_model
from specprobe.drafters.scores import (
    LEAST_SURVIVAL,
    DraftRule,
    DraftVocabulary,
    Drawing,
    Draws,
    acceptance_probability,
    chunk_rows,
    drawing,
    longest_by_depth,
    nested_proposals,
    outside_mass,
    score_rows,
    separate_proposals,
    surviving,
    target_log_probs,
)
from specprobe.dynamic_cache import new_round_cache
from specprobe.features import Features
from specprobe.target_distribution import ResponseDistribution
from specprobe.trajectory import Trajectory

# Rounds of a response that are drafted together: the mask of a pass is rounds x (tokens + rounds x depth) for each
# response.
ROUNDS_AT_ONCE = 512
# Of rounds that are held against p, which all of their positions share: fewer where p of a batch would not fit.
_FEWEST_ROUNDS = 32
_P_VALUES = 2**26


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Responses that go through a head together, padded on the right.

    `ids` [B, L]: prompt, response and tail. `num_prompt`, `num_output`, `num_known` (output and tail) [B].
    `features`: by tap, [B, L', hidden size], one row for each token.
    """

    ids: torch.Tensor
    num_prompt: torch.Tensor
    num_output: torch.Tensor
    num_known: torch.Tensor
    features: Mapping[int, torch.Tensor]

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.ids.device

    def newest(self, starts: torch.Tensor) -> torch.Tensor:
        """The index n of the newest token when a round starts at output token `starts` [B, A]."""
        return self.num_prompt[:, None] + starts - 1

    def tokens(self, index: torch.Tensor) -> torch.Tensor:
        """The tokens at [B, A]; beyond the end, any."""
        return self.ids.gather(1, index.clamp(0, self.ids.shape[1] - 1))


class Head(Protocol):
    """A head's network.

    `nested`: whether a shallower draft is the beginning of a deeper one; else each depth is drafted by itself.
    """

    nested: bool

    def begin(self, batch: Batch, depth: int) -> Any:
        """Run over the context; returns the state that `draft` is given, for rounds of up to `depth` drafts."""

    def draft(self, state: Any, position: int, starts: torch.Tensor) -> torch.Tensor:
        """Position 1, 2, ... of the rounds that start at output tokens `starts` [B, A]: what its head reads, [B, A, H].

        Drafts before it are taken from the text. `starts` shrinks from position to position; -1 marks padding.
        """

    def rewind(self, state: Any) -> None:
        """Forget the rounds drafted so far; the context stays, and other rounds follow."""

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:
        """[R, draft vocabulary] from rows [R, H]."""


@dataclass(frozen=True, slots=True)
class HeadDrafter:
    """A head as a drafter: what `Head.draft` gives at every start, compared with what the target wrote."""

    name: str
    config: Mapping[str, Any]
    adoption: Adoption
    head: Head
    features: Features | None
    taps: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    drawing: Drawing
    vocabulary: DraftVocabulary | None = None
    max_positions: int | None = None
    fixed_length: bool = True

    def proposals(self, trajectories: Iterable[Trajectory], depth: int, limits: Limits) -> Iterator[Proposals]:
        """Batches of responses of like length, in windows, so that results come in order."""
        works = list(trajectories)

        def run(indices: list[int]) -> Iterator[Proposals]:
            some = [works[i] for i in indices]
            batch = make_batch(some, self.features, self.taps, self.device, self.dtype)
            # Requests of one temperature may differ in what else they ask for.
            rules = [self.drawing.rule(work) for work in some]
            known = [self.drawing.p(work, self.vocabulary) for work in some]
            log_probs = _padded_log_probs(some) if rules[0].sampled else None
            with torch.inference_mode():
                # By depth, or once for all where they are nested.
                scores = [
                    score_rounds(self.head, batch, k, rules, self.vocabulary, known, log_probs)
                    for k in ([depth] if self.head.nested else range(1, depth + 1))
                ]
            for row, (work, rule, p) in enumerate(zip(some, rules, known, strict=True)):
                yield self._proposals(work, depth, limits, [found.of(row, work) for found in scores], rule, p)

        yield from in_order(works, run)

    def _proposals(
        self,
        trajectory: Trajectory,
        depth: int,
        limits: Limits,
        scores: Sequence[RoundScores],
        rule: DraftRule,
        p: ResponseDistribution | None,
    ) -> Proposals:
        longest = longest_by_depth(trajectory, depth, limits, self.max_positions)
        draws = [round_draws(trajectory, found, rule) for found in scores] if rule.sampled else None
        if self.head.nested:
            (found,) = scores
            outside = None if self.vocabulary is None else outside_mass(self.vocabulary, trajectory, p)
            return nested_proposals(depth, longest, found.hits, found.choices, draws[0] if draws else None, outside)
        together = None
        if draws:
            overlap = [d.overlap for d in draws if d.overlap is not None]
            together = Draws(
                _by_depth([d.accept for d in draws], depth), _by_depth(overlap, depth) if overlap else None
            )
        hits, choices = ([getattr(found, name) for found in scores] for name in ("hits", "choices"))
        return separate_proposals(longest, _by_depth(hits, depth), _by_depth(choices, depth), together)


class OpenHead(OpenModel):
    """What heads that draft from the target's states have in common: they run where and as the target ran."""

    context: DraftContext
    adoption = Adoption.TRAINED_HEAD

    def head_drafter(self, head: Head, features: Features | None, facts: Mapping[str, Any], **more: Any) -> HeadDrafter:
        """`head`, its weights loaded, as a drafter; `facts` are recorded with the result."""
        target = self.context.needed_target(self.spec.name)
        return HeadDrafter(
            name=self.spec.name,
            config=describe_model(self.spec, **facts),
            adoption=self.adoption,
            head=head,
            features=features,
            taps=self.taps,
            device=target.device,
            dtype=target.model.dtype,
            drawing=drawing(self.context, self.spec.name),
            **more,
        )


def _by_depth(tables: Sequence[NDArray[Any]], depth: int) -> NDArray[Any]:
    """[K, K, N] from [1, N], [2, N], ... [K, N]: what lies beyond a depth is 0."""
    whole = np.zeros((depth, depth, tables[0].shape[1]), dtype=tables[0].dtype)
    for k, table in enumerate(tables):
        whole[k, : k + 1] = table
    return whole


def round_draws(trajectory: Trajectory, found: RoundScores, rule: DraftRule) -> Draws:
    """Chances [K, N] of sampled drafts: position i of a round at s is output token s + i - 1."""
    depth, num_output = found.log_q.shape
    log_p = target_log_probs(trajectory)
    accept = np.zeros((depth, num_output))
    for i in range(depth):
        reach = max(0, num_output - i)
        accept[i, :reach] = acceptance_probability(found.log_q[i, :reach], log_p[i:], rule.accept)
    return Draws(surviving(accept), None if found.overlap is None else found.overlap.astype(np.float64))


def _padded_log_probs(works: Sequence[Trajectory]) -> NDArray[np.float32]:
    """log p of the text [B, N]."""
    rows = [target_log_probs(work) for work in works]
    width = max(map(len, rows))
    return np.stack([np.pad(row, (0, width - len(row))) for row in rows])


def make_batch(
    works: Sequence[Trajectory],
    features: Features | None,
    taps: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
) -> Batch:
    """Trajectories and their features, padded, on the device."""

    def counts(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=device)

    return Batch(
        ids=torch.from_numpy(padded_ids([known_tokens(t) for t in works])).to(device),
        num_prompt=counts([t.prompt_ids.size for t in works]),
        num_output=counts([t.output_ids.size for t in works]),
        num_known=counts([t.output_ids.size + t.tail_ids.size for t in works]),
        features={
            tap: torch.nn.utils.rnn.pad_sequence([features.read(tap, t) for t in works], batch_first=True).to(
                device, dtype
            )
            for tap in taps
        }
        if features is not None
        else {},
    )


@dataclass(frozen=True, slots=True, eq=False)
class RoundScores:
    """Every position 1..K of every round, [B, K, N], or [K, N] of one response.

    `hits`: whether the greedy draft is right; `choices`: which it is (a target id); `log_q`: of the text there;
    `overlap`: see `overlaps`, None where p is not known. Only filled in where all positions before have a chance to be
    accepted, see `surviving`: elsewhere no engine gets there.
    """

    hits: NDArray[np.bool_]
    choices: NDArray[np.int32]
    log_q: NDArray[np.float32]
    overlap: NDArray[np.float32] | None

    def of(self, row: int, trajectory: Trajectory) -> RoundScores:
        """Those of one response."""
        inside = row, slice(None), slice(trajectory.output_ids.size)
        overlap = None if self.overlap is None else self.overlap[inside]
        return RoundScores(self.hits[inside], self.choices[inside], self.log_q[inside], overlap)


def score_rounds(
    head: Head,
    batch: Batch,
    depth: int,
    rules: Sequence[DraftRule],
    vocabulary: DraftVocabulary | None = None,
    known: Sequence[ResponseDistribution | None] = (),
    log_probs: NDArray[np.float32] | None = None,
) -> RoundScores:
    """Draft every round of a batch; `rules` and, where there is one, p `known` by response.

    `log_probs` [B, N]: log p of the text, which sampled drafts are held against; what is beyond the end of a response
    is not looked at.
    """
    rows, width = batch.ids.shape[0], int(batch.num_output.max())
    shape = rows, depth, width
    filled = _Filled(
        hits=torch.zeros(shape, dtype=torch.bool, device=batch.device),
        choices=torch.full(shape, -1, dtype=torch.int32, device=batch.device),
        log_q=torch.full(shape, -torch.inf, device=batch.device),
        overlap=torch.zeros(shape, device=batch.device) if rules[0].sampled and all(known) and known else None,
    )
    text = _Text(rules, None if not rules[0].sampled else log_probs)
    columns = torch.arange(width, device=batch.device)[None]
    alive = (columns >= 1) & (columns < batch.num_output[:, None])
    state = head.begin(batch, depth)
    at_once = ROUNDS_AT_ONCE if filled.overlap is None else _rounds_at_once(depth, known)
    for first in range(1, width, at_once):
        here = (columns >= first) & (columns < first + at_once)
        stretch = None if filled.overlap is None else _Stretch.of(known, first, first + at_once + depth - 1)
        _score_some(head, batch, state, alive & here, text, vocabulary, stretch, filled)
        head.rewind(state)
    return RoundScores(
        filled.hits.cpu().numpy(),
        filled.choices.cpu().numpy(),
        filled.log_q.cpu().numpy(),
        None if filled.overlap is None else filled.overlap.cpu().numpy(),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Filled:
    """`RoundScores` [B, K, N] on the device, while they are filled in."""

    hits: torch.Tensor
    choices: torch.Tensor
    log_q: torch.Tensor
    overlap: torch.Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    """What the target wrote and how it is drafted: `rules` by response; `log_probs` [B, N], None for greedy drafts."""

    rules: Sequence[DraftRule]
    log_probs: NDArray[np.float32] | None

    def accept(self, log_q: NDArray[np.float32], position: int, num_output: NDArray[np.int64]) -> NDArray[np.float64]:
        """The chance [B, N] that this position of the rounds at each output token is accepted; 0 beyond the text."""
        assert self.log_probs is not None
        places = np.arange(log_q.shape[1]) + position - 1
        log_p = self.log_probs[:, np.minimum(places, log_q.shape[1] - 1)]
        # All rules are of one drafter and one temperature.
        accept = acceptance_probability(log_q, log_p, self.rules[0].accept)
        return np.where(places < num_output[:, None], accept, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """p [R, V] at output tokens from `first` on: the target's head runs once for all positions of the rounds there.

    `offset` [B]: the row of a response's first.
    """

    first: int
    p: torch.Tensor
    offset: torch.Tensor

    @classmethod
    def of(cls, known: Sequence[ResponseDistribution | None], first: int, end: int) -> _Stretch:
        """Of all responses up to `end`, or their ends; none of them may be unknown."""
        found = [p for p in known if p is not None]
        counts = [max(0, min(end, len(p.states)) - first) for p in found]
        device, vocab_size = found[0].states.device, found[0].head.weight.shape[0]
        table = torch.empty(sum(counts), vocab_size, device=device)
        offset = np.cumsum([0, *counts])
        for p, count, start in zip(found, counts, offset.tolist(), strict=False):
            for rows in chunk_rows(count, vocab_size, device):
                positions = first + torch.arange(count, device=device)[rows]
                table[start + rows.start : start + rows.start + len(positions)] = p.p(positions)
        return cls(first, table, torch.from_numpy(offset[:-1]).to(device))

    def rows(self, response: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """p [R, V] of `response` [R] at output tokens `output` [R]."""
        return self.p[self.offset[response] + output - self.first]


def _rounds_at_once(depth: int, known: Sequence[ResponseDistribution | None]) -> int:
    """So many that p at all of their positions fits for all responses of a batch."""
    vocab_sizes = [p.head.weight.shape[0] for p in known if p is not None]
    return min(ROUNDS_AT_ONCE, max(_FEWEST_ROUNDS, _P_VALUES // sum(vocab_sizes) - depth))


def _score_some(
    head: Head,
    batch: Batch,
    state: Any,
    alive: torch.Tensor,
    text: _Text,
    vocabulary: DraftVocabulary | None,
    stretch: _Stretch | None,
    filled: _Filled,
) -> None:
    """Fill in the rounds that are alive, [B, N]; `stretch`: p there."""
    columns = torch.arange(alive.shape[1], device=batch.device)[None]
    # Responses mostly ask for the same; then their rows are scored together.
    rules = text.rules
    rule_of = torch.tensor([rules.index(rule) for rule in rules], device=batch.device)
    num_output = batch.num_output.cpu().numpy()
    hit_so_far = alive
    survival = alive.cpu().numpy().astype(np.float64)
    for position in range(1, filled.hits.shape[1] + 1):
        alive = alive & (columns + position - 1 < batch.num_known[:, None])
        row, start = alive.nonzero(as_tuple=True)
        if not len(row):
            return
        # Packed to the left, -1 where a row has fewer rounds than the fullest.
        column = (alive.cumsum(1) - 1)[row, start]
        starts = start.new_full((len(alive), int(column.max()) + 1), -1)
        starts[row, column] = start
        states = head.draft(state, position, starts)
        output = start + position - 1
        wanted = batch.ids[row, batch.num_prompt[row] + output]
        # Beyond a text there is no p: what lies there comes last.
        order = (output >= batch.num_output[row]).to(torch.int32).argsort(stable=True)
        num_inside = int((output < batch.num_output[row]).sum())
        for number in sorted({rules.index(rule) for rule in rules}):
            mine = order[rule_of[row[order]] == number]
            inside = int((rule_of[row[order[:num_inside]]] == number).sum())
            for part in chunk_rows(len(mine), vocab_size=1 << 17, device=batch.device):
                at = mine[part]
                where = row[at], torch.full_like(at, position - 1), start[at]
                logits = head.logits(states[row[at], column[at]], position)
                with_p = at[: max(0, inside - part.start)]
                p = stretch.rows(row[with_p], output[with_p]) if stretch is not None and len(with_p) else None
                scores = score_rows(logits, wanted[at], rules[number], vocabulary, p)
                filled.hits[where] = scores.hits
                filled.choices[where] = scores.choice.to(torch.int32)
                filled.log_q[where] = scores.log_q
                if filled.overlap is not None and scores.overlap is not None:
                    filled.overlap[tuple(index[: len(with_p)] for index in where)] = scores.overlap
        hit_so_far = hit_so_far & filled.hits[:, position - 1]
        alive = hit_so_far
        if text.log_probs is not None:
            survival *= text.accept(filled.log_q[:, position - 1].cpu().numpy(), position, num_output)
            alive = alive | torch.from_numpy(survival >= LEAST_SURVIVAL).to(batch.device)


def rows_at(states: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """[B, A, H]: rows `index` [B, A] of `states` [B, T, H]; for padding (-1), any."""
    return states.gather(1, index.clamp(min=0)[..., None].expand(-1, -1, states.shape[-1]))


def put_rows(states: torch.Tensor, starts: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values` [B, A, H] into columns `starts` [B, A] of `states`; padding goes to 0, where no round starts."""
    states.scatter_(1, starts.clamp(min=0)[..., None].expand_as(values), values)


class HeadCache(Protocol):
    """What a head's layers keep keys and values in."""

    cache: Any


class RoundCache:
    """Keys and values of a head's layers over a batch: the context's, then those of each round.

    A key of the context is seen by every query that comes at or after it; a key of a round by that round alone.
    """

    def __init__(self, num_layers: int, device: torch.device) -> None:
        self.cache = new_round_cache(num_layers)
        self._device = device
        self._num_context = 0
        self._rounds: list[torch.Tensor] = []

    def add_context(self, num_tokens: int) -> None:
        """The first `num_tokens` keys are the context's: call before the context pass, which needs no mask."""
        self._num_context = num_tokens

    def forget_rounds(self) -> None:
        """Back to the context alone."""
        added = sum(starts.shape[1] for starts in self._rounds)
        if added:
            self.cache.crop(-added)
        self._rounds.clear()

    def add_round(self, starts: torch.Tensor, last_context: torch.Tensor) -> torch.Tensor:
        """The mask [B, 1, A, keys] of a pass over `starts` [B, A]; `last_context` [B, A]: the last context key seen.

        The keys that the pass itself adds are in it.
        """
        self._rounds.append(starts)
        context = torch.arange(self._num_context, device=self._device)[None, None] <= last_context[:, :, None]
        # Padding (-1) has company in padding: no row of the mask is empty.
        rounds = torch.cat(self._rounds, dim=1)[:, None] == starts[:, :, None]
        return torch.cat([context, rounds], dim=-1)[:, None]
