"""Laws 1 to 4 for drafters with models: replayed counters against an engine that drafts and verifies, round by round.

At temperature 0 the engine asks a literal implementation for each round's own argmax drafts, and every count of every
prompt and depth must be equal. Above it, replayed expectations must agree with the counters of engines that really
sample, over the very texts they wrote.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import literal
import literal_mtp
import numpy as np
import pytest
import tiny_heads
import tiny_mtp
import torch
import toy_target as toy
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import SuffixCache, make_trajectory, ngram_propose
from scipy import stats
from test_heads import loaded
from transformers import AutoModelForCausalLM

from specprobe.acceptance import Acceptance
from specprobe.drafters import Adoption, Limits, ModelSpec, Proposals, parse_drafter
from specprobe.drafters.draft import PrefixDrafter
from specprobe.drafters.heads import HeadDrafter, RoundScores, round_draws
from specprobe.drafters.scores import Drawing, Draws, nested_proposals, prefix_proposals, score_rows
from specprobe.profiles import NgramRule, resolve_profile
from specprobe.replay import replay, replays
from specprobe.target import Target, load_target
from specprobe.trajectory import Trajectory

torch.set_num_threads(1)

COUNTS = ("rounds", "drafted_at", "at_risk_at", "accepted_at")
VOCAB = 260
# Prompt, response, recorded tail.
LENGTHS = ((3, 14, 3), (1, 8, 0), (9, 11, 4), (2, 1, 0), (5, 2, 1))
# Some responses run into it, others never come near.
MAX_MODEL_LEN = 15

# The drafts of a round: sequence, depth, the most that the context limit allows.
Propose = Callable[[list[int], int, int], list[int]]


@dataclass
class Engine:
    """A drafter as an engine runs it, response after response."""

    propose: Propose
    start: Callable[[list[int]], None] = lambda _: None
    stop: Callable[[list[int]], None] = lambda _: None

    def counts(self, work: Trajectory, depth: int, max_model_len: int | None) -> tuple[int, list[list[int]]]:
        """Rounds, and what was drafted, at risk and accepted at each position, while the response was written."""
        says = [*work.output_ids.tolist(), *work.tail_ids.tolist()]
        prompt = work.prompt_ids.tolist()
        drafted_at, at_risk_at, accepted_at = counts = [[0] * depth for _ in range(3)]
        self.start(prompt)
        rounds, start = 0, 1
        while start < work.output_ids.size:
            sequence = prompt + says[:start]
            allowed = depth if max_model_len is None else min(depth, max_model_len - 1 - len(sequence))
            drafts = self.propose(sequence, depth, allowed)[:allowed] if allowed > 0 else []
            accepted = 0
            while says[start + accepted : start + accepted + 1] == drafts[accepted : accepted + 1] != []:
                accepted += 1
            for i in range(len(drafts)):
                drafted_at[i] += 1
                at_risk_at[i] += i <= accepted and start + i < len(says)
                accepted_at[i] += i < accepted
            rounds += 1
            start += accepted + 1
        self.stop(prompt + says[:start])
        return rounds, counts


def assert_law_1(
    acceptance: Acceptance, works: Sequence[Trajectory], engine: Callable[[], Engine], limit: int | None
) -> None:
    """A new engine for each depth, and every response in turn."""
    for k in range(1, acceptance.depth + 1):
        running = engine()
        for p, work in enumerate(works):
            rounds, counts = running.counts(work, k, limit)
            assert acceptance.rounds[p, k - 1] == rounds
            for name, expected in zip(COUNTS[1:], counts, strict=True):
                assert getattr(acceptance, name)[p, k - 1].tolist() == expected + [0] * (acceptance.depth - k), (
                    name,
                    p,
                )


def assert_power(acceptance: Acceptance) -> None:
    """The texts follow the drafter for a while, and then do not."""
    assert acceptance.accepted_at[:, -1, -1].sum() > 0
    assert acceptance.accepted_at.sum() < acceptance.at_risk_at.sum()


def literal_draft(reference: Any, *, chain: bool) -> Propose:
    """The argmax drafts of a literal head: fed back one by one, or all positions at once."""

    @cache
    def draft(tokens: tuple[int, ...], depth: int) -> tuple[int, ...]:
        if not chain:
            return tuple(reference.round(list(tokens), [0] * depth).argmax(-1).tolist())
        before = draft(tokens, depth - 1) if depth > 1 else ()
        return (*before, int(reference.round(list(tokens), [*before, 0])[-1].argmax()))

    return lambda sequence, depth, _: list(draft(tuple(sequence), depth))


def model_draft(model: Any) -> Propose:
    """A causal language model, called anew on every prefix."""

    @cache
    @torch.no_grad()
    def next_token(tokens: tuple[int, ...]) -> int:
        return int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())

    def draft(sequence: list[int], depth: int, _: int) -> list[int]:
        drafts: list[int] = []
        while len(drafts) < depth:
            drafts.append(next_token((*sequence, *drafts)))
        return drafts

    return draft


def some_works(
    draft: Propose, depth: int, seed: int = 0, *, copies: bool = False, words: int = VOCAB
) -> list[Trajectory]:
    """Texts that follow the drafter for a while, then do not; `copies`: and that sometimes repeat themselves."""
    rng = np.random.default_rng(seed)
    works = []
    for index, (prompt_size, output_size, tail_size) in enumerate(LENGTHS):
        prompt = rng.integers(0, words, prompt_size).tolist()
        text = rng.integers(0, words, 1).tolist()
        while len(text) < output_size + tail_size:
            k = int(rng.choice([depth, rng.integers(1, depth + 1)]))
            text += draft(prompt + text, k, k)[: rng.choice([k, rng.integers(0, k + 1)])]
            if copies and rng.random() < 0.5:
                first = int(rng.integers(0, len(text)))
                text += (prompt + text)[first : first + 5]
            text += draft(prompt + text, 1, 1) if rng.random() < 0.3 else [int(rng.integers(0, words))]
        end = output_size + tail_size
        works.append(make_trajectory(prompt, text[:output_size], text[output_size:end], name=index))
    return works


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Target:
    return toy.toy_target(tmp_path_factory.mktemp("target"), num_hidden_layers=7)


CASES = [
    # name, how it is written, options, literal implementation, whether a draft sees those before it, depth
    ("eagle", tiny_heads.write_eagle, {}, literal.LiteralEagle, True, 4),
    ("eagle3", tiny_heads.write_eagle3, {}, literal.LiteralEagle3, True, 4),
    ("eagle3", tiny_heads.write_peagle, {}, literal.LiteralPEagle, False, 4),
    ("medusa", tiny_heads.write_medusa, {}, literal.LiteralMedusa, False, 3),
    ("mlp", tiny_heads.write_mlp_speculator, {}, literal.LiteralMlpSpeculator, True, 3),
    ("dflash", tiny_mtp.write_dflash, {"target_layer_ids": [1, 3]}, literal_mtp.LiteralDflash, False, 4),
    ("dflash", tiny_mtp.write_dflash, {"target_layer_ids": [0], "causal": True}, literal_mtp.LiteralDflash, False, 4),
    ("pard", tiny_mtp.write_pard, {}, literal_mtp.LiteralPard, False, 4),
    ("mtp", tiny_mtp.write_deepseek_mtp, {}, literal_mtp.LiteralMtp, True, 4),
    ("mtp", tiny_mtp.write_mimo_mtp, {}, literal_mtp.LiteralMtp, True, 1),
]  # fmt: skip


@dataclass
class Case:
    """A drafter, its literal twin, and texts for both."""

    load: Callable[[Sequence[Trajectory]], Any]
    draft: Propose
    works: list[Trajectory]
    depth: int


@pytest.fixture(scope="module", params=CASES, ids=lambda case: " ".join(map(str, (case[1].__name__, case[2]))))
def case(request, target, tmp_path_factory) -> Case:
    name, write, options, twin, chain, depth = request.param
    folder, features = tmp_path_factory.mktemp("head"), tmp_path_factory.mktemp("features")
    if name == "mtp":
        # The target is in the same folder.
        target, model, engine = load_target(str(write(folder)), device="cpu"), "", "vllm@0.33"
    else:
        write(folder, *([] if name == "pard" else [target.model.config]), **options)
        model, engine = str(folder), "vllm@0.30"
    reference = twin(folder) if name == "pard" else twin(folder, target.model)
    draft = literal_draft(reference, chain=chain)

    def load(works: Sequence[Trajectory]) -> Any:
        return loaded(ModelSpec(name, model, {}), target, works, features, depth=depth, engine=engine)

    return Case(load, draft, some_works(draft, depth), depth)


@pytest.mark.parametrize("limit", [None, MAX_MODEL_LEN])
def test_a_head_counts_what_its_literal_implementation_counts(case, limit):
    acceptance = replay(case.load(case.works), case.works, case.depth, limits=Limits(limit))
    assert_law_1(acceptance, case.works, lambda: Engine(case.draft), limit)
    assert_power(acceptance)


def test_batches_do_not_change_what_a_head_counts(case, monkeypatch):
    drafter = case.load(case.works)
    together = replay(drafter, case.works, case.depth)
    monkeypatch.setattr("specprobe.batches.PASS_TOKENS", 1)
    monkeypatch.setattr("specprobe.drafters.heads.ROUNDS_AT_ONCE", 4)
    monkeypatch.setattr("specprobe.drafters.dflash.ROUNDS_AT_ONCE", 3)
    monkeypatch.setattr("specprobe.drafters.scores._LOGIT_VALUES", 3 << 17)
    alone = replay(drafter, case.works[::-1], case.depth)
    for name in COUNTS:
        assert (getattr(together, name) == getattr(alone, name)[::-1]).all()


@pytest.mark.parametrize("tails", [False, True])
def test_sampled_drafts_beside_greedy_ones_leave_the_greedy_counts_alone(case, tails):
    works = [
        replace(
            work,
            temperature=0.8,
            tail_ids=work.tail_ids if tails else work.tail_ids[:0],
            log_probs=np.full(work.output_ids.size, -1.0, dtype=np.float32),
        )
        for work in case.works
    ]
    drafter = case.load(works)
    greedy, sampled = replays(drafter, works, case.depth, ("greedy", "sampled"))
    alone = replay(replace(drafter, drawing=Drawing(sampled=False)), works, case.depth)
    for name in COUNTS:
        assert (getattr(greedy, name) == getattr(alone, name)).all(), name
    assert sampled.draft_sampling == "sampled"
    assert (np.diff(sampled.accepted_at, axis=2) <= 1e-12).all()


@pytest.fixture(scope="module")
def drafter_folder(tmp_path_factory) -> Path:
    return tiny_mtp.write_llama(tmp_path_factory.mktemp("drafter"), seed=5)


@pytest.fixture(scope="module")
def second(drafter_folder) -> Propose:
    return model_draft(AutoModelForCausalLM.from_pretrained(drafter_folder).eval())


@pytest.mark.parametrize("limit", [None, MAX_MODEL_LEN])
def test_a_draft_model_counts_what_it_drafts_prefix_by_prefix(target, drafter_folder, second, limit, tmp_path):
    works = some_works(second, 4)
    drafter = loaded(ModelSpec("draft", str(drafter_folder), {}), target, works, tmp_path, depth=4)
    acceptance = replay(drafter, works, 4, limits=Limits(limit))
    assert_law_1(acceptance, works, lambda: Engine(second), limit)
    assert_power(acceptance)


@pytest.mark.parametrize("layers", [1, 5])
def test_early_exit_counts_what_the_truncated_target_drafts(target, layers, tmp_path):
    truncated = copy.deepcopy(target.model)
    truncated.model.layers = truncated.model.layers[:layers]
    draft = model_draft(truncated)
    works = some_works(draft, 4)
    drafter = loaded(ModelSpec("early-exit", "", {"layers": str(layers)}), target, works, tmp_path, depth=4)
    acceptance = replay(drafter, works, 4, limits=Limits(MAX_MODEL_LEN))
    assert_law_1(acceptance, works, lambda: Engine(draft), MAX_MODEL_LEN)
    assert_power(acceptance)


@pytest.mark.parametrize("limit", [None, MAX_MODEL_LEN])
@pytest.mark.parametrize("first", ["suffix", "ngram:min=1,max=2"])
def test_a_hybrid_counts_what_the_model_drafts_where_the_first_drafter_has_nothing(
    target, drafter_folder, second, first, limit, tmp_path
):
    drafted_first: Counter[bool] = Counter()

    def engine() -> Engine:
        cache = SuffixCache(24, 10_000, 1.0, 0.1)
        plain = cache.propose if first == "suffix" else ngram_propose(NgramRule(1, 2, "earliest"))

        def propose(sequence: list[int], depth: int, allowed: int) -> list[int]:
            found = plain(sequence, allowed)
            drafted_first[bool(found)] += 1
            return found or second(sequence, depth, allowed)

        return Engine(propose, cache.start, cache.stop) if first == "suffix" else Engine(propose)

    works = some_works(second, 4, copies=True)
    spec = parse_drafter(f"hybrid:{first}+draft:{drafter_folder}", resolve_profile("vllm@0.30"))
    acceptance = replay(loaded(spec, target, works, tmp_path, depth=4), works, 4, limits=Limits(limit))
    assert_law_1(acceptance, works, engine, limit)
    assert_power(acceptance)
    assert min(drafted_first.values()) >= 5


# Law 2 and what belongs to it: toy tables, p(next | the token before).
WORDS = 6
TOY_DEPTH = 4
TEMPERATURE = 0.7
PROMPT = 0


def tables(*shape: int, seed: int) -> np.ndarray:
    """Distributions [*shape, WORDS], sharp and with some zeros."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.full(WORDS, 0.7), size=shape)
    table[table < 0.02] = 0
    return table / table.sum(-1, keepdims=True)


