"""How inference engines sample a target and accept speculative drafts, written out literally in numpy.

A witness for the replay: it shares no code with the package. Toy models with known conditionals stand in for the target
and the drafter, and a request is really decoded round by round. Section numbers in docstrings ("methods 2.2") are those
of reference/methods.md; "DESIGN 2" is the section of DESIGN.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Drafts = Literal["greedy", "sampled"]

LLAMA_CPP_WINDOW = 64
"""Tokens that llama.cpp's penalties look back on (its repeat_last_n)."""


# Settings and the steps that engines apply to logits


@dataclass(frozen=True)
class Settings:
    """Sampling settings of one request; the defaults change nothing."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    @property
    def penalised(self) -> bool:
        """Whether the distribution depends on which tokens came before, beyond what the model does with them."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)


def softmax(logits: Vector) -> Vector:
    """Probabilities [V] of logits [V]; a dropped token has logit -inf and probability 0."""
    weights: Vector = np.exp(logits - logits.max())
    weights /= weights.sum()
    return weights


def one_hot_at(token: int, vocab_size: int) -> Vector:
    """The distribution [V] that gives all mass to one token."""
    p = np.zeros(vocab_size)
    p[token] = 1.0
    return p


def penalise(logits: Vector, repeated: Sequence[int], counted: Sequence[int], settings: Settings) -> Vector:
    """Logits [V] after the repetition penalty over `repeated` and frequency and presence penalties over `counted`."""
    penalised = logits.copy()
    for token in set(repeated):
        if penalised[token] > 0:
            penalised[token] /= settings.repetition_penalty
        else:
            penalised[token] *= settings.repetition_penalty
    for token in counted:
        penalised[token] -= settings.frequency_penalty
    for token in set(counted):
        penalised[token] -= settings.presence_penalty
    return penalised


def penalties(logits: Vector, prompt: Sequence[int], output: Sequence[int], settings: Settings) -> Vector:
    """Repetition over prompt and output; frequency and presence over the output alone (methods 2.2, vLLM)."""
    return penalise(logits, [*prompt, *output], output, settings)


def penalties_hf(logits: Vector, prompt: Sequence[int], output: Sequence[int], settings: Settings) -> Vector:
    """Repetition over prompt and output; transformers knows no frequency or presence penalty (methods 2.2)."""
    if settings.frequency_penalty or settings.presence_penalty:
        raise ValueError("hf has neither a frequency nor a presence penalty")
    return penalise(logits, [*prompt, *output], [], settings)


def penalties_llama_cpp(logits: Vector, prompt: Sequence[int], output: Sequence[int], settings: Settings) -> Vector:
    """All three penalties over the same window: the last 64 tokens of prompt and output."""
    window = [*prompt, *output][-LLAMA_CPP_WINDOW:]
    return penalise(logits, window, window, settings)


def temperature(logits: Vector, settings: Settings) -> Vector:
    """Logits [V] divided by the temperature, which is above 0 here."""
    return logits / settings.temperature


def min_p(logits: Vector, settings: Settings) -> Vector:
    """Drop tokens whose probability is below min_p times the largest one."""
    p = softmax(logits)
    return np.where(p < settings.min_p * p.max(), -np.inf, logits)


def top_k(logits: Vector, settings: Settings) -> Vector:
    """Drop tokens below the k-th largest logit; ties with it stay."""
    if settings.top_k == 0 or settings.top_k >= logits.size:
        return logits
    kth = np.sort(logits)[-settings.top_k]
    return np.where(logits < kth, -np.inf, logits)


def top_k_exact(logits: Vector, settings: Settings) -> Vector:
    """Keep exactly k tokens; of tied ones the lower id (llama.cpp)."""
    if settings.top_k == 0 or settings.top_k >= logits.size:
        return logits
    kept = np.argsort(-logits, kind="stable")[: settings.top_k]
    return keep(logits, kept)


def top_p(logits: Vector, settings: Settings) -> Vector:
    """Drop the least likely tokens while their cumulated probability is at most 1 - top_p; at least one stays."""
    if settings.top_p >= 1.0:
        return logits
    ascending = np.argsort(logits, kind="stable")
    cumulated = np.cumsum(softmax(logits)[ascending])
    dropped = cumulated <= 1.0 - settings.top_p
    dropped[-1] = False
    return keep(logits, ascending[~dropped])


