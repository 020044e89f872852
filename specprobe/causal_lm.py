"""Loading a causal language model of transformers: on which device, in which precision, and with all its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprobe.errors import SpecprobeError
from specprobe.model_folder import check_config, check_weights
from specprobe.notices import inert
from specprobe.tokens import first_line, unreachable_error

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What the user says about how models are loaded, the target and drafters alike.

    `device`: "cuda", "cuda:1", "mps" or "cpu", None for the best there is. `dtype`: one of DTYPES, None for float32 on
    the CPU (bfloat16 there flips near-ties) and the checkpoint's own elsewhere. `trust_remote_code`: run Python code
    that comes with a checkpoint.
    """

    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False


def choose_device(name: str | None) -> torch.device:
    """The device of this name, or the best there is; raises SpecprobeError where there is none of that name."""
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name is None:
        return torch.device(next(kind for kind, usable in available.items() if usable))
    try:
        place = torch.device(name)
    except RuntimeError:
        place = None
    usable = [kind for kind, is_there in available.items() if is_there]
    if place is None or place.type not in usable:
        raise SpecprobeError(f"--device {name}: not available on this machine; use {' or '.join(usable)}")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise SpecprobeError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA device(s)")
    return place


def choose_precision(name: str | None, place: torch.device) -> Any:
    """A torch dtype, or "auto" for the checkpoint's own."""
    import torch

    if name is None:
        return torch.float32 if place.type == "cpu" else "auto"
    if name not in DTYPES:
        raise SpecprobeError(f"--dtype {name}: unknown; use {', '.join(DTYPES)}")
    return getattr(torch, name)


def load_causal_lm(role: str, location: str, place: torch.device, options: LoadOptions) -> tuple[Any, Any]:
    """A model in evaluation mode on its device, and the dtype its checkpoint is stored in (None where it does not say).

    `role` ("target", "drafter") is for messages. Raises SpecprobeError for what cannot be reached, loaded or held.
    """
    with loading_errors(role, location):
        model, stored = _from_pretrained(role, location, choose_precision(options.dtype, place), options)
    return move(role, location, model, place), stored


@contextmanager
def loading_errors(role: str, location: str) -> Iterator[None]:
    """Turn whatever loading a checkpoint raises into one line that says what to do."""
    from safetensors import SafetensorError

    try:
        yield
    except SpecprobeError:
        raise
    except OSError as error:
        raise unreachable_error(role, location, error) from error
    except SafetensorError as error:
        raise SpecprobeError(
            f"{role} {location}: its weights are damaged ({first_line(error)}); download them again"
        ) from error
    except Exception as error:  # a damaged folder makes transformers raise anything
        if "trust_remote_code" in str(error):
            raise SpecprobeError(
                f"{role} {location}: comes with Python code of its own, which is not run; --trust-remote-code runs it"
            ) from error
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise SpecprobeError(f"{role} {location}: cannot be loaded ({reason}); name a causal language model") from error


def move(role: str, location: str, model: Any, place: torch.device) -> Any:
    """The model on its device, in evaluation mode; raises SpecprobeError where it does not fit."""
    import torch

    try:
        return model.to(place).eval()
    except torch.OutOfMemoryError as error:
        raise SpecprobeError(
            f"{role} {location}: does not fit on {place}; try --dtype bfloat16 or --device cpu"
        ) from error


def _from_pretrained(role: str, location: str, precision: Any, options: LoadOptions) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM

    from specprobe.mimo import register_mimo

    register_mimo()
    check_config(role, location)
    config = AutoConfig.from_pretrained(location, trust_remote_code=options.trust_remote_code)
    if Path(location).is_dir():
        check_weights(role, location, _parameters(config, options))
    # Read first: loading overwrites it with the dtype asked for.
    stored = getattr(config, "dtype", None)
    model, found = AutoModelForCausalLM.from_pretrained(
        location,
        dtype=precision,
        trust_remote_code=options.trust_remote_code,
        weights_only=True,
        output_loading_info=True,
    )
    _check_complete(role, location, found)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model, stored


def _parameters(config: Any, options: LoadOptions) -> int:
    """How many the model that `config` describes has; nothing is computed or held for them."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=options.trust_remote_code)
    return sum(parameter.numel() for parameter in model.parameters())


def _check_complete(role: str, location: str, found: Mapping[str, Any]) -> None:
    """transformers fills weights that a checkpoint lacks with random numbers and goes on.

    Weights that are too many are another matter: checkpoints carry heads and towers that a causal model leaves out.
    """
    for what in ("missing", "mismatched"):
        names = sorted(str(name) for name in found.get(f"{what}_keys", ()))
        if names:
            raise SpecprobeError(
                f"{role} {location}: {len(names)} {what} weights, such as {inert(names[0], 80)}; "
                "they do not belong to this config.json: get the checkpoint again"
            )
