"""What a bench says: figures by concurrency, whether the answers are to be trusted, and what limits them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specprobe.bench.client import Written
from specprobe.bench.counters import SpecCounters
from specprobe.bench.figures import Measured, measured, round_gaps
from specprobe.bench.plan import ARMS
from specprobe.bench.predict import Predicted
from specprobe.bench.replay import Replayed, ReplayOptions
from specprobe.bench.result import BenchResult, PassRecord
from specprobe.bench.texts import FAR_LESS_LIKELY_NATS, NEAR_TIE_NATS, Agreement, Likelihood
from specprobe.conversations import units
from specprobe.interval import MIN_PROMPTS
from specprobe.notices import Notice
from specprobe.units import format_percent, format_plural, format_seconds
from specprobe.workload import Workload

# The same drafter over texts of one distribution: sampling moves the rate by what its interval says. Half of its lower
# end is out of reach of chance, and of rules that differ in detail.
FAR_BELOW = 0.5
# More of the plain arm's own movement than that is told, or a smaller one that is half of the effect.
MUCH_DRIFT = 0.05
# At temperature 0 the same prompts accept the same; more than this from one pass to the next is memory of the first.
MORE_REMEMBERED = 1.1
# Prefix caches hold what a workload shares within a pass in both arms alike; a difference above this favours one.
UNEQUAL_CACHING = 0.02
# What the measured speed-up may be missed by, unless its repeats scatter more.
BOUND = 0.1
# Rounds of each slot; fewer say little about one, as in a probe of a live server (`engine_probe.LEAST_GAPS`).
LEAST_ROUNDS = 8
# Servers cut a round in two now and then, where a character ends in the next token.
MOST_CHUNKS_A_ROUND = 1.15


@dataclass(frozen=True, slots=True)
class AcceptanceCheck:
    """Counters of the speculative passes at one concurrency beside the replay of the plain answers.

    `measured`: of all these requests, from the server's totals, else from what requests told; `expected`: of the same,
    had all written the plain server's first answer. `requests`: all; `agreeing`: of these, wrote an answer that the
    plain server wrote, too, at any time; `compared`: of
    these, told their own counters; `exact`: of these, as the replay says. `totals_exact`: None unless all agree.
    """

    measured: SpecCounters | None
    expected: SpecCounters | None
    requests: int
    agreeing: int
    compared: int
    exact: int
    totals_exact: bool | None


@dataclass(frozen=True, slots=True)
class Greedy:
    """A few answers at temperature 0 of a bench above it: the plain ones, both arms compared, and the counters."""

    plain: Mapping[int, Written]
    agreement: Agreement
    counters: SpecCounters | None
    replayed: Replayed | None = None


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found about the answers. `expected`: what the replay counts for each answer that the plain server wrote,
    by prompt and digest; `replayed`: of its first answers.
    """

    agreements: tuple[Agreement, ...] = ()
    likelihood: Likelihood | None = None
    expected: Mapping[tuple[int, str], SpecCounters] = field(default_factory=dict)
    replayed: Replayed | None = None
    greedy: Greedy | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """Everything about one concurrency."""

    measured: Measured
    acceptance: AcceptanceCheck | None
    agreement: Agreement | None
    predicted: Predicted | None
    plain_round_seconds: tuple[float, ...] = ()
    speculative_round_seconds: tuple[float, ...] = ()

    @property
    def error(self) -> float | None:
        """Of the prediction, as a share of what was measured."""
        return self.predicted.nearest / self.measured.speedup - 1 if self.predicted else None

    @property
    def is_within(self) -> bool | None:
        """Whether the prediction is within a tenth, or the spread of the repeats where that is larger."""
        return None if self.error is None else abs(self.error) <= max(BOUND, self.measured.spread)


@dataclass(frozen=True, slots=True)
class Bench:
    """The raw passes and what follows. `broken`: why this engine's speculative output is not to be trusted; then no
    verdict stands.
    """

    result: BenchResult
    replay: ReplayOptions | None
    levels: tuple[Level, ...]
    likelihood: Likelihood | None
    greedy: Greedy | None
    broken: tuple[str, ...]
    notices: tuple[Notice, ...]


