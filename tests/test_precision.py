"""`--precision`: the order of the prompts, the looks, where it stops, and that what it says then holds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simulated_runs as sim
import toy_target as toy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from specprobe.cli import run_command
from specprobe.compare import compare
from specprobe.errors import SpecprobeError
from specprobe.gate import tokens_per_round
from specprobe.interval import LEVEL, tokens_per_round_intervals
from specprobe.looks import FIRST_LOOK, interval_level, look_sizes, simultaneous
from specprobe.options import AnalyzeOptions
from specprobe.precision import FEWEST_PROMPTS, Precision, plan_looks, reached
from specprobe.precision_report import look_in_words, precision_in_words
from specprobe.prompt import Message, Prompt
from specprobe.run_document import load_run
from specprobe.strata import kinds_of, stratified_order
from specprobe.temperature import intervals_at
from tests.studies.precision import WITH_UNSEEN, intervals_of, scenarios, simulate


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(toy.write_checkpoint(tmp_path_factory.mktemp("toy")))


def alike(number: int) -> dict:
    """Other tokens in each row, repeated alike."""
    word = [100 * number + 50 + i for i in range(6)]
    return {"id": number, "prompt_token_ids": word, "output_token_ids": word * 4}


def unlike(number: int) -> dict:
    """Tokens that repeat in some rows and in others not; the longer half is of a group of its own."""
    rng = np.random.default_rng(number)
    word = rng.integers(4, 5000, 6).tolist()
    chance = rng.beta(1, 1)
    output = [token if rng.random() < chance else int(rng.integers(4, 5000)) for token in word * 6]
    return {
        "id": number,
        "team": "b" if number % 3 else "a",
        "prompt_token_ids": word * int(rng.integers(1, 4)),
        "output_token_ids": output,
    }


def write(name: str, rows) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def analyze(capsys, *arguments: str) -> tuple[dict, str]:
    status = run_command(["analyze", *arguments, "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    return json.loads(out), err


def stopping(document: dict) -> dict:
    return document["settings"]["precision"]


# The order


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_every_beginning_of_the_order_holds_the_same_share_of_each_kind(labels, seed):
    kinds = np.unique(labels, return_inverse=True)[1]
    order = stratified_order(kinds, seed)
    assert sorted(order.tolist()) == list(range(len(kinds)))
    sizes = np.bincount(kinds)
    for end in range(len(order) + 1):
        counts = np.bincount(kinds[order[:end]], minlength=len(sizes))
        # There is a share of which each kind has its part, off by less than one prompt.
        assert ((counts - 1) / sizes).max() < ((counts + 1) / sizes).min()


def test_no_prompt_is_favoured():
    kinds = np.repeat(np.arange(6), [1, 1, 1, 2, 7, 28])
    seeds = 3000
    for first in (4, 20):
        times = np.zeros(len(kinds))
        for seed in range(seeds):
            times[stratified_order(kinds, seed)[:first]] += 1
        share = first / len(kinds)
        assert np.abs(times / seeds - share).max() < 4.5 * np.sqrt(share * (1 - share) / seeds) + 0.02


def test_same_seed_same_order():
    prompts = [Prompt(i, "log", i, "prompt", text="x" * (i % 17)) for i in range(100)]
    orders = [plan_looks(prompts, 0.05, logged=False, step=64, seed=seed).order for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert set(map(id, orders[0])) == set(map(id, orders[2])) == set(map(id, prompts))


def test_kinds_are_quarters_by_length_within_groups():
    prompts = [Prompt(i, "log", i, "prompt", text="x" * i, group="ab"[i % 2]) for i in range(16)]
    kinds = kinds_of(prompts)
    assert np.bincount(kinds).tolist() == [2] * 8
    for group in (0, 1):
        assert kinds[group::2].tolist() == sorted(kinds[group::2])
    assert not set(kinds[::2]) & set(kinds[1::2])
    turns = Prompt(0, "log", 0, "messages", messages=(Message("user", "x" * 40),))
    assert kinds_of([turns, *prompts[:4]])[0] != kinds_of([turns, *prompts[:4]])[1]


# The looks


def test_looks_double_and_end_with_all_prompts():
    assert look_sizes(4000) == (64, 128, 256, 512, 1024, 2048, 4000)
    assert look_sizes(85) == (85,)
    assert look_sizes(86) == (64, 86)
    assert look_sizes(1000, step=48) == (96, 192, 384, 1000)
    assert look_sizes(1000, step=512) == (512, 1000)
    assert look_sizes(3, step=64) == (3,)


@pytest.mark.parametrize(("looks", "constant"), [(2, 1.875), (3, 1.992), (4, 2.067), (5, 2.122), (10, 2.270)])
def test_the_bound_is_pococks_where_looks_are_evenly_spaced(looks, constant):
    """Constants of two-sided tests at 10 %: Jennison & Turnbull, Group Sequential Methods, 2000, table 2.1."""
    level = interval_level(tuple(range(1, looks + 1)))
    assert -ndtri((1 - level) / 2) == pytest.approx(constant, abs=1e-3)


def test_walks_stay_inside_the_bound_as_often_as_it_says():
    sizes = look_sizes(4000)
    rng = np.random.default_rng(3)
    steps = np.diff(sizes, prepend=0)
    walks = np.cumsum(rng.normal(size=(200_000, len(sizes))) * np.sqrt(steps), axis=1) / np.sqrt(sizes)
    bound = -ndtri((1 - interval_level(sizes)) / 2)
    assert simultaneous(bound, sizes) == pytest.approx(LEVEL)
    assert (np.abs(walks).max(axis=1) <= bound).mean() == pytest.approx(LEVEL, abs=0.003)
    assert LEVEL == interval_level((77,)) < interval_level((64, 128)) < interval_level(sizes) < 1 - 0.1 / len(sizes)


# What counts as known


def test_precision_is_the_distance_to_the_farther_end_where_it_is_largest():
    rng = np.random.default_rng(0)
    result = sim.acceptance(rng, *sim.draw_prompts(rng, 80), depth=3, interval_level=0.97)
    intervals = intervals_at(result, [1, 2, 3])
    distances = [max(i.high / i.point - 1, 1 - i.low / i.point) for i in intervals]
    found = reached(result)
    assert found.within == pytest.approx(max(distances))
    assert found.depth == 1 + int(np.argmax(distances))
    assert found.prompts == 80
    assert found.is_within(found.within)
    assert not found.is_within(found.within * 0.99)


def test_where_nothing_was_accepted_unseen_prompts_set_the_precision():
    """With 100 prompts a share q of others stays unseen with probability (1 - q)^100 = 1 - level."""
    rng = np.random.default_rng(0)
    result = sim.acceptance(rng, np.zeros(100), np.full(100, 40), depth=4, interval_level=0.97)
    assert intervals_at(result, [4])[0].high == 1
    unseen = 1 - 0.03 ** (1 / 100)
    assert (1 - unseen) ** 100 == pytest.approx(0.03)
    # Rounds for a hundred tokens: one for each, or one for five tokens of those unseen.
    assert reached(result).within == pytest.approx(100 / (100 * (1 - unseen) + 100 * unseen / 5) - 1)
    assert reached(result).depth == 4


def test_too_few_prompts_are_never_enough():
    rng = np.random.default_rng(0)
    result = sim.acceptance(rng, np.full(FEWEST_PROMPTS - 1, 0.5), np.full(FEWEST_PROMPTS - 1, 900), depth=2)
    assert reached(result).within < 0.1
    assert not reached(result).is_within(0.1)


def test_prompts_that_are_alike_do_not_tell_of_others():
    """Without any spread the interval is a point, but of 64 prompts one in twenty may be of another kind unseen."""
    rng = np.random.default_rng(0)
    for prompts in (64, 640):
        result = sim.acceptance(rng, np.full(prompts, 1 - 1e-12), np.full(prompts, 900), depth=8, interval_level=0.98)
        (interval,) = intervals_at(result, [8])
        assert interval.high - interval.low < 1e-9
        unseen = 1 - 0.02 ** (1 / prompts)
        # Unseen tokens in rounds of one each, beside rounds of nine.
        assert reached(result).within == pytest.approx(1 - (1 / 9) / ((1 - unseen) / 9 + unseen), rel=0.01)
    assert reached(result).within < 0.05


@pytest.mark.parametrize("asked", [0.0, 1.0, -0.1, 5.0, float("nan"), float("inf")])
def test_a_precision_is_between_0_and_1(asked):
    with pytest.raises(SpecprobeError, match="--precision"):
        AnalyzeOptions(prompts=("x",), precision=asked)


# Whole runs


def test_where_all_prompts_are_alike_the_first_look_is_enough(capsys):
    document, err = analyze(capsys, write("log.jsonl", map(alike, range(300))), "--precision", "0.4")
    found = stopping(document)
    assert (found["prompts_used"], found["prompts"], found["looked"]) == (FIRST_LOOK, 300, 1)
    assert found["looks"] == [64, 128, 300]
    assert all(one["within"] < 0.4 for one in found["reached"])
    assert document["workload"]["prompts"] == len(document["responses"][0]["ids"]) == FIRST_LOOK
    assert document["workload"]["rows"] == 300
    assert ": enough" in err
    assert "128 of 300" not in err


def test_a_finer_precision_never_takes_fewer_prompts(capsys):
    log = write("log.jsonl", map(unlike, range(500)))
    used = []
    for asked in (0.9, 0.2, 0.12, 0.08, 0.001):
        document, err = analyze(capsys, log, "--precision", str(asked), "--drafter", "ngram")
        found = stopping(document)
        used.append(found["prompts_used"])
        (one,) = found["reached"]
        assert (one["within"] <= asked) == (found["prompts_used"] < 500)
        assert err.count(" of 500 prompts") == found["looked"] - (found["prompts_used"] == 500)
        codes = {warning["code"] for warning in document["warnings"]}
        assert ("precision_not_reached" in codes) == (found["prompts_used"] == 500)
    assert used == sorted(used)
    assert used[0] == 64
    assert used[-1] == 500
    assert len(set(used)) > 2


def test_all_prompts_in_another_order_are_the_same_prompts(capsys):
    log = write("log.jsonl", map(unlike, range(90)))
    plain, _ = analyze(capsys, log, "--drafter", "ngram")
    drawn, _ = analyze(capsys, log, "--drafter", "ngram", "--precision", "0.001")
    assert stopping(drawn)["prompts_used"] == 90

    def of_prompts(document):
        (result,) = document["results"]
        return sorted(map(json.dumps, result["per_prompt"]))

    assert of_prompts(plain) == of_prompts(drawn)
    assert plain["responses"][0]["ids"] != drawn["responses"][0]["ids"]
    for one, other in zip(plain["results"][0]["depths"], drawn["results"][0]["depths"], strict=True):
        low, high = other["interval"]["tokens_per_round"]
        # Of two looks.
        assert low < one["interval"]["tokens_per_round"][0] < one["interval"]["tokens_per_round"][1] < high
        assert {**one, "interval": 0} == {**other, "interval": 0}


def test_every_drafter_has_to_be_known(capsys):
    log = write("log.jsonl", map(unlike, range(500)))
    alone = [stopping(analyze(capsys, log, "--precision", "0.1", "--drafter", name)[0]) for name in ("ngram", "suffix")]
    both = stopping(analyze(capsys, log, "--precision", "0.1")[0])
    assert both["prompts_used"] == max(one["prompts_used"] for one in alone)
    assert [one["label"] for one in both["reached"]] == ["ngram", "suffix"]


def test_groups_are_drawn_in_proportion(capsys):
    log = write("log.jsonl", map(unlike, range(300)))
    document, _ = analyze(capsys, log, "--precision", "0.5", "--group-by", "team")
    assert stopping(document)["prompts_used"] == 64
    # A third, in four quarters by length of which each is off by one prompt at most.
    assert abs(document["responses"][0]["groups"].count("a") - 64 / 3) <= 4


def test_prompts_without_an_answer_come_last(capsys):
    rows = [
        row if i % 10 == 0 else {"id": i, "prompt_token_ids": [1, 2]} for i, row in enumerate(map(alike, range(1000)))
    ]
    document, _ = analyze(capsys, write("log.jsonl", rows), "--responses", "logged", "--precision", "0.4")
    assert (stopping(document)["prompts_used"], stopping(document)["prompts"]) == (64, 100)
    few, _ = analyze(capsys, write("few.jsonl", rows[:500]), "--responses", "logged", "--precision", "0.4")
    assert stopping(few)["looks"] == [50]
    assert few["workload"]["skipped"] == {"no_answer": 450}


def test_a_temperature_with_few_requests_takes_all_of_them(capsys):
    rows = [alike(i) | {"temperature": 0.7 if i % 100 == 5 else 0} for i in range(300)]
    document, _ = analyze(capsys, write("log.jsonl", rows), "--temperature", "log", "--precision", "0.5")
    found = stopping(document)
    assert found["prompts_used"] == 300
    assert {(one["temperature"], one["prompts"]) for one in found["reached"]} == {(0, 297), (0.7, 3)}


def test_responses_without_a_round_are_not_known_at_all(capsys):
    rows = [{"id": i, "prompt_token_ids": [i, 1], "output_token_ids": [5]} for i in range(100)]
    document, err = analyze(capsys, write("log.jsonl", rows), "--precision", "0.5", "--drafter", "ngram")
    assert stopping(document)["prompts_used"] == 100
    assert stopping(document)["reached"][0]["within"] is None
    assert "64 of 100 prompts: ngram known not at all: going on" in err


def test_the_drafter_that_never_drafts_does_not_stop_it_too_early(capsys):
    rows = [
        {"id": i, "prompt_token_ids": [40 * i + 5], "output_token_ids": [40 * i + j for j in range(6, 30)]}
        for i in range(500)
    ]
    used = {}
    for asked in (0.2, 0.03, 0.02):
        document, _ = analyze(
            capsys, write("log.jsonl", rows), "--precision", str(asked), "--drafter", "ngram", "--engine", "vllm-v1"
        )
        assert document["results"][0]["depths"][-1]["drafted_tokens"] == 0
        used[asked] = stopping(document)["prompts_used"]
    assert used == {0.2: 64, 0.03: 128, 0.02: 256}


# Generated responses


def chats(count: int) -> str:
    return write("chats.jsonl", ({"id": i, "prompt": f"Say {i} {'x' * (i % 7)}"} for i in range(count)))


def generated(model: str, *arguments: str) -> list[str]:
    return [chats(100), "--target", model, "--max-new-tokens", "6", "--batch-size", "4", "--depth", "2", *arguments]


def test_no_response_is_generated_twice(capsys, model, monkeypatch):
    from specprobe import generate

    rows = []
    decode = generate._decode
    monkeypatch.setattr(
        generate, "_decode", lambda t, r, s: rows.extend(row.request.key for row in r) or decode(t, r, s)
    )
    document, _ = analyze(capsys, *generated(model, "--precision", "0.0001"))
    assert stopping(document)["looks"] == [64, 100]
    assert stopping(document)["looked"] == 2
    assert len(rows) == len(set(rows)) == 100


@pytest.mark.parametrize("after", [3, 70])
def test_an_interrupted_run_goes_on_to_the_same_document(capsys, model, monkeypatch, after):
    from specprobe import store

    arguments = generated(model, "--precision", "0.0001", "--temperature", "0,0.7", "--drafter", "suffix")
    whole, _ = analyze(capsys, *arguments)
    for path in Path(".specprobe").rglob("*.jsonl"):
        path.unlink()
    kept = 0
    append = store.SettingsStore.append

    def interrupted(self, *one):
        nonlocal kept
        kept += 1
        if kept > after:
            raise KeyboardInterrupt
        append(self, *one)

    with monkeypatch.context() as patched:
        patched.setattr(store.SettingsStore, "append", interrupted)
        assert run_command(["analyze", *arguments, "--json"]) == 130
    capsys.readouterr()
    again, _ = analyze(capsys, *arguments)
    assert again == whole


def test_heads_of_the_target_are_replayed_at_every_look(capsys, model):
    """The target's layers are there for the next look, and what is drafted from them for each."""
    document, _ = analyze(
        capsys,
        *generated(model, "--precision", "0.0001", "--drafter", "early-exit:layers=1"),
        *("--drafter", "hybrid:suffix+early-exit:layers=1", "--temperature", "0.7"),
    )
    assert stopping(document)["looked"] == 2
    assert all(len(result["per_prompt"]) == 200 for result in document["results"])