@dataclass
class Toy:
    """Drafts by table: q [K, K, WORDS, WORDS] by depth, position and the token that is read.

    That is the token before (`chain`), or the newest one of the round's start.
    """

    q: np.ndarray
    chain: bool
    nested: bool


TOYS = {
    "chain": Toy(np.broadcast_to(tables(WORDS, seed=1), (4, 4, WORDS, WORDS)), chain=True, nested=True),
    "modules": Toy(np.broadcast_to(tables(4, WORDS, seed=2), (4, 4, WORDS, WORDS)), chain=True, nested=True),
    "parallel": Toy(np.broadcast_to(tables(4, WORDS, seed=3), (4, 4, WORDS, WORDS)), chain=False, nested=True),
    "separate": Toy(tables(4, 4, WORDS, seed=4), chain=False, nested=False),
}
P = tables(WORDS, seed=0)


@dataclass
class ToyHead:
    """`Toy` as a head, so that rounds go through the heads' own replay."""

    toy: Toy

    @property
    def nested(self) -> bool:
        return self.toy.nested

    def begin(self, batch: Any, depth: int) -> Any:
        return batch, depth

    def draft(self, state: Any, position: int, starts: torch.Tensor) -> torch.Tensor:
        batch, depth = state
        read = batch.tokens(batch.newest(starts) + (position - 1 if self.toy.chain else 0))
        return torch.tensor(self.toy.q[depth - 1, position - 1])[read]

    def rewind(self, state: Any) -> None:
        """Nothing is kept."""

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:  # noqa: ARG002 - the interface
        return TEMPERATURE * states.log()


