"""Bias and variance of counts and of estimates of lower variance above temperature 0, against exact expectations.

A target and a drafter that are tables, p and q of the next token given the last one. What an engine accepts on average
while it writes N tokens is then a forward recursion over places and last tokens, no simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from specprobe.acceptance import Acceptance
from specprobe.drafters.base import Adoption, Limits, Proposals
from specprobe.drafters.scores import Draws, acceptance_probability, prefix_proposals
from specprobe.entropy import summarize_entropy
from specprobe.replay import replays
from specprobe.trajectory import Trajectory, token_ids
from tests.studies.tables import table

Floats = NDArray[np.float64]

WORDS, DEPTH, LENGTH = 6, 4, 40
TEMPERATURE = 0.7
PROMPT = 0


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """`p`, `q` [WORDS, WORDS]: given the last token (rows), of the next."""

    p: Floats
    q: Floats

    def kept(self, draft_sampling: str) -> Floats:
        """[WORDS, WORDS]: the chance that the next token is this one and comes from an accepted draft."""
        if draft_sampling == "sampled":
            return np.minimum(self.p, self.q)
        is_draft = self.q.argmax(axis=1)[:, None] == np.arange(WORDS)
        return np.where(is_draft, self.p, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What an engine counts on average on one response, at DEPTH: `at_risk_at`, `accepted_at` [DEPTH]."""

    rounds: float
    at_risk_at: Floats
    accepted_at: Floats


@dataclass(frozen=True, slots=True)
class Line:
    """An estimate over many responses: its mean, that mean's standard error, the truth, and the standard deviation of
    one response's, with that of the plain counter where there is one to be better than.
    """

    draft_sampling: str
    what: str
    mean: float
    error: float
    truth: float
    deviation: float
    plain_deviation: float | None = None

    @property
    def z(self) -> float:
        """Standard errors from the truth."""
        return (self.mean - self.truth) / self.error


def draw_tables() -> Tables:
    """Sharp distributions with some zeros; the drafter knows half of the target's."""
    rng = np.random.default_rng(0)
    p, noise = (rng.dirichlet(np.full(WORDS, 0.7), WORDS) for _ in range(2))
    return Tables(p, 0.5 * p + 0.5 * noise)


def exact(tables: Tables, draft_sampling: str) -> Expected:
    """The forward recursion. starts[s, x]: the chance that a round begins at token s with x before it."""
    kept = tables.kept(draft_sampling)
    starts = np.zeros((LENGTH + DEPTH + 2, WORDS))
    starts[1] = tables.p[PROMPT]
    rounds, at_risk, accepted = 0.0, np.zeros(DEPTH), np.zeros(DEPTH)
    for s in range(1, LENGTH):
        reached = starts[s]
        rounds += reached.sum()
        for i in range(DEPTH):
            if s + i == LENGTH:
                break
            at_risk[i] += reached.sum()
            # What is rejected is replaced by a token from what is left of p.
            starts[s + i + 1] += reached @ (tables.p - kept)
            reached = reached @ kept
            accepted[i] += reached.sum()
        else:
            starts[s + DEPTH + 1] += reached @ tables.p
    return Expected(float(rounds), at_risk, accepted)


def exact_entropy(tables: Tables) -> float:
    """Mean over the tokens after the first, in nats."""
    of_row = -(tables.p * np.log(np.where(tables.p > 0, tables.p, 1.0))).sum(axis=1)
    last, total = tables.p[PROMPT], 0.0
    for _ in range(1, LENGTH):
        total += last @ of_row
        last = last @ tables.p
    return float(total / (LENGTH - 1))


