"""Logged responses: replay against the engines' own drafters, scoring against a bare forward pass."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specprobe.batches import padded_ids
from specprobe.drafters import Drafter, parse_drafter
from specprobe.drafters.base import known_tokens
from specprobe.profiles import resolve_profile
from specprobe.replay import replay
from specprobe.target import Target, load_target
from specprobe.trajectory import Trajectory, token_ids
from tests.benchmarks.peers.side_by_side import Row, Settings, at_least, in_turn, medians, processor_seconds
from tests.benchmarks.replay_rate import GOLDEN, OUTPUT_TOKENS, PROMPT_TOKENS, golden_text

# The depth that engines run at; replay does all up to it.
DEPTH = 8
MIN_N, MAX_N = 2, 4
BATCH = 16
WORDS = {
    "answers": "real answers, each once",
    "repeating": "pieces of real answers, in which nearly all repeats",
    "random": "random tokens",
}


def compare_suffix(settings: Settings) -> Iterator[Row]:
    """arctic-inference's cache, asked round for round at one depth; its rounds must be ours."""
    if settings.arctic is None:
        return
    sys.path.insert(0, str(settings.arctic))
    drafter = _drafter("suffix")
    for kind in WORDS:
        works = logged_works(kind, settings.size(200, 4))
        counted: dict[str, int] = {}
        replay(drafter, works[:1], DEPTH)
        measured = in_turn(
            # A pass over the few real answers takes milliseconds.
            settings.size(25 if kind == "answers" else 5, 1),
            lambda works=works, counted=counted: _ours(drafter, works, counted),
            lambda works=works, counted=counted: processor_seconds(lambda: counted.update(arctic=_arctic(works))),
        )
        yield _replayed("suffix decoding", "arctic-inference's cache", 5, kind, works, measured, counted)


def compare_ngram(settings: Settings) -> Iterator[Row]:
    """vLLM's proposer, called step for step at one depth; its rounds must be ours."""
    if settings.vllm is None:
        return
    drafter = _drafter(f"ngram:min={MIN_N},max={MAX_N}")
    for kind in ("repeating", "random"):
        works = logged_works(kind, settings.size(200, 4))
        counted: dict[str, int] = {}
        replay(drafter, works[:1], DEPTH)
        with _vllm(settings.vllm, works) as propose:
            measured = in_turn(
                settings.size(5, 1),
                lambda works=works, counted=counted: _ours(drafter, works, counted),
                lambda counted=counted, propose=propose: propose(counted),
            )
        yield _replayed("n-gram", "vLLM's own proposer", 20, kind, works, measured, counted)


def compare_scoring(settings: Settings) -> Iterator[Row]:
    """The target's probabilities of logged answers, against its forward pass over the same tokens and nothing else."""
    target = load_target(device="cpu")
    works = _golden_works()[: settings.size(32, 4)]
    target.score(works[:2])
    measured = in_turn(
        settings.size(5, 1),
        lambda: processor_seconds(lambda: target.score(works)),
        lambda: processor_seconds(lambda: _bare_forward(target, works)),
    )
    ours, bare = medians(measured)
    tokens = sum(work.output_ids.size for work in works)
    yield at_least(
        f"scoring logged answers with the target against a bare batched forward pass ({len(works)} answers, "
        f"{tokens:,} tokens)",
        0.9,
        [theirs / own for own, theirs in measured],
        f"{tokens / ours:.0f} tokens/s against {tokens / bare:.0f}",
    )


def logged_works(kind: str, count: int) -> list[Trajectory]:
    """See `WORDS`; what is made up has answers of 800 tokens."""
    if kind == "answers":
        return _golden_works()[:count]
    rng = np.random.default_rng(0)
    text, size = np.array(golden_text()), PROMPT_TOKENS + OUTPUT_TOKENS
    works = []
    for number in range(count):
        start = int(rng.integers(0, len(text) - size))
        ids = rng.integers(0, 49_152, size) if kind == "random" else text[start : start + size]
        prompt, output = token_ids(ids[:PROMPT_TOKENS]), token_ids(ids[PROMPT_TOKENS:])
        works.append(Trajectory(number, prompt, output, "logged", 0.0, token_ids()))
    return works


