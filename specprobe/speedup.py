"""What one drafter gains at one concurrency, depth by depth, in closed form: acceptance and cost put together.

While all C slots are full, a step of the engine serves C rounds at once. Without speculation it costs T(C, 1) and emits
C tokens; with it, it costs T(C, 1 + drafted tokens) + the drafter's time and emits C x (tokens per round). Prefill
takes its time besides. The time of the engine per output token is thus

    without: T(C, 1) / C + prefill                with: round / (C x tokens per round) + prefill + the drafter's prefill

and the speed-up is their ratio; a request also holds its slot for the steps of its prefill. Tokens per round is a ratio
of sums over requests, so it does not depend on C; only the cost does. At C = 1 the round time is averaged over the
draft lengths that occurred; at C > 1 it is taken at their mean, since the lengths of many rounds average out within a
step. `specprobe.serving` simulates the same server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance, drafter_label
from specprobe.cost import CostTable
from specprobe.drafters import MODEL_FREE
from specprobe.interval import LEVEL, Interval, bootstrap_t_columns
from specprobe.run import ResponseRecord

# Of vLLM's API server on large GPUs, 0.11 to 0.33 (max_num_batched_tokens): a longer prompt takes several steps.
MAX_BATCHED_TOKENS = 8192
# Between depths that differ by less, the shallower one wins: it wastes less when the load or the traffic changes.
DEPTH_TOLERANCE = 0.01

Floats = NDArray[np.float64]


def has_cost(acceptance: Acceptance, cost: CostTable) -> bool:
    """Whether the drafter's own time is known; n-gram and suffix take next to none, a model takes its time."""
    return acceptance.drafter in MODEL_FREE or cost.knows(cost_keys(acceptance))


def cost_keys(acceptance: Acceptance) -> tuple[str, ...]:
    """What a cost table may call the drafter: with its model as the user named it, by its label, by its method."""
    model = acceptance.config.get("model", acceptance.config.get("class"))
    label = drafter_label(acceptance.drafter, acceptance.config)
    named = [f"{acceptance.drafter}:{model}"] if model else []
    return tuple(dict.fromkeys((*named, label, acceptance.drafter)))


def drafts_by_token(acceptance: Acceptance) -> bool:
    """Whether its drafting time grows with the depth: that of models does, a look-up gives all tokens at once."""
    return acceptance.drafter not in MODEL_FREE


