"""The options of `bench` that belong together, checked before anything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from specprobe.bench.plan import Arm
from specprobe.bench.replay import ReplayOptions
from specprobe.bench.servers import Commands, parse_commands
from specprobe.cost_sources import CostOptions
from specprobe.errors import SpecprobeError


def bench_servers(
    server: str | None,
    speculative: str | None,
    start: str | None,
    start_speculative: str | None,
    start_timeout: float,
) -> tuple[Mapping[Arm, str], Commands | None]:
    """The address of either arm, and the commands that start them: two servers, or one that is restarted."""
    if server is None:
        raise SpecprobeError(
            "bench: name the server without speculation, for example --server http://localhost:8000/v1"
        )
    if (start is None) != (start_speculative is None):
        raise SpecprobeError(
            "--start and --start-speculative: give both, since the server is restarted to change the arm"
        )
    if start is not None and start_speculative is not None:
        if speculative is not None:
            raise SpecprobeError("--speculative: with --start one server at --server is restarted; leave it out")
        return {"plain": server, "speculative": server}, parse_commands(start, start_speculative, start_timeout)
    if speculative is None:
        raise SpecprobeError(
            "bench: name the server with speculation with --speculative, or how to start both with --start and "
            "--start-speculative"
        )
    return {"plain": server, "speculative": speculative}, None


def bench_replay(
    drafter: str | None, depth: int, engine: str, tokenizer: str | None, target: str | None
) -> ReplayOptions | None:
    """What the speculative server runs; None where it was not said."""
    if drafter is None:
        return None
    return ReplayOptions(drafter, depth, engine, tokenizer, target)


def bench_cost(file: Path | None, gpu: str | None, target: str | None) -> CostOptions | None:
    """What a prediction is made from; None where it was not asked for."""
    if file is None and gpu is None:
        return None
    return CostOptions(file=file, gpu=gpu, target=target if gpu else None)