def top_p_descending(logits: Vector, settings: Settings) -> Vector:
    """Keep the smallest set of most likely tokens whose cumulated probability reaches top_p (llama.cpp)."""
    if settings.top_p >= 1.0:
        return logits
    descending = np.argsort(-logits, kind="stable")
    cumulated = np.cumsum(softmax(logits)[descending])
    before = np.concatenate([[0.0], cumulated[:-1]])
    kept = before < settings.top_p
    kept[0] = True
    return keep(logits, descending[kept])


def keep(logits: Vector, kept: npt.NDArray[np.intp]) -> Vector:
    """Logits [V] with -inf at every token that is not among `kept`."""
    remaining = np.full_like(logits, -np.inf)
    remaining[kept] = logits[kept]
    return remaining


Penalties = Callable[[Vector, Sequence[int], Sequence[int], Settings], Vector]
Step = Callable[[Vector, Settings], Vector]

PENALTIES: dict[str, Penalties] = {
    "vllm": penalties,
    "hf": penalties_hf,
    "llama.cpp": penalties_llama_cpp,
    "sglang": penalties,
    "tensorrt-llm": penalties,
}
"""What each engine does first. Methods 2.2 does not verify it for SGLang and TensorRT-LLM."""

ORDERS: dict[str, tuple[Step, ...]] = {
    "vllm": (temperature, min_p, top_k, top_p),
    "hf": (temperature, top_k, top_p, min_p),
    "llama.cpp": (top_k_exact, top_p_descending, min_p, temperature),
    "sglang": (temperature, top_k, top_p, min_p),
    "tensorrt-llm": (temperature, top_k, top_p),
}
"""What each engine does after the penalties, in its order; a softmax follows (methods 2.2)."""


def apply_steps(logits: Vector, settings: Settings, steps: tuple[Step, ...]) -> Vector:
    """Probabilities [V] of logits [V] after the steps, or one-hot on the argmax at temperature 0."""
    if settings.temperature == 0:
        return one_hot_at(int(np.argmax(logits)), logits.size)
    for step in steps:
        logits = step(logits, settings)
    return softmax(logits)


def target_distribution(
    logits: Vector, prompt: Sequence[int], output: Sequence[int], settings: Settings, engine: str
) -> Vector:
    """The target's processed distribution p [V] of the next token, given raw logits [V] and the tokens so far.

    `output` holds what was written, and at draft position i also the drafts 1..i-1 (methods 2.2).
    """
    if settings.min_p and min_p not in ORDERS[engine]:
        raise ValueError(f"{engine} has no min_p")
    penalised = PENALTIES[engine](logits, prompt, output, settings)
    return apply_steps(penalised, settings, ORDERS[engine])


def draft_distribution(logits: Vector, settings: Settings, passes: int) -> Vector:
    """The drafter's distribution q [V]: softmax(logits / T), or processed `passes` times in hf order.

    Engines but HF truncate no drafts (methods 2.2); HF processes both sides (methods 4.4), an assistant model's twice
    over (transformers 5.24 candidate_generator.py hands it the target's processors, generate adds its own). Penalties
    are left out.
    """
    return apply_steps(logits, settings, ORDERS["hf"] * passes or (temperature,))


# Accept or reject


