import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import toy_target as toy

from specprobe.errors import SpecprobeError
from specprobe.generate import plan_batches, uniforms
from specprobe.prompt import Message, Prompt
from specprobe.store import TrajectoryStore
from specprobe.target import load_target
from specprobe.trajectories import generated_trajectories, logged_trajectories
from specprobe.trajectory import token_ids
from specprobe.writing import Request, Sampling

GOLDEN = Path(__file__).parent / "golden"
PROMPTS = [toy.chat("word " * (n % 7) + str(n), id=n) for n in range(13)]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return toy.toy_target(tmp_path_factory.mktemp("toy"))


def outputs(found):
    return [(tuple(t.output_ids.tolist()), t.log_probs.tobytes(), t.finish_reason) for t in found.trajectories]


def run(target, prompts=PROMPTS, **options):
    return generated_trajectories(
        prompts, target, **{"temperature": 0.9, "max_new_tokens": 20, "batch_size": 4, **options}
    )


def token_by_token(target, prompt_ids, limit):
    """Greedy decoding without cache, batch or padding."""
    import torch

    ids = list(prompt_ids)
    while len(ids) < len(prompt_ids) + limit:
        with torch.inference_mode():
            ids.append(int(target.model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] in target.eos_ids:
            break
    return ids[len(prompt_ids) :]


def test_greedy_text_is_that_of_plain_decoding(target):
    for trajectory in run(target, temperature=0.0).trajectories:
        assert trajectory.output_ids.tolist() == token_by_token(target, trajectory.prompt_ids.tolist(), 20)


def test_ends(target):
    found = run(target).trajectories
    assert {t.finish_reason for t in found} == {"stop", "length"}
    for trajectory in found:
        ends = [i for i, token in enumerate(trajectory.output_ids) if token in target.eos_ids]
        if trajectory.finish_reason == "stop":
            assert ends == [len(trajectory.output_ids) - 1]
        else:
            assert (ends, len(trajectory.output_ids)) == ([], 20)


def test_same_seed_same_bytes_and_other_seed_other_bytes(target):
    assert outputs(run(target)) == outputs(run(target))
    assert outputs(run(target)) != outputs(run(target, seed=1))


def test_sampling_follows_the_distribution(target):
    import torch

    prompt = toy.chat("x")
    found = run(target, [prompt] * 2000, temperature=0.7, max_new_tokens=1, batch_size=500)
    counts = np.bincount([int(t.output_ids[0]) for t in found.trajectories], minlength=260)
    with torch.inference_mode():
        ids = torch.tensor([target.tokenizer.encode_prompt(prompt).tolist()])
        expected = 2000 * torch.softmax(target.model(ids).logits[0, -1] / 0.7, -1).numpy()
    often = expected > 5
    chi2 = ((counts - expected)[often] ** 2 / expected[often]).sum()
    assert chi2 < often.sum() + 5 * np.sqrt(2 * often.sum())
    assert abs(counts[~often].sum() - expected[~often].sum()) < 5 * np.sqrt(expected[~often].sum() + 1)


def test_draws_depend_on_the_request_alone():
    request, sampling = Request(token_ids([1, 2])), Sampling(0.7, seed=3)
    assert uniforms(request, sampling, 9)[:5].tolist() == uniforms(request, sampling, 5).tolist()
    others = [
        uniforms(Request(token_ids([1, 3])), sampling, 5),
        uniforms(Request(token_ids([1, 2]), sample=1), sampling, 5),
        uniforms(request, Sampling(0.8, seed=3), 5),
        uniforms(request, Sampling(0.7, seed=4), 5),
    ]
    assert len({tuple(draws) for draws in [uniforms(request, sampling, 5), *others]}) == 5


def test_equal_prompts_share_a_greedy_response_and_are_samples_otherwise(target):
    twice = [PROMPTS[3], PROMPTS[3]]
    assert len(set(outputs(run(target, twice, temperature=0.0)))) == 1
    assert len(set(outputs(run(target, twice)))) == 2


def test_log_of_prompt_length_limits(target):
    long = toy.chat("x" * 200, id="long")
    found = run(target, [long, *PROMPTS])
    assert found.skipped == {"too_long": 1}
    assert len(found.trajectories) == len(PROMPTS)
    found = run(target, max_new_tokens=500)
    assert max(len(t.prompt_ids) + len(t.output_ids) for t in found.trajectories) <= 128
    found = run(target, max_model_len=80)
    assert max(len(t.prompt_ids) + len(t.output_ids) for t in found.trajectories) <= 80


def test_plan_covers_everything_and_keeps_full_windows():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 3000, 150).tolist()
    limits = [200] * 150
    plan = plan_batches(lengths, limits, 8)
    assert sorted(i for batch in plan for i in batch) == list(range(150))
    assert max(map(len, plan)) <= 8
    for batch in plan:
        assert len(batch) == 1 or len(batch) * (max(lengths[i] for i in batch) + 200) <= 2**15
    shorter = plan_batches(lengths[:100], limits[:100], 8)
    full = [batch for batch in shorter if max(batch) < 96]
    assert full == [batch for batch in plan if max(batch) < 96]


