"""Every head, replayed in batches over all round starts at once, against its literal implementation, round by round."""

# One case a line, whatever its length.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import literal
import literal_mtp
import numpy as np
import pytest
import tiny_heads
import tiny_mtp
import torch
import toy_target as toy
from reference import make_trajectory

from specprobe.causal_lm import LoadOptions
from specprobe.drafters import DraftContext, Limits, ModelSpec, open_drafter
from specprobe.drafters.heads import make_batch
from specprobe.features import capture_features
from specprobe.profiles import resolve_profile
from specprobe.target import Target, load_target

VOCAB = 260
LENGTHS = ((5, 9), (1, 6), (12, 4))


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Target:
    """Seven layers, so that the three that EAGLE-3 reads by default differ."""
    return toy.toy_target(tmp_path_factory.mktemp("target"), num_hidden_layers=7)


def some_works(temperature: float = 1.0, seed: int = 0):
    """Responses of different lengths behind prompts of different lengths, with tails: padding must not matter."""
    rng = np.random.default_rng(seed)
    return [
        replace(
            make_trajectory(
                rng.integers(0, VOCAB, p), rng.integers(0, VOCAB, n), rng.integers(0, VOCAB, 6), name=str(p)
            ),
            temperature=temperature,
            log_probs=np.full(n, -1.0, dtype=np.float32),
        )
        for p, n in LENGTHS
    ]


def opened(spec: ModelSpec, target: Target | None, *, depth: int, engine: str = "vllm@0.30", tokenizer: Any = None):
    context = DraftContext(
        target,
        target.tokenizer if target else tokenizer,
        LoadOptions(device="cpu"),
        resolve_profile(engine),
        depth,
        True,
    )
    return open_drafter(spec, context)


def loaded(spec: ModelSpec, target: Target, works, folder: Path, *, depth: int, engine: str = "vllm@0.30"):
    found = opened(spec, target, depth=depth, engine=engine)
    features = capture_features(target, works, found.taps, folder) if found.taps else None
    return found.load(features)


def batched_q(drafter, works, depth: int) -> list[np.ndarray]:
    """q [N, K, V] of every work, over the target's vocabulary, by what replay uses."""
    batch = make_batch(works, drafter.features, drafter.taps, drafter.device, drafter.dtype)
    width = int(batch.num_output.max())
    everything = torch.zeros(len(works), width, depth, VOCAB)
    starts = torch.arange(1, width).expand(len(works), -1)
    with torch.inference_mode():
        for k in [depth] if drafter.head.nested else range(1, depth + 1):
            state = drafter.head.begin(batch, k)
            for position in range(1, k + 1):
                states = drafter.head.draft(state, position, starts)
                q = torch.softmax(drafter.head.logits(states.flatten(0, 1), position).float(), -1)
                if drafter.vocabulary is not None:
                    whole = torch.zeros(len(q), VOCAB)
                    whole[:, drafter.vocabulary.to_target] = q
                    q = whole
                if drafter.head.nested or k == depth:
                    everything[:, 1:, position - 1] = q.unflatten(0, states.shape[:2])
    return [everything[row, : w.output_ids.size].numpy() for row, w in enumerate(works)]


def literal_q(reference, work, depth: int) -> np.ndarray:
    """The same, one round at a time; position i is given the text as its drafts."""
    tokens = np.concatenate([work.prompt_ids, work.output_ids, work.tail_ids]).tolist()
    found = np.zeros((work.output_ids.size, depth, VOCAB))
    for start in range(1, work.output_ids.size):
        newest = work.prompt_ids.size + start
        found[start] = reference.round(tokens[:newest], tokens[newest : newest + depth]).numpy()
    return found


def heads(*cases: tuple[str, Callable[..., Any], dict[str, Any], Callable[..., Any], int]) -> Any:
    return pytest.mark.parametrize(
        ("name", "write", "options", "reference", "depth"),
        cases,
        ids=[f"{c[1].__name__.removeprefix('write_')} {c[2]}" for c in cases],
    )


