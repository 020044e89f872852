"""What does not fit is refused in one line, before anything is generated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_heads
import tiny_mtp
import torch
import toy_target as toy
from safetensors.torch import load_file, save_file

from specprobe.causal_lm import LoadOptions
from specprobe.checkpoint import open_checkpoint
from specprobe.drafters import DraftContext, OpenDrafter, open_drafter, parse_drafter
from specprobe.errors import SpecprobeError
from specprobe.profiles import resolve_profile
from specprobe.target import Target, load_target

Edit = Callable[[dict[str, torch.Tensor]], Any]

# The newest vLLM that has every method.
ENGINE = "vllm@0.30"
DEPTH = 3
# By name: the drafter, and how its tiny checkpoint is written for a target's config.
HEADS: dict[str, tuple[str, Callable[..., Path], dict[str, Any]]] = {
    "eagle": ("eagle", tiny_heads.write_eagle, {}),
    "eagle3": ("eagle3", tiny_heads.write_eagle3, {"entering_layers": [1, 4, 6]}),
    "eagle3-sglang": ("eagle3", tiny_heads.write_eagle3, {"output_of_layers": [1, 4, 6], "draft_vocab_size": None}),
    "eagle3-speculators": ("eagle3", tiny_heads.write_speculators_eagle3, {"entering_layers": [1, 4, 6]}),
    "peagle": ("eagle3", tiny_heads.write_peagle, {}),
    "medusa": ("medusa", tiny_heads.write_medusa, {"weights_file": "model.safetensors"}),
    "medusa-vllm": ("medusa", tiny_heads.write_medusa, {"layout": "vllm"}),
    "medusa-pruned": ("medusa", tiny_heads.write_medusa, {"layout": "vllm", "truncated_vocab_size": 90}),
    "mlp": ("mlp", tiny_heads.write_mlp_speculator, {}),
    "dflash": ("dflash", tiny_mtp.write_dflash, {"own_lm_head": True, "own_embedding": True}),
    "dflash-speculators": ("dflash", tiny_mtp.write_dflash, {"dialect": "speculators"}),
}
# Taken from the target where the checkpoint has none, or not needed to draft.
OPTIONAL = {
    "eagle": {"embed_tokens.weight"},
    "eagle3": {"t2d"},
    "eagle3-sglang": {"lm_head.weight"},
    "eagle3-speculators": {"t2d", "embed_tokens.weight"},
    "peagle": {"t2d", "embed_tokens.weight"},
    "dflash": {"lm_head.weight", "embed_tokens.weight"},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Target:
    return toy.toy_target(tmp_path_factory.mktemp("target"), num_hidden_layers=7)


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    toy.go_offline(monkeypatch)


def opened(spec: str, target: Target | None, depth: int = DEPTH) -> OpenDrafter:
    profile = resolve_profile(ENGINE)
    tokenizer = target.tokenizer if target else None
    context = DraftContext(target, tokenizer, LoadOptions(device="cpu"), profile, depth, False)
    return open_drafter(parse_drafter(spec, profile), context)


def refused(spec: str, target: Target | None, depth: int = DEPTH) -> str:
    """Why the drafter cannot be opened; any exception but the user's own fails the test."""
    with pytest.raises(SpecprobeError) as error:
        opened(spec, target, depth)
    assert "\n" not in str(error.value)
    return str(error.value)


def write(head: str, folder: Path, config: Any) -> str:
    """The checkpoint of a head, and the spec that names it."""
    name, writer, options = HEADS[head]
    return f"{name}:{writer(folder, config, **options)}"


