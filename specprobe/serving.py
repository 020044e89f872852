"""What a server does for the user's own requests, without speculation and with each drafter and depth: simulated.

All arms serve the same requests in the same order, so that they differ by what is compared and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance
from specprobe.arrivals import Arrivals
from specprobe.cost import CostTable
from specprobe.errors import SpecprobeError
from specprobe.load import LoadResult, Server, Workload, repeated, simulate
from specprobe.request_rounds import Rounds, plain_rounds, request_rounds
from specprobe.run import ResponseRecord
from specprobe.speedup import MAX_BATCHED_TOKENS, cost_keys, drafts_by_token
from specprobe.step_cost import StepCost

# Of vLLM's server on large GPUs (0.11 to 0.33: max_num_seqs).
MAX_SEQUENCES = 1024
# Every slot is to be filled a few times over, so that a steady stretch lies between filling and draining.
ROUNDS_OF_SLOTS, FEWEST_ROUNDS_OF_SLOTS = 4, 2
# At which distributions over requests and chunks are told.
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
# More output tokens tell nothing new and take seconds for each depth.
MOST_TOKENS = 1_000_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """How requests come: `concurrency` of them always in flight, or at given times, `arrival_seconds` [R] rising.

    `arrivals`: what is known of these times.
    """

    concurrency: int | None = None
    arrival_seconds: Floats | None = None
    arrivals: Arrivals | None = None

    @property
    def max_sequences(self) -> int:
        """Slots: an engine is set up for the concurrency that is asked for; for arrivals, as it comes."""
        return self.concurrency or MAX_SEQUENCES

    def num_requests(self, num_responses: int, mean_output: float) -> int:
        """How many requests are served: all of the log, more where they do not fill the slots, fewer of very many."""
        if self.arrival_seconds is not None:
            return int(self.arrival_seconds.size)
        slots = self.concurrency or 1
        filling = ROUNDS_OF_SLOTS * slots
        if filling * mean_output > MOST_TOKENS:
            filling = max(FEWEST_ROUNDS_OF_SLOTS * slots, int(MOST_TOKENS / mean_output))
        return max(filling, min(num_responses, int(MOST_TOKENS / max(mean_output, 1.0))))


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What a server and its requests saw, in seconds and tokens.

    `steady_output_tokens_per_second`: while all slots are full, None where they never are; the other rate is over the
    whole run. `batch`, `largest_batch`: sequences in a step that decodes. `memory_bound`: whether requests waited
    because the cache was full, or lost their place in it. `itl`: gaps between stream chunks; None where no response has
    a second token. `ttft_quantiles_seconds`, `itl_quantiles_seconds` [Q]: at QUANTILES. `latency_seconds` [R]: of each
    request. `falls_behind`: whether requests wait ever longer for their first token, as where more arrive than can be
    served.
    """

    steady_output_tokens_per_second: float | None
    whole_output_tokens_per_second: float
    batch: float
    largest_batch: int
    in_flight: float
    memory_bound: bool
    preemptions: int
    ttft_p50_seconds: float
    ttft_p95_seconds: float
    itl_p50_seconds: float | None
    itl_p95_seconds: float | None
    tpot_seconds: float | None
    mean_latency_seconds: float
    p95_latency_seconds: float
    falls_behind: bool
    latency_seconds: Floats
    ttft_quantiles_seconds: Floats
    itl_quantiles_seconds: Floats | None

    @property
    def output_tokens_per_second(self) -> float:
        """While all slots are full where they ever are, else over the whole run."""
        return self.steady_output_tokens_per_second or self.whole_output_tokens_per_second


