"""transformers' own speculative decoding as a witness: what it kept of every round, replay keeps of a round there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_mtp
import torch
import toy_target as toy
from hf_witness import (
    Round,
    hf_assisted_rounds,
    hf_dflash_rounds,
    hf_early_exit_rounds,
    hf_mtp_rounds,
    hf_prompt_lookup_rounds,
)
from reference import make_trajectory
from safetensors.torch import load_file, save_file
from test_heads import loaded
from transformers import AutoModelForCausalLM

from specprobe.drafters import Limits, ModelSpec, Proposals, parse_drafter
from specprobe.drafters.base import Drafter
from specprobe.profiles import resolve_profile
from specprobe.target import load_target

torch.set_num_threads(1)

ENGINE = "hf@5.24"
NEW_TOKENS = 60
# All that a model of few words says, so that what random models draft is sometimes right.
WORDS = torch.arange(100, 103)


def few_words(folder: Path) -> Path:
    """The checkpoint with a head that is silent on all other tokens."""
    tensors = load_file(folder / "model.safetensors")
    head = torch.zeros_like(tensors["lm_head.weight"])
    head[WORDS] = tensors["lm_head.weight"][WORDS]
    # One of them always has a positive logit.
    head[WORDS[-1]] = -head[WORDS[:-1]].sum(0)
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def in_transformers(folder: Path) -> Any:
    """The model for the witness, which never ends by itself."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None
    return model


def prompts(count: int = 4) -> list[list[int]]:
    """Without the padding token, which an assistant of transformers does not look at."""
    rng = np.random.default_rng(0)
    return [rng.integers(4, 260, rng.integers(2, 9)).tolist() for _ in range(count)]


def proposals_of(drafter: Drafter, prompt: list[int], output: list[int], depth: int) -> Proposals:
    (found,) = drafter.proposals([make_trajectory(prompt, output)], depth, Limits())
    return found


class Tally:
    """Rounds that were compared, and what was kept in them."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def compare(self, found: Proposals, output: list[int], rounds: list[Round], *, full: int | None = None) -> None:
        """`full`: leave out rounds with fewer drafts, where drafts of another length are others."""
        for start, drafts, kept in rounds:
            # Ours begin once the target has written a token.
            if start < 1 or not drafts or (full is not None and len(drafts) != full):
                continue
            row = len(drafts) - 1
            assert found.drafted[row, start] == len(drafts)
            # Every round of theirs adds a token of the target's own, the last one too.
            assert min(found.accepted[row, start], len(output) - start - 1) == kept, (start, drafts)
            self.kept.append(kept)

    def assert_power(self, depth: int) -> None:
        assert len(self.kept) > 20
        assert set(self.kept) >= {0, 1, depth}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A target of few words, with four layers."""
    torch.set_num_threads(1)
    return few_words(toy.write_checkpoint(tmp_path_factory.mktemp("target"), num_hidden_layers=4))


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_assisted_generation_keeps_what_a_draft_model_has_accepted(folder, tmp_path, depth):
    assistant = few_words(toy.write_checkpoint(tmp_path / "draft", seed=1))
    spec = ModelSpec("draft", str(assistant), {})
    drafter = loaded(spec, load_target(str(folder), device="cpu"), [], tmp_path, depth=depth, engine=ENGINE)
    target, assistant = in_transformers(folder), in_transformers(assistant)
    tally = Tally()
    for prompt in prompts():
        output, rounds = hf_assisted_rounds(target, assistant, prompt, depth, NEW_TOKENS)
        tally.compare(proposals_of(drafter, prompt, output, depth), output, rounds)
    tally.assert_power(depth)


@pytest.mark.parametrize("layers", [1, 3])
def test_early_exit_keeps_what_the_first_layers_have_accepted(folder, tmp_path, layers):
    ours, target = load_target(str(folder), device="cpu"), in_transformers(folder)
    spec, tally = ModelSpec("early-exit", "", {"layers": str(layers)}), Tally()
    for prompt in prompts():
        output, rounds = hf_early_exit_rounds(target, layers, prompt, 3, NEW_TOKENS)
        work = make_trajectory(prompt, output)
        drafter = loaded(spec, ours, [work], tmp_path, depth=3, engine=ENGINE)
        tally.compare(proposals_of(drafter, prompt, output, 3), output, rounds)
    tally.assert_power(3)


@pytest.mark.parametrize("max_ngram", [2, 3])
def test_prompt_lookup_drafts_and_keeps_what_ngram_does(folder, max_ngram):
    drafter, target = parse_drafter(f"ngram:max={max_ngram}", resolve_profile(ENGINE)), in_transformers(folder)
    tally, num_empty = Tally(), 0
    for prompt in prompts():
        output, rounds = hf_prompt_lookup_rounds(target, prompt, 4, NEW_TOKENS, max_ngram=max_ngram)
        found = proposals_of(drafter, prompt, output, 4)
        tally.compare(found, output, rounds)
        for start, drafts, _ in rounds:
            # The last drafts are cut to what may still be written.
            if 1 <= start < len(output) - 5:
                assert found.drafted[3, start] == len(drafts)
                num_empty += not drafts
    tally.assert_power(4)
    assert num_empty > 0


@pytest.mark.parametrize("modules", [1, 2])
@pytest.mark.parametrize("write", [tiny_mtp.write_deepseek_mtp, tiny_mtp.write_glm4_moe_mtp])
def test_use_mtp_keeps_what_the_modules_have_accepted(tmp_path, write, modules):
    write(tmp_path, num_nextn=modules, agreeing=True)
    ours, target = load_target(str(tmp_path), device="cpu"), in_transformers(tmp_path)
    tally = Tally()
    for prompt in prompts():
        output, rounds = hf_mtp_rounds(target, prompt, NEW_TOKENS)
        work = make_trajectory(prompt, output)
        drafter = loaded(ModelSpec("mtp", "", {}), ours, [work], tmp_path, depth=modules, engine=ENGINE)
        tally.compare(proposals_of(drafter, prompt, output, modules), output, rounds)
    tally.assert_power(modules)


@pytest.mark.parametrize("options", [{"target_layer_ids": [0, 2]}, {"target_layer_ids": [1], "dialect": "speculators"}])
def test_dflash_keeps_what_the_block_has_accepted(folder, tmp_path, options):
    ours, target = load_target(str(folder), device="cpu"), in_transformers(folder)
    head = tiny_mtp.write_dflash(tmp_path / "head", ours.model.config, block_size=5, **options)
    tally = Tally()
    for prompt in prompts(6):
        output, rounds = hf_dflash_rounds(target, head, prompt, NEW_TOKENS)
        work = make_trajectory(prompt, output)
        drafter = loaded(ModelSpec("dflash", str(head), {}), ours, [work], tmp_path, depth=4, engine=ENGINE)
        # Masks see each other: only a draft of block_size - 1 is the one that transformers makes.
        tally.compare(proposals_of(drafter, prompt, output, 4), output, rounds, full=4)
    tally.assert_power(4)
