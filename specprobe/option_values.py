"""What a word of the command line says, where it holds several values. All raise SpecprobeError, naming the option."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from specprobe.errors import SpecprobeError
from specprobe.notices import inert

Number = TypeVar("Number", int, float)
# What may follow --ray: a word, or a host and port.
RAY_ADDRESS = re.compile(r"local|auto|(ray://)?(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}")
# What was meant as one, whether or not it is: a scheme, or something that ends in a port.
_MEANT_AS_ADDRESS = re.compile(r"\w+://.*|\S+:\d+")


def temperatures(text: str | None) -> tuple[float, ...] | Literal["log"] | None:
    """Numbers, or the word for the log's own."""
    if text is None or text.strip() == "log":
        return None if text is None else "log"
    return numbers(text, "--temperature", float)


def numbers(text: str, option: str, convert: type[Number]) -> tuple[Number, ...]:
    """A list in one word, such as 1,8,64; each once."""
    shown = inert(text, 60)
    try:
        values = tuple(convert(part) for part in text.split(",") if part.strip())
    except ValueError:
        further = ", or the word log" if option == "--temperature" else ""
        raise SpecprobeError(f"{option} {shown!r}: not a comma-separated list of numbers{further}") from None
    if len(set(values)) < len(values):
        raise SpecprobeError(f"{option} {shown!r}: a number is given twice; name each once")
    return values


def by_depth(pairs: Sequence[str], option: str) -> dict[int, float]:
    """Words such as 2=0.454."""
    values: dict[int, float] = {}
    for pair in pairs:
        depth, _, value = pair.partition("=")
        try:
            values[int(depth)] = float(value)
        except ValueError:
            raise SpecprobeError(f"{option} {pair!r}: write DEPTH=NUMBER, for example 2=0.454") from None
    if len(values) < len(pairs):
        raise SpecprobeError(f"{option}: a depth is given twice")
    return values


def ray_address_added(arguments: Sequence[str]) -> list[str]:
    """The same words, with `local` after a --ray that has no address of its own."""
    words = list(arguments)
    for number, word in enumerate(words):
        if word == "--":
            break
        following = (*words[number + 1 :], "")[0]
        if word == "--ray" and not (RAY_ADDRESS.fullmatch(following) or _MEANT_AS_ADDRESS.fullmatch(following)):
            words[number] = "--ray=local"
    return words


def json_object(text: str | None, option: str) -> dict[str, Any]:
    """An object; empty of no text."""
    if text is None:
        return {}
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise SpecprobeError(f"{option}: not JSON; write for example '{{\"enable_thinking\": false}}'") from None
    if not isinstance(value, dict):
        raise SpecprobeError(f"{option}: must be a JSON object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
