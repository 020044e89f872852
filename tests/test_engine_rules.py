"""Every engine profile against an engine written out literally (literal_engine.py), which shares no code with ours.

The literal engine decodes requests with speculation, by its own reading of each engine's rules. What it wrote is
replayed through the package's drafters; greedy drafts must give its counters, request by request, sampled ones must
agree on average, and so must the estimates of lower variance, which must vary less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import literal_engine as literal
import numpy as np
import pytest
import torch
from reference import make_trajectory
from scipy import stats

from specprobe.acceptance import Acceptance
from specprobe.drafters import Adoption, parse_drafter
from specprobe.drafters.draft import PrefixDrafter, score_response
from specprobe.drafters.scores import Drawing, acceptance_probability, overlaps
from specprobe.processors import PLAIN, Processors
from specprobe.profiles import PROFILES, Profile, resolve_profile
from specprobe.replay import replays
from specprobe.summary import summarize
from specprobe.target_distribution import ResponseDistribution
from specprobe.trajectory import Trajectory

VOCAB, DEPTH, LENGTH, PROMPT = 12, 3, 20, (3, 1, 4, 1, 5)
TARGET = literal.TableModel(VOCAB, order=2, seed=5)
DRAFTER = literal.NoisyModel(TARGET, noise=1.0, seed=6)
FAMILIES = {"vllm-v1": "vllm", "vllm-v2": "vllm"}
# Rounds of this length are about half as many as tokens.
REQUESTS = [200, pytest.param(20_000 * 2 // LENGTH, marks=pytest.mark.slow)]


@dataclass(frozen=True)
class KnownDistribution:
    """p of the toy target, through the package's own processing; its states are its logits."""

    profile: Profile

    def of(self, trajectory: Trajectory) -> ResponseDistribution | None:
        if trajectory.temperature == 0:
            return None
        head = torch.nn.Linear(VOCAB, VOCAB, bias=False)
        head.weight.data = torch.eye(VOCAB)
        states = model_logits(TARGET, trajectory)
        return ResponseDistribution(trajectory, states, head, self.profile.processing)


def model_logits(model: Any, trajectory: Trajectory) -> torch.Tensor:
    """Before each output token, [N, V]."""
    text = [*trajectory.prompt_ids.tolist(), *trajectory.output_ids.tolist()]
    first = trajectory.prompt_ids.size
    rows = [model.logits(text[:position]) for position in range(first, len(text))]
    return torch.tensor(np.array(rows), dtype=torch.float32)


def score(works: list[Trajectory], rules: Any, known: Any) -> Any:
    """`DRAFTER` as a draft model."""
    for work, rule, p in zip(works, rules, known, strict=True):
        logits = model_logits(DRAFTER, work)[1:]
        yield score_response(logits.__getitem__, work, rule, p, VOCAB)


def drafter_of(profile: Profile, name: str, distribution: KnownDistribution) -> PrefixDrafter:
    order = profile.draft_orders.get(name, profile.draft_order)
    drawing = Drawing("sampled" in profile.draft_samplings, order, profile.sampled_drafts or "rejection", distribution)
    return PrefixDrafter(name, {}, Adoption.SECOND_MODEL, score, drawing)


def allowed(profile: Profile, **asked: float) -> Processors:
    """The settings of these that the engine heeds."""
    return Processors(**{name: value for name, value in asked.items() if name not in profile.processing.without})


