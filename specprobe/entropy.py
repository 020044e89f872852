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
        return min(1.0, self.accepted / self.at_risk) if self.at_risk else None

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


def quartile_counts(entropy: Entropies, edges: Floats, at_risk: Floats, accepted: Floats) -> tuple[Floats, Floats]:
    """`at_risk` and `accepted` [N] of one response (see `token_weights`), summed by quartile of `entropy` [N].

    Both [4]. An entropy equal to a border belongs below it.
    """
    quartile = np.searchsorted(edges, entropy, side="left")
    at_risk_in = np.bincount(quartile, weights=at_risk, minlength=4).astype(np.float64)
    accepted_in = np.bincount(quartile, weights=accepted, minlength=4).astype(np.float64)
    return at_risk_in, accepted_in


def token_weights(starts: Floats, at_risk: Floats, accepted: Floats) -> tuple[Floats, Floats]:
    """At each output token [N], the draft tokens at risk there and those accepted, of the rounds of one depth.

    `starts` [N]: where its rounds start; `at_risk`, `accepted` [K, N]: of a round at s, see `rounds.reach`.
    """
    num_depths, num_output = at_risk.shape
    place = (np.arange(num_output) + np.arange(num_depths)[:, None]).ravel()

    def at_tokens(values: Floats) -> Floats:
        summed = np.bincount(place, weights=(starts * values).ravel(), minlength=num_output)
        return summed[:num_output].astype(np.float64)

    return at_tokens(at_risk), at_tokens(accepted)


def _without_first(entropies: Sequence[Entropies]) -> Floats:
    """All tokens of all responses but the first of each, one after the other."""
    return np.concatenate([np.zeros(0), *(entropy[1:] for entropy in entropies)], dtype=np.float64)
