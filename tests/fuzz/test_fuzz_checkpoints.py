"""Folders of models of any content: they load, or are refused in one line, soon, and without taking all memory.

Small good checkpoints are bent: fields of config.json, headers of safetensors, tokenizers, and what lies under a name.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tiny_heads
import tiny_mtp
import torch
import toy_target as toy
from hypothesis import given
from hypothesis import strategies as st
from odd import bent, dumped, fuzz, one_line_or, spoilt
from test_checkpoints import opened

from specprobe.errors import SpecprobeError
from specprobe.model_folder import check_folder, check_sizes, check_weights
from specprobe.model_shape import shape_of
from specprobe.prompt import Message, Prompt
from specprobe.target import load_target
from specprobe.tokens import UnrenderableError, load_tokenizer

HEADS: dict[str, tuple[str, Callable[..., Path], dict[str, Any]]] = {
    "eagle": ("eagle", tiny_heads.write_eagle, {}),
    "eagle3": ("eagle3", tiny_heads.write_eagle3, {}),
    "eagle3-speculators": ("eagle3", tiny_heads.write_speculators_eagle3, {}),
    "peagle": ("eagle3", tiny_heads.write_peagle, {}),
    "medusa": ("medusa", tiny_heads.write_medusa, {"weights_file": "model.safetensors"}),
    "mlp": ("mlp", tiny_heads.write_mlp_speculator, {}),
    "dflash": ("dflash", tiny_mtp.write_dflash, {}),
}
LARGE = (10**18, 10**9, 2**31, 1025, -1, 0, 1, 2.5, "2", None, True, [10**18])


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def target(root):
    return toy.toy_target(root / "target", num_hidden_layers=7)


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    toy.go_offline(monkeypatch)
    torch.set_num_threads(1)


@contextmanager
def no_memory_to_waste(most_bytes: int = 1 << 30) -> Iterator[None]:
    """The process may grow by no more than this."""
    import resource

    def size() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    before = size()
    yield
    assert size() - before < most_bytes


def refused_or(make: Callable[[], Any]) -> Any:
    with no_memory_to_waste():
        return one_line_or(make)


def copy_of(source: Path, root: Path) -> Path:
    folder = root / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


# --- config.json ---


@pytest.fixture(scope="module")
def model(root) -> Path:
    return toy.write_checkpoint(root / "model")


@fuzz(60)
@given(st.data())
def test_targets_of_a_bent_config(root, model, data):
    folder = copy_of(model, root)
    (folder / "config.json").write_bytes(data.draw(spoilt(dumped(data.draw(bent([config_of(model)], most=2))))))
    refused_or(lambda: load_target(str(folder), device="cpu"))
    refused_or(lambda: load_tokenizer(str(folder)))
    refused_or(lambda: shape_of(str(folder)))


SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "max_position_embeddings", "head_dim", "num_experts", "rms_norm_eps", "initializer_range"),
)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "kind", ["llama", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("qwen3", "gpt2", "mixtral"))]
)
def test_sizes_that_no_weights_are_of(root, model, kind):
    """Each in turn; transformers would make layers and random weights of them first."""
    folder = copy_of(model, root)
    config = {**config_of(model), "model_type": kind, "architectures": None}
    names = ("n_layer", "n_embd", "n_head", "vocab_size", "n_positions") if kind == "gpt2" else SIZES
    for name in (*names, *(("num_local_experts",) if kind == "mixtral" else ())):
        for value in LARGE:
            (folder / "config.json").write_text(json.dumps({**config, name: value}))
            refused_or(lambda: load_target(str(folder), device="cpu"))
            refused_or(lambda: load_tokenizer(str(folder)))
            refused_or(lambda: shape_of(str(folder)))


@pytest.mark.parametrize(
    "config", [{"model_type": "llama"}, {"model_type": "gpt2"}, {"model_type": "qwen3_moe"}, {}, []]
)
def test_a_config_that_leaves_the_sizes_to_the_library(root, model, config):
    """The defaults of transformers are those of models of billions of weights."""
    folder = copy_of(model, root)
    (folder / "config.json").write_text(json.dumps(config))
    assert refused_or(lambda: load_target(str(folder), device="cpu")) is None


@pytest.mark.parametrize("head", HEADS)
@fuzz(40)
@given(data=st.data())
def test_drafters_of_a_bent_config(root, target, head, data):
    name, write, options = HEADS[head]
    source = root / head
    if not source.exists():
        write(source, target.model.config, **options)
    folder = copy_of(source, root)
    content = dumped(data.draw(bent([config_of(source)], most=2)))
    (folder / "config.json").write_bytes(data.draw(spoilt(content)))
    found = refused_or(lambda: opened(f"{name}:{folder}", target))
    assert found is None or found.has_model


@pytest.mark.parametrize("head", HEADS)
def test_drafters_of_large_sizes(root, target, head):
    name, write, options = HEADS[head]
    folder = write(root / f"large-{head}", target.model.config, **options)
    whole = config_of(folder)

    def numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for key, item in value.items():
            if isinstance(item, dict):
                yield from numbers(item, (*path, key))
            elif isinstance(item, int):
                yield (*path, key)

    for *above, key in numbers(whole):
        for value in (10**18, 2**31, -1, 0):
            config = json.loads(json.dumps(whole))
            inside = config
            for step in above:
                inside = inside[step]
            inside[key] = value
            (folder / "config.json").write_text(json.dumps(config))
            refused_or(lambda: opened(f"{name}:{folder}", target))


SHAPE = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "vocab_size": 260,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 8,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}},
    },
    "text_config": None,
}


@fuzz(150)
@given(bent([SHAPE]), st.data())
def test_shapes(root, config, data):
    path = root / "shape.json"
    path.write_bytes(data.draw(spoilt(dumped(config))))
    shape = refused_or(lambda: shape_of(str(path)))
    if shape is not None:
        from specprobe.shapes import quantisation_of

        quantisation = refused_or(lambda: quantisation_of("", shape))
        if quantisation is not None:
            assert shape.storage_bytes(quantisation) >= 0
        assert shape.kv_bytes(1000.0) >= 0


# --- weights ---


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header: Any, rest: bytes, length: int | None = None) -> bytes:
    text = dumped(header)
    return struct.pack("<Q", len(text) if length is None else length) + text + rest


@pytest.mark.parametrize("kind", ["target", "eagle"])
@fuzz(60)
@given(data=st.data())
def test_bent_headers_of_safetensors(root, target, model, kind, data):
    source = model if kind == "target" else root / "for-header"
    if not source.exists():
        tiny_heads.write_eagle(source, target.model.config)
    folder = copy_of(source, root)
    header, rest = header_of((source / "model.safetensors").read_bytes())
    few = dict(list(header.items())[:4])
    bent_part = data.draw(bent([few], most=2))
    whole = {**header, **bent_part} if isinstance(bent_part, dict) else bent_part
    length = data.draw(st.sampled_from((None, None, 0, 7, 2**40, 2**64 - 1)))
    (folder / "model.safetensors").write_bytes(with_header(whole, rest, length))
    if kind == "target":
        refused_or(lambda: load_target(str(folder), device="cpu"))
    else:
        found = refused_or(lambda: opened(f"eagle:{folder}", target))
        if found is not None:
            from specprobe.features import CarriedFeatures

            refused_or(lambda: found.load(CarriedFeatures()))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0, 64], [0, 64]),
        ([0, 64], [32, 96]),
        ([0, 2**40], [0, 64]),
        ([64, 0], [0, 64]),
        ([2**63, 2**63 + 64], [0, 64]),
    ],
)
def test_tensors_that_overlap_or_lie_past_the_end(root, target, first, second):
    folder = tiny_heads.write_eagle(root / "overlapping", target.model.config)
    header, rest = header_of((folder / "model.safetensors").read_bytes())
    names = [name for name in header if name != "__metadata__"]
    header[names[0]]["data_offsets"], header[names[1]]["data_offsets"] = first, second
    (folder / "model.safetensors").write_bytes(with_header(header, rest))
    assert refused_or(lambda: opened(f"eagle:{folder}", target)) is None


class RunsCode:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "adapter_model.bin", "training_args.bin"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_code_in_a_pickle_is_never_run(root, target, model, name, protocol, tmp_path):
    """Also beside weights that are fine: nothing opens it."""
    canary = tmp_path / "ran"
    folder = copy_of(model, root)
    content = pickle.dumps({"model.embed_tokens.weight": RunsCode(canary)}, protocol=protocol)
    (folder / name).write_bytes(content)
    refused_or(lambda: load_target(str(folder), device="cpu"))
    (folder / "model.safetensors").unlink()
    assert refused_or(lambda: load_target(str(folder), device="cpu")) is None
    for spec in (f"draft:{folder}", f"eagle:{folder}", f"eagle3:{folder}", f"medusa:{folder}", f"mlp:{folder}"):
        refused_or(lambda spec=spec: opened(spec, target))
    torch.save({"model.embed_tokens.weight": RunsCode(canary)}, folder / name)
    assert refused_or(lambda: load_target(str(folder), device="cpu")) is None
    refused_or(lambda: opened(f"draft:{folder}", target))
    assert not canary.exists()


# --- what lies under a name ---


def write_index(folder: Path, shard: Any) -> None:
    """In place of the one file of weights, an index that leads to `shard`."""
    header, _ = header_of((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").unlink()
    names = [name for name in header if name != "__metadata__"]
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "..\\x", 7, None, ["a"]]
)
def test_an_index_does_not_lead_out_of_the_folder(root, model, shard):
    folder = copy_of(model, root)
    shutil.copy(folder / "model.safetensors", root / "secret.safetensors")
    write_index(folder, shard)
    with pytest.raises(SpecprobeError, match="leads outside of the folder"):
        load_target(str(folder), device="cpu")


def test_an_index_inside_of_the_folder_is_followed(root, model):
    folder = copy_of(model, root)
    (folder / "parts").mkdir()
    shutil.copy(folder / "model.safetensors", folder / "parts" / "a.safetensors")
    write_index(folder, "parts/a.safetensors")
    check_folder("target", str(folder))
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(SpecprobeError, match="no index of weights"):
        load_target(str(folder), device="cpu")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "generation_config.json", "chat_template.jinja"]
)
@pytest.mark.parametrize("leads_to", ["/dev/zero", "fifo", "directory", "nowhere", "itself", "/etc/passwd"])
def test_a_name_that_leads_elsewhere(root, target, model, name, leads_to):
    """No pipe is waited for and no endless device read; what is no file of a model is refused by whoever reads it."""
    folder = copy_of(model, root)
    (folder / name).unlink(missing_ok=True)
    match leads_to:
        case "fifo":
            os.mkfifo(folder / name)
        case "directory":
            (folder / name).mkdir()
        case "nowhere":
            (folder / name).symlink_to(folder / "gone")
        case "itself":
            (folder / name).symlink_to(folder / name)
        case _:
            (folder / name).symlink_to(leads_to)
    refused_or(lambda: load_target(str(folder), device="cpu"))
    refused_or(lambda: load_tokenizer(str(folder)))
    refused_or(lambda: shape_of(str(folder)))
    refused_or(lambda: opened(f"draft:{folder}", target))
    refused_or(lambda: opened(f"eagle:{folder}", target))
    if leads_to in ("/dev/zero", "fifo"):
        with pytest.raises(SpecprobeError, match="no regular file"):
            load_target(str(folder), device="cpu")


def test_links_into_a_cache_are_followed(root, model):
    """As the Hub's cache is built."""
    folder, blobs = root / "snapshots" / "rev", root / "blobs"
    blobs.mkdir()
    folder.mkdir(parents=True)
    for path in model.iterdir():
        shutil.copy(path, blobs / path.name)
        (folder / path.name).symlink_to(Path("..") / ".." / "blobs" / path.name)
    assert load_target(str(folder), device="cpu").record.vocab_size == 260


