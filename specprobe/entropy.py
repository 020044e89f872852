"""Why a workload drafts well or badly: acceptance by the entropy of what the target could have written.

Entropies are in nats, one for each output token, of the distribution that the target drew it from (at temperature 0:
of the distribution at temperature 1). Draft tokens are sorted into quartiles by the entropy at the place they were
drafted for. The first token of a response comes from the prefill and is never drafted, so it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Entropies = NDArray[np.float32]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EntropySummary:
    """Entropy over all output tokens but the first of each response: their number, mean and quartiles, in nats."""

    tokens: int
    mean: float
    quartiles: tuple[float, float, float]

    def to_json(self) -> dict[str, Any]:
        """For the run's document."""
        return {"tokens": self.tokens, "mean": self.mean, "quartiles": list(self.quartiles)}


@dataclass(frozen=True, slots=True)
class EntropyQuartile:
    """Draft tokens at places whose entropy is above `low` and at most `high`, in nats; None: no bound.

    `at_risk`: draft tokens whose earlier ones of the same round were accepted; `accepted`: those accepted too.
    Expectations for sampled drafts.
    """

    low: float | None
    high: float | None
    at_risk: float
    accepted: float

    @property
    def acceptance(self) -> float | None:
        """Conditional acceptance, over all positions: accepted / at risk; None where none was at risk."""
        return self.accepted / self.at_risk if self.at_risk else None

    def to_json(self) -> dict[str, Any]:
        """For the run's document."""
        return {
            "low": self.low,
            "high": self.high,
            "at_risk": self.at_risk,
            "accepted": self.accepted,
            "acceptance": self.acceptance,
        }


def entropy_edges(entropies: Sequence[Entropies]) -> Floats | None:
    """The three inner quartile borders over all tokens that a round may draft; None where there are none.

    `entropies`: one array [N] for each response.
    """
    drafted = _without_first(entropies)
    return np.quantile(drafted, [0.25, 0.5, 0.75]) if drafted.size else None


def summarize_entropy(entropies: Sequence[Entropies]) -> EntropySummary | None:
    """The entropy of a set of responses; None where nothing is known. `entropies` as for `entropy_edges`."""
    edges = entropy_edges(entropies)
    if edges is None:
        return None
    drafted = _without_first(entropies)
    first, median, third = edges.tolist()
    return EntropySummary(int(drafted.size), float(drafted.mean()), (first, median, third))


def entropy_quartiles(edges: Floats, at_risk: Floats, accepted: Floats) -> tuple[EntropyQuartile, ...]:
    """Lowest entropy first. `edges` [3]; `at_risk`, `accepted` [4], summed `quartile_counts` of all responses."""
    lows, highs = [None, *edges.tolist()], [*edges.tolist(), None]
    return tuple(
        EntropyQuartile(*fields) for fields in zip(lows, highs, at_risk.tolist(), accepted.tolist(), strict=True)
    )


def quartile_counts(entropy: Entropies, edges: Floats, at_risk: Floats, kept: Floats) -> tuple[Floats, Floats]:
    """`at_risk` and `kept` [N] of one response (see `token_weights`), summed by quartile of `entropy` [N]: both [4].

    An entropy equal to a border belongs below it.
    """
    quartile = np.searchsorted(edges, entropy, side="left")
    at_risk_in = np.bincount(quartile, weights=at_risk, minlength=4).astype(np.float64)
    kept_in = np.bincount(quartile, weights=kept, minlength=4).astype(np.float64)
    return at_risk_in, kept_in


@njit(cache=True, nogil=True)
def token_weights(
    drafted: NDArray[np.int16],
    accepted: NDArray[np.int16],
    depth: int,
    at_risk: Floats,
    kept: Floats,
) -> None:
    """Which output tokens the rounds of one response drafted for at one depth, and where the draft was accepted.

    `drafted`, `accepted` [K, N] as for `walk_rounds`, whose recursion this is. Adds 1 to `at_risk[t]` [N] where a round
    had a draft for output token t and all its earlier drafts were accepted, and to `kept[t]` [N] where this one was
    too. Drafts past the end of the text have no token.
    """
    num_output = drafted.shape[1]
    start = 1
    while start < num_output:
        num_accepted = accepted[depth - 1, start]
        num_left = num_output - start
        for i in range(min(drafted[depth - 1, start], num_accepted + 1, num_left)):
            at_risk[start + i] += 1
        for i in range(min(num_accepted, num_left)):
            kept[start + i] += 1
        start += num_accepted + 1


@njit(cache=True, nogil=True)
def expected_token_weights(
    drafted: NDArray[np.int16],
    survival: Floats,
    depth: int,
    at_risk: Floats,
    kept: Floats,
) -> None:
    """`token_weights` of sampled drafts, in expectation given the text.

    `drafted` [K, N] and `survival` [K, N], of this depth, as for `expect_rounds`, whose recursion this is.
    """
    num_output = drafted.shape[1]
    # P(a round starts at s): 1 at token 1, then what earlier rounds send there.
    starts = np.zeros(num_output + depth + 1)
    starts[1] = 1.0
    for start in range(1, num_output):
        here = starts[start]
        num_drafted = min(drafted[depth - 1, start], num_output - start)
        reached = 1.0
        for i in range(num_drafted):
            accepted = survival[i, start]
            at_risk[start + i] += here * reached
            kept[start + i] += here * accepted
            starts[start + i + 1] += here * (reached - accepted)
            reached = accepted
        starts[start + num_drafted + 1] += here * reached


def _without_first(entropies: Sequence[Entropies]) -> Floats:
    """All tokens of all responses but the first of each, one after the other."""
    return np.concatenate([np.zeros(0), *(entropy[1:] for entropy in entropies)], dtype=np.float64)