def test_the_dry_run_says_the_most_and_that_it_may_be_less(capsys, model):
    arguments = generated(model, "--precision", "0.9", "--drafter", "ngram")
    plan, _ = analyze(capsys, *arguments, "--dry-run")
    assert plan["precision"] == {"asked": 0.9, "looks": [64, 100]}
    steps = {step["name"]: (step["count"], step["kept"]) for step in plan["steps"]}
    assert steps["generate at temperature 0"] == (100, 0)
    document, _ = analyze(capsys, *arguments)
    assert stopping(document)["prompts_used"] == 64
    plan, _ = analyze(capsys, *arguments, "--dry-run")
    steps = {step["name"]: (step["count"], step["kept"]) for step in plan["steps"]}
    assert steps["generate at temperature 0"] == (36, 64)
    assert run_command(["analyze", *arguments, "--dry-run"]) == 0
    assert "that is what all prompts take: it looks after 64 of 100" in " ".join(capsys.readouterr().out.split())


# What others make of such a run


def stopped_run(capsys, name: str, *arguments: str):
    log = write("log.jsonl", map(unlike, range(500)))
    analyze(capsys, log, "--drafter", "ngram", "--out", name, *arguments)
    return load_run(Path(name))


def test_intervals_of_a_run_that_is_read_again_hold_at_every_look(capsys):
    run = stopped_run(capsys, "run.json", "--precision", "0.12")
    document = json.loads(Path("run.json").read_text())
    assert run.precision is not None
    assert run.precision.to_json() == stopping(document)
    (result,) = run.results
    assert result.interval_level == run.precision.interval_level > LEVEL
    counts = [
        np.broadcast_to(c, result.rounds.shape).astype(float) for c in (result.emitted_tokens[:, None], result.rounds)
    ]
    for depth, alone in enumerate(tokens_per_round_intervals(*counts), 1):
        shown = document["results"][0]["depths"][depth - 1]["interval"]
        (again,) = intervals_at(result, [depth])
        gate = tokens_per_round(result, depth)
        assert shown["level"] == LEVEL
        assert shown["tokens_per_round"] == pytest.approx([again.low, again.high])
        assert (gate.low, gate.high) == (again.low, again.high)
        assert again.low < alone.low < alone.high < again.high


