"""A drafter's checkpoint: its config.json and its tensors by name, read without running anything that is in it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprobe.errors import SpecprobeError
from specprobe.model_folder import CONFIG_NAME, MOST_LAYERS, check_folder, check_sizes
from specprobe.notices import inert
from specprobe.quiet import quiet_hub

if TYPE_CHECKING:
    import torch

# Adapters and optimiser states beside the weights are not the weights.
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
LARGEST_CONFIG_BYTES = 16 * 2**20


class Section:
    """Values of a config.json, read with their kind: a wrong one is the user's to mend, in one line."""

    def __init__(self, owner: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self._owner, self.values, self._prefix = owner, values, prefix

    def section(self, key: str) -> Section:
        """An object below this one; an empty one where the key is missing."""
        values = self.values.get(key)
        if not isinstance(values, Mapping | None):
            raise self._wrong(key, "is no object")
        return Section(self._owner, values or {}, f"{self._prefix}{key}.")

    def has(self, key: str) -> bool:
        """Whether the key is there, with a value."""
        return self.values.get(key) is not None

    def whole(self, key: str, default: int, least: int = 1, most: int = 2**31) -> int:
        """A whole number within bounds."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(key, f"is no whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(key, "is no number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if not isinstance(value, bool | None):
            raise self._wrong(key, "is neither true nor false")
        return default if value is None else value

    def layers(self, key: str) -> list[int] | None:
        """A list of layer numbers; None where there is none."""
        values = self.values.get(key)
        if values is None:
            return None
        is_list = isinstance(values, list) and values and len(values) <= MOST_LAYERS
        if not is_list or not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            raise self._wrong(key, "is no list of layer numbers")
        return list(values)

    def _wrong(self, key: str, what: str) -> SpecprobeError:
        return SpecprobeError(f"drafter {self._owner}: {self._prefix}{key} in {CONFIG_NAME} {what}")


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a config and weights. `name`: what the user called it, for messages and records; `role`: what it is
    called in messages.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    role: str = "drafter"
    _loaded: dict[str, Mapping[str, torch.Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def _files(self) -> dict[str, Path]:
        """Which file holds a tensor, by the tensor's name. Safetensors where there are any, else torch's own files."""
        for pattern in _WEIGHTS:
            paths = sorted(self.folder.glob(pattern))
            if paths:
                return {name: path for path in paths for name in self._names(path)}
        raise SpecprobeError(
            f"{self.role} {self.name}: no weights in {inert(str(self.folder), 200)}; a safetensors file is needed "
            "(or one that torch.load reads with weights_only)"
        )

    def _names(self, path: Path) -> Iterable[str]:
        if path.suffix != ".safetensors":
            return list(self._torch_file(path))
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                return list(file.keys())
        except (SafetensorError, OSError, ValueError) as error:
            raise self._damaged(path, error) from error

    @property
    def settings(self) -> Section:
        """The config, read by kind."""
        return Section(self.name, self.config)

    def rows(self, name: str) -> int:
        """The first dimension of a tensor."""
        if name not in self:
            raise self.missing(name)
        shape = self.shape(name)
        if not shape:
            raise SpecprobeError(f"{self.role} {self.name}: tensor {inert(name, 200)} is a single number, not a matrix")
        return shape[0]

    def __contains__(self, name: str) -> bool:
        return name in self._files

    @property
    def names(self) -> list[str]:
        """Of all tensors."""
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, without reading its values."""
        path = self._files[name]
        if path.suffix != ".safetensors":
            return tuple(self._torch_file(path)[name].shape)
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            return tuple(file.get_slice(name).get_shape())

    def tensor(self, name: str) -> torch.Tensor:
        """The values of a tensor, on the CPU, as stored."""
        if name not in self:
            raise self.missing(name)
        path = self._files[name]
        if path.suffix != ".safetensors":
            return self._torch_file(path)[name]
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError, ValueError) as error:
            raise self._damaged(path, error) from error

    def missing(self, name: str, needed: Iterable[int] | None = None) -> SpecprobeError:
        """The error for a tensor that is not there."""
        shape = f" (shape needed {list(needed)})" if needed is not None else ""
        return SpecprobeError(
            f"{self.role} {self.name}: tensor {inert(name, 200)} is missing{shape}; "
            "is this checkpoint of the method that --drafter names?"
        )

    def check_layers(self, fields: Mapping[str, Any]) -> None:
        """Raise for a number of layers that the weights cannot be of: making them would never end."""
        layers = fields.get("num_hidden_layers", 1)
        if type(layers) is not int or not 1 <= layers <= len(self.names):
            raise SpecprobeError(
                f"{self.role} {self.name}: {CONFIG_NAME} says {inert(str(layers))} layers, the weights are "
                f"{len(self.names)} tensors"
            )

    def check_shape(self, name: str, needed: Iterable[int]) -> None:
        """Raise SpecprobeError unless the tensor is there and has this shape."""
        needed = list(needed)
        if name not in self:
            raise self.missing(name, needed)
        found = list(self.shape(name))
        if found != needed:
            raise SpecprobeError(
                f"{self.role} {self.name}: tensor {inert(name, 200)} has shape {found}, shape needed {needed}; "
                "it was trained for another target, or its config.json is another checkpoint's"
            )
        self._check_precision(name)

    def _check_precision(self, name: str) -> None:
        """Raise for a tensor stored in 8 bits or fewer: its scales are kept elsewhere, by many conventions."""
        path = self._files[name]
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, "pt") as file:
                kind = file.get_slice(name).get_dtype()
            is_packed = kind.startswith(("F8", "F4", "U8", "I8"))
        else:
            stored = self._torch_file(path)[name].dtype
            kind, is_packed = str(stored).removeprefix("torch."), stored.itemsize < 2
        if is_packed:
            raise SpecprobeError(
                f"{self.role} {self.name}: tensor {inert(name, 200)} is quantised ({kind}); "
                "get the checkpoint in bfloat16, float16 or float32"
            )

    def check_module(self, module: torch.nn.Module, rename: Callable[[str], str]) -> None:
        """Raise unless the checkpoint holds every weight of `module`; `rename`: its name there to its name here."""
        for name, weight in module.state_dict().items():
            for part, shape in _stored_parts(rename(name), weight.shape, self):
                self.check_shape(part, shape)

    def fill_module(
        self, module: torch.nn.Module, rename: Callable[[str], str], device: torch.device, dtype: torch.dtype
    ) -> None:
        """Load every weight of `module`, which may be on the meta device, in this precision."""
        state = {}
        for name, weight in module.state_dict().items():
            parts = [self.tensor(part) for part, _ in _stored_parts(rename(name), weight.shape, self)]
            whole = parts[0] if len(parts) == 1 else _join_experts(parts, weight.shape)
            # Routing adds this to scores that it compares: models keep it in float32 whatever they compute in.
            keeps = not whole.is_floating_point() or name.endswith("e_score_correction_bias")
            state[name] = whole.to(device, None if keeps else dtype)
        module.load_state_dict(state, assign=True)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        module.eval()

    def _torch_file(self, path: Path) -> Mapping[str, torch.Tensor]:
        import torch

        if path.name not in self._loaded:
            try:
                content = torch.load(path, map_location="cpu", weights_only=True)
            except Exception as error:  # torch raises anything for a damaged file
                raise self._damaged(path, error) from error
            if not isinstance(content, dict):
                raise self._damaged(path, TypeError("not a table of tensors"))
            self._loaded[path.name] = {str(k): v for k, v in content.items() if isinstance(v, torch.Tensor)}
        return self._loaded[path.name]

    def _damaged(self, path: Path, error: Exception) -> SpecprobeError:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return SpecprobeError(
            f"{self.role} {self.name}: {inert(path.name, 100)} cannot be read as plain tensors ({inert(reason, 160)}); "
            "code in weight files is never run: get a safetensors file, or download it again"
        )