def speedup_counts(
    acceptance: Acceptance, lengths: ResponseRecord, cost: CostTable, *, scale_prompt: float = 1.0
) -> Floats:
    """[P, K, 5 + K]: emitted tokens, seconds of prefill, of the drafter's prefill, steps of prefill, rounds, and rounds
    that drafted at least 1..K tokens, for each response and depth. `scale_prompt`: a factor on all prompts' lengths."""
    prompt_tokens = scale_prompt * lengths.prompt_tokens.astype(np.float64)
    prefill = cost.prefill_token_seconds * prompt_tokens
    prefill += cost.prefill_pair_seconds * prompt_tokens * (prompt_tokens - 1) / 2
    drafter_prefill = cost.drafter_prefill(cost_keys(acceptance)) * prompt_tokens
    steps = np.ceil(prompt_tokens / MAX_BATCHED_TOKENS)
    of_requests = np.stack([acceptance.emitted_tokens.astype(np.float64), prefill, drafter_prefill, steps], axis=-1)
    shape = (*acceptance.rounds.shape, 4)
    return np.concatenate(
        [np.broadcast_to(of_requests[:, None, :], shape), acceptance.rounds[..., None], acceptance.drafted_at],
        axis=-1,
        dtype=np.float64,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Speedup:
    """Speed-up as a function of summed `speedup_counts` [..., 5 + K], at one concurrency and context.

    `seconds`, `errors` [K + 1]: of a round that verifies 1..K + 1 tokens a sequence; `drafting_seconds`,
    `drafting_errors` [K], by depth; errors are standard errors of repeated timings. `prefill_step_seconds`: a step that
    only prefills. `scale_output`: a factor on the lengths of all outputs.
    """

    concurrency: float
    seconds: Floats
    errors: Floats
    drafting_seconds: Floats
    drafting_errors: Floats
    prefill_step_seconds: float
    log_deviation: float
    scale_output: float = 1.0

    @property
    def baseline_seconds(self) -> float:
        """Of a round without drafts."""
        return float(self.seconds[0])

    @property
    def queries(self) -> Floats:
        """[K + 1] query tokens of a sequence, 1 and more."""
        return np.arange(1.0, self.seconds.size + 1.0)

    def __call__(self, sums: Floats) -> Floats:
        """The ratio of the engine's times for the same requests, without and with."""
        emitted, prefill, drafter_prefill, steps, rounds = (sums[..., column] for column in range(5))
        round_seconds = self.round_seconds(sums)
        # Alone, a prefill is a step of its own; else it keeps a slot from decoding for a step of the others.
        alone = self.concurrency == 1
        slot = (self.prefill_step_seconds if alone else self.baseline_seconds) / self.concurrency
        slot_with = (self.prefill_step_seconds if alone else round_seconds) / self.concurrency
        without = emitted * self.scale_output * self.baseline_seconds / self.concurrency + steps * slot + prefill
        decoding = rounds * self.scale_output * round_seconds / self.concurrency
        return without / (decoding + steps * slot_with + prefill + drafter_prefill)

    def round_seconds(self, sums: Floats) -> Floats:
        """The mean time of a speculative round."""
        if self.concurrency == 1:
            return self._shares(sums) @ self.seconds + self.drafting_seconds
        return np.interp(self._mean_query(sums), self.queries, self.seconds) + self.drafting_seconds

    def cost_log_variance(self, sums: Floats) -> Floats:
        """The variance of log(speed-up) that the cost brings: of both round times as repeated timings show it, taken
        as independent, and what the source is known to err by."""
        verifying = np.interp(self._mean_query(sums), self.queries, self.errors)
        speculative = np.hypot(verifying, self.drafting_errors) / self.round_seconds(sums)
        return speculative**2 + (self.errors[0] / self.baseline_seconds) ** 2 + self.log_deviation**2

    def intervals(self, counts: Floats, level: float = LEVEL, seed: int = 0) -> list[Interval | None]:
        """For each depth, over prompts and timings; `counts` [prompts, K, 5 + K]."""
        return bootstrap_t_columns(
            counts, self, level=level, seed=seed, extra_log_variance=self.cost_log_variance(counts.sum(axis=0))
        )

    @staticmethod
    def _mean_query(sums: Floats) -> Floats:
        """[...] mean query tokens per sequence: 1 + drafted; NaN where there is no round."""
        with np.errstate(invalid="ignore"):
            mean: Floats = 1 + sums[..., 5:].sum(axis=-1) / sums[..., 4]
        return mean

    @staticmethod
    def _shares(sums: Floats) -> Floats:
        """[..., K + 1] the share of rounds that drafted exactly 0..K tokens."""
        with np.errstate(invalid="ignore"):
            at_least = sums[..., 4:] / sums[..., 4:5]
        return at_least - np.concatenate([at_least[..., 1:], np.zeros_like(at_least[..., :1])], axis=-1)


def speedups(
    acceptance: Acceptance,
    lengths: ResponseRecord,
    cost: CostTable,
    concurrencies: Sequence[float],
    *,
    scale_prompt: float = 1.0,
    scale_output: float = 1.0,
) -> list[Speedup]:
    """The speed-up of one drafter at each concurrency, with prompts and outputs longer by factors."""
    context = lengths.mean_context_scaled(scale_prompt, scale_output)
    surface, depths = cost.at_context(context), np.arange(1.0, acceptance.depth + 1)
    keys, at = cost_keys(acceptance), (np.array(concurrencies, dtype=np.float64), depths, np.array([context]))
    drafting = cost.drafting_seconds(keys, *at, by_token=drafts_by_token(acceptance))[..., 0]
    drafting_errors = cost.drafting_errors(keys, *at)[..., 0]
    queries = np.arange(1.0, acceptance.depth + 2.0)
    found = []
    for row, concurrency in enumerate(concurrencies):
        seconds, errors = (np.interp(queries, surface.query_tokens, times) for times in surface.at_batch(concurrency))
        found.append(
            Speedup(
                concurrency=concurrency,
                seconds=seconds,
                errors=errors,
                drafting_seconds=drafting[row],
                drafting_errors=drafting_errors[row],
                prefill_step_seconds=cost.prefill_floor_seconds,
                log_deviation=cost.log_deviation,
                scale_output=scale_output,
            )
        )
    return found


def best_depth(speedups: Floats) -> tuple[int, float]:
    """The depth with the largest of the speed-ups [K], or a shallower one that is as good; and the largest.

    NaN where a depth was not counted.
    """
    largest = float(np.nanmax(speedups))
    return 1 + int(np.argmax(speedups >= largest * (1 - DEPTH_TOLERANCE))), largest