def sample(rng: np.random.Generator, weights: Vector) -> int:
    """A token drawn in proportion to weights [V], which need not add up to 1; never one of weight 0."""
    cumulated = np.cumsum(weights)
    return int(np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right"))


def one_hot(rng: np.random.Generator, p: Vector, _q: Vector | None, x: int) -> tuple[bool, int]:
    """Accept the draft x with p(x), however it was drawn; else emit from p without x (methods 2.2)."""
    if rng.random() < p[x]:
        return True, x
    remainder = p.copy()
    remainder[x] = 0.0
    return False, sample(rng, remainder)


def rejection(rng: np.random.Generator, p: Vector, q: Vector | None, x: int) -> tuple[bool, int]:
    """Accept x, drawn from q, with min(1, p(x) / q(x)); else emit from norm(max(0, p - q)) (methods 2.2)."""
    if q is None:
        q = one_hot_at(x, p.size)
    if rng.random() < min(1.0, p[x] / q[x]):
        return True, x
    return False, sample(rng, np.maximum(0.0, p - q))


def exact_match(rng: np.random.Generator, p: Vector, _q: Vector | None, x: int) -> tuple[bool, int]:
    """Sample y from p, emit it, and accept x where it equals y (methods 2.2; llama.cpp)."""
    y = sample(rng, p)
    return y == x, y


Rule = Callable[[np.random.Generator, Vector, Vector | None, int], tuple[bool, int]]

RULES: dict[str, Rule] = {"one_hot": one_hot, "rejection": rejection, "exact_match": exact_match}
"""Each takes (rng, p [V], q [V] or None for a one-hot draft, draft x) and returns (accepted, emitted token)."""


def expected_acceptance(p: Vector, q: Vector, rule: str) -> float:
    """P(accept) of one position: a one-hot draft argmax q, or a draft sampled from q under either other rule."""
    if rule == "one_hot":
        return float(p[np.argmax(q)])
    if rule == "rejection":
        return float(np.minimum(p, q).sum())
    if rule == "exact_match":
        return float((p * q).sum())
    raise KeyError(rule)


# Toy models and drafters without a model


class Model(Protocol):
    """A language model whose logits depend on the last `order` tokens; the caches tell models apart by identity."""

    def __hash__(self) -> int: ...

    @property
    def vocab_size(self) -> int:
        """Number of tokens V."""

    @property
    def order(self) -> int:
        """How many of the last tokens the logits depend on."""

    def logits(self, sequence: Sequence[int], /) -> Vector:
        """Raw logits [V] of the token after `sequence`."""


def last(sequence: Sequence[int], count: int) -> tuple[int, ...]:
    """The last `count` tokens, or all where there are fewer."""
    return tuple(sequence[max(0, len(sequence) - count) :])


def normal_of(context: tuple[int, ...], seed: int, stream: int, vocab_size: int) -> Vector:
    """Standard normal numbers [V] that are a fixed function of the context, the seed and the stream."""
    return np.random.default_rng([seed, stream, len(context), *context]).standard_normal(vocab_size)


def read_only(values: Vector) -> Vector:
    """The same array, which many rounds share and none may change."""
    values.setflags(write=False)
    return values


@dataclass(frozen=True, eq=False)
class TableModel:
    """Logits are normal numbers of spread `scale`, fixed for each context of `order` tokens; at 1.5 with a vocabulary
    of 8 to 16 the likeliest token has a probability of about 0.2 to 0.8.
    """

    vocab_size: int
    order: int
    seed: int
    scale: float = 1.5
    _table: dict[tuple[int, ...], Vector] = field(default_factory=dict, repr=False)

    def logits(self, sequence: Sequence[int], /) -> Vector:
        """Raw logits [V] of the token after `sequence`."""
        context = last(sequence, self.order)
        if context not in self._table:
            self._table[context] = read_only(self.scale * normal_of(context, self.seed, 0, self.vocab_size))
        return self._table[context]


@dataclass(frozen=True, eq=False)
class NoisyModel:
    """A drafter: the target's logits plus normal numbers of spread `noise`, fixed for each context (0: the target)."""

    target: TableModel
    noise: float
    seed: int
    _table: dict[tuple[int, ...], Vector] = field(default_factory=dict, repr=False)

    @property
    def vocab_size(self) -> int:
        """Number of tokens V."""
        return self.target.vocab_size

    @property
    def order(self) -> int:
        """How many of the last tokens the logits depend on."""
        return self.target.order

    def logits(self, sequence: Sequence[int], /) -> Vector:
        """Raw logits [V] of the token after `sequence`."""
        context = last(sequence, self.order)
        if context not in self._table:
            noise = self.noise * normal_of(context, self.seed, 1, self.vocab_size)
            self._table[context] = read_only(self.target.logits(context) + noise)
        return self._table[context]


ModelFree = Callable[[Sequence[int]], list[int]]
"""A drafter without a model: prompt and output so far -> draft tokens, possibly none."""


def ngram(
    min_n: int,
    max_n: int,
    depth: int,
    match: Literal["earliest", "latest"] = "earliest",
    pad: Literal["none", "last_token"] = "none",
) -> ModelFree:
    """vLLM's n-gram drafter (methods 1.4): V1 is (earliest, none), V2 is (latest, last_token)."""

    def draft(sequence: Sequence[int]) -> list[int]:
        copied = list(copy_after_match(list(sequence), min_n, max_n, match)[:depth])
        if pad == "last_token" and len(sequence) >= min_n:
            copied += [sequence[-1]] * (depth - len(copied))
        return copied

    return draft


def copy_after_match(tokens: list[int], min_n: int, max_n: int, match: str) -> list[int]:
    """What followed the longest earlier occurrence of the last tokens, of the earliest or latest one of that length."""
    n = len(tokens)
    for length in range(min(max_n, n - 1), min_n - 1, -1):
        starts = [s for s in range(n - length) if tokens[s : s + length] == tokens[n - length :]]
        if starts:
            start = starts[0] if match == "earliest" else starts[-1]
            return tokens[start + length :]
    return []


# Speculative decoding


@dataclass(frozen=True)
class Round:
    """One verification pass: `start` is the 1-based output position of the first token it can write."""

    start: int
    drafted: int
    accepted: int


@dataclass
class Counters:
    """What one request wrote and counted.

    output: the tokens x_1..x_N. drafted_at, accepted_at [K]: rounds that drafted, that accepted, position i+1. Drafts
    are counted as proposed, also past the end of the text; accepted ones only as far as the text goes (DESIGN 2).
    """

    output: list[int]
    drafted_at: Counts
    accepted_at: Counts
    steps: list[Round] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """Verification passes, with or without drafts; the prefill is none."""
        return len(self.steps)

    @property
    def filled_by_drafts(self) -> bool:
        """Whether accepted drafts alone wrote all that was left in the last round."""
        if not self.steps:
            return False
        return self.steps[-1].accepted == len(self.output) - self.steps[-1].start + 1

    def count(self, start: int, drafted: int, accepted: int) -> None:
        """Add one round."""
        self.steps.append(Round(start, drafted, accepted))
        self.drafted_at[:drafted] += 1
        self.accepted_at[:accepted] += 1


@lru_cache(maxsize=1 << 16)
def target_at(target: Model, context: tuple[int, ...], settings: Settings, engine: str) -> Vector:
    """The target's distribution [V] after a context, where settings without penalties make that all it depends on."""
    return read_only(target_distribution(target.logits(context), [], [], settings, engine))


@lru_cache(maxsize=1 << 16)
def draft_at(drafter: Model, context: tuple[int, ...], settings: Settings, passes: int) -> Vector:
    """The drafter's distribution [V] after a context."""
    return read_only(draft_distribution(drafter.logits(context), settings, passes))


def target_after(target: Model, text: Sequence[int], prompt_length: int, settings: Settings, engine: str) -> Vector:
    """The target's distribution [V] of the token after `text`, which is the prompt and the output so far."""
    if not settings.penalised:
        return target_at(target, last(text, target.order), settings, engine)
    return target_distribution(target.logits(text), text[:prompt_length], text[prompt_length:], settings, engine)


def propose(
    rng: np.random.Generator,
    drafter: Model | ModelFree,
    text: Sequence[int],
    depth: int,
    settings: Settings,
    drafts: Drafts,
    passes: int,
) -> list[tuple[int, Vector | None]]:
    """At most `depth` pairs of a draft token and the distribution q [V] it was drawn from (None: one-hot)."""
    if callable(drafter):
        return [(token, None) for token in drafter(text)[:depth]]
    recent = list(last(text, drafter.order))
    proposed: list[tuple[int, Vector | None]] = []
    for _ in range(depth):
        if drafts == "greedy":
            q = None
            token = int(np.argmax(drafter.logits(recent)))
        else:
            q = draft_at(drafter, last(recent, drafter.order), settings, passes)
            token = sample(rng, q)
        proposed.append((token, q))
        recent.append(token)
    return proposed


def run_request(
    rng: np.random.Generator,
    target: Model,
    drafter: Model | ModelFree,
    prompt: Sequence[int],
    num_output: int,
    depth: int,
    settings: Settings,
    engine: str,
    rule: str,
    drafts: Drafts,
    draft_passes: int = 0,
) -> Counters:
    """Decode one request with speculation, round by round, until it has written `num_output` tokens.

    The prefill writes the first token without drafts. A round verifies its drafts from left to right, stops at the
    first rejection, and writes a bonus token where there is none. `drafts` says how a model drafts; a drafter without
    a model is a callable. Rules are those of RULES, engines those of ORDERS.
    """
    text = list(prompt)
    end = len(prompt) + num_output

    def target_now() -> Vector:
        return target_after(target, text, len(prompt), settings, engine)

    counters = Counters([], np.zeros(depth, dtype=np.int64), np.zeros(depth, dtype=np.int64))
    text.append(sample(rng, target_now()))
    while len(text) < end:
        begin = len(text)
        proposed = propose(rng, drafter, text, depth, settings, drafts, draft_passes)
        accepted = 0
        for x, q in proposed:
            is_accepted, emitted = RULES[rule](rng, target_now(), q, x)
            text.append(emitted)
            if not is_accepted:
                break
            accepted += 1
        if accepted == len(proposed):
            text.append(sample(rng, target_now()))
        counters.count(begin - len(prompt) + 1, len(proposed), min(accepted, end - begin))
    counters.output = text[len(prompt) : end]
    return counters