@heads(
    ("eagle", tiny_heads.write_eagle, {}, literal.LiteralEagle, 4),
    ("eagle", tiny_heads.write_eagle, {"bias": None, "num_hidden_layers": 2}, literal.LiteralEagle, 3),
    ("eagle", tiny_heads.write_eagle, {"own_embed": False, "weights_file": "pytorch_model.bin"}, literal.LiteralEagle, 3),
    ("eagle3", tiny_heads.write_eagle3, {}, literal.LiteralEagle3, 4),
    ("eagle3", tiny_heads.write_eagle3, {"draft_vocab_size": None, "own_embed": True}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_eagle3, {"entering_layers": [1, 4, 7]}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_eagle3, {"output_of_layers": [0, 3, 5]}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_eagle3, {"norm_before_residual": True, "num_hidden_layers": 2}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_eagle3, {"norm_before_fc": True, "logit_scale": 0.5}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_eagle3, {"norm_before_fc_nested": True}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_eagle3, {"fc_norm": True, "norm_output": True}, literal.LiteralEagle3, 4),
    ("eagle3", tiny_heads.write_eagle3, {"use_aux_hidden_state": False}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_eagle3, {"hidden_size": 48, "head_dim": 12, "own_embed": True}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_eagle3, {"attention_bias": True, "rope_parameters": True}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_speculators_eagle3, {}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_speculators_eagle3, {"model_type": "qwen3", "norm_before_residual": None}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_speculators_eagle3, {"num_hidden_layers": 2, "fc_norm": True, "norm_output": True}, literal.LiteralEagle3, 3),
    ("eagle3", tiny_heads.write_peagle, {}, literal.LiteralPEagle, 5),
    ("eagle3", tiny_heads.write_peagle, {"layout": "plain", "mask_token_key": "ptd_token_id"}, literal.LiteralPEagle, 4),
    ("eagle3", tiny_heads.write_peagle, {"model_type": "qwen3", "norm_before_fc": True}, literal.LiteralPEagle, 4),
    ("medusa", tiny_heads.write_medusa, {}, literal.LiteralMedusa, 3),
    ("medusa", tiny_heads.write_medusa, {"num_layers": 2, "bias": False}, literal.LiteralMedusa, 3),
    ("medusa", tiny_heads.write_medusa, {"layout": "vllm"}, literal.LiteralMedusa, 3),
    ("medusa", tiny_heads.write_medusa, {"layout": "vllm", "shared_head": "lm_head.weight"}, literal.LiteralMedusa, 3),
    ("medusa", tiny_heads.write_medusa, {"layout": "vllm", "shared_head": "target"}, literal.LiteralMedusa, 3),
    ("medusa", tiny_heads.write_medusa, {"layout": "vllm", "truncated_vocab_size": 90}, literal.LiteralMedusa, 3),
    ("mlp", tiny_heads.write_mlp_speculator, {}, literal.LiteralMlpSpeculator, 3),
    ("mlp", tiny_heads.write_mlp_speculator, {"inner_dim": 24, "scale_input": True, "tie_weights": True}, literal.LiteralMlpSpeculator, 3),
    ("dflash", tiny_mtp.write_dflash, {"target_layer_ids": [1, 3]}, literal_mtp.LiteralDflash, 5),
    ("dflash", tiny_mtp.write_dflash, {"target_layer_ids": [0], "causal": True}, literal_mtp.LiteralDflash, 5),
    ("dflash", tiny_mtp.write_dflash, {"target_layer_ids": None, "naming": "encoder"}, literal_mtp.LiteralDflash, 7),
    ("dflash", tiny_mtp.write_dflash, {"target_layer_ids": [2, 5], "dialect": "speculators", "own_lm_head": True, "own_embedding": True}, literal_mtp.LiteralDflash, 3),
)  # fmt: skip
def test_a_head_drafts_what_its_literal_implementation_drafts(target, tmp_path, name, write, options, reference, depth):
    folder = write(tmp_path / "head", target.model.config, **options)
    works = some_works()
    drafter = loaded(ModelSpec(name, str(folder), {}), target, works, tmp_path, depth=depth)
    by_hand = reference(folder, target.model)
    for work, q in zip(works, batched_q(drafter, works, depth), strict=True):
        np.testing.assert_allclose(q[1:], literal_q(by_hand, work, depth)[1:], atol=1e-4)


