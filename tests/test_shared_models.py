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
from specprobe.features import LAST, capture_features
from specprobe.profiles import resolve_profile
from specprobe.replay import replays
from specprobe.target import load_target
from specprobe.target_distribution import TargetDistribution

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
    profile = resolve_profile("vllm@0.32")
    distribution = TargetDistribution(target, profile.processing)
    if temperature > 0:
        works = [replace(w, log_probs=s.log_probs) for w, s in zip(works, target.score(works), strict=True)]
    context = DraftContext(target, target.tokenizer, LoadOptions(), profile, depth, sampled, distribution=distribution)
    opened = open_drafter(parse_drafter(f"{name}:{models / model}", profile), context)
    taps = sorted({*opened.taps, LAST})
    features = capture_features(target, works, taps, tmp_path)
    distribution.take(features, works)
    (acceptance,) = replays(
        opened.load(features),
        works,
        depth,
        ("sampled" if sampled else "greedy",),
        limits=Limits(run["max_model_len"]),
        distribution=distribution,
    )
    return works, acceptance


def counted_inside(run, works) -> np.ndarray:
    """What vLLM accepted at each position, [P, K], up to the end of the text."""
    depth = run["config"]["num_speculative_tokens"]
    counted = np.zeros((len(works), depth))
    for p, request in enumerate(run["per_request"][: len(works)]):
        accepted = list(request["per_step_accepted"])
        accepted[-1] -= max(0, len(accepted) + sum(accepted) - works[p].output_ids.size)
        counted[p] = [sum(a > i for a in accepted) for i in range(depth)]
    return counted


def z_scores(difference: np.ndarray) -> np.ndarray:
    return difference.sum(0) / np.sqrt((difference**2).sum(0))


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
    if not has_tails:
        # What could be expected to be accepted, instead of what was.
        expected = acceptance.expectation.accepted_at[:, -1]
        assert np.abs(z_scores(expected - counted_inside(run, works))).max() < 3


def test_sampled_drafts_agree_with_vllm(target, models, tmp_path):
    run = json.loads((SHARED / "golden" / "vllm_draft_k3_t0.8_probabilistic.json").read_text())
    works, acceptance = replayed(target, models, tmp_path, "draft", "draft-3l", run, sampled=True)
    counted = counted_inside(run, works)
    assert np.abs(z_scores(counted - acceptance.accepted_at[:, 2])).max() < 3
    assert np.abs(z_scores(counted - acceptance.expectation.accepted_at[:, 2])).max() < 3
