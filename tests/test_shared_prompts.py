"""The target's states over texts that begin with the same prompt, against a pass over each text alone."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
import torch
import toy_target as toy
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import make_trajectory

from specprobe import batches
from specprobe.batches import prompt_windows, text_windows
from specprobe.features import LAST, capture_features
from specprobe.target import Target
from specprobe.trajectory import Trajectory


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Target:
    folder = tmp_path_factory.mktemp("model")
    return toy.toy_target(folder)


def works(prompts: list[int], *, seed: int = 0) -> list[Trajectory]:
    """A text for each number of a prompt; lengths differ, and one has nothing behind its first output token."""
    rng = np.random.default_rng(seed)
    texts = [[1 + number, 7, *rng.integers(3, 200, size=number)] for number in range(1 + max(prompts))]
    return [
        make_trajectory(texts[number], rng.integers(3, 200, size=1 + index % 4), rng.integers(3, 200, size=index % 2))
        for index, number in enumerate(prompts)
    ]


@pytest.mark.parametrize("taps", [[LAST], [0, 1], [1, LAST]])
@pytest.mark.parametrize("prompts", [[0, 0], [4, 0, 4, 2, 0, 4], [1, 2, 3]])
def test_states_are_those_of_each_text_alone(target, tmp_path, taps, prompts, monkeypatch):
    texts = works(prompts)
    tokens: list[int] = []
    target.model.get_input_embeddings().register_forward_hook(lambda _m, _a, out: tokens.append(out.shape[0]))
    shared = capture_features(target, texts, taps, tmp_path)
    found = [[shared.read(tap, text) for tap in taps] for text in texts]
    # Prompts, then what follows them; one pass where no prompt is shared.
    assert tokens == ([len(texts)] if len(set(prompts)) == len(prompts) else [len(set(prompts)), len(texts)])
    monkeypatch.setattr(batches, "PASS_TOKENS", 1)
    alone = capture_features(target, texts, taps, tmp_path)
    for text, states in zip(texts, found, strict=True):
        for tap, one in zip(taps, states, strict=True):
            assert len(one) == text.prompt_ids.size + text.output_ids.size + text.tail_ids.size
            assert torch.allclose(one, alone.read(tap, text), atol=1e-5)


def test_a_model_that_takes_no_masks_runs_over_whole_texts(target, tmp_path, monkeypatch):
    texts = works([0, 0])
    shared = capture_features(target, texts, [LAST], tmp_path)
    found = [shared.read(LAST, text) for text in texts]
    monkeypatch.setattr("specprobe.shared_prompts.can_be_ragged", lambda _: False)
    whole = capture_features(target, texts, [LAST], tmp_path)
    for text, states in zip(texts, found, strict=True):
        assert torch.allclose(states, whole.read(LAST, text), atol=1e-5)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=150), st.integers(0, 99))
@settings(deadline=None)
def test_every_text_is_in_one_batch_and_those_of_a_prompt_meet(prompts, seed):
    texts = works(prompts, seed=seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batches, "PASS_TOKENS", 60)
        found = [batch for window in prompt_windows(texts) for batch in window]
        assert sorted(index for batch in found for index in batch) == list(range(len(texts)))
        sizes = [text.prompt_ids.size + text.output_ids.size + text.tail_ids.size for text in texts]
        for batch in found:
            assert len(batch) * max(sizes[i] for i in batch) <= 60
        for name in ("PASS_TOKENS", "_ENOUGH_TOKENS"):
            patched.setattr(batches, name, 10**6)
        ((batch,),) = prompt_windows(texts)
        met = [prompts[index] for index in batch]
        assert len([number for number, _ in groupby(met)]) == len(set(prompts))
        # Without a prompt in common they are the batches that whole texts make.
        patched.setattr(batches, "PASS_TOKENS", 60)
        different = [make_trajectory([number, 9], [3] * (1 + prompt)) for number, prompt in enumerate(prompts)]
        assert list(prompt_windows(different)) == list(text_windows(different))
