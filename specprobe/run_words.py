"""What a run is of, in words: whose requests they are, how many, and at which temperature."""

from __future__ import annotations

from collections.abc import Sequence

from specprobe.notices import inert
from specprobe.run import Run
from specprobe.units import format_plural

NOT_SAID = "not said by the log; taken as 0"


def sources_of(run: Run) -> str:
    """The names of the log's parts; of an engine's numbers, that they are those, and the names of their files."""
    sources: Sequence[object] = run.workload.get("sources") or ()
    if sources or run.engine_numbers is None:
        return ", ".join(inert(str(source), 200) for source in sources)
    files = ", ".join(inert(str(name), 200) for name in run.engine_numbers.get("files", ()))
    return f"an engine's own counters{f' ({files})' if files else ''}"


def size_of(run: Run) -> str:
    """How many prompts; sums of counters stand for requests that nobody can tell apart."""
    count = int(run.workload.get("prompts", 0))
    return f"sums over {format_plural(count, 'request')}" if run.is_of_sums else format_plural(count, "prompt")


def temperature_of(run: Run, temperature: float) -> str:
    """`temperature 0.7`, or that it is a guess."""
    return f"temperature {temperature:g}" if run.temperature_is_known else "temperature unknown (taken as 0)"