def conclude(
    result: BenchResult,
    examined: Examined,
    workload: Workload,
    predicted: Mapping[int, Predicted],
    replay: ReplayOptions | None,
) -> Bench:
    """Everything that follows from the passes and from what was found about their answers."""
    agreements = {one.concurrency: one for one in examined.agreements}
    drawn_together = units(workload.prompts)
    levels = []
    for concurrency in result.plan.concurrencies:
        plain, speculative = result.pairs(concurrency)
        if not plain:
            continue
        arms = ([one.requests for one in arm] for arm in (plain, speculative))
        levels.append(
            Level(
                measured=measured(concurrency, *arms, units=drawn_together, seed=result.plan.seed),
                acceptance=_acceptance(speculative, examined),
                agreement=agreements.get(concurrency),
                predicted=predicted.get(concurrency),
                **_round_seconds(concurrency, plain, speculative),
            )
        )
    broken = tuple(_broken(levels, examined, result.plan.temperature))
    return Bench(
        result=result,
        replay=replay,
        levels=tuple(levels),
        likelihood=examined.likelihood,
        greedy=examined.greedy,
        broken=broken,
        notices=(*workload.all_notices, *_notices(result, levels, examined, replay, len(set(drawn_together)))),
    )


def _round_seconds(
    concurrency: int, plain: Sequence[PassRecord], speculative: Sequence[PassRecord]
) -> dict[str, tuple[float, ...]]:
    """The mean round of a full batch in each pass that has enough of them."""
    found = {}
    for name, arm in zip(ARMS, (plain, speculative), strict=True):
        if not _chunks_are_rounds(arm):
            continue
        gaps = [round_gaps(one.requests, concurrency) for one in arm]
        found[f"{name}_round_seconds"] = tuple(sum(g) / len(g) for g in gaps if len(g) >= LEAST_ROUNDS * concurrency)
    return found


def _chunks_are_rounds(passes: Sequence[PassRecord]) -> bool:
    """Whether the server streams a chunk for each round, as far as counters tell; llama.cpp streams one for each token.

    An answer of N tokens whose rounds accepted A takes N - 1 - A rounds after its prefill, one less where the last one
    was cut.
    """
    chunks = expected = 0
    for record in passes:
        counters = record.counters or SpecCounters(0, 0)
        chunks += sum(len(one.chunk_seconds) - 1 for one in record.requests)
        expected += sum(one.output_tokens - 1 for one in record.requests) - counters.accepted_tokens
    return chunks <= MOST_CHUNKS_A_ROUND * max(1, expected)


def _acceptance(passes: Sequence[PassRecord], examined: Examined) -> AcceptanceCheck | None:
    requests = [one for record in passes for one in record.requests]
    told = [one.counters for one in requests if one.counters is not None]
    totals = [record.counters for record in passes if record.counters is not None]
    found: SpecCounters | None = None
    if len(totals) == len(passes):
        found = _sum(totals)
    elif len(told) == len(requests):
        found = _sum(told)
    if found is None and examined.replayed is None:
        return None
    expected: list[SpecCounters] = []
    written: list[SpecCounters] = []
    agreeing = compared = exact = 0
    for one in requests:
        counters = examined.replayed.counters(one.prompt) if examined.replayed else None
        if counters is None:
            continue
        expected.append(counters)
        of_answer = examined.expected.get((one.prompt, one.digest))
        if of_answer is None:
            continue
        agreeing += 1
        written.append(of_answer)
        if one.counters is not None:
            compared += 1
            exact += same_counters(one.counters, of_answer)
    whole = _sum(expected) if len(expected) == len(requests) else None
    totals_exact = None
    if found is not None and written and agreeing == len(requests):
        totals_exact = same_counters(found, _sum(written))
    return AcceptanceCheck(found, whole, len(requests), agreeing, compared, exact, totals_exact)


def same_counters(measured_: SpecCounters, expected: SpecCounters) -> bool:
    """Whether all that the engine tells is as expected."""
    at = measured_.accepted_at
    return (
        measured_.drafted_tokens == expected.drafted_tokens
        and measured_.accepted_tokens == expected.accepted_tokens
        and measured_.drafted_rounds in (None, expected.drafted_rounds)
        and (at is None or expected.accepted_at is None or _trimmed(at) == _trimmed(expected.accepted_at))
    )


