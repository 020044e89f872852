"""What the package declares and ships: dependencies with bounds and licences, and archives that install and run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests import bounds, licences
from tests.declared import ROOT, dependencies, extra, lower_bound, next_major, of_users, upper_bound
from tests.fresh import Environment, copy_of_the_checkout, try_the_commands

PAGE = (ROOT / "docs" / "dependencies.md").read_text()
# vllm is asked for by name (`--backend vllm`) where a user has it; _typeshed exists for type checkers alone.
OPTIONAL = {"vllm", "_typeshed"}


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def test_every_dependency_has_two_bounds_and_the_pinned_version_lies_between():
    pinned = constraints()
    for requirement in of_users():
        assert Version(lower_bound(requirement)) <= Version(pinned[requirement.name])
        assert requirement.specifier.contains(pinned[requirement.name]), requirement
        assert upper_bound(requirement) == next_major(pinned[requirement.name]), requirement
    for requirement in extra("dev"):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


def imported(folder: Path) -> set[str]:
    """The first names of all modules that the package imports anywhere, its own and Python's left out."""
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {folder.name}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported():
    of = metadata.packages_distributions()
    used = {canonicalize_name(name) for module in imported(ROOT / "specprobe") - OPTIONAL for name in of[module]}
    assert used == {canonicalize_name(requirement.name) for requirement in of_users()}


def test_every_licence_goes_with_apache():
    listed = licences.packages()
    assert {package.name for package in listed if package.is_direct} >= {"numpy", "torch", "transformers"}
    assert len(listed) > len(dependencies())
    assert [package for package in listed if not package.is_fine] == []


@pytest.mark.parametrize(
    ("licence", "is_direct", "is_fine"),
    [
        ("MIT", True, True),
        ("(MIT OR Apache-2.0) AND Apache-2.0 WITH LLVM-exception", True, True),
        ("MPL-2.0 AND MIT", False, True),
        ("MPL-2.0", True, False),
        ("GPL-3.0-or-later", False, False),
        ("MIT AND GPL-2.0-only WITH GCC-exception-2.0", True, False),
        ("not stated", True, False),
    ],
)
def test_licences_are_judged_by_all_their_parts(licence, is_direct, is_fine):
    assert licences.Package("some", "1", licence, is_direct).is_fine == is_fine


def test_a_licence_is_read_from_where_a_package_states_it():
    from email import message_from_string

    about = "License-Expression: MIT\nLicense: other\n"
    assert licences.licence_of(message_from_string(about)) == "MIT"
    about = "License: Copyright of\n  somebody\nClassifier: License :: OSI Approved :: MIT License\n"
    assert licences.licence_of(message_from_string(about)) == "MIT"
    assert licences.licence_of(message_from_string("License: Apache 2.0\n")) == "Apache-2.0"
    assert licences.licence_of(message_from_string("Name: x\n")) == "not stated"


def test_the_page_lists_what_is_declared_with_its_licence():
    rows = re.findall(r"^\| `([\w-]+)` \| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", PAGE, re.M)
    licence = {package.name: package.licence for package in licences.packages()}
    assert [(name, set(bounds.split(","))) for name, bounds, _, _ in rows] == [
        (requirement.name, {str(one) for one in requirement.specifier}) for requirement in of_users()
    ]
    for name, _, why, stated in rows:
        assert why.strip()
        assert stated.strip() == licence[canonicalize_name(name)], name


def test_the_oldest_are_the_lower_bounds_and_another_version_is_taken_where_it_is_named():
    asked = bounds.wanted("oldest", [Requirement("torch==2.13.0")])
    assert [one.name for one in asked] == [one.name for one in dependencies()]
    by_name = {one.name: str(one.specifier) for one in asked}
    assert by_name.pop("torch") == "==2.13.0"
    assert by_name == {one.name: f"=={lower_bound(one)}" for one in dependencies() if one.name != "torch"}
    assert list(map(str, bounds.wanted("newest"))) == list(map(str, dependencies()))
    with pytest.raises(SystemExit, match="nympy is no dependency"):
        bounds.wanted("newest", [Requirement("nympy==1")])


def test_the_tests_and_tools_of_the_bounds_are_there():
    assert [name for name in bounds.TESTS if not (ROOT / "tests" / f"{name}.py").exists()] == []
    assert set(bounds.TOOLS) <= {requirement.name for requirement in extra("dev")}


def test_the_commands_of_the_page_are_taken():
    shown = re.findall(r"^python -m tests\.bounds (.+)$", PAGE, re.M)
    assert {line.split()[0] for line in shown} == {"oldest", "newest"}
    for line in shown:
        bounds.wanted(bounds.arguments().parse_args(line.split()).end)


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> Path:
    """A folder with the sdist, and with the wheel that is built from the sdist and not from the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    copy_of_the_checkout(source)
    subprocess.run([sys.executable, "-m", "build", "-o", str(out), str(source)], check=True, capture_output=True)
    return out


def package_files() -> set[str]:
    """Everything that git tracks of the package."""
    listed = subprocess.run(["git", "ls-files", "specprobe"], cwd=ROOT, capture_output=True, check=True, text=True)
    return set(listed.stdout.split())


@pytest.mark.slow
def test_the_archives_hold_the_package_and_nothing_else(archives):
    (wheel,) = archives.glob("*.whl")
    assert wheel.name == f"specprobe-{metadata.version('specprobe')}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
        about = next(name for name in in_wheel if name.endswith("/METADATA")).removesuffix("METADATA")
        assert b"Apache License" in archive.read(f"{about}licenses/LICENSE")
        commands = archive.read(f"{about}entry_points.txt").decode().splitlines()
        assert commands[:2] == ["[console_scripts]", "specprobe = specprobe.cli:main"]
    own = {name for name in in_wheel if name.startswith(about)}
    assert in_wheel - own == package_files()
    kinds = {Path(name).suffix for name in package_files()}
    assert {".csv", ".json", ".j2", ".css", ".typed"} <= kinds
    (sdist,) = archives.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    made = {"PKG-INFO", "setup.cfg"}
    rest = {name for name in in_sdist if not name.startswith("specprobe.egg-info/")}
    assert rest == package_files() | made | {"LICENSE", "README.md", "pyproject.toml", "MANIFEST.in"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_both_archives_run_in_an_environment_that_had_nothing(archives, tmp_path):
    (wheel,), (sdist,) = archives.glob("*.whl"), archives.glob("*.tar.gz")
    environment = Environment(tmp_path / "environment")
    environment.install("-c", str(ROOT / "constraints.txt"), str(wheel))
    try_the_commands(environment, tmp_path / "from the wheel")
    environment.run("python", "-m", "pip", "uninstall", "-q", "-y", "specprobe")
    environment.install("--no-deps", str(sdist))
    try_the_commands(environment, tmp_path / "from the sdist")