def test_second_run_reads_everything_from_the_disk(target, tmp_path, monkeypatch):
    store = TrajectoryStore(tmp_path)
    first = run(target, store=store)
    monkeypatch.setattr("specprobe.generate._decode", None)
    second = run(target, store=store)
    assert (first.reused, second.reused) == (0, len(PROMPTS))
    assert outputs(first) == outputs(second)


def test_longer_workload_reuses_full_windows(target, tmp_path):
    store = TrajectoryStore(tmp_path)
    run(target, PROMPTS[:8], batch_size=1, store=store)
    assert run(target, batch_size=1, store=store).reused == 8


def test_every_setting_that_changes_the_text_has_its_own_place(target, tmp_path):
    store = TrajectoryStore(tmp_path)
    run(target, store=store)
    for change in ({"seed": 1}, {"temperature": 0.8}, {"max_new_tokens": 19}, {"batch_size": 5}, {"max_model_len": 90}):
        assert run(target, store=store, **change).reused == 0


@pytest.mark.parametrize("stop_after", [1, 5, 9])
def test_interrupted_run_resumes_with_the_same_bytes(target, tmp_path, stop_after):
    store = TrajectoryStore(tmp_path)

    def stop(progress):
        if progress.responses >= stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(target, store=store, on_progress=stop)
    lines = sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("*/*.jsonl"))
    assert lines >= stop_after
    resumed = run(target, store=store)
    assert resumed.reused == lines // 4 * 4
    assert outputs(resumed) == outputs(run(target))
    assert resumed.notices == ()
    records = Counter(
        json.loads(line[17:])["request"]
        for path in tmp_path.glob("*/*.jsonl")
        for line in path.read_text().splitlines()
    )
    assert set(records.values()) == {1}


def test_responses_of_a_device_that_computes_differently_each_time_are_reported(target, tmp_path):
    store = TrajectoryStore(tmp_path)
    run(target, store=store)
    for path in tmp_path.glob("*/*.jsonl"):
        kept, *_ = path.read_text().splitlines(keepends=True)
        path.write_text(kept)
    other = load_target(target.record.name, device="cpu")
    other.model.model.embed_tokens.weight.data.mul_(1.5)
    assert {n.code for n in run(other, store=store).notices} == {"not_reproducible"}


def test_progress_counts_up_to_its_bound(target, tmp_path):
    for expected_reused in (0, len(PROMPTS)):
        seen = []
        run(target, store=TrajectoryStore(tmp_path), on_progress=seen.append)
        assert [p.tokens for p in seen] == sorted(p.tokens for p in seen)
        assert all(p.tokens <= p.tokens_at_most for p in seen)
        last = seen[-1]
        assert (last.responses, last.responses_wanted) == (len(PROMPTS), len(PROMPTS))
        assert (last.tokens, last.responses_reused) == (last.tokens_at_most, expected_reused)


