"""What pyproject.toml declares: the one list of dependencies and of their bounds."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def project() -> dict[str, Any]:
    """The table `[project]`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def dependencies() -> list[Requirement]:
    """What the package needs at run time, in the order of the file."""
    return [Requirement(line) for line in project()["dependencies"]]


def extra(name: str) -> list[Requirement]:
    """What an extra adds."""
    return [Requirement(line) for line in project()["optional-dependencies"][name]]


def of_users() -> list[Requirement]:
    """What users may install: with the extras, those of developers left out."""
    extras = [name for name in project()["optional-dependencies"] if name != "dev"]
    return [*dependencies(), *(requirement for name in extras for requirement in extra(name))]


def lower_bound(requirement: Requirement) -> str:
    """The version after `>=`, of which there has to be exactly one."""
    (version,) = (one.version for one in requirement.specifier if one.operator == ">=")
    return version


def upper_bound(requirement: Requirement) -> str:
    """The version after `<`, of which there has to be exactly one."""
    (version,) = (one.version for one in requirement.specifier if one.operator == "<")
    return version


def next_major(version: str) -> str:
    """The first version that promises nothing to users of this one."""
    return str(Version(version).major + 1)