def edit_tensors(folder: Path, edit: Edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder: Path, *path: str, value: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    place = config
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    file.write_text(json.dumps(config))


def other_config(config: Any, **fields: Any) -> SimpleNamespace:
    """The config of a target of another size."""
    return SimpleNamespace(**config.to_dict() | fields)


# --- shapes and names of tensors ---


@pytest.mark.parametrize("head", HEADS)
def test_every_head_opens_where_it_fits(target, tmp_path, head):
    assert opened(write(head, tmp_path, target.model.config), target).has_model


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("eagle", "tensor fc.weight has shape [48, 96], shape needed [48, 80]"),
        ("eagle3", "tensor fc.weight has shape [48, 144], shape needed [48, 96]"),
        ("eagle3-sglang", "tensor fc.weight has shape [48, 144], shape needed [48, 96]"),
        ("eagle3-speculators", "tensor fc.weight has shape [48, 144], shape needed [48, 96]"),
        ("peagle", "tensor mask_hidden has shape [1, 144], shape needed [1, 96]"),
        ("medusa", "tensor 0.0.linear.weight has shape [48, 48], shape needed [32, 32]"),
        ("medusa-vllm", "tensor blocks.0.layers.0.weight has shape [48, 48], shape needed [32, 32]"),
        ("medusa-pruned", "tensor blocks.0.layers.0.weight has shape [48, 48], shape needed [32, 32]"),
        ("mlp", "emb_dim in config.json is 48, the target's hidden size is 32"),
        ("dflash", "tensor fc.weight has shape [48, 48], shape needed [48, 32]"),
        ("dflash-speculators", "tensor fc.weight has shape [48, 48], shape needed [48, 32]"),
    ],
)
def test_another_hidden_size_is_refused_with_both_shapes(target, tmp_path, head, said):
    assert said in refused(write(head, tmp_path, other_config(target.model.config, hidden_size=48)), target)


@pytest.mark.parametrize(
    ("head", "tensor", "found", "needed"),
    [
        ("eagle", "embed_tokens.weight", "[200, 32]", "[260, 32]"),
        ("eagle3-sglang", "lm_head.weight", "[200, 32]", "[260, 32]"),
        ("eagle3-speculators", "embed_tokens.weight", "[200, 32]", "[260, 32]"),
        ("peagle", "embed_tokens.weight", "[200, 32]", "[260, 32]"),
        ("medusa", "0.1.weight", "[200, 32]", "[260, 32]"),
        ("medusa-vllm", "lm_heads.0.weight", "[200, 32]", "[260, 32]"),
        ("mlp", "speculator.emb.0.weight", "[200, 32]", "[260, 32]"),
        ("dflash", "embed_tokens.weight", "[200, 32]", "[260, 32]"),
    ],
)
def test_a_smaller_vocabulary_is_refused_with_both_shapes(target, tmp_path, head, tensor, found, needed):
    message = refused(write(head, tmp_path, other_config(target.model.config, vocab_size=200)), target)
    assert f"tensor {tensor} has shape {found}, shape needed {needed}" in message


@pytest.mark.parametrize("head", HEADS)
def test_a_tensor_that_is_missing_is_named(target, tmp_path, head):
    spec = write(head, tmp_path, target.model.config)
    whole = load_file(tmp_path / "model.safetensors")
    for name in whole:
        save_file({other: whole[other] for other in whole if other != name}, tmp_path / "model.safetensors")
        if name in OPTIONAL.get(head, ()) or (head.startswith("medusa") and name.endswith(".bias")):
            opened(spec, target)
            continue
        message = refused(spec, target)
        if name == "token_map":
            assert "tensor lm_heads.0.weight has shape [90, 32], shape needed [260, 32]" in message
        else:
            # Medusa's heads are counted by their first tensors, so that a head less is too few for the depth.
            assert name in message or "heads, one for each position" in message


@pytest.mark.parametrize("head", HEADS)
def test_a_tensor_of_another_shape_is_named(target, tmp_path, head):
    """Each in turn gets a row more, and all dimensions less."""
    spec = write(head, tmp_path, target.model.config)
    whole = load_file(tmp_path / "model.safetensors")
    for name in whole.keys() - {"t2d"}:
        tensor = whole[name]
        save_file(whole | {name: torch.cat([tensor, tensor[:1]])}, tmp_path / "model.safetensors")
        if name == "embed_tokens.weight" or (head == "medusa-pruned" and name.startswith("lm_heads")):
            opened(spec, target)  # Padded to more rows: fine.
        else:
            assert ("lm_heads.0.weight" if name == "token_map" else name) in refused(spec, target), name
        save_file(whole | {name: tensor.flatten()[0]}, tmp_path / "model.safetensors")
        assert name in refused(spec, target), name


def lead_outside(tensors: dict[str, torch.Tensor], value: int) -> None:
    name = "d2t" if "d2t" in tensors else "token_map"
    tensors[name][-1] = value


