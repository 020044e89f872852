"""`import`: from the files of an engine to a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specprobe.defaults import ENGINE
from specprobe.engine_numbers import read_engine_numbers
from specprobe.engine_numbers.as_run import Served, run_of
from specprobe.errors import SpecprobeError
from specprobe.profiles import PROFILES, resolve_profile
from specprobe.run import Run


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Everything the user can say; `depth` and `engine` None: as the files say."""

    files: tuple[Path, ...]
    drafter: str
    temperature: float
    draft_sampling: str = "greedy"
    depth: int | None = None
    engine: str | None = None


def import_run(options: ImportOptions) -> Run:
    """Raises SpecprobeError for files of another engine than the one named, and for what makes no run."""
    if options.draft_sampling == "both":
        raise SpecprobeError("--draft-sampling both: the server drafted one way; say greedy or sampled")
    numbers = read_engine_numbers(options.files, options.depth)
    is_known = any(profile.engine == numbers.engine for profile in PROFILES)
    profile = resolve_profile(options.engine or (numbers.engine if is_known else ENGINE))
    if is_known and profile.engine.partition("-v")[0] != numbers.engine:
        raise SpecprobeError(f"--engine {profile.engine}: the files are of {numbers.engine}; leave the option out")
    served = Served(options.drafter, options.temperature, options.draft_sampling)
    return run_of(numbers, served, profile, [path.name for path in options.files])
