"""What hostile files are made of: odd values, odd values inside of good ones, and good bytes bent.

`FUZZ_EXAMPLES=2000 pytest tests/fuzz` looks further than the few dozen examples of an ordinary run, at other ones each
time.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import zstandard
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from specprobe.errors import SpecprobeError

ODD = (
    *(None, True, False, -1, 0, 1, 3, 1.5, -0.0, 255, 10**18, 10**30, -(10**18), 2**31, 2**63, 1e308, 5e-324),
    *(float("nan"), float("inf"), -float("inf")),
    *(
        "",
        " ",
        "x",
        "7",
        "-1",
        "1e999",
        "nan",
        "\ud800",
        "\x00\x1b[31m<b>",
        "[bold]x",
        "../../x",
        "/etc/passwd",
        "9" * 400,
    ),
    *([], {}, [[]], [{}], [None], {"": {}}, [1, "a", None], {"a": {"a": {"a": []}}}),
)
FURTHER = os.environ.get("FUZZ_EXAMPLES")


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Settings of one test; its examples are the same each time, unless more are asked for."""
    return settings(
        max_examples=int(FURTHER) if FURTHER else examples,
        derandomize=FURTHER is None,
        # Of one example: a hang, on a machine that may be busy.
        deadline=timedelta(seconds=20),
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


def one_line_or(read: Callable[[], Any]) -> Any:
    """What is read; None where it was refused, which is one line."""
    try:
        return read()
    except SpecprobeError as error:
        message = str(error)
    assert len(message.splitlines()) == 1, message
    return None


def deep(levels: int) -> Any:
    """Lists and objects in turn."""
    value: Any = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"messages": value}
    return value


# Copies, since what is drawn may be changed.
_ODD = st.sampled_from(ODD).map(copy.deepcopy)
ODD_VALUES = st.one_of(
    _ODD,
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    # Both sides of the depth that is read.
    st.integers(1, 240).map(deep),
    st.lists(_ODD, max_size=4),
    st.dictionaries(st.text(max_size=4), _ODD, max_size=3),
)


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside of a JSON value, from the outside in."""
    left: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while left:
        path, inside = left.pop(0)
        items = inside.items() if isinstance(inside, dict) else enumerate(inside) if isinstance(inside, list) else ()
        for key, item in items:
            yield (*path, key)
            left.append(((*path, key), item))


@st.composite
def bent(draw: Any, samples: Sequence[Any], most: int = 3) -> Any:
    """One of the samples with some of its values replaced, removed, doubled, wrapped or moved."""
    value = copy.deepcopy(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, most))):
        known = list(places(value))
        if not known:
            return draw(ODD_VALUES)
        *above, key = draw(st.sampled_from(known))
        inside = value
        for step in above:
            inside = inside[step]
        match draw(st.sampled_from(("replace", "replace", "replace", "remove", "wrap", "text", "move", "rename"))):
            case "replace":
                inside[key] = draw(ODD_VALUES)
            case "remove":
                del inside[key]
            case "wrap":
                inside[key] = draw(st.sampled_from(([inside[key]], [inside[key]] * 3, {"content": inside[key]})))
            case "text":
                inside[key] = json.dumps(inside[key])
            case "move":
                other = draw(st.sampled_from(known))
                found = value
                for step in other:
                    found = found[step] if _has(found, step) else None
                inside[key] = copy.deepcopy(found)
            case _ if isinstance(inside, dict):
                inside[draw(st.text(max_size=6))] = inside.pop(key)
    return value


def _has(value: Any, key: Any) -> bool:
    return (isinstance(value, dict) and key in value) or (
        isinstance(value, list) and isinstance(key, int) and key < len(value)
    )


def dumped(value: Any, *, is_ascii: bool = True) -> bytes:
    """JSON with what Python would also write: NaN, and lone surrogates as bytes that are no UTF-8."""
    return json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")


@st.composite
def spoilt(draw: Any, content: bytes) -> bytes:
    """Bytes that were cut, doubled, changed, encoded otherwise or compressed, or left as they are."""
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, max(len(content), 1)))
        match draw(
            st.sampled_from(("cut", "insert", "change", "double", "key", "mark", "latin", "wide", "gzip", "zstd"))
        ):
            case "cut":
                content = content[:at]
            case "insert":
                content = content[:at] + draw(st.binary(max_size=6)) + content[at:]
            case "change":
                content = content[:at] + draw(st.binary(min_size=1, max_size=1)) + content[at + 1 :]
            case "double":
                content = content[:at] + content[at // 2 :]
            case "key":
                content = content.replace(b"{", b'{"id": 7, "messages": 7, ', draw(st.integers(1, 3)))
            case "mark":
                content = b"\xef\xbb\xbf" + content
            case "latin":
                content = content.decode("utf-8", "replace").encode("latin-1", "replace")
            case "wide":
                content = content.decode("utf-8", "replace").encode(
                    draw(st.sampled_from(("utf-16", "utf-16-be", "utf-32")))
                )
            case "gzip":
                content = gzip.compress(content, 1)
            case "zstd":
                content = zstandard.compress(content)
    return content