def toy_head(toy: Toy | ToyHead) -> HeadDrafter:
    return HeadDrafter(
        "toy",
        {},
        Adoption.TRAINED_HEAD,
        toy if isinstance(toy, ToyHead) else ToyHead(toy),
        None,
        (),
        torch.device("cpu"),
        torch.float32,
        Drawing(sampled=True),
    )


def toy_model(q: np.ndarray) -> PrefixDrafter:
    """The chain with one table, as a draft model."""

    def score(works: list[Trajectory], rules: Any, _: Any) -> Any:
        for work, rule in zip(works, rules, strict=True):
            ids = torch.from_numpy(work.output_ids.astype(np.int64))
            yield score_rows(rule.temperature * torch.tensor(q)[ids[:-1]].log(), ids[1:], rule)

    return PrefixDrafter("toy", {}, Adoption.SECOND_MODEL, score, Drawing(sampled=True))


@dataclass
class Canned:
    """Proposals that are there already."""

    found: list[Proposals]
    name = "canned"
    config: ClassVar = {}
    fixed_length = True
    adoption = Adoption.FLAG

    def proposals(self, trajectories, depth, limits):  # noqa: ARG002 - the interface
        return self.found


def speculate(
    p: np.ndarray, toy: Toy, depth: int, length: int, requests: int, seed: int = 0
) -> tuple[list[Trajectory], np.ndarray]:
    """Speculative sampling as engines do it, in `requests` requests of `length` tokens.

    Returns their texts and the engine's counters [requests, 1 + depth]: rounds, and accepted at each position, up to
    the end of the text.
    """
    rng = np.random.default_rng(seed)
    q = toy.q[depth - 1]

    def draw(rows: np.ndarray) -> np.ndarray:
        reached = rows.cumsum(-1)
        return (rng.random((len(rows), 1)) * reached[:, -1:] >= reached).sum(-1)

    text = np.zeros((requests, length + depth), dtype=np.int64)
    text[:, 0] = draw(p[np.full(requests, PROMPT)])
    end = np.ones(requests, dtype=np.int64)
    counters = np.zeros((requests, 1 + depth))
    while (alive := np.flatnonzero(end < length)).size:
        counters[alive, 0] += 1
        newest = before = text[alive, end[alive] - 1]
        for i in range(depth):
            drawn_from = q[i, before if toy.chain else newest]
            drafts = draw(drawn_from)
            rows = np.arange(len(alive))
            accepted = rng.random(len(alive)) * drawn_from[rows, drafts] < p[before, drafts]
            # What was rejected ends its round, with a token from what is left of p.
            out = alive[~accepted]
            text[out, end[out]] = draw(np.maximum(p[before] - drawn_from, 0)[~accepted])
            end[out] += 1
            alive, before, newest = alive[accepted], drafts[accepted], newest[accepted]
            text[alive, end[alive]] = before
            counters[alive, 1 + i] += end[alive] < length
            end[alive] += 1
        text[alive, end[alive]] = draw(p[before])
        end[alive] += 1
    return toy_works(text[:, :length], p), counters


