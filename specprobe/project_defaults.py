"""Defaults of a project: what `specprobe.toml`, or `[tool.specprobe]` of `pyproject.toml`, says for each command.

`[analyze]` holds what `analyze` takes, under the names of its long options. The command line wins. `[gate]` has a
reader of its own (`gate_settings`) with the same rules.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.toml_values import as_number, as_text, as_whole, as_yes_no

OWN_FILE = "specprobe.toml"
PROJECT_FILE = "pyproject.toml"
LARGEST_BYTES = 16 * 2**20
# These print what is there; a setting of a project has nothing to change about it.
WITHOUT_DEFAULTS = frozenset({"doctor", "schema", "clean"})
# Files to read. What is written, and what runs code, is said by whoever types the command: files of settings come with
# repositories of other people.
PATHS_TO_READ = frozenset({"cost", "trace"})
# Prompts go to a cluster, and what comes back can run code.
COMMAND_LINE_ONLY = frozenset({"ray"})
# One or more numbers, which the command line takes as text.
LISTS = frozenset({"temperature", "concurrency", "context"})
# By command, options of which one excludes those beside it: if the command line has one, the file's others are no
# longer meant.
ALTERNATIVES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "analyze": (("target", "tokenizer"), ("drafter", "ladder")),
    "recommend": (
        ("cost", "gpu", "device"),
        *(("cost", other) for other in ("tp", "target", "dtype")),
        ("device", "tp"),
        ("concurrency", "rate", "trace"),
    ),
}


@dataclass(frozen=True, slots=True)
class Option:
    """An option as the command line declares it: its long name, its parameter, its type.

    `can_be_unsaid`: a flag that has a no; `is_repeated`: may be given several times.
    """

    flag: str
    parameter: str
    kind: type
    can_be_unsaid: bool = False
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class ProjectDefaults:
    """What a file says for one command: values by the flag's name, and where they stand."""

    where: str
    values: Mapping[str, Any]


def read_table(folder: Path, command: str) -> tuple[str, Mapping[str, Any]] | None:
    """The table of a command and where it stands: of specprobe.toml, else of pyproject.toml, else None.

    Raises SpecprobeError for a file that is not TOML, and where the table is none.
    """
    for name, above in ((OWN_FILE, ()), (PROJECT_FILE, ("tool", "specprobe"))):
        tables = _below(_read_toml(folder / name), above)
        table = tables.get(command) if isinstance(tables, dict) else None
        if table is not None:
            where = f"{name} [{'.'.join((*above, command))}]"
            if not isinstance(table, dict):
                raise SpecprobeError(f"{where}: is no table; write its keys below that line")
            return where, table
    return None


def check_sections(folder: Path, commands: Collection[str]) -> None:
    """Refuse a table, or a key above all tables, that is for no command: nothing would ever read it."""
    known = [name for name in commands if name not in WITHOUT_DEFAULTS]
    for name, above in ((OWN_FILE, ()), (PROJECT_FILE, ("tool", "specprobe"))):
        tables = _below(_read_toml(folder / name), above)
        if tables is None:
            continue
        if not isinstance(tables, dict):
            raise SpecprobeError(f"{name} [{'.'.join(above)}]: is no table; write its keys below that line")
        for section in tables:
            if section not in known:
                shown = inert(".".join((*above, section)))
                raise SpecprobeError(f"{name} [{shown}]: is no command with settings; there are {', '.join(known)}")


