"""Speculation in earnest: it writes the target's greedy text, and its drafters draft what replay says they would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny_heads
import tiny_mtp
import torch
import toy_target as toy
from reference import make_trajectory
from safetensors.torch import load_file, save_file
from test_heads import opened

from specprobe.drafters import Limits, ModelSpec
from specprobe.dynamic_cache import new_dynamic_cache
from specprobe.features import capture_features
from specprobe.live_drafters import live_drafter
from specprobe.ragged_cache import can_be_ragged
from specprobe.speculation import LiveDrafter, Rows
from specprobe.target import Target, load_target

PROMPTS = [[5, 9, 5, 9, 7], [200, 14, 3, 90, 17, 41, 33, 8, 120], [77, 60, 61]]
DEPTH, NEW_TOKENS = 3, 20
CAPACITY = 64


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Target:
    return toy.toy_target(tmp_path_factory.mktemp("target"), num_hidden_layers=7)


@pytest.fixture(scope="module")
def texts(target) -> list[list[int]]:
    return plain_texts(target)


def plain_texts(target: Target) -> list[list[int]]:
    """Prompt and greedy text, one sequence at a time, with the cache of transformers."""
    found = []
    name, _ = target.forward_inputs()
    with torch.inference_mode():
        for prompt in PROMPTS:
            text, cache = list(prompt), new_dynamic_cache(target.model.config)
            fed = text
            for _ in range(NEW_TOKENS + DEPTH):
                logits = target.model(input_ids=torch.tensor([fed]), use_cache=True, **{name: cache}).logits
                fed = [int(logits[0, -1].argmax())]
                text += fed
            found.append(text)
    return found


def partly_right(texts: list[list[int]], rows: Rows, rng: np.random.Generator) -> torch.Tensor:
    """Drafts that are right up to a position of each row's own."""
    drafts = []
    for text, length in zip(texts, rows.host_lengths, strict=True):
        draft = np.array(text[length : length + DEPTH])
        draft[rng.integers(0, DEPTH + 1) :] += 1
        drafts.append(draft % 260)
    return torch.from_numpy(np.array(drafts))


def speculate(
    target: Target, texts: list[list[int]], live: LiveDrafter | None, *, own: bool = False
) -> list[tuple[list[int], list[int]]]:
    """Write the texts with drafts that are partly right, or a drafter's own; what it would have drafted each round."""
    rng, would_draft, accepted = np.random.default_rng(0), [], set()
    with torch.inference_mode():
        rows = Rows(target, len(PROMPTS), CAPACITY, live.taps if live else ())
        if live:
            live.allocate(len(PROMPTS), CAPACITY)
        for row, prompt in enumerate(PROMPTS):
            states = rows.prefill(row, torch.tensor(prompt))
            if live:
                live.prefill(rows, row, states)
        while (rows.host_lengths < [len(text) - DEPTH for text in texts]).all():
            if live:
                drafts = live.draft(rows, DEPTH)
                known = [rows.ids[row, :length].tolist() for row, length in enumerate(rows.host_lengths)]
                would_draft += zip(known, drafts.tolist(), strict=True)
            found = rows.finish(rows.verify(drafts if own else partly_right(texts, rows, rng)))
            accepted |= set(found[:, 0].tolist())
    assert {0, DEPTH} < accepted
    for text, ids, length in zip(texts, rows.ids, rows.host_lengths, strict=True):
        assert ids[:length].tolist() == text[:length]
        assert (rows.lengths.numpy() == rows.host_lengths).all()
    return would_draft


def test_rows_of_different_lengths_get_the_greedy_text(target, texts):
    speculate(target, texts, None)


def test_rounds_without_drafts_too(target, texts):
    with torch.inference_mode():
        rows = Rows(target, len(PROMPTS), CAPACITY)
        for row, prompt in enumerate(PROMPTS):
            rows.prefill(row, torch.tensor(prompt))
        for _ in range(NEW_TOKENS):
            rows.finish(rows.verify(rows.ids[:, :0]))
    for text, ids, length in zip(texts, rows.ids, rows.host_lengths, strict=True):
        assert ids[:length].tolist() == text[:length]


def test_a_finished_row_makes_room_for_another_prompt(target, texts):
    with torch.inference_mode():
        rows = Rows(target, 2, CAPACITY)
        for row in (1, 0):
            rows.prefill(row, torch.tensor(PROMPTS[row]))
        for _ in range(3):
            rows.finish(rows.verify(rows.ids[:, :0]))
        rows.prefill(0, torch.tensor(PROMPTS[2]))
        for _ in range(5):
            rows.finish(rows.verify(rows.ids[:, :0]))
    assert rows.ids[0, : rows.host_lengths[0]].tolist() == texts[2][: rows.host_lengths[0]]
    assert rows.ids[1, : rows.host_lengths[1]].tolist() == texts[1][: rows.host_lengths[1]]


def draft_checkpoint(folder, _config):
    """The target with some noise: it drafts much as the target writes."""
    toy.write_checkpoint(folder, num_hidden_layers=7)
    torch.manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    noisy = {name: weight + 0.01 * torch.randn_like(weight) for name, weight in weights.items()}
    save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def pard_checkpoint(folder, _config):
    return tiny_mtp.write_pard(folder)


@pytest.mark.parametrize(
    ("name", "write", "options"),
    [
        ("draft", draft_checkpoint, {}),
        ("pard", pard_checkpoint, {}),
        ("early-exit", None, {"layers": "2"}),
        ("eagle", tiny_heads.write_eagle, {}),
        ("eagle3", tiny_heads.write_eagle3, {}),
        ("medusa", tiny_heads.write_medusa, {}),
        ("mlp", tiny_heads.write_mlp_speculator, {}),
    ],
)
def test_what_is_drafted_in_earnest_is_what_replay_says(
    target, texts, tmp_path, name: str, write: Callable[..., Any] | None, options
):
    folder = write(tmp_path / "drafter", target.model.config) if write else ""
    found = opened(ModelSpec(name, str(folder), options), target, depth=DEPTH)
    live = live_drafter(found.load(no_features(target, tmp_path)), target)
    # A second model has read its own drafts and not those of others; all others read what the target wrote.
    would_draft = speculate(target, texts, live, own=name == "draft")
    # A text that goes on with what was drafted: replay must accept all of it.
    works = [make_trajectory(known[:-1], [known[-1], *drafts], name=i) for i, (known, drafts) in enumerate(would_draft)]
    features = capture_features(target, works, found.taps, tmp_path) if found.taps else None
    proposals = list(found.load(features).proposals(works, DEPTH, Limits()))
    assert len(proposals) > 9
    assert [int(p.accepted[DEPTH - 1, 1]) for p in proposals] == [DEPTH] * len(proposals)
    assert len({tuple(drafts) for _, drafts in would_draft}) > 2


def no_features(target: Target, folder):
    return capture_features(target, [make_trajectory([1], [2])], [0], folder)


def test_a_drafter_of_another_kind_is_none(target, tmp_path):
    folder = tiny_heads.write_peagle(tmp_path / "head", target.model.config)
    drafter = opened(ModelSpec("eagle3", str(folder), {}), target, depth=2).load(no_features(target, tmp_path))
    assert live_drafter(drafter, target) is None


def test_a_sliding_window_is_none_of_it(tmp_path):
    folder = toy.write_checkpoint(tmp_path / "window", kind="mistral", sliding_window=16)
    assert not can_be_ragged(load_target(str(folder), device="cpu").model)