SETTINGS = {
    "plain": (0.7, {}),
    "truncated": (1.3, {"top_k": 6, "top_p": 0.85, "min_p": 0.08}),
    "penalised": (
        0.9,
        {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": -0.3, "top_p": 0.9},
    ),
}


def family(profile: Profile) -> str:
    return FAMILIES.get(profile.engine, profile.engine)


def run_engine(
    profile: Profile,
    temperature: float,
    processors: Processors,
    requests: int,
    drafter: Any,
    rule: str,
    depth: int = DEPTH,
    **how: Any,
) -> tuple[list[Trajectory], list[literal.Counters]]:
    rng = np.random.default_rng(0)
    settings = literal.Settings(temperature, **{name: getattr(processors, name) for name in processors.changed})
    counters = [
        literal.run_request(
            rng, TARGET, drafter, PROMPT, LENGTH, depth, settings, family(profile), rule, **{"drafts": "greedy", **how}
        )
        for _ in range(requests)
    ]
    known = KnownDistribution(profile)
    works = []
    for number, counted in enumerate(counters):
        work = replace(
            make_trajectory(PROMPT, counted.output, name=number, temperature=temperature), processors=processors
        )
        log_p = known.of(replace(work, log_probs=np.zeros(LENGTH))).log_p(torch.arange(LENGTH))
        written = torch.from_numpy(work.output_ids.astype(np.int64))
        works.append(replace(work, log_probs=log_p.gather(1, written[:, None])[:, 0].numpy()))
    return works, counters


def counted(counters: list[literal.Counters]) -> np.ndarray:
    """[requests, 1 + depth]: rounds, and accepted at each position."""
    return np.array([[c.rounds, *c.accepted_at] for c in counters], dtype=np.float64)


def replayed(acceptance: Acceptance) -> np.ndarray:
    return np.column_stack([acceptance.rounds[:, -1], acceptance.accepted_at[:, -1]]).astype(np.float64)


# Over all comparisons of a run of this file, within the bound in 99 of 100 seeds.
COMPARISONS = len(PROFILES) * 2 * len(SETTINGS) * (1 + 2 * DEPTH)
BOUND = stats.norm.isf(0.01 / 2 / COMPARISONS)


def assert_agrees(differences: np.ndarray) -> None:
    """Mean differences [requests, counters] of independent requests are 0, by their standard errors."""
    errors = differences.std(0, ddof=1) / np.sqrt(len(differences))
    z = differences.mean(0) / np.maximum(errors, 1e-9)
    assert (np.abs(z) < BOUND).all(), z


def assert_expectation(acceptance: Acceptance, counts: np.ndarray) -> None:
    """A_i is what the engine counted, on average, and h_i and tokens per round vary less with it."""
    assert acceptance.expectation is not None
    expected, at_risk = acceptance.expectation.accepted_at[:, -1], acceptance.expectation.at_risk_at[:, -1]
    assert_agrees(expected - counts[:, 1:])
    np.testing.assert_allclose(at_risk, acceptance.at_risk_at[:, -1], atol=1e-5)
    counters = acceptance.accepted_at[:, -1]
    h = counters.sum(0) / at_risk.sum(0)
    assert ((expected - h * at_risk).var(0) < (counters - h * at_risk).var(0)).all()
    estimate, rounds = summarize(acceptance).lower_variance[-1], acceptance.rounds[:, -1]
    emitted = LENGTH - 1 + expected.sum(1) - counters.sum(1)
    assert estimate.tokens_per_round == pytest.approx(emitted.sum() / rounds.sum())
    # Tokens per round of the engine, to first order in both.
    ratio = (LENGTH - 1) * len(rounds) / counts[:, 0].sum()
    assert_agrees((emitted - ratio * rounds - (LENGTH - 1 - ratio * counts[:, 0]))[:, None])
    assert (emitted - ratio * rounds).var() < (LENGTH - 1 - ratio * rounds).var()


CASES = [(p, how, s, "draft") for p in PROFILES for how in p.draft_samplings for s in SETTINGS]
# transformers draws from the drafts of a module once, of an assistant twice.
CASES += [(resolve_profile("hf"), "sampled", "truncated", "mtp")]


@pytest.mark.parametrize("requests", REQUESTS)
@pytest.mark.parametrize(
    ("profile", "how", "name", "method"), CASES, ids=lambda c: c.name if isinstance(c, Profile) else c
)
def test_a_replay_counts_what_the_engine_counts(profile, how, name, method, requests):
    temperature, asked = SETTINGS[name]
    processors = allowed(profile, **asked)
    rule = "one_hot" if how == "greedy" else profile.sampled_drafts
    passes = 0 if profile.draft_order == ("temperature",) else {"draft": 2, "mtp": 1}[method]
    works, counters = run_engine(
        profile, temperature, processors, requests, DRAFTER, rule, drafts=how, draft_passes=passes
    )
    distribution = KnownDistribution(profile)
    (acceptance,) = replays(drafter_of(profile, method, distribution), works, DEPTH, (how,), distribution=distribution)
    counts = counted(counters)
    assert counts[:, 1:].sum(0).min() > 20
    if how == "greedy":
        assert (replayed(acceptance) == counts).all()
        assert acceptance.drafted_at[:, -1].tolist() == [c.drafted_at.tolist() for c in counters]
    else:
        assert_agrees(replayed(acceptance) - counts)
        assert (replayed(acceptance).var(0) < counts.var(0)).all()
    assert_expectation(acceptance, counts)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("engine", ["vllm@0.30", "vllm@0.33"])
def test_ngram_over_sampled_text(engine, name):
    profile, (temperature, asked) = resolve_profile(engine), SETTINGS[name]
    how = {"match": "earliest", "pad": "none"} if engine == "vllm@0.30" else {"match": "latest", "pad": "last_token"}
    works, counters = run_engine(
        profile, temperature, allowed(profile, **asked), 300, literal.ngram(1, 2, DEPTH, **how), "one_hot"
    )
    drafter = parse_drafter("ngram:min=1,max=2", profile)
    (acceptance,) = replays(drafter, works, DEPTH, ("greedy",), distribution=KnownDistribution(profile))
    counts = counted(counters)
    assert (replayed(acceptance) == counts).all()
    assert_expectation(acceptance, counts)


def test_the_rules_of_an_engine_matter():
    """Were the order of another engine taken, p of the text would be another."""
    processors = Processors(top_p=0.6, min_p=0.2)
    work = replace(make_trajectory(PROMPT, range(10), temperature=2.0), log_probs=np.zeros(10), processors=processors)
    engines = [p for p in PROFILES if p.name in ("vllm@0.33", "hf@5.24", "llama.cpp@2026-10")]
    found = [KnownDistribution(p).of(work).log_p(torch.arange(10)).exp() for p in engines]
    assert not torch.allclose(found[0], found[1], atol=0.01)
    assert not torch.allclose(found[1], found[2], atol=0.01)


@pytest.mark.parametrize("rule", ["rejection", "exact_match"])
def test_expectations_of_one_position_are_the_closed_forms(rule):
    rng = np.random.default_rng(3)
    for _ in range(20):
        p, q = rng.dirichlet(np.full(VOCAB, 0.4), size=2)
        drawing = Drawing(sampled=True, accept=rule)
        expected = literal.expected_acceptance(p, q, rule)
        rule_at = drawing.rule(make_trajectory([1], [1, 2], temperature=1.0))
        rows = [torch.tensor(values, dtype=torch.float32)[None] for values in (q, p)]
        found = float(overlaps(*rows, rule_at.accept)[0])
        assert found == pytest.approx(expected, abs=1e-5)
        # What was accepted, over all tokens that p could have written.
        given = acceptance_probability(np.log(q).astype(np.float32), np.log(p).astype(np.float32), rule)
        assert float((p * given).sum()) == pytest.approx(expected, abs=1e-5)


@dataclass(frozen=True)
class Coin:
    """Two tokens; token 1 has a probability that depends on the token before."""

    after_0: float
    after_1: float
    vocab_size: int = 2
    order: int = 1

    def logits(self, sequence: Any) -> np.ndarray:
        p = self.after_1 if sequence[-1] else self.after_0
        return np.log([1 - p, p])


def test_replacing_every_factor_is_biased_and_the_last_one_is_not(monkeypatch):
    """p(draft) in place of the indicator throughout goes on from drafts that were rejected."""
    for name, value in (("TARGET", Coin(0.5, 0.1)), ("DRAFTER", Coin(0.9, 0.9)), ("VOCAB", 2), ("PROMPT", (0,))):
        monkeypatch.setattr(f"{__name__}.{name}", value)
    profile = resolve_profile("vllm@0.33")
    works, counters = run_engine(profile, 1.0, PLAIN, 500, DRAFTER, "one_hot", depth=2)
    known = KnownDistribution(profile)
    (acceptance,) = replays(drafter_of(profile, "draft", known), works, 2, ("greedy",), distribution=known)
    counts = counted(counters)
    assert_expectation(acceptance, counts)
    naive = np.array([every_factor_replaced(work, known.of(work)) for work in works])
    difference = naive - counts[:, 1:]
    z = difference.mean(0) / (difference.std(0, ddof=1) / np.sqrt(len(works)))
    assert z[1] > 4 * BOUND
    assert naive[:, 1].mean() > 2 * counts[:, 2].mean()


def every_factor_replaced(work: Trajectory, p: ResponseDistribution) -> np.ndarray:
    """Accepted at positions 1 and 2 of rounds of depth 2, by a recursion over p(draft)."""
    drafts = model_logits(DRAFTER, work).argmax(-1).numpy()
    chance = np.append(np.exp(p.log_p_of(np.arange(LENGTH), drafts)), 0.0)
    starts, accepted = np.zeros(LENGTH + 3), np.zeros(2)
    starts[1] = 1
    for s in range(1, LENGTH):
        first, second = chance[s], chance[s] * chance[s + 1]
        accepted += starts[s] * np.array([first, second])
        starts[s + 1 : s + 4] += starts[s] * np.array([1 - first, first - second, second])
    return accepted


def test_at_temperature_0_nothing_is_left_to_expect():
    profile = resolve_profile("vllm")
    work = replace(make_trajectory(PROMPT, range(10)), log_probs=np.zeros(10))
    known = KnownDistribution(profile)
    (acceptance,) = replays(parse_drafter("ngram:min=1,max=1", profile), [work], 2, ("greedy",), distribution=known)
    assert acceptance.expectation is None
