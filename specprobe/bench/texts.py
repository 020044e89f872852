"""Are the answers of both arms the same? Greedy ones token by token, sampled ones by their likelihood.

Greedy decoding with and without speculation gives the same text up to near-ties: floating point sums differ with the
shape of a batch, and where two tokens are equally likely within that, either may win (vLLM, docs/features/
spec_decode.md, "Lossless guarantees"). So a divergence is no fault by itself. It is placed, held against what the
plain server does to its own answers from pass to pass, and, where that server gives log-probabilities, against how far
the token that was written lies below the likeliest.

Sampled answers of both arms come from one distribution, so their mean log-probability under the target is the same in
expectation. What an engine that corrupts speculation writes is far less likely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtr

from specprobe.bench.client import Written
from specprobe.errors import SpecprobeError
from specprobe.server import RefusedFieldError, Server, post_json

# bfloat16 has 8 bits: logits from 16 to 32 lie 1/8 apart, and two roundings can move their difference by twice that.
NEAR_TIE_NATS = 0.25
# Of the one-sided test; chance alone says so once in a thousand benches.
SIGNIFICANT = 0.001
# Half a nat a token: the text is as likely as one in which each token has 1.6 times as many rivals. Rounding, another
# kernel or another batch move it by hundredths.
FAR_LESS_LIKELY_NATS = 0.5
FEWEST_SCORED = 4


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a speculative answer leaves the plain one. `position`: of the first token (character) that differs.

    `gap_nats`: how far the token that was written lies below the likeliest under the target; None where not known.
    """

    prompt: int
    concurrency: int
    repeat: int
    position: int
    length: int
    gap_nats: float | None = None

    @property
    def is_near_tie(self) -> bool | None:
        """None where not known."""
        return None if self.gap_nats is None else self.gap_nats <= NEAR_TIE_NATS

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "prompt": self.prompt,
            "concurrency": self.concurrency,
            "repeat": self.repeat,
            "position": self.position,
            "length": self.length,
            "gap_nats": self.gap_nats,
            "near_tie": self.is_near_tie,
        }


@dataclass(frozen=True, slots=True)
class Agreement:
    """Greedy answers at one concurrency: of `compared` pairs of the arms `len(divergences)` differ.

    `plain_compared`, `plain_differ`: the plain server's answers against its own first ones, at any concurrency.
    `in_tokens`: whether positions are tokens; else characters.
    """

    concurrency: int
    compared: int
    divergences: tuple[Divergence, ...]
    plain_compared: int
    plain_differ: int
    in_tokens: bool

    @property
    def near_ties(self) -> int | None:
        """How many divergences are near-ties; None where that of none is known."""
        known = [one.is_near_tie for one in self.divergences if one.gap_nats is not None]
        return sum(bool(one) for one in known) if known else None

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "concurrency": self.concurrency,
            "compared": self.compared,
            "diverging": len(self.divergences),
            "near_ties": self.near_ties,
            "plain_compared": self.plain_compared,
            "plain_diverging": self.plain_differ,
            "unit": "tokens" if self.in_tokens else "characters",
            "divergences": [one.to_json() for one in self.divergences],
        }


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Sampled answers under the target: mean log p of a token, by arm, and a paired test over prompts.

    `difference`: speculative - plain, in nats a token, the mean over prompts; `p_value`: one-sided, of a difference as
    low by chance (paired t-test). None of both where fewer than FEWEST_SCORED prompts could be scored.
    """

    prompts: int
    plain: float
    speculative: float
    difference: float | None
    p_value: float | None

    @property
    def is_lower(self) -> bool:
        """More than chance."""
        return self.p_value is not None and self.p_value < SIGNIFICANT

    @property
    def is_broken(self) -> bool:
        """Far lower, and more than chance."""
        return self.is_lower and self.difference is not None and self.difference < -FAR_LESS_LIKELY_NATS

    def to_json(self) -> dict[str, Any]:
        """For documents."""
        return {
            "prompts": self.prompts,
            "plain_nats_per_token": self.plain,
            "speculative_nats_per_token": self.speculative,
            "difference": self.difference,
            "p_value": self.p_value,
        }


@dataclass(frozen=True, slots=True)
class Score:
    """An answer under the target, teacher-forced, in nats: log p of each token, and how far it is from the best."""

    log_probs: tuple[float, ...]
    gaps: tuple[float, ...]


def first_difference(a: Written, b: Written) -> int | None:
    """The position of the first token (character) that differs; None where the answers are the same."""
    if (a.output_ids is None) == (b.output_ids is None):
        one, other = a.units, b.units
    else:
        one, other = a.text, b.text
    for position, (x, y) in enumerate(zip(one, other, strict=False)):
        if x != y:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def compare_greedy(
    concurrency: int,
    plain: Sequence[Mapping[int, Written]],
    speculative: Sequence[Mapping[int, Written]],
    first: Mapping[int, Written],
) -> Agreement:
    """The answers at one concurrency, by repeat and prompt; `first`: the plain server's first ones of all."""
    divergences, compared = [], 0
    for repeat, (a, b) in enumerate(zip(plain, speculative, strict=False)):
        for prompt in sorted(a.keys() & b.keys()):
            compared += 1
            position = first_difference(a[prompt], b[prompt])
            if position is not None:
                length = len(a[prompt].units)
                divergences.append(Divergence(prompt, concurrency, repeat, position, length))
    own = [(first[p], again[p]) for again in plain for p in again if p in first and again[p] is not first[p]]
    return Agreement(
        concurrency=concurrency,
        compared=compared,
        divergences=tuple(divergences),
        plain_compared=len(own),
        plain_differ=sum(first_difference(a, b) is not None for a, b in own),
        in_tokens=all(w.output_ids is not None for answers in (*plain, *speculative) for w in answers.values()),
    )


