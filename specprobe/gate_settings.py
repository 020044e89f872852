"""What `gate` is asked: the command line over `specprobe.toml` or `pyproject.toml` of the working directory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specprobe.errors import SpecprobeError
from specprobe.gate import GateSettings
from specprobe.notices import inert
from specprobe.project_defaults import read_table
from specprobe.result_choice import Choice


def parse_share(text: str, option: str) -> float:
    """`5%`, `5 %` or `0.05` -> 0.05."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    if match is None:
        raise SpecprobeError(f"{option} {inert(text)!r}: write a share, such as 5% or 0.05")
    return float(match[1]) / (100 if match[2] else 1)


def gate_settings(given: Mapping[str, Any], folder: Path) -> GateSettings:
    """The settings of the command line (by key of KEYS, None where nothing was said) over those of the project."""
    settings = read_gate_table(folder)
    settings.update({key: value for key, value in given.items() if value is not None})
    choice = Choice(settings.pop("drafter", None), settings.pop("depth", None), settings.pop("temperature", None))
    return GateSettings(choice=choice, **settings)


def read_gate_table(folder: Path) -> dict[str, Any]:
    """`[gate]` of specprobe.toml, else `[tool.specprobe.gate]` of pyproject.toml, else nothing.

    Raises SpecprobeError for a file that is not TOML, a key that is not known, and a value of another kind.
    """
    found = read_table(folder, "gate")
    if found is None:
        return {}
    where, table = found
    return {_known_key(key, where): _value(key, value, where) for key, value in table.items()}


def _known_key(key: str, where: str) -> str:
    known = key.replace("-", "_")
    if known not in KEYS:
        raise SpecprobeError(f"{where}: {inert(key)!r} is not known; there are {', '.join(KEYS)}")
    return known


def _value(key: str, value: Any, where: str) -> Any:
    try:
        return KEYS[key.replace("-", "_")](value)
    except TypeError as error:
        raise SpecprobeError(f"{where} {inert(key)}: {error}") from None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("must be a number")
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("must be a whole number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("must be text")
    return value


def _yes_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("must be true or false")
    return value


def _share(value: Any) -> float:
    return parse_share(value, "max_regression") if isinstance(value, str) else _number(value)


def _path(value: Any) -> Path:
    return Path(_text(value))


KEYS: Mapping[str, Callable[[Any], Any]] = {
    "min_acceptance_length": _number,
    "min_tokens_per_round": _number,
    "min_speedup": _number,
    "max_regression": _share,
    "baseline": _path,
    "recommendation": _path,
    "drafter": _text,
    "depth": _whole,
    "temperature": _number,
    "allow_undecided": _yes_no,
    "force": _yes_no,
}
