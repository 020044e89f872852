"""Log lines of servers, whose rounded figures leave as good as one number of rounds.

vLLM 0.11 to 0.33 (v1/spec_decode/metrics.py), one line an interval: `SpecDecoding metrics: Mean acceptance length:
2.77, ... Accepted: 626 tokens, Drafted: 1062 tokens, Per-position acceptance rate: 0.802, 0.551, 0.415, ...`.
llama.cpp (tools/server/server-context.cpp, print_timing), one line a request: `draft acceptance = 0.57576 (  171
accepted /   297 generated), mean len =  2.63` (2026-10; `acc per pos` is on the next line), `mean acceptance length =
2.63, acceptance rate per position = (...)` (2026-06), `draft acceptance rate = ...` without a length before.
Rounds are accepted / (length - 1), a whole number that the digits of the length allow; positions are rates x rounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from specprobe.engine_numbers.numbers import EngineCounts, EngineNumbers, RequestCounts, checked, summed
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.units import format_plural

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_VLLM = re.compile(
    rf"SpecDecoding metrics: Mean acceptance length: {_NUMBER}, .{{0,200}}?Accepted: ([0-9]+) tokens, "
    r"Drafted: ([0-9]+) tokens, Per-position acceptance rate: ([0-9., ]*[0-9])"
)
_LLAMA_CPP = re.compile(
    rf"draft acceptance(?: rate)? = {_NUMBER} \(\s*([0-9]+) accepted /\s*([0-9]+) generated\)"
    rf"(?:, mean (?:len|acceptance length) =\s*{_NUMBER})?(?:, acceptance rate per position = \(([0-9., ]+)\))?"
)
_LLAMA_CPP_POSITIONS = re.compile(r"acc per pos = \(([0-9., ]+)\)")
_TASK = re.compile(r"\| task (-?[0-9]+) \|")
LARGEST_DIGITS = 15


def is_log(text: str) -> bool:
    """Whether there is a line of either engine."""
    return _VLLM.search(text) is not None or _LLAMA_CPP.search(text) is not None


def read_logs(texts: Iterable[tuple[Path, str]]) -> EngineNumbers:
    """All lines together. Raises SpecprobeError for contradictions, and for lines of both engines."""
    vllm: list[EngineCounts] = []
    llama_cpp: list[RequestCounts] = []
    for path, text in texts:
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            where = f"{path}:{number}"
            if found := _VLLM.search(line):
                vllm.append(_counts(where, found[1], found[2], found[3], found[4]))
            elif found := _LLAMA_CPP.search(line):
                below = _LLAMA_CPP_POSITIONS.search(lines[number]) if number < len(lines) else None
                positions = found[5] or (below[1] if below else None)
                counts = _counts(where, found[4], found[2], found[3], positions)
                task = _TASK.search(line)
                name = f"task {task[1]}" if task else f"line {number}"
                llama_cpp.append(RequestCounts(name, replace(counts, requests=1)))
    if vllm and llama_cpp:
        raise SpecprobeError("numbers of an engine: log lines of vLLM and of llama.cpp; read each by itself")
    if vllm:
        depths = {len(counts.accepted_at or ()) for counts in vllm}
        if len(depths) > 1:
            raise SpecprobeError(
                f"numbers of an engine: log lines with {', '.join(map(str, sorted(depths)))} positions; "
                "give those of one server"
            )
        depth = depths.pop()
        total = checked(summed(vllm), "numbers of an engine", depth)
        scope = f"{format_plural(len(vllm), 'logging interval')}"
        return EngineNumbers("vllm", "log lines", scope, total, depth, is_rounded=True)
    counts = checked(summed([request.counts for request in llama_cpp]), "numbers of an engine")
    scope = format_plural(len(llama_cpp), "request")
    return EngineNumbers("llama.cpp", "log lines", scope, counts, None, tuple(llama_cpp), is_rounded=True)


def _counts(where: str, length: str | None, accepted: str, drafted: str, positions: str | None) -> EngineCounts:
    if max(len(accepted), len(drafted)) > LARGEST_DIGITS:
        raise SpecprobeError(f"{where}: no count has that many digits; give the log as the server wrote it")
    num_accepted, num_drafted = int(accepted), int(drafted)
    rates = _rates(where, positions) if positions else None
    rounds = _rounds(float(length) if length else None, num_accepted, num_drafted, rates)
    if rates is not None and any(rate > 1 for rate in rates):
        raise SpecprobeError(f"{where}: an acceptance rate above 1; give the log as the server wrote it")
    at = _at_positions(rates, rounds, num_accepted) if rates is not None and rounds is not None else None
    return checked(EngineCounts(rounds, num_drafted, num_accepted, accepted_at=at), where)


def _rates(where: str, positions: str) -> list[float]:
    try:
        return [float(rate) for rate in positions.split(",") if rate.strip()]
    except ValueError:
        raise SpecprobeError(
            f"{where}: {inert(positions, 60)!r} are no acceptance rates; give the log as the server wrote it"
        ) from None


def _rounds(length: float | None, accepted: int, drafted: int, rates: list[float] | None) -> int | None:
    """Rounds with a draft: within what each has drafted, nearest to what the length says.

    Where drafts have all the tokens they may have, drafted / positions is exact, and it is taken where it explains the
    length as printed. With nothing accepted the length says nothing.
    """
    full = drafted // len(rates) if rates and drafted % len(rates) == 0 else None
    if length is None:
        return None
    if full and abs(1 + accepted / full - length) <= HALF_A_DIGIT:
        return full
    if length <= 1 or not accepted:
        return None
    fewest = -(-drafted // len(rates)) if rates else 1
    return min(max(round(accepted / (length - 1)), fewest), drafted)


# Of a length printed with two digits, and a little for the float.
HALF_A_DIGIT = 0.00501


def _at_positions(rates: list[float], rounds: int, accepted: int) -> tuple[int, ...]:
    """Rates x rounds, not rising, that add up to what was accepted: what is over or short is put where rounding left
    most room."""
    exact = [rate * rounds for rate in rates]
    counts = [round(value) for value in exact]
    while (short := accepted - sum(counts)) != 0:
        step = 1 if short > 0 else -1
        possible = [i for i in range(len(counts)) if _may_move(counts, i, step, rounds)]
        if not possible:
            return tuple(counts)
        best = max(possible, key=lambda i: step * (exact[i] - counts[i]))
        room = abs(exact[best] - counts[best])
        # Many at once where figures are large: thousandths of a large number of rounds.
        counts[best] += step * max(1, min(abs(short) // len(counts), int(room)))
    return tuple(counts)


def _may_move(counts: list[int], i: int, step: int, rounds: int) -> bool:
    if step > 0:
        return counts[i] < (counts[i - 1] if i else rounds)
    return counts[i] > (counts[i + 1] if i + 1 < len(counts) else 0)
