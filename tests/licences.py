"""The licences of everything that specprobe needs at run time, as the installed packages state them.

    python -m tests.licences

Prints a table and exits with 1 if one of them is not of a kind that goes with Apache-2.0 (docs/dependencies.md).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.declared import of_users

# Permissive ones, by SPDX identifier: they ask for their notice to be kept.
PERMISSIVE = {
    "0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC",
    "LLVM-exception", "MIT", "MIT-CMU", "PSF-2.0", "Unicode-3.0", "Unlicense", "Zlib",
}  # fmt: skip
# Binds whoever changes files of the package itself. specprobe ships no file of another package.
BY_FILE = {"MPL-2.0"}
# What packages say that state their licence in the words of before SPDX expressions.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
# NVIDIA's own libraries, under its own terms, come with a CUDA build of PyTorch and with no other.
OF_CUDA_BUILDS = ("nvidia-", "cuda-")


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package. `is_direct`: pyproject.toml names it, and not only a package that needs it."""

    name: str
    version: str
    licence: str
    is_direct: bool

    @property
    def is_fine(self) -> bool:
        """Whether its licence goes with Apache-2.0 in a program that depends on it."""
        allowed = PERMISSIVE if self.is_direct else PERMISSIVE | BY_FILE
        # Each part has to be fine, also where there is a choice.
        parts = re.split(r" (?:AND|OR|WITH) ", re.sub("[()]", "", self.licence))
        return all(part in allowed for part in parts)


def licence_of(about: Message) -> str:
    """An SPDX expression where the package has one; else its classifiers, else its line `License`."""
    if about["License-Expression"]:
        return about["License-Expression"]
    kind = "License :: OSI Approved :: "
    stated = [line.removeprefix(kind) for line in about.get_all("Classifier", []) if line.startswith(kind)]
    if not stated:
        # Some put the whole text there, which is no name.
        stated = (about["License"] or "not stated").splitlines()[:1]
    return " AND ".join(SPDX.get(one, one) for one in stated)


def needed(requirements: Iterable[Requirement]) -> Iterator[str]:
    """Names of all packages that these need here, and those that these need in turn; extras that are asked for too."""
    seen: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in requirements]
    while waiting:
        requirement, of_extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": of_extra}):
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [(Requirement(line), extra) for line in metadata.requires(name) or []]
    yield from sorted({name for name, _ in seen})


def packages() -> list[Package]:
    """What pyproject.toml names and what comes with that, by name."""
    direct = {canonicalize_name(requirement.name) for requirement in of_users()}
    found = []
    for name in needed(of_users()):
        about = metadata.metadata(name)
        found.append(Package(name, about["Version"], licence_of(about), name in direct))
    return [package for package in found if not package.name.startswith(OF_CUDA_BUILDS)]


if __name__ == "__main__":
    listed = packages()
    for package in listed:
        print(f"{package.name:24} {package.version:18} {'' if package.is_direct else 'indirect':8}  {package.licence}")
    wrong = [package.name for package in listed if not package.is_fine]
    print(f"{len(listed)} packages; not to be used with Apache-2.0: {', '.join(wrong) or 'none'}")
    sys.exit(bool(wrong))