def open_checkpoint(name: str, role: str = "drafter") -> Checkpoint:
    """The checkpoint in a folder or of a Hub id (downloaded to the Hub's cache). Raises SpecprobeError."""
    try:
        folder = Path(name).expanduser()
        is_here = folder.is_dir()
    except (OSError, RuntimeError, ValueError):
        # No name of a file on this system: then it is one of the Hub's, or nothing.
        is_here = False
    if not is_here:
        folder = _download(name, role)
    check_folder(role, str(folder))
    path = folder / CONFIG_NAME
    try:
        if path.stat().st_size > LARGEST_CONFIG_BYTES:
            raise ValueError("too large")
        config = json.loads(path.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("not an object")
    except FileNotFoundError:
        raise SpecprobeError(f"{role} {name}: no {CONFIG_NAME} in the folder; name the checkpoint's folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise SpecprobeError(f"{role} {name}: {CONFIG_NAME} cannot be read ({inert(str(error), 160)})") from None
    check_sizes(role, name, config)
    return Checkpoint(name, folder, config, role)


def _download(name: str, role: str) -> Path:
    from huggingface_hub import snapshot_download

    from specprobe.tokens import unreachable_error

    try:
        with quiet_hub():
            folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
            if not any(folder.glob("*.safetensors")):
                folder = Path(snapshot_download(name, allow_patterns=["*.json", *_WEIGHTS]))
        return folder
    except Exception as error:  # a name that is no repository, no network, no permission: all mean the same here
        raise unreachable_error(role, name, error) from error


def _stored_parts(name: str, shape: torch.Size, checkpoint: Checkpoint) -> list[tuple[str, list[int]]]:
    """The tensors that hold one weight: itself, or those of each expert where transformers keeps all in one.

    `mlp.experts.gate_up_proj` [E, 2I, H] is `mlp.experts.{e}.gate_proj.weight` [I, H] and `up_proj` in public
    checkpoints, `mlp.experts.down_proj` [E, H, I] is `mlp.experts.{e}.down_proj.weight`.
    """
    prefix, dot, last = name.rpartition(".experts.")
    if not dot or name in checkpoint:
        return [(name, list(shape))]
    experts, rows, columns = shape
    if last == "gate_up_proj":
        return [
            (f"{prefix}.experts.{expert}.{half}_proj.weight", [rows // 2, columns])
            for expert in range(experts)
            for half in ("gate", "up")
        ]
    return [(f"{prefix}.experts.{expert}.{last}.weight", [rows, columns]) for expert in range(experts)]


def _join_experts(parts: list[torch.Tensor], shape: torch.Size) -> torch.Tensor:
    """[E, rows, columns] from the experts' matrices in order, gate above up."""
    import torch

    return torch.cat(parts).reshape(shape)