def toy_works(texts: np.ndarray, p: np.ndarray) -> list[Trajectory]:
    before = np.concatenate([np.full((len(texts), 1), PROMPT), texts[:, :-1]], axis=1)
    log_probs = np.log(p[before, texts]).astype(np.float32)
    return [
        replace(make_trajectory([PROMPT], text, name=i, temperature=TEMPERATURE), log_probs=row)
        for i, (text, row) in enumerate(zip(texts, log_probs, strict=True))
    ]


@dataclass
class CountedHead(ToyHead):
    """Counts the drafts that it is asked for."""

    drafts: int = 0

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:
        self.drafts += len(states)
        return super().logits(states, position)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["parallel", "separate"]), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_rounds_without_a_chance_to_get_further_need_not_be_drafted(seed, name, depth):
    """Whatever p and q, leaving them out changes expectations by no more than float32 does."""
    rng = np.random.default_rng(seed)
    # From all but even to all but certain: many ratios of q to p are far below 1.
    p, q = (rng.dirichlet(np.full(WORDS, 0.02 + rng.random()), size=shape) + 1e-6 for shape in ((6,), (6, 6, 6)))
    head = CountedHead(Toy(q if name == "separate" else np.broadcast_to(q[0], q.shape), False, name == "parallel"))
    works = toy_works(rng.integers(WORDS, size=(3, 20)), p)
    found, drafts = [], []
    for least in (2.0**-24, np.finfo(np.float64).tiny):
        head.drafts = 0
        with pytest.MonkeyPatch.context() as patched:
            for module in ("heads", "scores"):
                patched.setattr(f"specprobe.drafters.{module}.LEAST_SURVIVAL", least)
            found.append(replay(toy_head(head), works, depth, draft_sampling="sampled"))
        drafts.append(head.drafts)
    assert drafts[0] <= drafts[1]
    for counts in COUNTS:
        assert getattr(found[0], counts) == pytest.approx(getattr(found[1], counts), abs=1e-5)


