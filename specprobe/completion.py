"""What a shell offers after an option. It is asked on every press of the tab key, so nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Some drafters are of no engine's profile.
DRAFTERS_OF_NO_ENGINE = ("mlp", "hybrid", "python")
# After these a model, or more, is still to be named.
NEED_MORE = frozenset({"draft", "pard", "eagle", "eagle3", "medusa", "mlp", "dflash", "early-exit", "hybrid", "python"})
NEWEST_RUNS = 20


def engines(incomplete: str) -> list[str]:
    """Names with and without a version."""
    from specprobe.profiles import PROFILES

    return _beginning(incomplete, (name for p in PROFILES for name in (p.engine, p.name)))


def gpus(incomplete: str) -> list[str]:
    """The accelerators of the table."""
    from specprobe.hardware import hardware_names

    return _beginning(incomplete, hardware_names())


def drafters(incomplete: str) -> list[str]:
    """Methods; with a colon where a model or a setting must follow."""
    from specprobe.profiles import PROFILES

    names = [*(name for profile in PROFILES for name in profile.drafters), *DRAFTERS_OF_NO_ENGINE]
    return _beginning(incomplete, (f"{name}:" if name in NEED_MORE else name for name in names))


def formats(incomplete: str) -> list[str]:
    """Row formats."""
    from specprobe.formats import FORMATS

    return _beginning(incomplete, FORMATS)


def temperatures(incomplete: str) -> list[str]:
    """The one word; numbers are the user's."""
    return _beginning(incomplete, ["log"])


def document_names(incomplete: str) -> list[str]:
    """Kinds of documents."""
    from specprobe.schemas import document_kinds

    return _beginning(incomplete, (kind.name for kind in document_kinds()))


def runs(incomplete: str) -> list[str]:
    """The newest runs of this project first, then JSON files and folders that begin so."""
    from specprobe.paths import runs_folder

    try:
        kept = sorted((path.name for path in runs_folder().glob("*.json")), reverse=True)[:NEWEST_RUNS]
        folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
        there = sorted(path for path in folder.iterdir() if path.name[0] != "." and _may_be_run(path))
    except OSError:
        return []
    names = (f"{path}/" if path.is_dir() else str(path) for path in there)
    return _beginning(incomplete, (*(f".specprobe/runs/{name}" for name in kept), *names))


def _may_be_run(path: Path) -> bool:
    return path.suffix == ".json" or path.is_dir()


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