def test_runs_in_different_orders_are_not_comparable(capsys):
    plain = stopped_run(capsys, "plain.json")
    coarse, fine = (stopped_run(capsys, f"{p}.json", "--precision", p) for p in ("0.2", "0.08"))
    assert coarse.precision.prompts_used < fine.precision.prompts_used
    with pytest.raises(SpecprobeError, match="order of prompts: the log's in A, drawn by --precision, seed 0 in B"):
        compare(plain, coarse)
    other_seed = stopped_run(capsys, "seed.json", "--precision", "0.2", "--seed", "1")
    with pytest.raises(SpecprobeError, match="seed 1"):
        compare(coarse, other_seed)
    (contrast,) = compare(coarse, fine).results
    assert (contrast.prompts, contrast.only_a) == (coarse.precision.prompts_used, 0)
    assert contrast.judged.difference.point == 0
    (forced,) = compare(plain, coarse, force=True).results
    assert forced.level == coarse.results[0].interval_level
    assert forced.judged.difference.point == 0


def test_a_damaged_record_is_refused(capsys):
    stopped_run(capsys, "run.json", "--precision", "0.2")
    document = json.loads(Path("run.json").read_text())
    for field, value in (("interval_level", 0.5), ("asked", 2), ("looks", None), ("reached", [{}])):
        damaged = json.loads(json.dumps(document))
        stopping(damaged)[field] = value
        Path("damaged.json").write_text(json.dumps(damaged))
        with pytest.raises(SpecprobeError, match="damaged run"):
            load_run(Path("damaged.json"))


