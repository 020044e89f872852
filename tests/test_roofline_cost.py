"""The roofline as a source of cost: tables, drafters of a run, shapes as users name models, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specprobe.acceptance import Acceptance
from specprobe.cost_sources import CostOptions
from specprobe.embedded import EMBEDDED_NAME
from specprobe.errors import SpecprobeError
from specprobe.hardware import find_hardware
from specprobe.model_shape import shape_of
from specprobe.roofline import Deployment, Draft, Drafter, engine_overhead, find_drafter, round_seconds, step_seconds
from specprobe.roofline_constants import COLD_LOG_DEVIATION
from specprobe.roofline_cost import drafter_of, roofline_cost
from specprobe.shapes import find_shape, quantisation_of, shape_from_config

LLAMA = "meta-llama/Llama-3.1-8B"
SIZES = {
    "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000,
}  # fmt: skip


def deploy(model: str = LLAMA, gpu: str = "h100", devices: int = 1, dtype: str = "") -> Deployment:
    shape = find_shape(model)
    return Deployment(shape, quantisation_of(dtype, shape), find_hardware(gpu), devices, engine_overhead("vllm@0.33"))


def result(drafter: str, **config) -> Acceptance:
    counts = np.zeros((1, 1, 1), dtype=np.int32)
    return Acceptance(
        drafter, config, True, 0.0, "greedy", (0,), np.ones(1, dtype=np.int32), counts[0], counts, counts, counts
    )


def test_a_table_adds_up_to_the_whole_round():
    deployment = deploy()
    head = find_drafter("eagle3", "", deployment.shape, deployment.quantisation)
    cost = roofline_cost(
        deployment, {"eagle3": head, "ngram": Drafter("none")}, 3, [1, 8, 64], [256, 1024], mean_context=512
    )
    assert cost.source == "roofline"
    assert cost.log_deviation == COLD_LOG_DEVIATION
    assert (cost.batches, cost.query_tokens, cost.contexts) == ([1, 8, 64], [1, 2, 3, 4], [256, 1024])
    for batch in (1, 8, 64):
        drafting = cost.drafting_seconds(
            ["eagle3"], np.array([batch]), np.array([3.0]), np.array([256.0]), by_token=True
        )
        verify = cost.at_context(256).at_batch(batch)[0][3]
        whole = round_seconds(deployment, head, Draft(3, 3), batch, 256)
        assert verify + drafting.item() == pytest.approx(whole)
    assert cost.knows(["ngram"])
    assert not cost.knows(["draft"])


def test_prefill_is_what_a_long_step_takes():
    deployment = deploy()
    cost = roofline_cost(deployment, {}, 1, [1], [256], mean_context=256)
    for tokens in (2048, 6000):
        added = cost.prefill_step_seconds + tokens * cost.prefill_token_seconds
        assert added == pytest.approx(step_seconds(deployment, 1, tokens, 0, logits=1), rel=1e-6)
    # Attention over what is before it adds up to a share of that which grows with the prompt.
    assert 0 < 8000 * cost.prefill_pair_seconds < cost.prefill_token_seconds


def test_memory_is_what_is_left_beside_weights():
    deployment = deploy()
    small = find_drafter("draft_model", "meta-llama/Llama-3.2-1B", deployment.shape, deployment.quantisation)
    cost = roofline_cost(deployment, {"draft": small}, 1, [1], [512], mean_context=512)
    assert cost.memory.weight_bytes == pytest.approx(16.06e9, rel=0.01)
    assert cost.memory.kv_token_bytes == 131072
    assert cost.memory.kv_capacity_tokens() == pytest.approx(411_000, rel=0.02)
    assert cost.memory.drafter_bytes(["draft"])[0] == pytest.approx(2.47e9, rel=0.05)
    assert cost.memory.kv_capacity_tokens(["draft"]) < 0.8 * cost.memory.kv_capacity_tokens()
    with pytest.raises(SpecprobeError, match="--tp"):
        roofline_cost(deploy("meta-llama/Llama-3.1-70B"), {}, 1, [1], [512], mean_context=512)
    assert roofline_cost(deploy("meta-llama/Llama-3.1-70B", devices=4), {}, 1, [1], [512], mean_context=512).memory


def test_a_class_of_machines_has_no_memory_of_its_own():
    assert roofline_cost(deploy("SmolLM2-135M", "cpu"), {}, 1, [1], [512], mean_context=512).memory is None


def test_drafters_take_only_what_they_have():
    deployment = deploy()
    found = {
        name: drafter_of(acceptance, deployment)
        for name, acceptance in {
            "early": result("early-exit", layers=20),
            "medusa": result("medusa", model="./none"),
            "eagle3": result("eagle3", model="./none"),
        }.items()
    }
    cost = roofline_cost(deployment, found, 2, [1], [512], mean_context=512)
    assert cost.memory.drafter_bytes(["early"]) == (0.0, 0.0)
    weights, kv_token = cost.memory.drafter_bytes(["medusa"])
    assert (weights > 1e8, kv_token) == (True, 0.0)
    assert min(cost.memory.drafter_bytes(["eagle3"])) > 0
    assert set(cost.drafter_prefill_seconds) == {"eagle3"}


@pytest.mark.parametrize("model", ["openai/gpt-oss-20b", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3"])
def test_the_first_layers_of_a_model_are_a_smaller_model(model):
    whole = find_shape(model)
    cut = whole.first_layers(2)
    assert cut.layers == 2
    assert 0 <= cut.moe_layers <= 2
    assert 0 < cut.kv_bytes(4096) < whole.kv_bytes(4096)
    assert 0 < cut.dense_parameters < whole.dense_parameters
    assert whole.first_layers(whole.layers) == whole


def test_caches_with_windows_are_costed_at_the_mean_context():
    short, long = (
        roofline_cost(deploy("openai/gpt-oss-20b"), {}, 1, [1], [64, 65536], mean_context=context).memory.kv_token_bytes
        for context in (128, 65536)
    )
    assert long < 0.6 * short


def test_drafters_of_a_run_are_what_they_are():
    deployment = deploy()
    assert drafter_of(result("ngram", min=2, max=4), deployment).kind == "none"
    assert drafter_of(result("draft", model="meta-llama/Llama-3.2-1B"), deployment).shape.layers == 16
    assert drafter_of(result("draft", model="./no-such-model"), deployment) is None
    assert drafter_of(result("pard", model="./no-such-model"), deployment) is None
    assert drafter_of(result("python", **{"class": "x:Y"}), deployment) is None
    head = drafter_of(result("eagle3", model="./no-such-head"), deployment)
    assert (head.kind, head.shape.layers, head.shape.draft_vocab) == ("head", 1, 32_000)
    assert drafter_of(result("early-exit", layers=20), deployment).shape.layers == 20
    assert drafter_of(result("mtp"), deployment).kind == "mtp"
    hybrid = result("hybrid:suffix+draft", suffix={}, draft={"model": "meta-llama/Llama-3.2-1B"})
    assert drafter_of(hybrid, deployment).shape.layers == 16


def test_a_folder_says_its_own_shape(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SIZES | {"quantization_config": {"quant_method": "fp8"}}))
    shape = shape_of(str(tmp_path))
    assert (shape.layers, shape.hidden, shape.native_quantization) == (4, 64, "fp8")
    nested = {"text_config": SIZES, "quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    assert shape_of(str(tmp_path)).native_quantization == "4bit"
    for content in ("{", "[]", "{}"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(SpecprobeError):
            shape_of(str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(SpecprobeError, match=r"config\.json"):
        shape_of(str(tmp_path))


def test_names_are_looked_up_without_asking_the_hub_for_folders(monkeypatch):
    assert shape_of(EMBEDDED_NAME).layers == 30
    assert shape_of(LLAMA).hidden == 4096

    def unreachable(*_):
        raise AssertionError("asked the Hub")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    for name in ("nothing", "./a/b", "a/b/c", ""):
        with pytest.raises(SpecprobeError, match=r"shape|is empty"):
            shape_of(name)

    def gone(*_):
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", gone)
    with pytest.raises(SpecprobeError, match="the Hub does not give"):
        shape_of("some/model")


def compressed(num_bits: int, kind: str) -> dict[str, object]:
    groups = {"group_0": {"weights": {"num_bits": num_bits, "type": kind}}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (compressed(8, "float"), "fp8"),
        (compressed(4, "int"), "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "gptq", "bits": 8}, "8bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "unheard-of"}, ""),
        ("nonsense", ""),
    ],
)
def test_a_configuration_names_its_quantisation(config, name):
    shape = shape_from_config(SIZES | {"quantization_config": config})
    assert shape.native_quantization == name
    assert quantisation_of("", shape).bits <= 16


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"file": Path("c.json"), "gpu": "h100"}, "--cost: .* leave --gpu out"),
        ({"file": Path("c.json"), "devices": 2, "target": "m"}, "--tp and --target"),
        ({"gpu": "h100", "device": "cpu"}, "--gpu: .* leave --device out"),
        ({"gpu": "h100", "remeasure": True}, "--remeasure"),
        ({"devices": 2}, "--tp: .*--gpu"),
        ({"gpu": "h100", "devices": 0}, "--tp 0"),
    ],
)
def test_sources_of_cost_exclude_each_other(options, said):
    with pytest.raises(SpecprobeError, match=said):
        CostOptions(**options)