@pytest.mark.parametrize("head", ["eagle3", "eagle3-speculators", "peagle", "medusa-pruned"])
@pytest.mark.parametrize("value", [260, -200, 2**62])
def test_a_draft_vocabulary_that_leads_outside_is_refused(target, tmp_path, head, value):
    spec = write(head, tmp_path, target.model.config)
    edit_tensors(tmp_path, lambda tensors: lead_outside(tensors, value))
    message = refused(spec, target)
    assert "d2t leads to token" in message or "token_map leads to token" in message


@pytest.mark.parametrize("head", ["eagle3", "medusa-pruned"])
def test_a_draft_vocabulary_without_tokens_is_refused(target, tmp_path, head):
    spec = write(head, tmp_path, target.model.config)
    name = "d2t" if head == "eagle3" else "token_map"
    edit_tensors(tmp_path, lambda tensors: tensors.update({name: torch.zeros(0, dtype=torch.long)}))
    assert name in refused(spec, target)


@pytest.mark.parametrize("head", HEADS)
def test_weights_in_eight_bits_are_refused(target, tmp_path, head):
    spec = write(head, tmp_path, target.model.config)
    name = next(n for n, t in load_file(tmp_path / "model.safetensors").items() if t.ndim == 2 and "embed" not in n)
    edit_tensors(tmp_path, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    message = refused(spec, target)
    assert f"tensor {name} is quantised" in message


def test_weights_in_eight_bits_in_a_file_of_torch_are_refused(target, tmp_path):
    tiny_heads.write_eagle(tmp_path, target.model.config, weights_file="pytorch_model.bin")
    tensors = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.float8_e4m3fn)
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert "tensor fc.weight is quantised" in refused(f"eagle:{tmp_path}", target)


# --- what the checkpoint asks of the target ---


@pytest.mark.parametrize(
    ("head", "path", "ids"),
    [
        ("eagle3", ["eagle_aux_hidden_state_layer_ids"], [1, 4, 8]),
        ("eagle3", ["eagle_aux_hidden_state_layer_ids"], [-1, 4, 6]),
        ("eagle3-sglang", ["eagle_config", "eagle_aux_hidden_state_layer_ids"], [1, 4, 7]),
        ("eagle3-speculators", ["eagle_aux_hidden_state_layer_ids"], [1, 4, 800]),
        ("dflash", ["dflash_config", "target_layer_ids"], [7]),
        ("dflash", ["dflash_config", "target_layer_ids"], [-2]),
        ("dflash-speculators", ["aux_hidden_state_layer_ids"], [8]),
    ],
)
def test_layers_that_the_target_does_not_have_are_refused(target, tmp_path, head, path, ids):
    spec = write(head, tmp_path, target.model.config)
    edit_config(tmp_path, *path, value=ids)
    assert "the target has 7 layers" in refused(spec, target)


def test_the_default_layers_need_a_target_of_some_depth(tmp_path):
    shallow = toy.toy_target(tmp_path / "target")
    folder = tiny_heads.write_eagle3(tmp_path / "head", shallow.model.config)
    assert "the target has 2 layers" in refused(f"eagle3:{folder}", shallow)


@pytest.mark.parametrize(("head", "most"), [("medusa", 3), ("medusa-vllm", 3), ("mlp", 3), ("dflash", 7)])
def test_no_head_drafts_deeper_than_it_can(target, tmp_path, head, most):
    spec = write(head, tmp_path, target.model.config)
    opened(spec, target, depth=most)
    assert f"use --depth {most}" in refused(spec, target, depth=most + 1)


def test_mimo_drafts_one_token_a_module(tmp_path):
    mimo = load_target(str(tiny_mtp.write_mimo_mtp(tmp_path)), device="cpu")
    opened("mtp", mimo, depth=1)
    assert "use --depth 1" in refused("mtp", mimo, depth=2)


@pytest.mark.parametrize("head", [*HEADS, "mtp", "early-exit"])
def test_a_drafter_that_reads_the_target_says_that_it_needs_one(tmp_path, target, head):
    spec = {"mtp": "mtp", "early-exit": "early-exit:layers=1"}.get(head) or write(head, tmp_path, target.model.config)
    assert "--target" in refused(spec, None)


