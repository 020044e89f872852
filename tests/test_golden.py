"""What a real vLLM counted, prompt by prompt, against the replay of the tokens it wrote (golden/README.md)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reference import make_trajectory

from specprobe.drafters import Adoption, Limits, parse_drafter
from specprobe.drafters.scores import Draws, acceptance_probability, nested_proposals, prefix_proposals
from specprobe.profiles import resolve_profile
from specprobe.replay import replay

GOLDEN = Path(__file__).parent / "golden"


def read_lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (GOLDEN / name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("file", "spec", "depth"),
    [
        ("vllm_ngram_k1_t0.json", "ngram:min=2,max=4", 1),
        ("vllm_ngram_k3_t0.json", "ngram:min=2,max=4", 3),
        ("vllm_ngram_k3_t0.8.json", "ngram:min=2,max=4", 3),
        ("vllm_suffix_k8_t0.json", "suffix", 8),
    ],
)
def test_replay_gives_the_counters_of_vllm(file, spec, depth):
    run = json.loads((GOLDEN / file).read_text())
    has_tails = run["temperature"] == 0
    works = works_of(run["outputs"], has_tails=has_tails)
    drafter = parse_drafter(spec, resolve_profile("vllm@0.32"))
    acceptance = replay(drafter, works, depth, limits=Limits(run["max_model_len"]))

    assert len(works) == 32
    for p, request in enumerate(run["per_request"]):
        assert request["id"] == works[p].id
        assert acceptance.drafted_tokens[p, depth - 1] == sum(request["per_step_drafted"])
        assert_engine_counts(acceptance, p, works[p], request["per_step_accepted"], has_tails=has_tails)
    if has_tails:
        assert_totals(acceptance, run["counters"])


def works_of(outputs, *, has_tails: bool):
    """Trajectories of a run; what followed the end is known at temperature 0 only."""
    prompts = {row["id"]: row["prompt_token_ids"] for row in read_lines("baseline_t0.jsonl")}
    texts = {row["id"]: row["output_token_ids"] for row in read_lines("baseline_t0.jsonl")}
    tails = {row["id"]: row["tail_token_ids"] for row in read_lines("baseline_t0_tail.jsonl")}
    return [
        make_trajectory(
            prompts[o["id"]],
            o.get("output_token_ids", texts[o["id"]]),
            tails[o["id"]] if has_tails else (),
            name=o["id"],
        )
        for o in outputs
    ]


def assert_engine_counts(acceptance, p: int, work, accepted: list[int], *, has_tails: bool) -> None:
    """Drafted rounds and acceptances by position of one request, up to the end of the text where no tail is known."""
    accepted, depth = list(accepted), acceptance.depth
    if not has_tails and accepted:
        accepted[-1] -= overrun(work.output_ids.size, acceptance, p, accepted)
    assert acceptance.drafted_rounds[p, depth - 1] == len(accepted)
    assert acceptance.accepted_at[p, depth - 1].tolist() == [sum(a > i for a in accepted) for i in range(depth)]


def assert_totals(acceptance, counters) -> None:
    totals = acceptance.totals(acceptance.depth)
    assert totals.drafted_rounds == counters["num_drafts"]
    assert totals.accepted_tokens == counters["num_accepted_tokens"]
    assert list(totals.accepted_at) == counters["accepted_per_pos"]


def overrun(num_output: int, acceptance, p: int, accepted: list[int]) -> int:
    """Accepted tokens beyond the end: every round emits one token more than it accepts, the last is cut."""
    emitted = int(acceptance.rounds[p, -1]) + sum(accepted)
    return max(0, emitted - (num_output - 1) - 1)


class Recorded:
    """A drafter whose greedy drafts were written down: after every token, or at every round start."""

    name, config, fixed_length, adoption = "recorded", {}, True, Adoption.SECOND_MODEL

    def __init__(self, drafts, kind: str) -> None:
        self.drafts, self.by_token = drafts, kind == "by token"

    def proposals(self, works, depth, limits):
        for work, drafts in zip(works, self.drafts, strict=True):
            num_output = work.output_ids.size
            known = np.concatenate([work.output_ids, work.tail_ids])
            longest = limits.longest_drafts(work.prompt_ids.size, num_output)
            if self.by_token:
                choices = np.concatenate([[-1], drafts]).astype(np.int32)
                yield prefix_proposals(work, depth, longest, choices == known, choices, None)
            else:
                hits = np.zeros((depth, num_output), dtype=bool)
                choices = np.full((depth, num_output), -1, dtype=np.int32)
                for start, draft in enumerate(drafts, 1):
                    written = known[start : start + depth]
                    hits[: written.size, start] = np.array(draft)[:depth][: written.size] == written
                    choices[:, start] = draft[:depth]
                yield nested_proposals(depth, longest, hits, choices, None)


@pytest.mark.parametrize(
    "file",
    [
        "drafts_draft_t0.json",
        "drafts_draft_t0.8.json",
        "drafts_pard_t0.json",
        "drafts_eagle3_t0.json",
        "drafts_eagle3_t0.8.json",
    ],
)
def test_what_models_drafted_gives_the_counters_of_vllm(file):
    run = json.loads((GOLDEN / file).read_text())
    has_tails = run["temperature"] == 0
    works = works_of(run["requests"], has_tails=has_tails)
    drafter = Recorded([request["drafts"] for request in run["requests"]], run["kind"])
    for depth, engine in run["engine"].items():
        acceptance = replay(drafter, works, int(depth), limits=Limits(run["max_model_len"]))
        assert len(engine["per_step_accepted"]) == 32
        for p, accepted in enumerate(engine["per_step_accepted"]):
            assert_engine_counts(acceptance, p, works[p], accepted, has_tails=has_tails)
        if has_tails:
            assert_totals(acceptance, engine["counters"])


class RecordedSampled(Recorded):
    """A drafter whose q of the text was written down."""

    def __init__(self, log_q) -> None:
        self.log_q = log_q

    def proposals(self, works, depth, limits):
        for work, log_q in zip(works, self.log_q, strict=True):
            given = acceptance_probability(np.array(log_q, dtype=np.float32), work.log_probs[1:])
            draws = Draws(np.concatenate([[0.0], given]))
            num_output = work.output_ids.size
            longest = limits.longest_drafts(work.prompt_ids.size, num_output)
            nothing = np.zeros(num_output, dtype=bool), np.full(num_output, -1, dtype=np.int32)
            yield prefix_proposals(work, depth, longest, *nothing, draws)


def test_sampled_drafts_agree_with_vllm_within_three_standard_errors():
    run = json.loads((GOLDEN / "sampled_draft_k3_t0.8.json").read_text())
    works = [
        replace(
            # The text is not needed: what sampled drafts are accepted for is p and q of it.
            make_trajectory([1] * 8, [1] * len(request["log_p"]), name=request["id"], temperature=0.8),
            log_probs=np.array(request["log_p"], dtype=np.float32),
        )
        for request in run["requests"]
    ]
    drafter = RecordedSampled([request["log_q"] for request in run["requests"]])
    acceptance = replay(drafter, works, 3, draft_sampling="sampled")
    counted = np.zeros((32, 4))
    for p, request in enumerate(run["requests"]):
        accepted = list(request["per_step_accepted"])
        accepted[-1] -= max(0, len(accepted) + sum(accepted) - works[p].output_ids.size)
        counted[p] = [len(accepted), *(sum(a > i for a in accepted) for i in range(3))]
    expected = np.column_stack([acceptance.rounds[:, 2], acceptance.accepted_at[:, 2]])
    difference = counted - expected
    z = difference.sum(0) / np.sqrt((difference**2).sum(0))
    assert np.abs(z).max() < 3, z