def test_a_round_is_over_where_it_has_no_chance_to_get_further():
    """Of tokens that are drafted with 6e-5 of their chance two are enough."""
    q = np.full((WORDS, WORDS), 1e-5)
    q[:, 1:] = (1 - 1e-5) / (WORDS - 1)
    head = CountedHead(Toy(np.broadcast_to(q, (8, 8, WORDS, WORDS)), chain=False, nested=True))
    works = toy_works(np.zeros((2, 30), dtype=np.int64), np.full((WORDS, WORDS), 1 / WORDS))
    replay(toy_head(head), works, 8, draft_sampling="sampled")
    assert head.drafts == 2 * (29 + 28)


def replayed(acceptance: Acceptance) -> np.ndarray:
    """The same counters of the deepest depth, as replay expects them."""
    return np.concatenate([acceptance.rounds[:, -1:], acceptance.accepted_at[:, -1]], axis=1)


def z_scores(differences: np.ndarray) -> np.ndarray:
    """Of mean differences [requests, counters]; requests are independent."""
    return differences.mean(0) / (differences.std(0, ddof=1) / np.sqrt(len(differences)))


# 14 counters over the four depths of five drafters; all within the bound in 99 of 100 seeds.
BOUND = stats.norm.isf(0.01 / 2 / (14 * 5))
REQUESTS, LENGTH = 2000, 12