@pytest.mark.parametrize("spec", ["early-exit", "early-exit:layers=0", "early-exit:layers=7", "early-exit:layers=x"])
def test_early_exit_leaves_out_at_least_one_layer(target, spec):
    assert "early-exit" in refused(spec, target)


@pytest.mark.parametrize("head", HEADS)
def test_an_option_that_a_head_does_not_have_is_refused(target, tmp_path, head):
    assert "no option 'speed'" in refused(write(head, tmp_path, target.model.config) + ",speed=9", target)


# --- mtp: the modules are in the target's own checkpoint ---


def test_a_target_of_another_family_has_no_modules(target):
    assert "llama" in refused("mtp", target)


@pytest.mark.parametrize(
    ("writer", "module"),
    [
        (tiny_mtp.write_deepseek_mtp, "model.layers.2."),
        (tiny_mtp.write_glm4_moe_mtp, "model.layers.2."),
        (tiny_mtp.write_qwen3_next_mtp, "mtp."),
        (tiny_mtp.write_mimo_mtp, "model.mtp_layers.0."),
    ],
)
def test_modules_that_are_missing_or_of_another_shape_are_refused(tmp_path, writer, module):
    """The target itself is untouched: the modules come from a second folder."""
    source = load_target(str(writer(tmp_path / "target")), device="cpu")
    folder = writer(tmp_path / "other")
    whole = load_file(folder / "model.safetensors")
    shared = ("embed_tokens.weight", "shared_head.head.weight")
    names = [name for name in whole if name.startswith(module) and not name.endswith(shared)]
    # Of the experts, the second will do.
    for name in (name for name in names if ".experts." not in name or ".experts.1." in name):
        save_file({other: whole[other] for other in whole if other != name}, folder / "model.safetensors")
        assert f"tensor {name} is missing" in refused(f"mtp:{folder}", source, depth=1)
        save_file(whole | {name: torch.cat([whole[name], whole[name][:1]])}, folder / "model.safetensors")
        assert f"tensor {name} has shape" in refused(f"mtp:{folder}", source, depth=1)


def test_a_target_whose_modules_were_dropped_is_refused(tmp_path):
    folder = tiny_mtp.write_deepseek_mtp(tmp_path)
    edit_tensors(folder, lambda tensors: [tensors.pop(n) for n in list(tensors) if n.startswith("model.layers.2.")])
    assert "model.layers.2.eh_proj.weight is missing" in refused("mtp", load_target(str(folder), device="cpu"))


# --- files ---


class RunsCode:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize(
    ("head", "name"),
    [("eagle", "pytorch_model.bin"), ("eagle3", "pytorch_model.bin"), ("medusa", "medusa_lm_head.pt"),
     ("mlp", "pytorch_model.bin"), ("dflash", "pytorch_model.bin")],
)  # fmt: skip
def test_code_in_a_weight_file_is_not_run(target, tmp_path, head, name):
    spec = write(head, tmp_path / "head", target.model.config)
    (tmp_path / "head" / "model.safetensors").unlink()
    torch.save({"fc.weight": torch.zeros(2, 2), "0.0.linear.weight": RunsCode(tmp_path / "ran")}, tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / "head" / name)
    message = refused(spec, target)
    assert name in message
    assert "never run" in message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("head", HEADS)
def test_a_truncated_file_is_refused(target, tmp_path, head):
    spec = write(head, tmp_path, target.model.config)
    content = (tmp_path / "model.safetensors").read_bytes()
    for kept in (0, 5, 60, -3):
        (tmp_path / "model.safetensors").write_bytes(content[:kept])
        assert "model.safetensors cannot be read" in refused(spec, target)


@pytest.mark.parametrize("kept", [0, 5, 1000, -30])
def test_a_truncated_file_of_torch_is_refused(target, tmp_path, kept):
    tiny_heads.write_eagle(tmp_path, target.model.config, weights_file="pytorch_model.bin")
    content = (tmp_path / "pytorch_model.bin").read_bytes()
    (tmp_path / "pytorch_model.bin").write_bytes(content[:kept])
    assert "pytorch_model.bin cannot be read" in refused(f"eagle:{tmp_path}", target)


