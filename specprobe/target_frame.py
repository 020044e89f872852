"""What is left of a target without its layers: config, embeddings, final norm and head, from its checkpoint.

For heads that draft for a target that runs elsewhere: they share these parts, and its states come from where it runs.
Imports torch and transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from specprobe.causal_lm import LoadOptions, choose_device, choose_precision, loading_errors, move
from specprobe.checkpoint import Checkpoint, open_checkpoint
from specprobe.errors import SpecprobeError
from specprobe.model_folder import check_config
from specprobe.notices import inert
from specprobe.quiet import quiet_transformers
from specprobe.target import Target, target_record
from specprobe.tokens import Tokenizer

INDEX_NAME = "model.safetensors.index.json"
ROLE = "--target-checkpoint"


def load_frame(name: str, load: LoadOptions, tokenizer: Tokenizer) -> Target:
    """A target that cannot write, from a folder or Hub id; of the Hub's weights only the files that hold its parts.

    Raises SpecprobeError for what is no checkpoint of a causal language model, or holds other weights.
    """
    place = choose_device(load.device)
    with quiet_transformers(), loading_errors(ROLE, name):
        model, stored = _empty(name, load)
        tied = _tied(model)
        checkpoint = open_checkpoint(str(_folder(name, {tied.get(part, part) for part in model.state_dict()})), ROLE)
        rename = _renamed(checkpoint, tied)
        for part in model.state_dict():
            if rename(part) not in checkpoint:
                raise SpecprobeError(
                    f"{ROLE} {name}: its weights have no {inert(part, 80)}; name the checkpoint of the served model, "
                    "with config.json and safetensors files"
                )
        checkpoint.check_module(model, rename)
        precision = choose_precision(load.dtype, place)
        checkpoint.fill_module(model, rename, place, stored if precision == "auto" else precision)
        model.tie_weights()
        return Target(move(ROLE, name, model, place), tokenizer, target_record(model, name, stored, tokenizer))


def _empty(name: str, load: LoadOptions) -> tuple[Any, torch.dtype]:
    """The model without layers and values, and the precision that its config names."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from specprobe.mimo import register_mimo

    register_mimo()
    check_config(ROLE, name)
    config = AutoConfig.from_pretrained(name, trust_remote_code=load.trust_remote_code)
    stored = getattr(config, "dtype", None) or torch.float32
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=load.trust_remote_code)
    decoder = model.get_decoder()
    decoder.layers = torch.nn.ModuleList()
    # Positions are the layers' business, and its buffers have no values.
    if hasattr(decoder, "rotary_emb"):
        del decoder.rotary_emb
    return model, stored


def _tied(model: Any) -> Mapping[str, str]:
    """Weights that are others' under a second name."""
    keys = getattr(model, "_tied_weights_keys", None)
    is_tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    return keys if is_tied and isinstance(keys, Mapping) else {}


def _renamed(checkpoint: Checkpoint, tied: Mapping[str, str]) -> Callable[[str], str]:
    def rename(name: str) -> str:
        return name if name in checkpoint else tied.get(name, name)

    return rename


def _folder(name: str, parts: set[str]) -> Path:
    """The checkpoint's folder; from the Hub come its settings and the files that hold `parts`."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(name, allow_patterns=["*.json"]))
    files = ["*.safetensors"]
    if (folder / INDEX_NAME).exists():
        places = json.loads((folder / INDEX_NAME).read_bytes())["weight_map"]
        files = sorted({places[part] for part in parts if part in places})
    return Path(snapshot_download(name, allow_patterns=["*.json", *files]))