def test_logits_that_are_no_numbers_are_an_error(tmp_path):
    broken = load_target(str(toy.write_checkpoint(tmp_path)), device="cpu")
    broken.model.model.embed_tokens.weight.data.fill_(float("nan"))
    with pytest.raises(SpecprobeError, match="not numbers"):
        run(broken)


def test_prompts_that_cannot_be_used_are_counted(target):
    tokenizer = toy.byte_tokenizer(toy.NO_SYSTEM)
    system = Prompt("s", "f", 1, "m", messages=(Message("system", "s"),), answer=Message("assistant", "a"))
    prompts = [
        system,
        toy.chat("no answer"),
        toy.raw("x", answer=Message("assistant", "")),
        toy.raw("", answer=Message("assistant", "a")),
        toy.chat("a" * 50, answer="b"),
        toy.chat("a <|end|>", answer=Message("assistant", "b", reasoning="c"), structured_output=True),
    ]
    found = logged_trajectories(prompts, tokenizer, temperature=0.5, max_model_len=60)
    assert found.skipped == {
        "template_error": 1, "no_answer": 1, "empty_answer": 1, "empty_prompt": 1, "too_long": 1,
    }  # fmt: skip
    (trajectory,) = found.trajectories
    assert (trajectory.source, trajectory.temperature, trajectory.finish_reason) == ("logged", 0.5, "stop")
    assert (found.inexact, found.special_token_prompts, found.structured_prompts) == (1, 1, 1)
    codes = {notice.code for notice in found.notices}
    assert codes == {"inexact_answers", "special_tokens_in_text", "structured_output", "template_error"}


def test_base_model_is_said(target):
    found = logged_trajectories([toy.chat("a", answer="b")], toy.byte_tokenizer(None), temperature=0.0)
    assert [notice.code for notice in found.notices] == ["no_chat_template"]


def test_rows_of_token_ids_need_no_tokenizer():
    ids = tuple(range(400))
    prompts = [
        Prompt(i, "f", i, "prompt_token_ids", token_ids=ids, answer_token_ids=ids, tail_token_ids=(7,))
        for i in range(400)
    ]
    found = logged_trajectories(prompts, None, temperature=0.0)
    assert found.trajectories[399].output_ids.tolist() == list(ids)
    assert found.trajectories[0].tail_ids.tolist() == [7]
    assert not found.trajectories[0].prompt_ids.flags.writeable


def test_text_rows_without_tokenizer_say_what_to_name():
    with pytest.raises(SpecprobeError, match=r"toy\.jsonl:1: .*--tokenizer"):
        logged_trajectories([toy.chat("a", answer="b")], None, temperature=0.0)
    with pytest.raises(SpecprobeError, match="not token ids"):
        logged_trajectories(
            [Prompt("a", "f", 1, "p", token_ids=(2**40,), answer_token_ids=(1,))], None, temperature=0.0
        )


def golden_prompts():
    rows = [json.loads(line) for line in (GOLDEN / "prompts.jsonl").read_text().splitlines()]
    return [
        Prompt(row["id"], "prompts.jsonl", n, "messages", messages=tuple(Message(**m) for m in row["messages"]))
        for n, row in enumerate(rows, 1)
    ]


@pytest.mark.slow
def test_embedded_target_writes_what_vllm_wrote():
    embedded = load_target(device="cpu")
    found = generated_trajectories(golden_prompts(), embedded, temperature=0.0, max_new_tokens=160, max_model_len=2048)
    baseline = [json.loads(line) for line in (GOLDEN / "baseline_t0.jsonl").read_text().splitlines()]
    for trajectory, row in zip(found.trajectories, baseline, strict=True):
        assert trajectory.prompt_ids.tolist() == row["prompt_token_ids"]
        assert trajectory.output_ids.tolist() == row["output_token_ids"]
        assert trajectory.finish_reason == row["finish_reason"]