@pytest.mark.parametrize(
    "content", [[torch.zeros(2)], torch.zeros(2), "text", {}, {"fc.weight": 3}, {3: torch.zeros(2)}]
)
def test_a_file_of_torch_that_holds_something_else_is_refused(target, tmp_path, content):
    spec = write("eagle", tmp_path, target.model.config)
    (tmp_path / "model.safetensors").unlink()
    torch.save(content, tmp_path / "pytorch_model.bin")
    refused(spec, target)


SPECS = ["eagle", "eagle3", "medusa", "mlp", "dflash", "pard", "draft"]


@pytest.mark.parametrize("spec", SPECS)
def test_a_config_that_is_no_object_is_refused(target, tmp_path, spec):
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(f"{spec}:{tmp_path}", target)
    for config in ("", "{", "[]", "[{}]", "null", "3", '"text"', "{}", "[" * 100_000, "\xff"):
        (tmp_path / "config.json").write_bytes(config.encode("latin-1"))
        refused(f"{spec}:{tmp_path}", target)


@pytest.mark.parametrize("spec", SPECS)
def test_a_folder_without_weights_is_refused(target, tmp_path, spec):
    refused(f"{spec}:{tmp_path}", target)
    tiny_mtp.write_pard(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    refused(f"{spec}:{tmp_path}", target)


@pytest.mark.parametrize(
    "name",
    ["no-such-folder", "./no/such/folder", "OWNER/no-such-model", "a/b/c/d", "~no-such-user/model", "x" * 5000,
     "with space", "nul\0", "\ud800", "..", "-", "https://example.org/model", "config.json"],
    ids=lambda name: ascii(name)[:20],
)  # fmt: skip
def test_a_name_that_is_no_checkpoint_is_refused(target, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    for spec in SPECS:
        refused(f"{spec}:{name}", target)


def test_shards_and_what_lies_beside_them(target, tmp_path):
    """Weights may come in several files; adapters and optimiser states beside safetensors do not count."""
    spec = write("eagle", tmp_path, target.model.config)
    whole = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    for number, name in enumerate(whole):
        save_file({name: whole[name]}, tmp_path / f"model-{number:05}.safetensors")
    (tmp_path / "optimizer.pt").write_bytes(b"no weights")
    opened(spec, target)
    assert set(open_checkpoint(str(tmp_path)).names) == set(whole)
    (tmp_path / f"model-{list(whole).index('fc.weight'):05}.safetensors").unlink()
    assert "tensor fc.weight is missing" in refused(spec, target)


# --- config.json of an object, with values that make no sense ---

NONSENSE = (-1, 0, 3, 1.5, "x", [], {}, None, True, 2**70, [None], ["a"], [1.5], [9999])
# Fields that the tiny checkpoints do not have by themselves.
FURTHER = (
    "draft_vocab_size", "eagle_config", "eagle_aux_hidden_state_layer_ids", "dflash_config", "target_layer_ids",
    "aux_hidden_state_layer_ids", "transformer_layer_config", "logit_scale", "mask_token_id", "rope_parameters",
    "rope_scaling", "layer_types", "head_dim", "norm_before_residual", "fc_norm", "original_lm_head", "auto_map",
    "quantization_config", "speculators_model_type", "speculators_config", "architectures",
)  # fmt: skip


def paths(config: dict[str, Any], *before: str) -> list[tuple[str, ...]]:
    found = [(key,) for key in FURTHER if key not in config and not before]
    for key, value in config.items():
        found.append((*before, key))
        if isinstance(value, dict):
            found += paths(value, *before, key)
    return found


def opens_or_is_refused(spec: str, target: Target, what: str) -> None:
    said = ""
    try:
        opened(spec, target)
    except SpecprobeError as error:
        said = str(error)
    except Exception as error:
        pytest.fail(f"{what}: {type(error).__name__}: {error}")
    assert "\n" not in said, what


NESTED = (
    ("eagle3", ["eagle_config"]),
    ("eagle3", ["eagle_aux_hidden_state_layer_ids"]),
    ("eagle3", ["draft_vocab_size"]),
    ("eagle3", ["logit_scale"]),
    ("eagle3-sglang", ["eagle_config", "eagle_aux_hidden_state_layer_ids"]),
    ("eagle3-sglang", ["draft_vocab_size"]),
    ("eagle3-speculators", ["transformer_layer_config"]),
    ("peagle", ["mask_token_id"]),
    ("medusa-vllm", ["original_lm_head"]),
    ("mlp", ["n_predict"]),
    ("mlp", ["emb_dim"]),
    ("mlp", ["inner_dim"]),
    ("dflash", ["dflash_config"]),
    ("dflash", ["dflash_config", "target_layer_ids"]),
    ("dflash", ["dflash_config", "mask_token_id"]),
    ("dflash", ["block_size"]),
    ("dflash-speculators", ["aux_hidden_state_layer_ids"]),
    ("dflash-speculators", ["transformer_layer_config"]),
    *((head, ["hidden_size"]) for head in ("eagle", "eagle3", "dflash")),
    *((head, ["num_attention_heads"]) for head in ("eagle", "eagle3", "dflash")),
    *((head, ["model_type"]) for head in ("eagle", "eagle3", "dflash")),
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("head", "path"), NESTED, ids=lambda value: value if isinstance(value, str) else ".".join(value)
)
def test_fields_of_a_wrong_kind_are_refused_in_one_line(target, tmp_path, head, path):
    spec = write(head, tmp_path, target.model.config)
    for value in NONSENSE:
        edit_config(tmp_path, *path, value=value)
        opens_or_is_refused(spec, target, f"{path} {value!r}")


@pytest.mark.parametrize("head", ["eagle", "eagle3", "dflash"])
@pytest.mark.parametrize("layers", [0, -1, 3, "x", None])
def test_a_number_of_layers_that_is_not_there_is_refused(target, tmp_path, head, layers):
    spec = write(head, tmp_path, target.model.config)
    edit_config(tmp_path, "num_hidden_layers", value=layers)
    refused(spec, target)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", [10**9, 2**70])
@pytest.mark.parametrize(
    ("head", "field"),
    [
        ("eagle", "num_hidden_layers"),
        ("dflash", "num_hidden_layers"),
        ("draft", "num_hidden_layers"),
        ("mlp", "n_predict"),
    ],
)
def test_an_absurd_number_of_layers_takes_no_time(target, tmp_path, head, field, number):
    spec = f"draft:{tiny_mtp.write_llama(tmp_path)}" if head == "draft" else write(head, tmp_path, target.model.config)
    edit_config(tmp_path, field, value=number)
    refused(spec, target)


@pytest.mark.parametrize(
    ("head", "path"),
    [("peagle", ["mask_token_id"]), ("dflash", ["dflash_config", "mask_token_id"]), ("pard", ["pard_token"])],
)
@pytest.mark.parametrize("token", [-1, 260, 2**70, "x", None, True, []], ids=str)
def test_a_mask_token_outside_the_vocabulary_is_refused(target, tmp_path, head, path, token):
    spec = f"pard:{tiny_mtp.write_pard(tmp_path)}" if head == "pard" else write(head, tmp_path, target.model.config)
    edit_config(tmp_path, *path, value=token)
    assert "token" in refused(spec, target)


@pytest.mark.slow
@pytest.mark.parametrize("head", [*HEADS, "pard", "draft"])
def test_any_field_of_a_wrong_kind_is_refused_in_one_line(target, tmp_path, head):
    spec = write(head, tmp_path, target.model.config) if head in HEADS else f"{head}:{tiny_mtp.write_pard(tmp_path)}"
    whole = json.loads((tmp_path / "config.json").read_text())
    for path in paths(whole):
        for value in NONSENSE:
            config = deepcopy(whole)
            place = config
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            (tmp_path / "config.json").write_text(json.dumps(config))
            opens_or_is_refused(spec, target, f"{'.'.join(path)} {value!r}")


# --- draft models and PARD: their weights, too, before anything is generated ---


@pytest.mark.parametrize("name", ["draft", "pard"])
@pytest.mark.parametrize(
    "damage", ["truncated", "missing tensor", "other shape", "hidden_act", "vocab_size", "num_hidden_layers"]
)
def test_a_draft_model_whose_weights_do_not_fit_is_refused(target, tmp_path, name, damage):
    folder = tiny_mtp.write_pard(tmp_path)
    weights = folder / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-3])
    elif damage == "missing tensor":
        edit_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    elif damage == "other shape":
        edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(200, 32)}))
    else:
        edit_config(folder, damage, value={"hidden_act": "x", "vocab_size": 261, "num_hidden_layers": 3}[damage])
    refused(f"{name}:{folder}", target)