def test_nothing_is_drafted_beyond_the_drafters_own_context(target, tmp_path):
    folder = tiny_heads.write_eagle3(
        tmp_path / "head", target.model.config, config_fields={"max_position_embeddings": 12}
    )
    works = some_works()[:1]
    drafter = loaded(ModelSpec("eagle3", str(folder), {}), target, works, tmp_path, depth=3)
    assert opened(ModelSpec("eagle3", str(folder), {}), target, depth=3).notices[-1].code == "drafter_context"
    (proposals,) = drafter.proposals(works, 3, Limits())
    # Five tokens of prompt: at output token s the target has run on 4 + s tokens, and with K more they must fit into 12.
    assert proposals.drafted[:, 1:].tolist() == [[1] * 7 + [0], [2] * 6 + [0] * 2, [3] * 5 + [0] * 3]


def test_pard_drafts_what_its_literal_implementation_drafts(target, tmp_path):
    folder = tiny_mtp.write_pard(tmp_path / "pard")
    works = some_works()
    drafter = loaded(ModelSpec("pard", str(folder), {}), target, works, tmp_path, depth=5)
    by_hand = literal_mtp.LiteralPard(folder)
    for work, q in zip(works, batched_q(drafter, works, 5), strict=True):
        np.testing.assert_allclose(q[1:], literal_q(by_hand, work, 5)[1:], atol=1e-4)


@pytest.mark.parametrize(
    ("write", "options", "engine", "literal_options", "depth"),
    [
        (tiny_mtp.write_deepseek_mtp, {}, "vllm@0.33", {"feeds_back": "post_norm"}, 4),
        (tiny_mtp.write_deepseek_mtp, {}, "vllm@0.22", {"feeds_back": "pre_norm"}, 4),
        (tiny_mtp.write_deepseek_mtp, {"num_nextn": 2}, "hf", {"feeds_back": "post_norm", "zero_first": False}, 2),
        (tiny_mtp.write_deepseek_mtp, {"num_nextn": 2}, "vllm@0.33", {"feeds_back": "post_norm"}, 2),
        (tiny_mtp.write_glm4_moe_mtp, {}, "vllm@0.33", {"feeds_back": "pre_norm"}, 3),
        (tiny_mtp.write_glm4_moe_mtp, {"num_nextn": 2}, "hf", {"feeds_back": "post_norm", "zero_first": False}, 2),
        (tiny_mtp.write_qwen3_next_mtp, {}, "vllm@0.33", {"feeds_back": "post_norm"}, 3),
        (tiny_mtp.write_qwen3_next_mtp, {"dense": True}, "hf", {"feeds_back": "post_norm"}, 3),
        (tiny_mtp.write_mimo_mtp, {}, "vllm@0.33", {}, 1),
    ],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_mtp_drafts_what_its_literal_implementation_drafts(tmp_path, write, options, engine, literal_options, depth):
    folder = write(tmp_path / "target", **options)
    target = load_target(str(folder), device="cpu")
    works = some_works()
    drafter = loaded(ModelSpec("mtp", "", {}), target, works, tmp_path, depth=depth, engine=engine)
    by_hand = literal_mtp.LiteralMtp(folder, target.model, **literal_options)
    for work, q in zip(works, batched_q(drafter, works, depth), strict=True):
        np.testing.assert_allclose(q[1:], literal_q(by_hand, work, depth)[1:], atol=1e-4)