class Serving:
    """The requests of a run under one traffic and cost; serves them with any drafter."""

    def __init__(
        self,
        lengths: ResponseRecord,
        cost: CostTable,
        traffic: Traffic,
        seed: int = 0,
        on_served: Callable[[], None] | None = None,
    ) -> None:
        self._on_served = on_served
        self._cost, self._traffic, self._seed = cost, traffic, seed
        self._usable = np.flatnonzero(lengths.output_tokens > 0)
        if not self._usable.size:
            raise SpecprobeError("recommend: every response of the run is empty; analyze more")
        self._output_tokens = lengths.output_tokens[self._usable]
        # A response without a prompt still has a token that it starts from.
        self._prompt_tokens = np.maximum(lengths.prompt_tokens[self._usable], 1)
        self._num_requests = traffic.num_requests(self._usable.size, float(self._output_tokens.mean()))

    def plain(self) -> Served:
        """Without speculation."""
        return self._serve(plain_rounds(self._output_tokens), self._cost.step_cost(), ())

    def speculative(self, acceptance: Acceptance, depth: int, *, slower: float = 1.0) -> Served:
        """With one drafter at one depth; `slower`: a factor on the seconds of its rounds.

        Raises SpecprobeError where its counters cannot be of these responses.
        """
        keys = cost_keys(acceptance)
        cost = self._cost.step_cost(keys, depth, by_token=drafts_by_token(acceptance))
        cost = replace(cost, seconds=slower * cost.seconds, drafting_seconds=slower * cost.drafting_seconds)
        return self._serve(request_rounds(acceptance, depth, self._seed).take(self._usable), cost, keys)

    def _serve(self, rounds: Rounds, cost: StepCost, keys: Sequence[str]) -> Served:
        try:
            once = Workload(self._prompt_tokens, rounds, self._output_tokens)
        except ValueError as error:
            raise SpecprobeError(
                f"recommend: the run's counters contradict its lengths ({error}); analyze again"
            ) from None
        memory, traffic = self._cost.memory, self._traffic
        result = simulate(
            repeated(once, self._num_requests, self._seed),
            cost,
            Server(
                traffic.max_sequences,
                MAX_BATCHED_TOKENS,
                memory.kv_capacity_tokens(keys) if memory else None,
            ),
            concurrency=traffic.concurrency,
            arrivals=traffic.arrival_seconds,
        )
        if self._on_served:
            self._on_served()
        return _served(result, traffic.max_sequences)


def _served(result: LoadResult, max_sequences: int) -> Served:
    steps = result.steps
    # A request waits although there is a slot, and could not have been given it.
    refused = (steps.in_flight > steps.running) & (steps.running < max_sequences) & steps.full
    whole = result.whole.output_tokens_per_second or 0.0
    steady = result.steady.output_tokens_per_second if result.steady else None
    itl, tpot, latency, ttft = result.itl, result.tpot, result.latency, result.ttft
    return Served(
        steady_output_tokens_per_second=steady,
        whole_output_tokens_per_second=whole,
        batch=result.mean_batch or 0.0,
        largest_batch=int(steps.decoding.max()),
        memory_bound=bool(refused.any()) or result.num_preemptions > 0,
        # Little's law over the whole run.
        in_flight=float(result.latency_seconds.sum()) / result.duration_seconds,
        preemptions=result.num_preemptions,
        ttft_p50_seconds=ttft.p50,
        ttft_p95_seconds=ttft.p95,
        itl_p50_seconds=itl.p50 if itl else None,
        itl_p95_seconds=itl.p95 if itl else None,
        tpot_seconds=tpot.mean if tpot else None,
        mean_latency_seconds=latency.mean,
        p95_latency_seconds=latency.p95,
        falls_behind=_falls_behind(result),
        latency_seconds=result.latency_seconds,
        ttft_quantiles_seconds=np.quantile(result.ttft_seconds, QUANTILES),
        itl_quantiles_seconds=np.quantile(result.gap_seconds, QUANTILES) if itl else None,
    )


def _falls_behind(result: LoadResult) -> bool:
    """The last quarter of the requests spends a third of its time waiting, and waits twice as long as the first."""
    quarter = max(1, result.ttft_seconds.size // 4)
    early, late = result.ttft_seconds[:quarter].mean(), result.ttft_seconds[-quarter:].mean()
    return bool(late > result.latency_seconds[-quarter:].mean() / 3 and late > 2 * early)
