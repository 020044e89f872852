"""The group of all commands: before one is parsed, the defaults of the project are put under it."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from specprobe.errors import SpecprobeError
from specprobe.exit_status import MUST_CHANGE
from specprobe.project_defaults import (
    WITHOUT_DEFAULTS,
    Option,
    ProjectDefaults,
    apply_defaults,
    check_sections,
    read_defaults,
    read_table,
)

# `gate` lays its own table under its options.
OWN_READER = "gate"


class CommandGroup(TyperGroup):
    """Commands whose options take their defaults from `specprobe.toml` or `pyproject.toml` of the working directory."""

    # Types of click differ between versions of typer, some of which carry their own copy.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without any argument, the overview of commands, and the status of a mistake."""
        if not args and not ctx.resilient_parsing:
            print(self.get_help(ctx))
            raise typer.Exit(MUST_CHANGE)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The overview of commands in plain text: to import what draws boxes would take as long as all the rest."""
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """What each command does, in full."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].help or "") for name in self.list_commands(ctx)])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to run and its arguments; `ctx.default_map` then holds what the project says about it."""
        name, command, rest = super().resolve_command(ctx, args)
        asks_help = bool(set(rest) & set(ctx.help_option_names))
        if name is not None and name not in WITHOUT_DEFAULTS and not ctx.resilient_parsing and not asks_help:
            folder = Path.cwd()
            check_sections(folder, list(self.commands))
            found = None if name == OWN_READER else read_defaults(folder, name, options_of(command))
            if found is not None:
                ctx.default_map = {name: _counting(found, name, command, rest, ctx)}
        return name, command, rest


def options_of(command: Any) -> list[Option]:
    """The long options of a command, in the order of its help; types are those that its function declares."""
    types = get_type_hints(inspect.unwrap(command.callback))
    options = []
    for parameter in command.params:
        if parameter.name in types and any(name.startswith("--") for name in parameter.opts):
            kind = _without_none(types[parameter.name])
            is_repeated = get_origin(kind) is list
            found = Option(_flag(parameter), parameter.name, str if is_repeated else kind, is_repeated=is_repeated)
            options.append(replace(found, can_be_unsaid=bool(parameter.secondary_opts)))
    return options


def describe_defaults(group: Any, folder: Path) -> tuple[tuple[ProjectDefaults, ...], str | None]:
    """What the project says, command by command, and the first thing that is wrong with it."""
    found: list[ProjectDefaults] = []
    try:
        check_sections(folder, list(group.commands))
        for name, command in group.commands.items():
            if name == OWN_READER:
                table = read_table(folder, name)
                own = ProjectDefaults(*table) if table else None
            else:
                own = None if name in WITHOUT_DEFAULTS else read_defaults(folder, name, options_of(command))
            found += [own] if own else []
    except SpecprobeError as error:
        return tuple(found), str(error)
    return tuple(found), None


def _without_none(kind: Any) -> Any:
    """`int | None` -> `int`."""
    left = [part for part in get_args(kind) if part is not NoneType]
    return left[0] if isinstance(kind, UnionType) else kind


def _flag(parameter: Any) -> str:
    return str(next(name for name in parameter.opts if name.startswith("--"))).removeprefix("--")


def _counting(found: ProjectDefaults, name: str, command: Any, rest: list[str], ctx: Any) -> dict[str, Any]:
    """What counts of the project's defaults beside this command line, by parameter; told in one line on stderr."""
    options = options_of(command)
    # Once to see what is said, without checking it.
    said = command.make_context(name, list(rest), parent=ctx, resilient_parsing=True)
    given = [option.flag for option in options if _is_given(said, option.parameter)]
    used, by_parameter = apply_defaults(found, name, given, options)
    if used.values:
        print(f"defaults from {used.where}: {', '.join(f'--{flag}' for flag in used.values)}", file=sys.stderr)
    return by_parameter


def _is_given(ctx: Any, parameter: str) -> bool:
    source = ctx.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"