@pytest.mark.parametrize("name", [*TOYS, "draft model"])
@pytest.mark.parametrize("depth", range(1, TOY_DEPTH + 1))
@pytest.mark.parametrize("requests", [REQUESTS, pytest.param(20_000, marks=pytest.mark.slow)])
def test_sampled_drafts_count_on_average_what_engines_count(name, depth, requests):
    toy = TOYS["chain" if name == "draft model" else name]
    works, counters = speculate(P, toy, depth, LENGTH, requests)
    drafter = toy_model(toy.q[0, 0]) if name == "draft model" else toy_head(toy)
    expected = replayed(replay(drafter, works, depth, draft_sampling="sampled"))
    assert (counters[:, 1:].sum(0) > 50).all()
    assert (np.abs(z_scores(expected - counters)) < BOUND).all()
    # Given the text the expectation varies less than the counters do.
    assert (expected.var(0) < counters.var(0)).all()


def test_the_naive_substitution_is_biased():
    """sum_x min(p, q) in place of a, inside the recursion: it goes on from tokens whose draft was rejected."""
    # After a low token p writes any and q drafts high ones; after a high one p writes low ones and q high ones again.
    low, high = np.repeat([1 / 3, 0], 3), np.repeat([0, 1 / 3], 3)
    p = np.stack([0.5 * low + 0.5 * high] * 3 + [0.9 * low + 0.1 * high] * 3)
    q = np.stack([0.1 * low + 0.9 * high] * 6)
    toy = Toy(np.broadcast_to(q, (2, 2, WORDS, WORDS)), chain=True, nested=True)
    works, counters = speculate(p, toy, 2, LENGTH, REQUESTS)
    overlap = np.minimum(p, q).sum(-1)
    found = []
    for work in works:
        accept = np.concatenate([[0.0], overlap[work.output_ids[:-1]]])
        longest = Limits().longest_drafts(1, LENGTH)
        nothing = np.zeros(LENGTH, dtype=bool), np.full(LENGTH, -1, dtype=np.int32)
        found.append(prefix_proposals(work, 2, longest, *nothing, Draws(accept)))
    naive = replayed(replay(Canned(found), works, 2, draft_sampling="sampled"))
    exact = replayed(replay(toy_model(q), works, 2, draft_sampling="sampled"))
    assert np.abs(z_scores(exact - counters)).max() < BOUND
    assert z_scores(naive - counters)[2] > 4 * BOUND
    assert naive[:, 2].mean() > 1.25 * counters[:, 2].mean()