def _drafter(spec: str) -> Drafter:
    parsed: Any = parse_drafter(spec, resolve_profile("vllm@0.32"))
    return parsed


def _ours(drafter: Drafter, works: list[Trajectory], counted: dict[str, int]) -> float:
    def count() -> None:
        counted["specprobe"] = int(replay(drafter, works, DEPTH).rounds[:, -1].sum())

    return processor_seconds(count)


def _replayed(
    what: str, peer: str, goal: float, kind: str, works: list[Trajectory], measured: Any, counted: dict[str, int]
) -> Row:
    assert len(set(counted.values())) == 1, f"{what}: rounds differ: {counted}"
    tokens = sum(work.output_ids.size for work in works)
    ours, theirs = medians(measured)
    return at_least(
        f"replay of {what}, all depths 1 to {DEPTH}, against {peer} at depth {DEPTH} "
        f"({WORDS[kind]}; {tokens:,} tokens)",
        goal,
        [their / own for own, their in measured],
        f"{tokens / ours:,.0f} tokens/s against {tokens / theirs:,.0f}; both count {counted['specprobe']:,} rounds",
    )


def _arctic(works: list[Trajectory]) -> int:
    """Rounds, with the cache used as vLLM 0.32 uses it (v1/spec_decode/suffix_decoding.py)."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache = SuffixDecodingCache(24, 10_000)
    rounds = 0
    for number, work in enumerate(works):
        known, first = known_tokens(work), work.prompt_ids.size
        # It takes writable arrays only.
        cache.start_request(number, known[:first])
        cache.add_active_response(number, known[first : first + 1].tolist())
        end = first + 1
        while end < known.size:
            rounds += 1
            draft = cache.speculate(
                number, known[max(0, end - 24) : end], max_spec_tokens=DEPTH, max_spec_factor=1.0, min_token_prob=0.1
            ).token_ids
            accepted = 0
            while accepted < min(len(draft), known.size - end) and draft[accepted] == known[end + accepted]:
                accepted += 1
            written = known[end : end + accepted + 1].tolist()
            cache.add_active_response(number, written)
            end += len(written)
        cache.stop_request(number)
    return rounds


@contextmanager
def _vllm(python: Path, works: list[Trajectory]) -> Iterator[Any]:
    """vLLM's proposer in its own interpreter; a function that runs it over all works once, for its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "works.npz"
        np.savez(log, known=np.stack([known_tokens(work) for work in works]), prompt_tokens=PROMPT_TOKENS)
        command = [str(python), str(Path(__file__).parent / "vllm_ngram.py"), str(log), str(MIN_N), str(MAX_N)]
        child = subprocess.Popen([*command, str(DEPTH)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def propose(counted: dict[str, int]) -> float:
            assert child.stdin is not None
            assert child.stdout is not None
            print(file=child.stdin, flush=True)
            # vLLM says things of its own, too.
            said = next(line for line in child.stdout if line.startswith('{"rounds"'))
            counted["vllm"] = json.loads(said)["rounds"]
            return float(json.loads(said)["seconds"])

        try:
            yield propose
        finally:
            child.communicate()


def _golden_works() -> list[Trajectory]:
    works = []
    for line in GOLDEN.read_text().splitlines():
        row = json.loads(line)
        prompt, output = token_ids(row["prompt_token_ids"]), token_ids(row["output_token_ids"])
        works.append(Trajectory(row["id"], prompt, output, "logged", 0.0, token_ids()))
    return works


def _bare_forward(target: Target, works: list[Trajectory]) -> None:
    """Sorted by length, in batches, logits where the answers are."""
    by_length = sorted(works, key=lambda work: work.prompt_ids.size + work.output_ids.size)
    with torch.inference_mode():
        for start in range(0, len(works), BATCH):
            batch = by_length[start : start + BATCH]
            ids = torch.from_numpy(padded_ids([known_tokens(work) for work in batch]))
            first = min(work.prompt_ids.size for work in batch) - 1
            target.model(input_ids=ids, use_cache=False, logits_to_keep=ids.shape[1] - first)