def _trimmed(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Without positions that nothing reached."""
    size = max((i + 1 for i, count in enumerate(counts) if count), default=0)
    return counts[:size]


def _sum(counters: Sequence[SpecCounters]) -> SpecCounters:
    total = counters[0]
    for one in counters[1:]:
        total += one
    return total


def _broken(levels: Sequence[Level], examined: Examined, temperature: float) -> Iterator[str]:
    """Why the speculative output is not the target's, in words."""
    likelihood, greedy = examined.likelihood, examined.greedy
    if likelihood is not None and likelihood.is_broken:
        assert likelihood.difference is not None
        also = ""
        if greedy is not None and not greedy.agreement.divergences:
            also = f", although all {greedy.agreement.compared} greedy answers of both arms are alike"
        yield (
            f"its answers at temperature {temperature:g} are {-likelihood.difference:.2f} nats a token less likely "
            f"under the target than those without speculation ({likelihood.prompts} prompts; chance moves this by "
            f"hundredths){also}"
        )
    for level in levels:
        check, agreement = level.acceptance, level.agreement
        if agreement is not None:
            far = sum(one.is_near_tie is False for one in agreement.divergences)
            if far > agreement.compared / 2:
                yield (
                    f"at concurrency {agreement.concurrency} {far} of {agreement.compared} greedy answers leave the "
                    f"target's at a token that lies more than {NEAR_TIE_NATS:g} nats below the likeliest"
                )
        if temperature == 0 or check is None or check.measured is None or examined.replayed is None:
            continue
        rate, interval = check.measured.acceptance_rate, examined.replayed.rate_interval()
        if rate is None or interval is None or not _is_right_drafter(greedy):
            continue
        if len(examined.replayed.acceptance.ids) >= MIN_PROMPTS and rate < FAR_BELOW * interval.low:
            yield (
                f"at concurrency {level.measured.concurrency} it accepts {format_percent(rate)} of its drafts, where "
                f"the answers without speculation let {format_percent(interval.point)} be expected, while greedily it "
                "accepts as it should"
            )


def _is_right_drafter(greedy: Greedy | None) -> bool:
    """Whether greedy answers were drafted for as the replay says, so that the drafter named is the one that runs."""
    if greedy is None or greedy.counters is None or greedy.replayed is None:
        return False
    expected = _sum([one for number in greedy.plain if (one := greedy.replayed.counters(number)) is not None])
    rate, of_replay = greedy.counters.acceptance_rate, expected.acceptance_rate
    return rate is not None and of_replay is not None and rate >= FAR_BELOW * of_replay


def _notices(
    result: BenchResult, levels: Sequence[Level], examined: Examined, replay: ReplayOptions | None, num_units: int
) -> Iterator[Notice]:
    plan, temperature = result.plan, result.plan.temperature
    if not result.is_complete:
        yield Notice("incomplete", f"{len(result.passes)} passes were finished; the figures are of these")
    if result.seconds_after is not None:
        reused = sum(record.reused for record in result.passes)
        yield Notice(
            "resumed",
            f"{reused} of {len(result.passes)} passes are of an earlier sitting, which ended "
            f"{format_seconds(max(0.0, result.seconds_after))} before this one began; both arms of a repeat are of one "
            "sitting, but what the machine and its servers did in between is in the spread of the repeats",
        )
    if plan.repeats == 1:
        yield Notice("one_repeat", "one repeat cannot tell a difference from noise; use --repeats 3 or more")
    if num_units < len(result.prompts):
        yield Notice(
            "conversations",
            f"{len(result.prompts)} prompts are of {format_plural(num_units, 'conversation')}, whose turns are no "
            "independent evidence: intervals and verdicts take each conversation for one",
        )
    if num_units < MIN_PROMPTS:
        yield Notice(
            "few_prompts",
            f"{num_units} prompts are too few for an interval over prompts, so no gain is called: use "
            f"{MIN_PROMPTS} or more",
        )
    yield from _timing_notices(result, levels)
    yield from _caching_notices(result)
    if examined.replayed is not None and examined.replayed.left_out:
        yield Notice(
            "not_round_trip",
            f"{examined.replayed.left_out} of {len(result.prompts)} answers are not replayed: the server tells no "
            "token ids, and their text, cut by --tokenizer, is not as many tokens as it counted",
        )
    versions = {model.version for model in result.models.values()}
    if len(versions) > 1:
        yield Notice(
            "other_version", "the arms run different versions of the engine: their difference is in the result"
        )
    for level in levels:
        yield from _acceptance_notices(level, temperature, replay)
    if temperature > 0 and result.is_complete:
        yield from _distribution_notices(examined)


def _timing_notices(result: BenchResult, levels: Sequence[Level]) -> Iterator[Notice]:
    unsteady = [
        str(level.measured.concurrency)
        for level in levels
        if not all(one.is_steady for arm in (level.measured.plain, level.measured.speculative) for one in arm.passes)
    ]
    if unsteady:
        yield Notice(
            "never_full",
            f"concurrency {', '.join(unsteady)}: {len(result.prompts)} prompts never fill all slots; rates are of "
            "whole passes: give more prompts",
        )
    for level in levels:
        one = level.measured
        if one.drift is not None and abs(one.drift) > max(MUCH_DRIFT, abs(one.speedup - 1) / 2):
            yield Notice(
                "drift",
                f"concurrency {one.concurrency}: without speculation the rate moved by {100 * one.drift:+.0f} % from "
                "the first repeat to the last, so the machine was not steady; the order of the arms cancels no "
                "more than a straight one",
            )
    if any(not _chunks_are_rounds(result.of("speculative", c)) for c in result.plan.concurrencies):
        yield Notice(
            "chunks_not_rounds",
            "the server streams several chunks a round, so ITL with speculation is not that of rounds (TPOT, latency "
            "and rates are as they are), and calibrate cannot take its rounds from here",
        )
    for concurrency in result.plan.concurrencies:
        rates = [
            rate
            for record in result.of("speculative", concurrency)
            if record.counters and (rate := record.counters.acceptance_rate)
        ]
        if result.plan.temperature == 0 and rates and max(rates[1:], default=0.0) > MORE_REMEMBERED * rates[0]:
            yield Notice(
                "remembers",
                f"concurrency {concurrency}: acceptance rises from {format_percent(rates[0])} to "
                f"{format_percent(max(rates))} over passes of the same prompts: the server remembers earlier answers "
                "(suffix decoding's cache), which flatters speculation; only a first pass after a start is like "
                "traffic",
            )


def _caching_notices(result: BenchResult) -> Iterator[Notice]:
    shares = {}
    for arm in ARMS:
        passes = [one for one in result.passes if one.key.arm == arm]
        asked = sum(one.prompt_tokens_asked or 0 for one in passes)
        if asked and all(one.prompt_tokens_cached is not None for one in passes):
            shares[arm] = sum(one.prompt_tokens_cached or 0 for one in passes) / asked
    if len(shares) < len(ARMS):
        yield Notice(
            "caching_not_known",
            "the server does not tell what its prefix cache found; every pass asked with a salt of its own, which an "
            "engine may pass over, so later passes may have been spared some prefill, in both arms alike",
        )
    elif abs(shares["plain"] - shares["speculative"]) > UNEQUAL_CACHING:
        yield Notice(
            "unequal_caching",
            f"the prefix cache held {format_percent(shares['plain'])} of the prompts' tokens without speculation and "
            f"{format_percent(shares['speculative'])} with it, which favours one arm: start both without it",
        )


def _acceptance_notices(level: Level, temperature: float, replay: ReplayOptions | None) -> Iterator[Notice]:
    check, agreement, at = level.acceptance, level.agreement, f"concurrency {level.measured.concurrency}"
    if agreement is not None and agreement.divergences:
        known = [one for one in agreement.divergences if one.gap_nats is not None]
        ties = f", {agreement.near_ties} of {len(known)} at a near-tie" if known else ""
        own = ""
        if agreement.plain_compared:
            own = (
                f"; the server without it leaves its own first answers in {agreement.plain_differ} of "
                f"{agreement.plain_compared}"
            )
        yield Notice(
            "greedy_divergence",
            f"{at}: {len(agreement.divergences)} of {agreement.compared} greedy answers differ between the arms{ties}"
            f"{own}. Floating point and batch shape flip near-ties, as vLLM documents; this is no fault by itself",
        )
    if check is None or replay is None or temperature > 0:
        return
    if check.compared > check.exact or check.totals_exact is False:
        what = (
            f"{check.exact} of {check.compared} answers that agree"
            if check.compared
            else "none of the passes as a whole"
        )
        yield Notice(
            "counters_differ",
            f"{at}: {what} have the replay's counters: the server's drafter, depth or engine version is not the one "
            "named with --drafter, --depth and --engine, or the text went on past what was replayed",
        )
    if check.measured is None:
        yield Notice("no_counters", f"{at}: the server tells no acceptance (no /metrics, nothing with its answers)")


def _distribution_notices(examined: Examined) -> Iterator[Notice]:
    likelihood = examined.likelihood
    if likelihood is None or likelihood.p_value is None:
        yield Notice(
            "distribution_not_tested",
            "the server without speculation gives no log-probabilities of token ids (vLLM's prompt_logprobs), or there "
            "are too few prompts, so whether sampled answers of both arms are of one distribution was not tested",
        )
    elif likelihood.is_lower and not likelihood.is_broken:
        yield Notice(
            "less_likely",
            f"sampled answers with speculation are {-(likelihood.difference or 0):.2f} nats a token less likely under "
            f"the target (p = {likelihood.p_value:.1g}), not the {FAR_LESS_LIKELY_NATS:g} of a broken engine: "
            "check that both servers apply the same sampling settings",
        )
    if examined.greedy is not None and examined.greedy.agreement.divergences:
        agreement = examined.greedy.agreement
        yield Notice(
            "greedy_divergence",
            f"{len(agreement.divergences)} of {agreement.compared} greedy answers differ between the arms; near-ties "
            "flip with batch shape, so this is no fault by itself",
        )