def test_a_text_that_is_too_large_is_not_read(root, model):
    folder = copy_of(model, root)
    with (folder / "tokenizer.json").open("r+b") as file:
        file.truncate(5 << 30)
    with pytest.raises(SpecprobeError, match=r"tokenizer\.json is larger than 512 MiB"):
        load_target(str(folder), device="cpu")


# --- tokenizers ---


@fuzz(60)
@given(
    st.sampled_from(("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")),
    st.data(),
)
def test_bent_tokenizers(root, model, name, data):
    folder = copy_of(model, root)
    path = folder / name
    value = json.loads(path.read_text()) if path.exists() else {"eos_token": "<|end|>"}
    path.write_bytes(data.draw(spoilt(dumped(data.draw(bent([value], most=2))))))
    tokenizer = refused_or(lambda: load_tokenizer(str(folder)))
    if tokenizer is not None:
        prompt = Prompt(
            "a", "f", 1, "messages", messages=(Message("user", "q \ufffd <|end|>"),), answer=Message("assistant", "b")
        )
        try:
            refused_or(lambda: tokenizer.encode_prompt(prompt))
            refused_or(lambda: tokenizer.encode_answer(prompt))
            refused_or(lambda: tokenizer.record)
        except UnrenderableError:
            pass


HOSTILE_TEMPLATES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
    "{{ messages.__class__.__base__ }}",
    "{% for a in range(10**9) %}x{% endfor %}",
    "{{ raise_exception('\x1b[31m') }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{",
    "{% include '/etc/passwd' %}",
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("template", HOSTILE_TEMPLATES, ids=range(len(HOSTILE_TEMPLATES)))
def test_chat_templates_run_in_a_sandbox(root, model, template, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copy_of(model, root)
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = refused_or(lambda: load_tokenizer(str(folder)))
    if tokenizer is not None:
        prompt = Prompt("a", "f", 1, "messages", messages=(Message("user", "q"),))
        with pytest.raises(UnrenderableError):
            tokenizer.encode_prompt(prompt)
    assert not list(tmp_path.iterdir())


# --- the checks themselves ---


def test_real_sizes_pass():
    for layers, experts in ((1, 0), (61, 256), (126, 0), (94, 128), (48, 512)):
        check_sizes("target", "m", {"num_hidden_layers": layers, "n_routed_experts": experts, "vocab_size": 200_000})
    check_sizes("target", "m", {"text_config": {"num_hidden_layers": 32}, "vision_config": {"depth": 27}})


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 1025},
        {"n_layer": 10**18},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"vision_config": {"depth": 10**9}},
        {"num_hidden_layers": 1000, "num_local_experts": 1000},
        {"encoder_layers": 10**6},
    ],
    ids=str,
)
def test_sizes_of_no_model_are_refused(config):
    with pytest.raises(SpecprobeError, match="no model has so many"):
        check_sizes("target", "m\x1b", config)


def test_weights_that_are_too_few_are_refused(root, model):
    check_weights("target", str(model), 10**5)
    with pytest.raises(SpecprobeError, match="do not belong together"):
        check_weights("target", str(model), 10**10)
    check_weights("target", "ORG/NAME", 10**12)
