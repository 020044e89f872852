"""Load in closed form, where one is known: a request alone, and a server whose slots are all taken."""

from __future__ import annotations

import numpy as np

from specprobe.load import Server, Workload
from specprobe.step_cost import Floats, StepCost


def closed_form_seconds_alone(workload: Workload, cost: StepCost, server: Server) -> Floats:
    """[R] seconds of each request on an idle server: its prefill, and each of its rounds at its own context."""
    rounds = cost.decode_seconds(1, 1.0 + workload.rounds.drafted, workload.contexts)
    until = np.concatenate([[0.0], np.cumsum(rounds)])
    decode = np.diff(until[workload.rounds.first])
    return cost.prefill_seconds(workload.prompt_tokens, server.max_batched_tokens) + decode


def closed_form_steady_rate(workload: Workload, cost: StepCost, server: Server, concurrency: int) -> float:
    """Output tokens per second while `concurrency` requests hold slots, where KV does not run out.

    A request holds its slot for one step per round and for the steps of its prefill, in which it does not decode. So
    requests take sum(rounds + prefill steps) / C steps, each with C x rounds / (rounds + prefill steps) decoding
    sequences on average, and the time of their prompt tokens comes on top:

        rate = C sum(tokens) / (sum(rounds + prefill steps) x cost of a step + C x sum(prefill seconds))

    Exact where the cost is linear in batch, query tokens in all and context, and no step is without a decoding
    sequence; each prompt is assumed to get as much of the token budget as it wants.
    """
    slots = min(concurrency, server.max_sequences)
    num_rounds = workload.rounds.first[-1]
    slot_steps = num_rounds + np.ceil(workload.prompt_tokens / server.max_batched_tokens).sum()
    prompt = workload.prompt_tokens.astype(np.float64)
    pairs = prompt * (prompt - 1) / 2
    prefill_seconds = (cost.prefill_token_seconds * prompt + cost.prefill_pair_seconds * pairs).sum()
    if not num_rounds:
        seconds = slot_steps * cost.prefill_step_seconds + prefill_seconds
        return float(workload.num_requests / seconds)
    step_seconds = cost.decode_seconds(
        slots * num_rounds / slot_steps, 1.0 + workload.rounds.drafted.mean(), workload.contexts.mean()
    )
    tokens = workload.output_tokens.sum(dtype=np.int64)
    return float(slots * tokens / (slot_steps * step_seconds + slots * prefill_seconds))
