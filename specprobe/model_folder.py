"""A model's folder, looked at before any library opens it: what is in it may come from anybody.

Libraries build the model that config.json describes before they look for its weights, read whatever lies under a name,
and go wherever an index of weights leads. So here: files are regular ones of sensible size, an index stays in the
folder, and the model is one that the weights can be of. Symbolic links are followed, since the Hub's cache consists of
them.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from specprobe.errors import SpecprobeError
from specprobe.notices import inert

CONFIG_NAME = "config.json"

MOST_LAYERS = 1024
"""Far above any model's."""

MOST_EXPERTS = 2**18
"""Of all layers together."""

LARGEST_TEXT_BYTES = 512 * 2**20
"""Of a file that is read as a whole: vocabularies of tokenizers are the largest, with some ten MB."""

FEWEST_BITS = 0.5
"""Bits of a weight as stored: below those of any quantisation, so that no checkpoint is taken for a wrong one."""

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
READ_AS_A_WHOLE = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
_LAYERS = re.compile(r"(\w*_)?(layers?|blocks?|depth)")
_EXPERTS = re.compile(r"(\w*_)?experts?")


def check_folder(role: str, location: str) -> None:
    """Raise SpecprobeError, naming the file, for what no model's folder has; for a name of the Hub nothing is done.

    `role` ("target", "drafter", "tokenizer") is for messages.
    """
    folder = Path(location)
    try:
        files = [(path, path.stat()) for path in folder.iterdir() if path.exists()] if folder.is_dir() else []
    except (OSError, ValueError):
        # Whoever opens it says why it cannot be opened.
        return
    where = f"{role} {inert(location, 200)}"
    for path, found in files:
        name = inert(path.name, 100)
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise SpecprobeError(f"{where}: {name} is no regular file; get the checkpoint again")
        if path.suffix in READ_AS_A_WHOLE and found.st_size > LARGEST_TEXT_BYTES:
            raise SpecprobeError(f"{where}: {name} is larger than {LARGEST_TEXT_BYTES >> 20} MiB; it is no model's")
        if path.name.endswith(".index.json"):
            _check_index(where, path)


def check_sizes(role: str, location: str, config: Mapping[str, Any]) -> None:
    """Raise SpecprobeError where a config.json asks for more layers or experts than any model has.

    To make them would take hours or all memory before anybody looks at the weights.
    """
    layers, experts = 1, 1
    for key, value in _numbers(config):
        if _LAYERS.fullmatch(key):
            layers = max(layers, value)
        elif _EXPERTS.fullmatch(key):
            experts = max(experts, value)
    if layers > MOST_LAYERS or layers * experts > MOST_EXPERTS:
        told = f"{_said(layers)} layers" + (f" of {_said(experts)} experts" if experts > 1 else "")
        raise SpecprobeError(f"{role} {inert(location, 200)}: config.json asks for {told}; no model has so many")


def check_config(role: str, location: str) -> None:
    """Both for a folder, the sizes for a name of the Hub, before transformers makes anything of them."""
    from transformers.utils.hub import cached_file

    check_folder(role, location)
    path = cached_file(
        location, CONFIG_NAME,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )  # fmt: skip
    try:
        config = json.loads(Path(path).read_bytes()) if path else None
    except (OSError, ValueError, RecursionError):
        # Whoever needs it says that it cannot be read.
        return
    check_sizes(role, location, config if isinstance(config, dict) else {})


def check_weights(role: str, location: str, parameters: int) -> None:
    """Raise SpecprobeError where the files of a folder cannot hold so many parameters: the others would be made up.

    For a name of the Hub nothing is done.
    """
    folder = Path(location)
    if not folder.is_dir():
        return
    stored = sum(path.stat().st_size for path in folder.rglob("*") if path.suffix in WEIGHTS and path.is_file())
    if parameters * FEWEST_BITS > 8 * stored:
        raise SpecprobeError(
            f"{role} {inert(location, 200)}: config.json describes {parameters:,} parameters, and the weights are "
            f"{stored:,} bytes; they do not belong together: get the checkpoint again"
        )


def _check_index(where: str, path: Path) -> None:
    """An index of weights names the file of each tensor, and libraries go there."""
    name = inert(path.name, 100)
    try:
        shards = json.loads(path.read_bytes())["weight_map"].values()
        outside = [str(shard) for shard in shards if not _stays(shard)]
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise SpecprobeError(f"{where}: {name} is no index of weights; get the checkpoint again") from None
    if outside:
        raise SpecprobeError(f"{where}: {name} leads outside of the folder ({inert(outside[0], 80)}); it is not read")


def _stays(shard: Any) -> bool:
    if not isinstance(shard, str):
        return False
    path = PurePosixPath(shard.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and not os.path.splitdrive(shard)[0]


def _numbers(value: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Whole numbers with their keys, down to the nested configurations of other towers."""
    if isinstance(value, Mapping) and depth < 4:
        for key, item in value.items():
            if isinstance(item, int) and not isinstance(item, bool):
                yield str(key), item
            else:
                yield from _numbers(item, depth + 1)


def _said(number: int) -> str:
    return f"{number:,}" if number < 10**12 else "over 10^12"