def test_people_are_told(capsys):
    log = write("log.jsonl", map(unlike, range(500)))
    for arguments in ([], ["--details"], ["--plain"]):
        assert run_command(["analyze", log, "--precision", "0.12", *arguments]) == 0
        out, err = capsys.readouterr()
        told = " ".join(out.split())
        assert "of 500 prompts: tokens per round of ngram is known within" in told
        assert "asked 12.0 %. Intervals are widened for 4 looks." in told
        assert "its shared tree saw" in told or "--details" in told
        assert "64 of 500 prompts: " in err


def test_the_words_name_what_is_known_least_of_many():
    def one(label, temperature, within):
        return {
            "drafter": "x", "label": label, "draft_sampling": "greedy", "temperature": temperature,
            "depth": 8, "within": within, "prompts": 64,
        }  # fmt: skip

    record = {
        "asked": 0.05, "reached": [one("ngram", 0, 0.0461), one("suffix", 0, None)], "prompts_used": 64,
        "prompts": 4000, "looks": [64, 4000], "looked": 1, "interval_level": 0.94, "seed": 0, "method": "x",
    }  # fmt: skip
    assert precision_in_words(Precision.from_json(record)) == (
        "used 64 of 4,000 prompts: tokens per round of ngram is known within 4.6 %, of suffix not at all; asked 5.0 %. "
        "Intervals are widened for 2 looks."
    )
    record["reached"] = [one("ngram", t / 10, 0.01 * t) for t in range(1, 7)]
    told = look_in_words(Precision.from_json(record))
    assert told == "64 of 4,000 prompts: ngram at temperature 0.6 known within 6.0 %: going on"
    assert "6 results is known within 6.0 %, of ngram at temperature 0.6 least well; asked" in precision_in_words(
        Precision.from_json(record)
    )


