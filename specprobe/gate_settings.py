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
from specprobe.toml_values import as_number, as_text, as_whole, as_yes_no


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


def _share(value: Any) -> float:
    return parse_share(value, "max_regression") if isinstance(value, str) else as_number(value)


def _path(value: Any) -> Path:
    return Path(as_text(value))


KEYS: Mapping[str, Callable[[Any], Any]] = {
    "min_acceptance_length": as_number,
    "min_tokens_per_round": as_number,
    "min_speedup": as_number,
    "max_regression": _share,
    "baseline": _path,
    "recommendation": _path,
    "drafter": as_text,
    "depth": as_whole,
    "temperature": as_number,
    "allow_undecided": as_yes_no,
    "force": as_yes_no,
}