def write(tables: Tables, responses: int, seed: int) -> list[Trajectory]:
    """Responses of the target, with log p and entropy of each token."""
    rng = np.random.default_rng(seed)
    text = np.zeros((responses, LENGTH + 1), dtype=np.int64)
    text[:, 0] = PROMPT
    reach = tables.p.cumsum(axis=1)
    for s in range(LENGTH):
        rows = reach[text[:, s]]
        text[:, s + 1] = (rng.random((responses, 1)) * rows[:, -1:] >= rows).sum(axis=1)
    log_probs = np.log(tables.p[text[:, :-1], text[:, 1:]]).astype(np.float32)
    of_row = -(tables.p * np.log(np.where(tables.p > 0, tables.p, 1.0))).sum(axis=1)
    entropies = of_row[text[:, :-1]].astype(np.float32)
    return [
        Trajectory(
            id=number,
            prompt_ids=token_ids([PROMPT]),
            output_ids=token_ids(text[number, 1:]),
            source="generated",
            temperature=TEMPERATURE,
            tail_ids=token_ids(),
            log_probs=log_probs[number],
            entropy=entropies[number],
        )
        for number in range(responses)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class TableDrafter:
    """A drafter that reads q of the last token, as a draft model does."""

    tables: Tables
    name: ClassVar[str] = "table"
    config: ClassVar[dict[str, Any]] = {}
    fixed_length: ClassVar[bool] = True
    adoption: ClassVar[Adoption] = Adoption.SECOND_MODEL

    def proposals(self, trajectories: Sequence[Trajectory], depth: int, limits: Limits) -> list[Proposals]:
        """Of each response."""
        p, q = self.tables.p, self.tables.q
        found = []
        for one in trajectories:
            text = one.output_ids.astype(np.int64)
            before = np.concatenate([[PROMPT], text[:-1]])
            with np.errstate(divide="ignore"):
                log_q = np.log(q[before, text]).astype(np.float32)
            choices = q.argmax(axis=1)[before].astype(np.int32)
            draws = Draws(acceptance_probability(log_q, one.log_probs), np.minimum(p, q).sum(axis=1)[before])
            longest = np.broadcast_to(limits.longest_drafts(1, text.size), (depth, text.size))
            found.append(prefix_proposals(one, depth, longest, choices == text, choices, draws))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class TableDistribution:
    """p of the target, as `replays` asks for it."""

    tables: Tables
    trajectory: Trajectory | None = None

    def of(self, trajectory: Trajectory) -> TableDistribution:
        """While this response was written."""
        return replace(self, trajectory=trajectory)

    def log_p_of(self, positions: NDArray[np.int64], tokens: NDArray[np.int64]) -> Floats:
        """Of these tokens at these places of the text."""
        assert self.trajectory is not None
        before = np.concatenate([[PROMPT], self.trajectory.output_ids[:-1]])[positions]
        with np.errstate(divide="ignore"):
            return np.log(self.tables.p[before, tokens])


def lines_of(acceptance: Acceptance, truth: Expected) -> list[Line]:
    """Rounds, accepted by position, at risk and accepted of lower variance, and what is made of their sums."""
    sampling = acceptance.draft_sampling
    expected = acceptance.expectation
    assert expected is not None
    rounds = acceptance.rounds[:, -1].astype(np.float64)
    counted = acceptance.accepted_at[:, -1].astype(np.float64)
    at_risk, lower = expected.at_risk_at[:, -1], expected.accepted_at[:, -1]
    emitted = acceptance.emitted_tokens.astype(np.float64)
    found = [_line(sampling, "rounds", rounds, truth.rounds)]
    for i in (0, DEPTH - 1):
        plain = _line(sampling, f"accepted at {i + 1}, counted", counted[:, i], truth.accepted_at[i])
        better = _line(sampling, f"accepted at {i + 1}, lower variance", lower[:, i], truth.accepted_at[i])
        found += [plain, replace(better, plain_deviation=plain.deviation)]
    true_rate = (LENGTH - 1) / truth.rounds
    plain = _ratio(sampling, "tokens per round, counted", emitted, rounds, true_rate)
    gained = emitted + lower.sum(axis=1) - counted.sum(axis=1)
    better = _ratio(sampling, "tokens per round, lower variance", gained, rounds, true_rate)
    found += [plain, replace(better, plain_deviation=plain.deviation)]
    plain_at_risk = acceptance.at_risk_at[:, -1].astype(np.float64)
    for i in (0, DEPTH - 1):
        true_h = float(truth.accepted_at[i] / truth.at_risk_at[i])
        plain = _ratio(sampling, f"h {i + 1}, counted", counted[:, i], plain_at_risk[:, i], true_h)
        better = _ratio(sampling, f"h {i + 1}, lower variance", lower[:, i], at_risk[:, i], true_h)
        found += [plain, replace(better, plain_deviation=plain.deviation)]
    return found


def _line(sampling: str, what: str, values: Floats, truth: float) -> Line:
    deviation = float(values.std(ddof=1))
    return Line(sampling, what, float(values.mean()), deviation / len(values) ** 0.5, float(truth), deviation)


def _ratio(sampling: str, what: str, tops: Floats, bottoms: Floats, truth: float) -> Line:
    """A ratio of sums, with its linearised error."""
    ratio = tops.sum() / bottoms.sum()
    pulls = (tops - ratio * bottoms) / bottoms.mean()
    deviation = float(pulls.std(ddof=1))
    return Line(sampling, what, float(ratio), deviation / len(tops) ** 0.5, truth, deviation)


def study(responses: int) -> list[Line]:
    """Both ways of drafting, and the mean entropy."""
    tables = draw_tables()
    works = write(tables, responses, 1)
    distribution: Any = TableDistribution(tables)
    found: list[Line] = []
    for acceptance in replays(TableDrafter(tables), works, DEPTH, ("greedy", "sampled"), distribution=distribution):
        found += lines_of(acceptance, exact(tables, acceptance.draft_sampling))
    entropies = [one.entropy for one in works if one.entropy is not None]
    summary = summarize_entropy(entropies)
    assert summary is not None
    by_response = np.array([one[1:].mean(dtype=np.float64) for one in entropies])
    line = _line("either", "mean entropy, nats", by_response, exact_entropy(tables))
    return [*found, replace(line, mean=summary.mean)]


def expectation_table(lines: Sequence[Line]) -> str:
    """Means beside the truth."""
    return table(
        ["drafts, estimate", "mean", "exact", "off by, standard errors", "spread, of the counter's"],
        [
            [
                f"{one.draft_sampling}, {one.what}",
                f"{one.mean:.4f}",
                f"{one.truth:.4f}",
                f"{one.z:+.1f}",
                f"{one.deviation / one.plain_deviation:.2f}" if one.plain_deviation else "",
            ]
            for one in lines
        ],
    )