def compare_sampled(plain: Mapping[int, Sequence[Score]], speculative: Mapping[int, Sequence[Score]]) -> Likelihood:
    """The scored answers of both arms, by prompt."""
    both = sorted(p for p in plain.keys() & speculative.keys() if plain[p] and speculative[p])
    means = np.array([[_mean(plain[p]), _mean(speculative[p])] for p in both]).reshape(-1, 2)
    differences = means[:, 1] - means[:, 0]
    difference = p_value = None
    if len(both) >= FEWEST_SCORED:
        difference = float(differences.mean())
        error = float(differences.std(ddof=1)) / math.sqrt(len(both))
        p_value = float(stdtr(len(both) - 1, difference / error)) if error > 0 else float(difference >= 0)
    of_plain, of_speculative = (float(x) for x in (means.mean(axis=0) if len(both) else (math.nan, math.nan)))
    return Likelihood(len(both), of_plain, of_speculative, difference, p_value)


def _mean(scores: Sequence[Score]) -> float:
    """Of a token, over all answers to a prompt."""
    return sum(sum(score.log_probs) for score in scores) / sum(len(score.log_probs) for score in scores)


def score(server: Server, model: str, written: Written) -> Score | None:
    """An answer under the target that this server runs; None where it gives no log-probabilities of prompts.

    vLLM: `prompt_logprobs` of /completions, of a prompt of token ids, at temperature 1 and before any truncation.
    """
    if written.prompt_ids is None or written.output_ids is None:
        return None
    body = {
        "model": model,
        "prompt": [*written.prompt_ids, *written.output_ids],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 1,
    }
    try:
        answer = post_json(server, f"{server.path}/completions", body)
        rows = answer["choices"][0]["prompt_logprobs"][len(written.prompt_ids) :]
        known = [[float(one["logprob"]) for one in row.values()] for row in rows]
        own = [float(row[str(token)]["logprob"]) for row, token in zip(rows, written.output_ids, strict=True)]
    except (RefusedFieldError, KeyError, IndexError, TypeError, ValueError, AttributeError):
        return None
    return Score(tuple(own), tuple(max(all_) - one for all_, one in zip(known, own, strict=True)))


def tail(server: Server, model: str, written: Written, length: int) -> tuple[int, ...]:
    """The greedy tokens that would have followed an answer's end: what the last round of an engine drafts against.

    Empty where the server does not take token ids, or does not give them.
    """
    if written.prompt_ids is None or written.output_ids is None:
        return ()
    body = {
        "model": model,
        "prompt": [*written.prompt_ids, *written.output_ids],
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    try:
        ids = post_json(server, f"{server.path}/completions", body)["choices"][0]["token_ids"]
    except (SpecprobeError, KeyError, IndexError, TypeError):
        return ()
    return tuple(ids) if isinstance(ids, list) and all(type(one) is int for one in ids) else ()
