"""The small real drafters kept beside the repository, run by specprobe, against what vLLM counted with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_golden import assert_engine_counts, works_of

from specprobe.causal_lm import LoadOptions
from specprobe.drafters import DraftContext, Limits, open_drafter, parse_drafter
from specprobe.features import capture_features
from specprobe.profiles import resolve_profile
from specprobe.replay import replay
from specprobe.target import load_target

SHARED = Path(os.environ.get("SPECPROBE_SHARED") or Path(__file__).parents[2] / "shared")

# Of 32: enough to see a fault, in a quarter of the time. Requests do not depend on each other.
PROMPTS = 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (SHARED / "models" / "eagle3").exists(), reason="the shared models are not here"),
]


@pytest.fixture(scope="module")
def target():
    return load_target(device="cpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Complete checkpoints: those of draft and PARD lack what they share with the target."""
    from specprobe.embedded import embedded_folder

    folder = tmp_path_factory.mktemp("models")
    for name in ("draft-3l", "pard-3l"):
        make = [sys.executable, str(SHARED / "models" / "make_drafter.py"), str(embedded_folder()), name]
        subprocess.run([*make, str(folder / name)], check=True)
    (folder / "eagle3").symlink_to(SHARED / "models" / "eagle3")
    return folder


def replayed(target, models, tmp_path, name, model, run, sampled=False):
    temperature, depth = run["temperature"], run["config"]["num_speculative_tokens"]
    outputs = run["outputs"][: 2 * PROMPTS if sampled else PROMPTS]
    works = [replace(w, temperature=temperature) for w in works_of(outputs, has_tails=temperature == 0)]
    if sampled:
        scores = target.score(works)
        works = [replace(work, log_probs=score.log_probs) for work, score in zip(works, scores, strict=True)]
    profile = resolve_profile("vllm@0.32")
    context = DraftContext(
        target, target.tokenizer, LoadOptions(), profile, depth, sampled, temperatures=(temperature,)
    )
    opened = open_drafter(parse_drafter(f"{name}:{models / model}", profile), context)
    features = capture_features(target, works, opened.taps, tmp_path) if opened.taps else None
    sampling = "sampled" if sampled else "greedy"
    limits = Limits(run["max_model_len"])
    return works, replay(opened.load(features), works, depth, limits=limits, draft_sampling=sampling)


@pytest.mark.parametrize(
    ("name", "model", "file"),
    [
        ("draft", "draft-3l", "vllm_draft_k1_t0.json"),
        ("draft", "draft-3l", "vllm_draft_k3_t0.json"),
        ("draft", "draft-3l", "vllm_draft_k3_t0.8.json"),
        ("pard", "pard-3l", "vllm_pard_k3_t0.json"),
        ("eagle3", "eagle3", "vllm_eagle3_k3_t0.json"),
        ("eagle3", "eagle3", "vllm_eagle3_k3_t0.8.json"),
    ],
)
def test_greedy_drafts_give_the_counters_of_vllm(target, models, tmp_path, name, model, file):
    run = json.loads((SHARED / "golden" / file).read_text())
    works, acceptance = replayed(target, models, tmp_path, name, model, run)
    has_tails = run["temperature"] == 0
    for p, request in enumerate(run["per_request"][:PROMPTS]):
        assert_engine_counts(acceptance, p, works[p], request["per_step_accepted"], has_tails=has_tails)


def test_sampled_drafts_agree_with_vllm(target, models, tmp_path):
    run = json.loads((SHARED / "golden" / "vllm_draft_k3_t0.8_probabilistic.json").read_text())
    works, acceptance = replayed(target, models, tmp_path, "draft", "draft-3l", run, sampled=True)
    counted = np.zeros((len(works), 3))
    for p, request in enumerate(run["per_request"][: len(works)]):
        accepted = list(request["per_step_accepted"])
        accepted[-1] -= max(0, len(accepted) + sum(accepted) - works[p].output_ids.size)
        counted[p] = [sum(a > i for a in accepted) for i in range(3)]
    difference = counted - acceptance.accepted_at[:, 2]
    assert np.abs(difference.sum(0) / np.sqrt((difference**2).sum(0))).max() < 3
