"""A bench from its options to what it says.

Stages: measure (every pass, kept as it finishes), examine (are the answers of both arms the same, and do the counters
match the replay), conclude (figures, prediction, what is wrong).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from specprobe.bench.client import Asking, Served, Written, ask, warm_up
from specprobe.bench.conclusions import Bench, Examined, Greedy, conclude
from specprobe.bench.counters import ServerCounters, SpecCounters, parse_metrics
from specprobe.bench.document import bench_document
from specprobe.bench.kept import KeptPasses, open_kept
from specprobe.bench.plan import ARMS, Arm, BenchPlan, Pass
from specprobe.bench.predict import Predicted, predict, read_recommendation, recommended
from specprobe.bench.replay import Replayed, ReplayOptions, replay_answers
from specprobe.bench.result import BenchResult, PassRecord, rise
from specprobe.bench.servers import Commands, Fleet
from specprobe.bench.texts import (
    Agreement,
    Divergence,
    Likelihood,
    Score,
    compare_greedy,
    compare_sampled,
    score,
    tail,
)
from specprobe.completion_server import ServedModel
from specprobe.cost_sources import CostOptions
from specprobe.documents import dump_document
from specprobe.drafters import parse_drafter
from specprobe.errors import SpecprobeError, StoppedError
from specprobe.options import MAX_DEPTH
from specprobe.paths import write_private
from specprobe.profiles import resolve_profile
from specprobe.progress import Advance, Stages
from specprobe.prompt import Prompt
from specprobe.run_files import check_out
from specprobe.scan import ReadOptions
from specprobe.server import BENCH, Server, check_timeout, get_text, parse_server
from specprobe.side_by_side import side_by_side
from specprobe.workload import Workload, read_workload

# Answers of each arm that are scored under the target, and prompts that are also asked greedily at T > 0: enough for a
# test, and small beside what was timed.
MOST_SCORED = 64
GREEDY_PROMPTS = 8
# Further greedy answers of the plain server to one prompt that are replayed: near-ties make two or three.
MOST_LAYERS = 3

Texts = dict[Pass, dict[int, Written]]
Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What `bench` was asked for. `urls`: of either arm; the same one where `commands` restart a server. `resume`:
    whether finished passes of an interrupted bench are used.
    """

    prompts: tuple[str, ...]
    read: ReadOptions
    plan: BenchPlan
    urls: Mapping[Arm, str]
    commands: Commands | None
    model: str | None
    timeout_seconds: float
    replay: ReplayOptions | None = None
    cost: CostOptions | None = None
    recommendation: Path | None = None
    out: Path | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        check_timeout(self.timeout_seconds)
        if (self.commands is None) == (self.urls["plain"] == self.urls["speculative"]):
            raise SpecprobeError(
                "bench: name two servers with --server and --speculative, or one address with --server and the "
                "commands that start it in --start and --start-speculative"
            )
        if self.cost is not None and self.replay is None:
            raise SpecprobeError("--cost, --gpu: predict a drafter; name it with --drafter and --depth")
        if self.cost is not None and self.recommendation is not None:
            raise SpecprobeError("--recommendation: holds a prediction; leave --cost and --gpu out")
        if self.replay is not None and not 1 <= self.replay.depth <= MAX_DEPTH:
            raise SpecprobeError(f"--depth {self.replay.depth}: from 1 to {MAX_DEPTH}")


@contextmanager
def run_bench(options: BenchOptions, stages: Stages) -> Iterator[Bench]:
    """Measure, examine, conclude. What is finished is on the disk after every pass, and its figures in `options.out`.

    Passes lie there until the block ends that shows the result: where it cannot be shown, --resume shows it.

    Everything that can be refused is refused before a server is asked.
    """
    if options.out is not None:
        cost_file = options.cost.file if options.cost else None
        check_out(options.out, inputs=(*options.prompts, options.recommendation, cost_file))
    document = read_recommendation(options.recommendation) if options.recommendation else None
    if options.replay is not None:
        parse_drafter(options.replay.drafter, resolve_profile(options.replay.engine))
    workload = read_workload(
        options.prompts,
        format=options.read.format,
        prompt_field=options.read.prompt_field,
        first_turn=options.read.first_turn,
        dedupe=options.read.dedupe,
        max_prompts=options.read.max_prompts,
    )
    # They are asked for in many orders.
    workload = replace(workload, prompts=tuple(workload.prompts))
    servers: dict[Arm, Server] = {
        arm: parse_server(
            options.urls[arm],
            timeout_seconds=options.timeout_seconds,
            words=replace(BENCH, address="--server" if arm == "plain" or options.commands else "--speculative"),
        )
        for arm in ARMS
    }
    # Of this sitting alone: nothing that an earlier one left in a prefix cache is found.
    salt = secrets.token_hex(4)
    kept = open_kept(workload.prompts, servers, options.commands, options.model, options.plan, salt)
    with _told_what_is_kept(kept), Fleet(servers, options.commands, options.model, stages).open() as fleet:
        desk = _Desk(options, workload, fleet, stages, kept, salt)
        result, texts = desk.measure()
        examined = desk.examine(texts)
    bench = conclude(result, examined, workload, desk.predictions(document, examined), options.replay)
    if options.out is not None:
        write_private(options.out.absolute(), dump_document(bench_document(bench)) + "\n")
    yield bench
    kept.remove()