@pytest.mark.parametrize("name", TOYS)
def test_drafts_from_p_itself_are_all_accepted_and_impossible_ones_never(name):
    toy = TOYS[name]
    reads = P if toy.chain else np.broadcast_to(P.mean(0), (WORDS, WORDS))
    equal = replace(toy, q=np.broadcast_to(reads, toy.q.shape))
    works, counters = speculate(reads, equal, TOY_DEPTH, LENGTH, 20)
    acceptance = replay(toy_head(equal), works, TOY_DEPTH, draft_sampling="sampled")
    np.testing.assert_allclose(acceptance.accepted_at, acceptance.at_risk_at, atol=1e-4)
    np.testing.assert_allclose(replayed(acceptance), counters, atol=1e-4)
    low, high = np.zeros((2, WORDS, WORDS))
    low[:, : WORDS // 2], high[:, WORDS // 2 :] = 2 / WORDS, 2 / WORDS
    disjoint = replace(toy, q=np.broadcast_to(high, toy.q.shape))
    works, counters = speculate(low, disjoint, TOY_DEPTH, LENGTH, 20)
    assert not counters[:, 1:].any()
    acceptance = replay(toy_head(disjoint), works, TOY_DEPTH, draft_sampling="sampled")
    assert not acceptance.accepted_at.any()
    assert (acceptance.rounds == LENGTH - 1).all()


PROBABILITY = st.sampled_from([0.0, 1.0]) | st.floats(0.01, 1)


@given(data=st.data(), length=st.integers(0, 9), depth=st.integers(1, 5), limit=st.none() | st.integers(2, 12))
@settings(max_examples=150, deadline=None)
def test_laws_of_expected_counts(data, length, depth, limit):
    def drawn(*shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        return np.array(data.draw(st.lists(PROBABILITY, min_size=count, max_size=count))).reshape(shape)

    p = np.maximum(drawn(length), 0.01)
    with np.errstate(divide="ignore"):
        log_q = np.log(drawn(depth, length)).astype(np.float32)
    work = replace(make_trajectory([0], range(length), temperature=1.0), log_probs=np.log(p).astype(np.float32))
    nothing = np.zeros(log_q.shape, dtype=bool), np.full(log_q.shape, -1, dtype=np.int32)
    draws = round_draws(work, RoundScores(*nothing, log_q, None), Drawing(sampled=True).rule(work))
    longest = Limits(limit).longest_drafts(1, length)
    proposals = nested_proposals(depth, longest, *nothing, draws)
    acceptance = replay(Canned([proposals]), [work], depth, draft_sampling="sampled")
    accepted, at_risk, drafted = acceptance.accepted_at[0], acceptance.at_risk_at[0], acceptance.drafted_at[0]
    slack = 1e-9
    assert (np.diff(accepted, axis=1) <= slack).all()
    assert (np.diff(drafted, axis=1) <= slack).all()
    assert (accepted <= at_risk + slack).all()
    assert (at_risk <= drafted + slack).all()
    assert (at_risk[:, 1:] <= accepted[:, :-1] + slack).all()
    for k in range(1, depth + 1):
        rounds, by_position, filled = ahead(1, p, np.exp(log_q), longest, k)
        np.testing.assert_allclose(acceptance.rounds[0, k - 1], rounds, atol=1e-5)
        np.testing.assert_allclose(accepted[k - 1, :k], by_position, atol=1e-5)
        total = acceptance.rounds[0, k - 1] + accepted[k - 1].sum() - filled
        np.testing.assert_allclose(max(length - 1, 0), total, atol=1e-5)


def ahead(start: int, p: np.ndarray, q: np.ndarray, longest: np.ndarray, depth: int) -> tuple[float, np.ndarray, float]:
    """What is expected from a round's start on: rounds, accepted at each position, P(drafts fill the last round).

    `p` [N]: of each token of the text; `q` [K, N]: by position and the round's start.
    """
    if start >= len(p):
        return 0.0, np.zeros(depth), 0.0
    rounds, by_position, filled = 1.0, np.zeros(depth), 0.0
    size = min(depth, int(longest[start]), len(p) - start)
    reached = 1.0
    for j in range(size + 1):
        # Exactly j are accepted.
        onwards = min(1.0, q[j, start] / p[start + j]) if j < size else 0.0
        share = reached * (1 - onwards)
        more, later, ends = ahead(start + j + 1, p, q, longest, depth)
        rounds += share * more
        by_position += share * (later + (np.arange(depth) < j))
        filled += share * (ends if start + j < len(p) else 1.0)
        reached *= onwards
    return rounds, by_position, filled
