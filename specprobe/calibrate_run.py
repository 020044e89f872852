"""`calibrate` from its options: points out of files or from a live server, the fit, and the cost file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprobe.calibrate import Calibration, calibrate_points, check_depth, find_setup, write_cost
from specprobe.completion_server import find_model
from specprobe.engine_probe import ProbePlan, probe_server
from specprobe.errors import SpecprobeError
from specprobe.measured_points import Timing, read_points
from specprobe.paths import state_folder
from specprobe.progress import Stages
from specprobe.run_files import check_out
from specprobe.server import parse_server


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """A live server, and how to measure it."""

    url: str
    model: str | None
    plan: ProbePlan
    timeout_seconds: float
    keep: Path | None


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """What `calibrate` was asked for."""

    points: tuple[Path, ...]
    server: ServerOptions | None
    model: str | None
    gpu: str | None
    devices: int
    dtype: str | None
    engine: str
    depth: int
    drafters: tuple[str, ...]
    out: Path | None


def run_calibration(options: CalibrateOptions, stages: Stages) -> tuple[Calibration, Path]:
    """The calibration and the path of the cost file it was saved in.

    Everything that can be refused is refused before a server is asked.
    """
    if not options.points and options.server is None:
        raise SpecprobeError("calibrate: no points; name files of points, or a live server with --server")
    check_depth(options.depth)
    setup = find_setup(options.model, options.gpu, devices=options.devices, dtype=options.dtype, engine=options.engine)
    # Shown to people, who are in the project's folder.
    out = options.out or state_folder().relative_to(Path.cwd()) / "calibrated.json"
    check_out(out, inputs=options.points)
    timings: list[Timing] = list(read_points(options.points)) if options.points else []
    conditions: dict[str, Any] = {}
    if options.server is not None:
        measured, conditions = _ask_server(options.server, stages)
        timings += measured
    calibration = calibrate_points(
        timings, setup, depth=options.depth, drafters=options.drafters, conditions=conditions
    )
    write_cost(out, calibration.cost)
    return calibration, out


def _ask_server(options: ServerOptions, stages: Stages) -> tuple[list[Timing], dict[str, Any]]:
    """The timings of a live server, and what it says of itself."""
    if options.keep is not None:
        check_out(options.keep, "--keep-points")
    server = parse_server(options.url, timeout_seconds=options.timeout_seconds)
    model = find_model(server, options.model)
    timings = probe_server(server, model, options.plan, stages, keep=options.keep)
    return timings, {"server_model": model.name, "server_version": model.version}
