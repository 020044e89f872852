"""The roofline: shapes, hardware and step times against published sizes, a published fit, and what must hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specprobe.cost import CostTable
from specprobe.errors import SpecprobeError
from specprobe.hardware import find_hardware, hardware_names
from specprobe.roofline import (
    Deployment,
    Draft,
    Drafter,
    cost_points,
    engine_overhead,
    experts_touched,
    find_drafter,
    method_kind,
    prefill_seconds,
    round_seconds,
    step_seconds,
)
from specprobe.roofline_constants import EFFICIENCIES, OVERHEADS
from specprobe.shapes import find_shape, quantisation_of, shape_from_config

MODELS = ("Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b", "Qwen3.6-27B")


def deploy(model: str, gpu: str = "h100", *, devices: int = 1, engine: str = "vllm", dtype: str = "") -> Deployment:
    shape = find_shape(model)
    quantisation = quantisation_of(dtype, shape)
    return Deployment(shape, quantisation, find_hardware(gpu), devices, engine_overhead(engine))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("H100-NVL", "h100-nvl"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("8xH200", "h200"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", "rtx5090-mobile"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("RTX PRO 3000", "rtxpro3000-mobile"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Radeon RX 7900 XTX", "rx7900xtx"),
        ("Apple M3 Ultra", "m3-ultra"),
        ("DGX Spark", "dgx-spark"),
        ("cpu", "cpu"),
    ],
)
def test_hardware_is_found_as_people_write_it(written: str, name: str) -> None:
    assert find_hardware(written).name == name


@pytest.mark.parametrize("name", ["h100 94gb pcie", "v100-16gb", "rtx 4090 48gb"])
def test_a_memory_that_is_not_its_own_is_no_match(name: str) -> None:
    with pytest.raises(SpecprobeError, match="not in the table"):
        find_hardware(name)


def test_floating_point_of_8_bits_is_expanded_where_units_know_integers_only() -> None:
    a100, h100 = find_hardware("a100"), find_hardware("h100")
    assert a100.flops(8, floating=True) == a100.flops_16bit < a100.flops(8)
    assert h100.flops(8, floating=True) == h100.flops_8bit


@pytest.mark.parametrize(
    ("engine", "gpu", "dtype"), [("llama.cpp", "m4-max", "gguf-q4_k_m"), ("mlx", "m4-max", "4bit")]
)
def test_prompts_multiply_at_more_than_a_few_rows_do(engine: str, gpu: str, dtype: str) -> None:
    deployment = deploy("Llama-3.1-8B", gpu, engine=engine, dtype=dtype)
    tokens_per_second = 2048 / prefill_seconds(deployment, 2048)
    assert 400 < tokens_per_second < 2000


@pytest.mark.parametrize("name", hardware_names())
def test_every_row_of_the_hardware_table_is_sound(name: str) -> None:
    hardware = find_hardware(name)
    assert hardware.name == name
    assert 5e10 < hardware.bandwidth_bytes_per_second < 1e13
    assert hardware.flops_16bit <= hardware.flops(8)
    assert hardware.source


def test_unknown_hardware_is_an_error_of_one_line() -> None:
    for name in ("abacus", "", "+", "h100+abacus"):
        with pytest.raises(SpecprobeError, match="not in the table"):
            find_hardware(name)


def test_a_split_over_unlike_devices_adds_times_up() -> None:
    both, fast, slow = (find_hardware(name).bandwidth_bytes_per_second for name in ("rtx5080+rtx3090", "5080", "3090"))
    assert both == pytest.approx(2 / (1 / fast + 1 / slow))


@pytest.mark.parametrize(
    ("model", "total_billions", "active_billions"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03, 7.5),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30.5, 3.0),
        ("Qwen/Qwen3-235B-A22B", 235.1, 21.6),
        ("deepseek-ai/DeepSeek-R1", 671, 37),
        ("openai/gpt-oss-120b", 117, 5.1),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", 7.6, 7.1),
    ],
)
def test_parameters_match_what_publishers_say(model: str, total_billions: float, active_billions: float) -> None:
    shape = find_shape(model)
    assert shape.parameters / 1e9 == pytest.approx(total_billions, rel=0.03)
    assert shape.active_parameters / 1e9 == pytest.approx(active_billions, rel=0.12)


def test_names_lead_to_shapes_and_their_quantisation() -> None:
    assert find_shape("Llama-3.1-8B") == replace(find_shape("unsloth/Llama-3.1-8B"), name="Llama-3.1-8B")
    assert quantisation_of("", find_shape("Qwen/Qwen3-30B-A3B-FP8")).bits == 8
    assert quantisation_of("bf16", find_shape("gpt-oss-20b")).bits == 4.25
    assert quantisation_of("gguf-ud-iq4_xs", find_shape("Qwen3-8B")).bits == 4.3
    assert quantisation_of("gptq-int8", find_shape("Qwen3-8B")).bits == 8
    with pytest.raises(SpecprobeError):
        quantisation_of("purple", find_shape("Qwen3-8B"))
    with pytest.raises(SpecprobeError):
        find_shape("no/such-model-7B")


def test_kv_bytes_by_attention() -> None:
    assert find_shape("Llama-3.1-8B").kv_bytes(1000) == 2 * 2 * 8 * 128 * 32 * 1000
    assert find_shape("DeepSeek-V3").kv_bytes(1000) == 2 * (512 + 64) * 61 * 1000
    windowed = find_shape("gpt-oss-120b")
    assert windowed.kv_bytes(10_000) == 2 * 2 * 8 * 64 * (18 * 10_000 + 18 * 128)


def test_a_shape_is_read_from_a_configuration() -> None:
    config = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    assert shape_from_config(config).parameters == find_shape("Llama-3.1-8B").parameters
    with pytest.raises(SpecprobeError, match="vocab_size"):
        shape_from_config({key: value for key, value in config.items() if key != "vocab_size"})


def test_experts_touched_grow_from_one_tokens_own_to_all() -> None:
    shape = find_shape("Qwen3-30B-A3B")
    assert experts_touched(shape, 1, 1, 0.5) == pytest.approx(8)
    assert experts_touched(shape, 1, 4, 0.0) == pytest.approx(8)
    assert experts_touched(shape, 1, 4, 1.0) > experts_touched(shape, 1, 4, 0.5) > 8
    assert experts_touched(shape, 1000, 4, 0.5) == pytest.approx(128)


@pytest.mark.parametrize("engine", [name for name in OVERHEADS if name != "vllm-v0"])
@pytest.mark.parametrize("model", MODELS)
def test_steps_never_get_cheaper_with_more_work(engine: str, model: str) -> None:
    deployment = deploy(model, "h200", devices=8, engine=engine)
    grid = [(1, 1, 100), (1, 4, 100), (8, 4, 100), (8, 4, 5000), (64, 8, 5000)]
    seconds = [step_seconds(deployment, *point) for point in grid]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


@pytest.mark.parametrize("model", MODELS)
def test_a_round_without_a_model_costs_the_verification_only(model: str) -> None:
    deployment = deploy(model, devices=8)
    none, head = Drafter("none"), find_drafter("eagle3", "", deployment.shape, deployment.quantisation)
    step = step_seconds(deployment, 4, 1, 500)
    assert (
        step
        < round_seconds(deployment, none, Draft(3, 3), 4, 500)
        < round_seconds(deployment, head, Draft(3, 3), 4, 500)
    )
    deeper = [round_seconds(deployment, head, Draft(depth, depth), 4, 500) for depth in range(1, 9)]
    assert deeper == sorted(deeper)


def test_batch_expansion_reads_the_cache_for_every_query() -> None:
    plain = deploy("Qwen2.5-7B-Instruct", "a100-80gb")
    expanding = replace(plain, overhead=replace(plain.overhead, expands_batch=True))
    assert step_seconds(expanding, 16, 1, 4000) == step_seconds(plain, 16, 1, 4000)
    assert step_seconds(expanding, 16, 5, 4000) > step_seconds(plain, 16, 5, 4000) * 1.3


def test_engines_and_methods_are_found_as_people_write_them() -> None:
    names = {"vLLM V1": "vllm", "vllm-v0": "vllm-v0", "SGLang": "sglang", "llama-server": "llama.cpp", "mlx-lm": "mlx"}
    for written, name in {**names, "TensorRT-LLM": "trtllm", "HF transformers": "hf"}.items():
        assert engine_overhead(written) == OVERHEADS[name]
    assert engine_overhead("vllm", legacy=True) == OVERHEADS["vllm-v0"]
    kinds = {"EAGLE-3": "head", "prompt_lookup": "none", "P-EAGLE": "pass", "draft_model": "model", "telepathy": None}
    assert {written: method_kind(written) for written in kinds} == kinds
    for unknown in ("", "abacus"):
        with pytest.raises(SpecprobeError, match="no overhead profile"):
            engine_overhead(unknown)


def test_layers_split_over_devices_gain_no_bandwidth() -> None:
    one, two = (deploy("Qwen3-32B", "rtx3090", devices=n, engine="llama.cpp", dtype="gguf-q4_k_m") for n in (1, 2))
    assert step_seconds(one, 1, 1, 500) == step_seconds(two, 1, 1, 500)


@pytest.mark.parametrize(("batches", "bound"), [((1, 2, 4, 8, 16, 32), 0.10), ((64,), 0.20)])
def test_a_plain_forward_agrees_with_a_published_fit(batches: tuple[int, ...], bound: float) -> None:
    deployment = deploy("meta-llama/Llama-3.1-8B-Instruct")
    for batch in batches:
        for kv_tokens in (batch * 64, 10_000, 50_000, 100_000, 200_000, 400_000):
            published = 5.886e-3 + 2.101e-5 * batch + 3.926e-8 * kv_tokens
            ours = step_seconds(deployment, batch, 1, kv_tokens / batch)
            assert ours == pytest.approx(published, rel=bound), (batch, kv_tokens)


def test_gpt_oss_120b_with_eagle3_on_h200() -> None:
    lengths = {depth: 1 + depth * rate for depth, rate in ((2, 0.454), (3, 0.356), (4, 0.283))}
    deployment = deploy("openai/gpt-oss-120b", "h200")
    drafter = find_drafter("eagle3", "", deployment.shape, deployment.quantisation)
    for independence in (1.0, 0.5, 0.3):
        efficiencies = replace(EFFICIENCIES, expert_independence=independence)
        there = replace(deployment, efficiencies=efficiencies)
        for concurrency in (1, 4, 16, 32, 64, 100):
            speedups = {
                depth: length
                * step_seconds(there, concurrency, 1, 2000)
                / round_seconds(there, drafter, Draft(depth, depth), concurrency, 2000)
                for depth, length in lengths.items()
            }
            if concurrency <= 16:
                assert max(speedups, key=speedups.__getitem__) != 4
            else:
                assert max(speedups.values()) > 1


def test_the_roofline_fills_a_cost_table() -> None:
    points = cost_points(deploy("Llama-3.1-8B"), (1, 8), (1, 4), (0, 1000))
    table = CostTable("file", points)
    assert table.reaches(8, 4)
    assert table.at_context(500).at_batch(4)[0][0] > 0
