"""What a real vLLM counted, prompt by prompt, against the replay of the tokens it wrote (golden/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reference import make_trajectory

from specprobe.drafters import Limits, parse_drafter
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
    prompts = {row["id"]: row["prompt_token_ids"] for row in read_lines("baseline_t0.jsonl")}
    # What followed the end is known at temperature 0 only; elsewhere the last round is compared up to the end.
    tails = {row["id"]: row["tail_token_ids"] for row in read_lines("baseline_t0_tail.jsonl")}
    has_tails = run["temperature"] == 0
    works = [
        make_trajectory(prompts[o["id"]], o["output_token_ids"], tails[o["id"]] if has_tails else (), name=o["id"])
        for o in run["outputs"]
    ]
    drafter = parse_drafter(spec, resolve_profile("vllm@0.32"))
    acceptance = replay(drafter, works, depth, limits=Limits(run["max_model_len"]))

    assert len(works) == 32
    for p, request in enumerate(run["per_request"]):
        assert request["id"] == works[p].id
        accepted = list(request["per_step_accepted"])
        if not has_tails and accepted:
            accepted[-1] -= overrun(works[p].output_ids.size, acceptance, p, accepted)
        assert acceptance.drafted_rounds[p, depth - 1] == len(accepted)
        assert acceptance.drafted_tokens[p, depth - 1] == sum(request["per_step_drafted"])
        expected = [sum(a > i for a in accepted) for i in range(depth)]
        assert acceptance.accepted_at[p, depth - 1].tolist() == expected
    if has_tails:
        totals = acceptance.totals(depth)
        assert totals.drafted_rounds == run["counters"]["num_drafts"]
        assert totals.accepted_tokens == run["counters"]["num_accepted_tokens"]
        assert list(totals.accepted_at) == run["counters"]["accepted_per_pos"]


def overrun(num_output: int, acceptance, p: int, accepted: list[int]) -> int:
    """Accepted tokens beyond the end: every round emits one token more than it accepts, the last is cut."""
    emitted = int(acceptance.rounds[p, -1]) + sum(accepted)
    return max(0, emitted - (num_output - 1) - 1)