class _OtherServerError(SpecprobeError):
    """Another server answers than the one whose passes are kept."""


@contextmanager
def _told_what_is_kept(kept: KeptPasses) -> Iterator[None]:
    """An interruption or failure says how to go on: times of two sittings are mixed only where that is asked for."""
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(
            f"interrupted; passes finished and kept: {kept.count}; with --resume the same command goes on from there, "
            "without it it begins anew"
        ) from None
    except SpecprobeError as error:
        if not kept.count or isinstance(error, _OtherServerError):
            raise
        raise SpecprobeError(f"{error} (passes finished and kept: {kept.count}; --resume goes on from there)") from None


class _Desk:
    """The work of one bench."""

    def __init__(
        self, options: BenchOptions, workload: Workload, fleet: Fleet, stages: Stages, kept: KeptPasses, salt: str
    ) -> None:
        self._options, self._workload, self._fleet, self._stages = options, workload, fleet, stages
        self._prompts: Sequence[Prompt] = workload.prompts
        self._kept, self._salt = kept, salt
        self._earlier = kept.resumable() if options.resume else {}
        self._began = time.time()

    def measure(self) -> tuple[BenchResult, Texts]:
        """Every pass of the plan, in order; those that an earlier sitting finished come from the disk."""
        plan, fleet = self._options.plan, self._fleet
        passes = plan.passes(restarts=fleet.restarts)
        records: list[PassRecord] = []
        texts: Texts = {}
        warm: set[tuple[Arm, int]] = set()
        if self._options.resume:
            self._stages.say(f"{len(self._earlier)} of {len(passes)} passes are kept and used again")
        if not fleet.restarts:
            for arm in ARMS:
                self._check_arm(arm, fleet.server(arm)[0])
        with self._stages.track("measuring", len(passes)) as advance:
            for number, key in enumerate(passes):
                if key in self._earlier:
                    records.append(self._earlier[key].record)
                    texts[key] = dict(self._earlier[key].written)
                    continue
                server, started = fleet.server(key.arm)
                if started:
                    warm = {one for one in warm if one[0] != key.arm}
                    self._check_arm(key.arm, server)
                asking = self._asking(key.arm, server)
                if (key.arm, key.concurrency) not in warm:
                    warm_up(asking, key.concurrency)
                    warm.add((key.arm, key.concurrency))
                try:
                    record, written = self._pass(key, asking, _from(advance, number))
                except SpecprobeError:
                    # Its own end says more than what its connections saw of it.
                    fleet.check()
                    raise
                records.append(record)
                texts[key] = written
                self._kept.keep(record, written, fleet.models[key.arm])
                self._keep(records)
        return self._result(records), texts

    def examine(self, texts: Texts) -> Examined:
        """The answers of both arms against each other and against the replay."""
        plan, replay = self._options.plan, self._options.replay
        first = self._first_answers(texts)
        greedy = None
        if plan.temperature > 0:
            self._stages.say("asking a few prompts greedily")
            greedy = self._ask_greedily()
        agreements: tuple[Agreement, ...] = ()
        likelihood: Likelihood | None = None
        if plan.temperature == 0:
            agreements = tuple(self._agreements(texts, first))
            if any(one.divergences for one in agreements):
                self._stages.say("asking how likely the tokens are at which answers differ")
                agreements = tuple(self._placed(one, texts) for one in agreements)
        else:
            self._stages.say("asking how likely the answers of both arms are")
            likelihood = self._likelihood(texts)
        replayed = greedy_replayed = None
        expected: dict[tuple[int, str], SpecCounters] = {}
        if replay is not None:
            replayed = self._replayed(first, plan.temperature)
            expected = _by_answer(replayed, first)
            if plan.temperature == 0:
                for layer in _other_answers(texts, first):
                    expected |= _by_answer(self._replayed(layer, 0.0), layer)
            if greedy is not None:
                greedy_replayed = self._replayed(greedy.plain, 0.0)
        return Examined(
            agreements=agreements,
            likelihood=likelihood,
            expected=expected,
            replayed=replayed,
            greedy=None if greedy is None else replace(greedy, replayed=greedy_replayed),
        )

    def predictions(self, document: Mapping[str, object] | None, examined: Examined) -> dict[int, Predicted]:
        """By concurrency, as far as there is something to predict from."""
        plan, replay = self._options.plan, self._options.replay
        if document is not None:
            label, depth = (replay.drafter.partition(":")[0], replay.depth) if replay else (None, None)
            found = [recommended(document, concurrency, label, depth) for concurrency in plan.concurrencies]
            return {one.concurrency: one for one in found if one is not None}
        if self._options.cost is None or examined.replayed is None:
            return {}
        orders = [plan.order(repeat, len(self._prompts)) for repeat in range(plan.repeats)]
        predicted = predict(
            examined.replayed, plan.temperature, self._options.cost, plan.concurrencies, orders, self._stages
        )
        return {one.concurrency: one for one in predicted}

    def _asking(self, arm: Arm, server: Server) -> Asking:
        plan = self._options.plan
        return Asking(server, self._fleet.models[arm].name, plan.temperature, plan.max_new_tokens)

    def _check_arm(self, arm: Arm, server: Server) -> None:
        """Refuse a server that does the other arm's work, where its counters tell, or is not the one of kept passes."""
        now = self._fleet.models[arm]
        other = next((one.model for key, one in self._earlier.items() if key.arm == arm and one.model != now), None)
        if other is not None:
            told, was = (server.quote(f"{one.name} {one.version}", 80) for one in (now, other))
            raise _OtherServerError(f"{server.name}: is {told}, and passes are kept of {was}; leave --resume out")
        counters = _counters(server)
        if counters is None or counters.engine != "vllm":
            return
        if arm == "plain" and counters.speculation is not None:
            raise SpecprobeError(f"{server.name}: speculates; --server is the one without, so start it without")
        if arm == "speculative" and counters.speculation is None:
            raise SpecprobeError(f"{server.name}: does not speculate; start it with a speculative config")

    def _pass(
        self, key: Pass, asking: Asking, advance: Callable[[float], None]
    ) -> tuple[PassRecord, dict[int, Written]]:
        plan = self._options.plan
        order = plan.order(key.repeat, len(self._prompts))
        salt = f"{self._salt}-{key.repeat}-{key.concurrency}"
        before = _counters(asking.server)
        begin = time.perf_counter()

        def ask_one(number: int, stopped: threading.Event) -> tuple[Served, Written]:
            # Sampled answers differ from repeat to repeat, and come out alike when the bench is run again.
            seed = plan.seed + 1000 * key.repeat + number if plan.temperature > 0 else None
            prompt = self._prompts[number]
            return ask(asking, prompt, number, salt=salt, seed=seed, begin=begin, is_stopped=stopped.is_set)

        # A closed loop: where an answer ends, the next prompt of the order begins, until none is left.
        answers: dict[int, tuple[Served, Written]] = {}
        for place, answer in side_by_side(ask_one, order, key.concurrency):
            answers[place] = answer
            advance(len(answers) / len(order))
        rose = rise(before, _counters(asking.server))
        record = PassRecord(
            key,
            tuple(answers[place][0] for place in range(len(order))),
            rose.speculation,
            rose.prompt_tokens_asked,
            rose.prompt_tokens_cached,
        )
        return record, {served.prompt: written for served, written in answers.values()}

    def _keep(self, records: Sequence[PassRecord]) -> None:
        if self._options.out is not None:
            document = bench_document(conclude(self._result(records), Examined(), self._workload, {}, None))
            write_private(self._options.out.absolute(), dump_document(document) + "\n")

    def _result(self, records: Sequence[PassRecord]) -> BenchResult:
        return BenchResult(
            plan=self._options.plan,
            sources=self._options.prompts,
            prompts=tuple(prompt.id for prompt in self._prompts),
            models=self._models,
            passes=tuple(records),
            restarts=self._fleet.restarts,
            seconds_after=self._began - max(one.ended for one in self._earlier.values()) if self._earlier else None,
        )

    @property
    def _models(self) -> dict[Arm, ServedModel]:
        """What the servers say, or said in an earlier sitting where they were not asked yet."""
        return {**{key.arm: one.model for key, one in self._earlier.items()}, **self._fleet.models}

    def _first_answers(self, texts: Texts) -> dict[int, Written]:
        """The plain server's, of its first pass."""
        return next(written for key, written in texts.items() if key.arm == "plain")

    def _agreements(self, texts: Texts, first: Mapping[int, Written]) -> list[Agreement]:
        found = []
        for concurrency in self._options.plan.concurrencies:
            plain, speculative = (
                [texts[key] for key in sorted(texts) if key.arm == arm and key.concurrency == concurrency]
                for arm in ARMS
            )
            found.append(compare_greedy(concurrency, plain, speculative, first))
        return found

    def _ask_plain(self, ask_for: Callable[..., Asked], *arguments: object) -> Asked:
        """Something of the plain server, which may have to be started for it."""
        server, _ = self._fleet.server("plain")
        return ask_for(server, self._fleet.models["plain"].name, *arguments)

    def _placed(self, agreement: Agreement, texts: Texts) -> Agreement:
        """With the distance of each diverging token from the likeliest, where the server tells it."""
        divergences: list[Divergence] = []
        for one in agreement.divergences:
            written = texts[Pass(one.repeat, one.concurrency, "speculative")][one.prompt]
            scored = self._ask_plain(score, written) if len(divergences) < MOST_SCORED else None
            gap = scored.gaps[one.position] if scored and one.position < len(scored.gaps) else None
            divergences.append(replace(one, gap_nats=gap))
        return replace(agreement, divergences=tuple(divergences))

    def _likelihood(self, texts: Texts) -> Likelihood | None:
        """Of answers at the first concurrency, so many of each arm; None where the server cannot score."""
        concurrency = self._options.plan.concurrencies[0]
        scores: dict[Arm, dict[int, list[Score]]] = {arm: {} for arm in ARMS}
        for repeat in range(self._options.plan.repeats):
            for number in range(len(self._prompts)):
                if repeat * len(self._prompts) + number >= MOST_SCORED:
                    break
                for arm in ARMS:
                    scored = self._ask_plain(score, texts[Pass(repeat, concurrency, arm)][number])
                    if scored is None:
                        return None
                    scores[arm].setdefault(number, []).append(scored)
        return compare_sampled(scores["plain"], scores["speculative"])

    def _ask_greedily(self) -> Greedy:
        """A few prompts at temperature 0, one at a time: whether the arms agree where engines differ least."""
        answers: dict[Arm, dict[int, Written]] = {}
        counters: dict[Arm, ServerCounters] = {}
        # The arm that runs comes first, so that a restarted server is restarted once.
        for arm in ARMS[::-1]:
            server, _ = self._fleet.server(arm)
            asking = replace(self._asking(arm, server), temperature=0.0)
            before, begin = _counters(server), time.perf_counter()
            answers[arm] = {}
            for number, prompt in enumerate(self._prompts[:GREEDY_PROMPTS]):
                _, answers[arm][number] = ask(
                    asking,
                    prompt,
                    number,
                    salt=f"{self._salt}-greedy",
                    seed=None,
                    begin=begin,
                    is_stopped=lambda: False,
                )
            counters[arm] = rise(before, _counters(server))
        agreement = compare_greedy(1, [answers["plain"]], [answers["speculative"]], answers["plain"])
        return Greedy(answers["plain"], agreement, counters["speculative"].speculation)

    def _replayed(self, answers: Mapping[int, Written], temperature: float) -> Replayed:
        assert self._options.replay is not None
        tails: dict[int, tuple[int, ...]] = {}
        if temperature == 0:
            self._stages.say("asking what would have followed the answers")
            depth = self._options.replay.depth
            tails = {number: self._ask_plain(tail, written, depth) for number, written in answers.items()}
        return replay_answers(
            self._options.replay,
            self._prompts,
            answers,
            tails,
            temperature=temperature,
            max_new_tokens=self._options.plan.max_new_tokens,
            max_model_len=self._models["plain"].max_model_len,
            stages=self._stages,
        )


