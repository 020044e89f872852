"""Time the steps of a live server: gaps between streamed chunks at each concurrency, while all requests run.

A server without speculation sends one chunk for each step of the target, so the median gap while exactly C requests
stream is a step of a batch of C. Prompts are random words, different in each request: nothing of them is in a prefix
cache.
"""

from __future__ import annotations

import json
import random
import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from specprobe.completion_server import Answer, ServedModel, stream_completion
from specprobe.cost import timing_spread
from specprobe.documents import dump_document, read_own_document
from specprobe.errors import SpecprobeError
from specprobe.measured_points import StepTiming, Timing, timing_of_row
from specprobe.notices import inert
from specprobe.paths import write_private
from specprobe.progress import Stages
from specprobe.server import RefusedFieldError, Server
from specprobe.side_by_side import side_by_side

SCHEMA = "specprobe.points/1"
LARGEST_CONCURRENCY = 256
MOST_LEVELS = 32
# Gaps while all requests run; fewer say little about a step. Where prompts are long, early requests are nearly done
# before the last one begins: then answers are made longer, so many times by two.
LEAST_GAPS = 8
DOUBLINGS = 3
# Chunks hold one token each; some servers join a few when their sender is late.
MOST_TOKENS_A_CHUNK = 1.2
WARM_UP_WORDS = 64
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What to measure: every concurrency at every context, `repeats` times, with answers of `output_tokens`."""

    concurrencies: tuple[int, ...]
    contexts: tuple[int, ...]
    output_tokens: int
    repeats: int

    def __post_init__(self) -> None:
        if not self.concurrencies or not 1 <= min(self.concurrencies) <= max(self.concurrencies) <= LARGEST_CONCURRENCY:
            raise SpecprobeError(f"--concurrency: numbers from 1 to {LARGEST_CONCURRENCY}, for example 1,4,16")
        if not self.contexts or not 1 <= min(self.contexts) <= max(self.contexts) <= 2**20:
            raise SpecprobeError("--context: prompt tokens, for example 256,2048")
        if len(self.concurrencies) * len(self.contexts) > MOST_LEVELS:
            raise SpecprobeError(f"--concurrency, --context: at most {MOST_LEVELS} combinations")
        if not 2 * LEAST_GAPS <= self.output_tokens <= 2**16:
            raise SpecprobeError(f"--output-tokens {self.output_tokens}: from {2 * LEAST_GAPS} to {2**16}")
        if not 1 <= self.repeats <= 100:
            raise SpecprobeError(f"--repeats {self.repeats}: from 1 to 100")

    @property
    def levels(self) -> list[tuple[int, int]]:
        """(concurrency, prompt tokens), smallest first."""
        return [(c, context) for context in sorted(set(self.contexts)) for c in sorted(set(self.concurrencies))]


@dataclass(frozen=True, slots=True)
class _Asking:
    """How to ask this server: fields beside prompt and length, and its tokens for each word of a prompt."""

    fields: Mapping[str, Any]
    tokens_a_word: float


def probe_server(
    server: Server, model: ServedModel, plan: ProbePlan, stages: Stages, *, keep: Path | None = None
) -> list[Timing]:
    """Time every level of the plan.

    `keep`: a file that holds the points after each level; levels that it has already are not measured again. Raises
    SpecprobeError for every failure of the server, and where it speculates itself.
    """
    rows = _read_kept(keep, model) if keep is not None and keep.exists() else []
    done = {(row["batch"], row["prompt_tokens_asked"]) for row in rows}
    levels = [level for level in plan.levels if level not in done]
    asking = _warm_up(server, model, plan) if levels else None
    with stages.track("timing the server", max(1, len(levels))) as advance:
        for number, (concurrency, context) in enumerate(levels, 1):
            assert asking is not None
            rows.append(_measure_level(server, asking, plan, concurrency, context))
            if keep is not None:
                write_private(keep.absolute(), dump_document(_document(model, rows)) + "\n")
            advance(number, "")
    return [timing_of_row(row, f"{server.name} at {row['batch']}") for row in rows]


def _measure_level(server: Server, asking: _Asking, plan: ProbePlan, concurrency: int, context: int) -> dict[str, Any]:
    """The row of one level: the median over repeats of the median gap."""
    medians: list[float] = []
    output_tokens, doublings, contexts = plan.output_tokens, 0, []
    while len(medians) < plan.repeats:
        answers = _run_together(server, asking, concurrency, context, output_tokens)
        _check_tokens(server, answers)
        gaps = gaps_while_all_run([answer.chunk_times for answer in answers])
        if len(gaps) < LEAST_GAPS * concurrency:
            if doublings == DOUBLINGS:
                raise SpecprobeError(
                    f"{server.name}: {concurrency} requests never ran together for {LEAST_GAPS} steps; raise "
                    "--output-tokens, lower --concurrency, or raise the server's limit of sequences"
                )
            output_tokens, doublings = 2 * output_tokens, doublings + 1
            continue
        medians.append(statistics.median(gaps))
        contexts += [answer.prompt_tokens + answer.completion_tokens / 2 for answer in answers]
    seconds = statistics.median(medians)
    return {
        "batch": concurrency,
        "query_tokens": 1,
        "context": round(statistics.mean(contexts)),
        "seconds": seconds,
        "spread_seconds": timing_spread(medians),
        "repeats": len(medians),
        "source": "engine",
        "prompt_tokens_asked": context,
    }


def gaps_while_all_run(chunk_times: Sequence[Sequence[float]]) -> list[float]:
    """Seconds between neighbouring chunks of a request, from when the last request has begun until the first ends."""
    if not all(chunk_times):
        return []
    begin, end = max(times[0] for times in chunk_times), min(times[-1] for times in chunk_times)
    return [
        later - earlier
        for times in chunk_times
        for earlier, later in pairwise(times)
        if begin <= earlier and later <= end
    ]


def _run_together(server: Server, asking: _Asking, concurrency: int, context: int, output_tokens: int) -> list[Answer]:
    """So many requests at once; the first failure among them ends all."""
    words = max(1, round(context / asking.tokens_a_word))

    def ask(_number: int, stopped: threading.Event) -> Answer:
        body = {**asking.fields, "prompt": random_words(words), "max_tokens": output_tokens}
        return stream_completion(server, body, stopped.is_set)

    return [answer for _, answer in side_by_side(ask, range(concurrency), concurrency)]


def _warm_up(server: Server, model: ServedModel, plan: ProbePlan) -> _Asking:
    """One answer that is not timed: what the server takes, and how many tokens a random word has."""
    fields = {
        "model": model.name,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = {"prompt": random_words(WARM_UP_WORDS), "max_tokens": plan.output_tokens}
    try:
        # Without it an answer may end early; protocols other than vLLM's and SGLang's do not know the word.
        with_ignored_end = {**fields, "ignore_eos": True}
        answer = stream_completion(server, {**with_ignored_end, **body}, lambda: False)
        fields = with_ignored_end
    except RefusedFieldError:
        answer = stream_completion(server, {**fields, **body}, lambda: False)
    if not answer.prompt_tokens or not answer.completion_tokens:
        raise SpecprobeError(
            f"{server.name}: streams no usage, so contexts and tokens a chunk are not known; use a server that takes "
            "stream_options.include_usage"
        )
    _check_tokens(server, [answer])
    return _Asking(fields, answer.prompt_tokens / WARM_UP_WORDS)


def _check_tokens(server: Server, answers: Sequence[Answer]) -> None:
    """Refuse a server whose chunks hold several tokens: its gaps are not steps of one token."""
    chunks = sum(len(answer.chunk_times) for answer in answers)
    tokens = sum(answer.completion_tokens for answer in answers)
    if not chunks:
        raise SpecprobeError(f"{server.name}: answers without a token; look into the server's log")
    if tokens > MOST_TOKENS_A_CHUNK * chunks:
        raise SpecprobeError(
            f"{server.name}: {tokens / chunks:.1f} tokens a chunk, so it speculates or joins chunks; start it without "
            "speculation and with a stream interval of 1"
        )


def random_words(count: int) -> str:
    """So many made-up words, new ones at each call."""
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    return " ".join("".join(random.choices(syllables, k=2)) for _ in range(count))


def _document(model: ServedModel, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"schema": SCHEMA, "server_model": model.name, "server_version": model.version, "points": list(rows)}


def _read_kept(path: Path, model: ServedModel) -> list[dict[str, Any]]:
    """The rows that an earlier measurement of the same model kept."""
    document = read_own_document(path, SCHEMA, "name a file that --keep-points wrote, or a new one", "name a new file")
    kept = document.get("server_model"), document.get("server_version")
    if kept != (model.name, model.version):
        raise SpecprobeError(f"{path}: holds points of {inert(json.dumps(kept), 80)}; name another file")
    rows = document.get("points")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "prompt_tokens_asked" in row for row in rows):
        raise SpecprobeError(f"{path}: its points are damaged; name another file")
    for number, row in enumerate(rows, 1):
        if not isinstance(timing_of_row(row, f"{path}: row {number}"), StepTiming):
            raise SpecprobeError(f"{path}: row {number}: is no step of a server; name another file")
    return rows
