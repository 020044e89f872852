"""The shape of a model as a user names it: a folder, a name of the table, or a configuration on the Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specprobe.checkpoint import LARGEST_CONFIG_BYTES
from specprobe.embedded import EMBEDDED_NAME, HUB_NAME
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.quiet import quiet_hub
from specprobe.shapes import Shape, find_shape, shape_from_config


def shape_of(name: str) -> Shape:
    """From the config.json of a folder (or the file itself), else from the table of shapes, else from the Hub.

    Raises SpecprobeError where none of them knows it.
    """
    if not name.strip():
        raise SpecprobeError("model: its name is empty; name a folder with a config.json, or a model of the table")
    if name == EMBEDDED_NAME:
        return find_shape(HUB_NAME)
    path = Path(name)
    try:
        path = path.expanduser()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError):
        is_folder = False
    if is_folder or path.suffix == ".json":
        return _from_file(path / "config.json" if is_folder else path, name)
    try:
        return find_shape(name)
    except SpecprobeError:
        return _from_hub(name)


def _from_file(path: Path, name: str) -> Shape:
    try:
        if path.exists() and not path.is_file():
            raise ValueError("no file")
        if path.is_file() and path.stat().st_size > LARGEST_CONFIG_BYTES:
            raise ValueError("too large")
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error.strerror).lower() if isinstance(error, OSError) else "not JSON"
        raise SpecprobeError(f"{path}: {reason}; name a folder with a model's config.json") from None
    if not isinstance(config, dict):
        raise SpecprobeError(f"{path}: not a JSON object; name a folder with a model's config.json")
    return shape_from_config(_text_config(config), inert(name, 200))


def _from_hub(name: str) -> Shape:
    unknown = SpecprobeError(
        f"model {inert(name, 80)!r}: neither a folder nor in the table of shapes, and the Hub does not give its "
        "configuration; name a folder with its config.json"
    )
    # The Hub's names have exactly one slash; asking it for a mistyped folder would only take time.
    if name.count("/") != 1 or name[0] in "./~":
        raise unknown
    from huggingface_hub import hf_hub_download

    try:
        with quiet_hub():
            path = hf_hub_download(name, "config.json")
    except Exception:  # no such repository, no network, no permission: all mean the same here
        raise unknown from None
    return _from_file(Path(path), name)


def _text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part on the language model, with what the whole says of quantisation and of a draft vocabulary."""
    nested = config.get("text_config") or config.get("transformer_layer_config") or config
    shared = ("quantization_config", "tie_word_embeddings", "draft_vocab_size")
    return {**{key: config[key] for key in shared if key in config}, **(nested if isinstance(nested, dict) else {})}