def _by_answer(replayed: Replayed, answers: Mapping[int, Written]) -> dict[tuple[int, str], SpecCounters]:
    """What is to be counted for each answer, by prompt and digest."""
    found = {(number, written.digest): replayed.counters(number) for number, written in answers.items()}
    return {key: counters for key, counters in found.items() if counters is not None}


def _other_answers(texts: Texts, first: Mapping[int, Written]) -> list[dict[int, Written]]:
    """What the plain server wrote besides its first answers, in layers of one answer to a prompt."""
    seen = {(number, written.digest) for number, written in first.items()}
    layers: list[dict[int, Written]] = []
    for key in sorted(texts):
        for number, written in texts[key].items():
            if key.arm != "plain" or (number, written.digest) in seen:
                continue
            seen.add((number, written.digest))
            layer = next((one for one in layers if number not in one), None)
            if layer is None:
                layers.append(layer := {})
            layer[number] = written
    return layers[:MOST_LAYERS]


def _from(advance: Advance, finished: int) -> Callable[[float], None]:
    """Progress inside a pass, after so many finished ones."""
    return lambda share: advance(finished + share, "")


def _counters(server: Server) -> ServerCounters | None:
    try:
        return parse_metrics(get_text(server, f"{server.root}/metrics"))
    except SpecprobeError:
        return None