def read_defaults(folder: Path, command: str, options: Collection[Option]) -> ProjectDefaults | None:
    """What the project says for a command, checked against its options; None where it says nothing.

    Raises SpecprobeError, with file and key, for a key that is no option, one that a file may not set, and a value of
    another kind.
    """
    found = read_table(folder, command)
    if found is None:
        return None
    where, table = found
    allowed = {option.flag: option for option in options if _may_be_set(option)}
    barred = {option.flag for option in options} - set(allowed)
    values: dict[str, Any] = {}
    for key, value in table.items():
        flag = key.replace("_", "-")
        if flag in barred:
            raise SpecprobeError(f"{where} {inert(key)}: is said on the command line only, --{flag}; take it out")
        if flag not in allowed:
            raise SpecprobeError(f"{where}: {inert(key)!r} is not known; there are {', '.join(allowed)}")
        if flag in values:
            raise SpecprobeError(f"{where} {inert(key)}: is there twice, with dashes and underscores; keep one")
        try:
            values[flag] = _value(allowed[flag], value)
        except TypeError as error:
            raise SpecprobeError(f"{where} {inert(key)}: {error}") from None
    return ProjectDefaults(where, values) if values else None


def apply_defaults(
    defaults: ProjectDefaults, command: str, given: Collection[str], options: Collection[Option]
) -> tuple[ProjectDefaults, dict[str, Any]]:
    """The defaults that count beside the flags `given` on the command line; and the same by parameter."""
    overruled = set(given)
    for group in ALTERNATIVES.get(command, ()):
        if set(given) & set(group):
            overruled |= set(group)
    left = {flag: value for flag, value in defaults.values.items() if flag not in overruled}
    parameters = {option.flag: option.parameter for option in options}
    return ProjectDefaults(defaults.where, left), {parameters[flag]: value for flag, value in left.items()}


def _may_be_set(option: Option) -> bool:
    if option.flag in COMMAND_LINE_ONLY:
        return False
    if option.kind is bool:
        # A flag that has no opposite could not be taken back on the command line.
        return option.can_be_unsaid
    return option.kind is not Path or option.flag in PATHS_TO_READ


def _below(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _read_toml(path: Path) -> dict[str, Any]:
    # It may come with somebody else's repository, and any command reads it.
    if path.exists() and not path.is_file():
        raise SpecprobeError(f"{path.name}: is no regular file; remove it")
    try:
        if path.exists() and path.stat().st_size > LARGEST_BYTES:
            raise SpecprobeError(f"{path.name}: is larger than {LARGEST_BYTES >> 20} MiB; settings are not")
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SpecprobeError(f"{path.name}: {(error.strerror or str(error)).lower()}; check the file") from None
    except (ValueError, RecursionError) as error:
        raise SpecprobeError(f"{path.name}: not TOML ({inert(str(error), 80)}); mend it") from None


def _value(option: Option, value: Any) -> Any:
    """As the command line would hand it on. Raises TypeError, with what is needed, for another kind."""
    if option.is_repeated:
        return [_unless_code(text) for text in ([value] if isinstance(value, str) else _texts(value))]
    if option.flag in LISTS:
        return _numbers(value, of_one=option.kind is float)
    if option.flag == "chat-template-kwargs" and isinstance(value, dict):
        return _as_json(value)
    # The words of an enumeration.
    choices = tuple(getattr(option.kind, "__members__", ()))
    if choices and value not in choices:
        raise TypeError(f"must be one of {', '.join(choices)}")
    reader: Callable[[Any], Any] = READERS.get(option.kind, as_text)
    return reader(value)


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise TypeError("must be text, or a list of texts")
    return value


def _unless_code(text: str) -> str:
    # Also as half of a hybrid.
    if "python:" in text:
        raise TypeError("a class of your own is named on the command line only, since naming it runs its code")
    return text


def _numbers(value: Any, *, of_one: bool) -> Any:
    """For options that are a list in one word, such as 1,8,64."""
    if of_one:
        return as_number(value)
    if isinstance(value, str):
        return as_text(value)
    items = value if isinstance(value, list) else [value]
    if not items:
        raise TypeError("must be a number, a list of numbers, or text such as '1,8'")
    try:
        return ",".join(f"{as_number(item):.17g}" for item in items)
    except TypeError:
        raise TypeError("must be a number, a list of numbers, or text such as '1,8'") from None


def _as_json(value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value)
    except TypeError:
        raise TypeError("holds what JSON does not have, such as a date") from None


READERS: Mapping[type, Callable[[Any], Any]] = {bool: as_yes_no, float: as_number, int: as_whole}