def test_the_project_can_ask_for_it(capsys):
    log = write("log.jsonl", map(alike, range(200)))
    Path("specprobe.toml").write_text("[analyze]\nprecision = 0.1\n")
    document, err = analyze(capsys, log)
    assert stopping(document)["asked"] == 0.1
    assert "defaults from specprobe.toml [analyze]: --precision" in err
    assert stopping(analyze(capsys, log, "--precision", "0.2")[0])["asked"] == 0.2
    Path("specprobe.toml").write_text("[analyze]\nprecision = 2\n")
    assert run_command(["analyze", log]) == 2
    assert "--precision 2: must be between 0 and 1" in capsys.readouterr().err


# That the interval at the stop holds: `python -m tests.studies.precision` has the table of docs/reliability.md.


def test_the_study_makes_the_intervals_that_a_run_makes():
    rng = np.random.default_rng(2)
    depth, levels = 3, (0.9, 0.97)
    result = sim.acceptance(rng, *sim.draw_prompts(rng, 70), depth=depth)
    counts = np.stack([result.emitted_tokens, result.rounds[:, -1]], axis=1).astype(float)
    for level, one in zip(levels, intervals_of(counts, depth, levels), strict=True):
        (again,) = intervals_at(replace(result, interval_level=level), [depth])
        assert (one.point, one.low, one.high) == pytest.approx((again.point, again.low, again.high))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in scenarios() if "file order" not in name])
def test_what_is_said_at_the_stop_covers(name):
    repeats = 300
    stops = simulate(scenarios()[name], repeats, 1000, 0.08)[WITH_UNSEEN]
    slack = 3 * np.sqrt(LEVEL * (1 - LEVEL) / repeats)
    assert np.mean([stop.holds_traffic for stop in stops]) >= LEVEL - slack
    assert np.mean([stop.holds_log for stop in stops]) >= LEVEL - slack


@pytest.mark.slow
def test_where_a_kind_is_rare_intervals_alone_do_not_cover():
    stops = simulate(scenarios()["rare copying"], 200, 1000, 0.05)
    held = {rule: np.mean([stop.holds_traffic for stop in stops[rule]]) for rule in (WITH_UNSEEN, "repeated intervals")}
    assert held["repeated intervals"] < 0.8 < LEVEL < held[WITH_UNSEEN]


@pytest.mark.slow
def test_from_the_top_of_a_log_that_is_sorted_it_would_not_cover():
    stops = simulate(scenarios()["groups, in file order"], 100, 1000, 0.15)["repeated intervals"]
    assert np.mean([stop.holds_log for stop in stops]) < 0.5
