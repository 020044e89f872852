"""Speculation really run on this CPU with the embedded target, beside what specprobe predicts for it.

    python -m tests.benchmarks.real_speculation [DRAFT_FOLDER] [--batches 1,4,16] [--prompts 16] [--shared]

Arms: no speculation, n-gram (vllm@0.30, min=2, max=4) and, with its folder, the draft model; K = 3, greedy, float32.
All use one ragged cache. A batch is kept full: a row that has its tokens gets the next prompt, after the last the first
again, until every prompt is done once; end tokens end nothing. Prefills are not on the clock, all else is: drafting,
verification, acceptance, the texts on the host. Rows that draft different numbers of tokens are packed, as engines do
it, so that a step costs the sum over its rows. Arms take turns every half second.

On a machine that other programs use as well, `--shared` takes one thread and the processor's time instead of the
clock's: what the cost source and the arms would both take if they were alone.

The prediction comes from cost source `measured`, timed right before each batch, and from replay of the texts. Text that
differs from that of the arm without speculation is counted: batches of other shapes round differently, and near-ties
then fall otherwise. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit

import specprobe.measure
from specprobe.causal_lm import LoadOptions
from specprobe.cost import CostTable
from specprobe.drafters import Drafter, Limits, parse_drafter
from specprobe.live_drafters import live_drafter
from specprobe.llama import _rotated
from specprobe.measure import CostGrid, plan_grid
from specprobe.measure_drafters import TimedDrafter, open_timed
from specprobe.profiles import resolve_profile
from specprobe.progress import Silent
from specprobe.ragged_cache import Places
from specprobe.replay import replay
from specprobe.run import ResponseRecord
from specprobe.speculation import LiveDrafter, Rows
from specprobe.speedup import speedup_counts, speedups
from specprobe.target import Target, load_target
from specprobe.timings import measured_cost
from specprobe.trajectory import Trajectory, token_ids

GOLDEN = Path(__file__).parents[1] / "golden" / "baseline_t0.jsonl"
DEPTH, MIN_N, MAX_N = 3, 2, 4
NGRAM, PROFILE = f"ngram:min={MIN_N},max={MAX_N}", "vllm@0.30"
SLICE_SECONDS = 0.5
# Of timing, by batch and context: a prediction to be judged should not rest on three repeats.
BLOCK_SECONDS = 8.0


@dataclass(slots=True)
class Tally:
    """What one arm did in one repeat, prefills left out; `texts`: the first response to each prompt."""

    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    seconds: float = 0.0
    texts: dict[int, list[int]] = field(default_factory=dict)


class NgramRows:
    """Lookup on the host, row by row, and verification of as many drafts as each row has."""

    taps: Sequence[int] = ()

    def round(self, rows: Rows, texts: Sequence[np.ndarray]) -> tuple[torch.Tensor, int]:
        """One round; what `Rows.verify` returns, and the number of drafted tokens."""
        drafts = [look_up(text[:length], MIN_N, MAX_N, DEPTH) for text, length in zip(texts, rows.host_lengths)]  # noqa: B905
        sizes = np.array([len(draft) for draft in drafts])
        padded = np.full((len(drafts), int(sizes.max())), -1, dtype=np.int64)
        for row, draft in enumerate(drafts):
            padded[row, : len(draft)] = draft
        if (sizes == sizes[0]).all():
            return rows.verify(torch.from_numpy(padded)), int(sizes.sum())
        return verify_packed(rows, torch.from_numpy(padded), torch.from_numpy(sizes)), int(sizes.sum())


class ModelRows:
    """A draft model, or, without one, no speculation."""

    def __init__(self, live: LiveDrafter | None) -> None:
        self._live = live

    def round(self, rows: Rows, _texts: Sequence[np.ndarray]) -> tuple[torch.Tensor, int]:
        if self._live is None:
            return rows.verify(rows.ids[:, :0]), 0
        drafts = self._live.draft(rows, DEPTH)
        return rows.verify(drafts), drafts.numel()


@njit(cache=True)
def look_up(text: np.ndarray, min_n: int, max_n: int, depth: int) -> np.ndarray:
    """What followed the earliest occurrence of the longest suffix that occurred before."""
    size = len(text)
    for n in range(min(max_n, size - 1), min_n - 1, -1):
        for start in range(size - n):
            same = True
            for j in range(n):
                if text[start + j] != text[size - n + j]:
                    same = False
                    break
            if same:
                return text[start + n : start + n + depth]
    return text[:0]


def verify_packed(rows: Rows, drafts: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """As `Rows.verify`, for drafts [B, K] of which each row has `sizes` [B] (the rest is -1): no work on the others."""
    width = 1 + drafts.shape[1]
    positions = rows.positions(width)
    inputs = torch.cat([rows.ids.gather(1, positions[:, :1]), drafts], dim=1)
    row, slot = (torch.arange(width) <= sizes[:, None]).nonzero(as_tuple=True)
    places = Places(positions, rows.reach(width - 1))
    mask = rows.verifier.cache.place(places)
    model = rows.target.model
    position = positions[row, slot]
    hidden = model.model.embed_tokens(inputs[row, slot])[None]
    rotary = model.model.rotary_emb(position[None], hidden.dtype)
    for layer, cache in zip(model.model.layers, rows.verifier.cache.layers, strict=True):
        attention, normed = layer.self_attn, layer.input_layernorm(hidden)
        query, key, value = (
            projection(normed).view(1, len(row), -1, model.config.head_dim).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, key = _rotated(query, rotary), _rotated(key, rotary)
        keys, values = cache.write(row, position, key[0].transpose(0, 1), value[0].transpose(0, 1))
        spread = query.new_zeros(len(drafts), width, *query.shape[1::2])
        spread[row, slot] = query[0].transpose(0, 1)
        keys, values = (states[:, : places.width].transpose(1, 2) for states in (keys, values))
        attended = attend_by_length(attention, spread.transpose(1, 2), keys, values, mask, sizes.nonzero()[:, 0])
        hidden = hidden + attention.o_proj(attended.transpose(1, 2)[row, slot].flatten(1))[None]
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    choices = torch.zeros_like(inputs)
    choices[row, slot] = model.lm_head(model.model.norm(hidden))[0].argmax(dim=-1)
    return rows.accept(positions, drafts, choices)


def attend_by_length(
    attention: Any,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    drafted: torch.Tensor,
) -> torch.Tensor:
    """[B, heads, Q, dim]: one query for every row, and all of them for the rows that drafted, as engines do not pad."""
    if len(drafted) == len(query):
        whole: torch.Tensor = attention._attend(query, keys, values, mask)
        return whole
    attended = torch.zeros_like(query)
    attended[:, :, :1] = attention._attend(query[:, :, :1], keys, values, mask[:, :, :1])
    attended[drafted] = attention._attend(query[drafted], keys[drafted], values[drafted], mask[drafted])
    return attended


def run_arm(
    target: Target, arm: NgramRows | ModelRows, live: LiveDrafter | None, prompts: Sequence[Sequence[int]],
    batch: int, new_tokens: int, tally: Tally,
) -> Iterator[None]:  # fmt: skip
    """Decode until every prompt is done once; pauses every half second."""
    capacity = max(map(len, prompts)) + new_tokens + 3 * DEPTH + 4
    rows = Rows(target, batch, capacity)
    if live is not None:
        live.allocate(batch, capacity)
    texts = [np.zeros(capacity, dtype=np.int64) for _ in range(batch)]
    request = np.arange(batch)
    num_prompt, done = np.zeros(batch, dtype=np.int64), np.zeros(batch, dtype=np.int64)
    waiting = batch

    def fill(row: int) -> None:
        prompt = torch.tensor(prompts[request[row] % len(prompts)])
        states = rows.prefill(row, prompt)
        if live is not None:
            live.prefill(rows, row, states)
        num_prompt[row], done[row] = len(prompt), 1
        texts[row][: len(prompt) + 1] = rows.ids[row, : len(prompt) + 1].numpy()

    for row in range(batch):
        fill(row)
    pause = SLICE_SECONDS
    while len(tally.texts) < len(prompts):
        begin = time.perf_counter()
        verified, drafted = arm.round(rows, texts)
        before = rows.host_lengths.copy()
        host = rows.finish(verified)
        for row in range(batch):
            emitted = host[row, 0] + 1
            texts[row][before[row] : before[row] + emitted] = host[row, 1 : 1 + emitted]
        tally.seconds += time.perf_counter() - begin
        tally.rounds += batch
        tally.drafted += drafted
        emitted = np.minimum(host[:, 0] + 1, new_tokens - done)
        tally.tokens += int(emitted.sum())
        done += emitted
        for row in np.flatnonzero(done == new_tokens):
            start = num_prompt[row]
            tally.texts.setdefault(int(request[row]) % len(prompts), texts[row][start : start + new_tokens].tolist())
            request[row], waiting = waiting, waiting + 1
            fill(row)
        if tally.seconds > pause:
            pause = tally.seconds + SLICE_SECONDS
            yield


@dataclass(frozen=True, slots=True)
class Result:
    """One arm at one batch. Medians over repeats; the spread is from the smallest to the largest speed-up."""

    batch: int
    arm: str
    tokens_per_second: float
    speedup: float
    smallest: float
    largest: float
    predicted: float
    tokens_per_round: float
    replayed_tokens_per_round: float
    other_texts: int

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was measured."""
        return self.predicted / self.speedup - 1


@torch.inference_mode()
def run(
    target: Target,
    prompts: Sequence[Sequence[int]],
    batches: Sequence[int],
    draft_folder: str | None = None,
    *,
    new_tokens: int,
    repeats: int,
) -> list[Result]:
    """All arms at all batches."""
    profile = resolve_profile(PROFILE)
    ngram: Any = parse_drafter(NGRAM, profile)
    specs = [f"draft:{draft_folder}"] if draft_folder else []
    models = open_timed(specs, target, profile, DEPTH, LoadOptions("cpu", "float32"), Silent())
    loaded: dict[str, Drafter] = {"ngram": ngram} | {m.name.partition(":")[0]: m.opened.load(None) for m in models}
    live = {name: live_drafter(drafter, target) for name, drafter in loaded.items()}
    arms = {"off": ModelRows(None), **{n: NgramRows() if n == "ngram" else ModelRows(live[n]) for n in loaded}}
    context = float(np.mean([len(prompt) for prompt in prompts]) + new_tokens / 2)
    grid = plan_grid(batches, DEPTH, context, None)
    found = []
    for batch in batches:
        here = CostGrid((batch,), grid.query_tokens, grid.contexts)
        cost = measure(target, here, ngram, models)
        tallies: dict[str, list[Tally]] = {name: [] for name in arms}
        for _ in range(repeats):
            running = {}
            for name, arm in arms.items():
                tallies[name].append(Tally())
                running[name] = run_arm(target, arm, live.get(name), prompts, batch, new_tokens, tallies[name][-1])
            while running:
                running = {name: steps for name, steps in running.items() if next(steps, "end") != "end"}
        plain = [t.tokens / t.seconds for t in tallies["off"]]
        texts = tallies["off"][0].texts
        works = [
            Trajectory(i, token_ids(prompt), token_ids(texts[i]), "logged", 0.0, token_ids())
            for i, prompt in enumerate(prompts)
        ]
        for name, drafter in loaded.items():
            acceptance = replay(drafter, works, DEPTH, limits=Limits())
            rates = [t.tokens / t.seconds for t in tallies[name]]
            ratios = [rate / other for rate, other in zip(rates, plain, strict=True)]
            lengths = response_record(prompts, new_tokens)
            counts = speedup_counts(acceptance, lengths, cost).sum(axis=0)
            # What is timed leaves prefill out.
            counts[:, 1:4] = 0
            (speedup,) = speedups(acceptance, lengths, cost, [batch])
            found.append(
                Result(
                    batch=batch,
                    arm=name,
                    tokens_per_second=statistics.median(rates),
                    speedup=statistics.median(ratios),
                    smallest=min(ratios),
                    largest=max(ratios),
                    predicted=float(speedup(counts)[DEPTH - 1]),
                    tokens_per_round=sum(t.tokens for t in tallies[name]) / sum(t.rounds for t in tallies[name]),
                    replayed_tokens_per_round=float(counts[DEPTH - 1, 0] / counts[DEPTH - 1, 4]),
                    other_texts=sum(t.texts[i] != texts[i] for t in tallies[name] for i in texts),
                )
            )
        print_batch(batch, statistics.median(plain), [result for result in found if result.batch == batch])
    return found


def measure(target: Target, grid: CostGrid, ngram: Drafter, models: Sequence[TimedDrafter]) -> CostTable:
    """Cost source `measured`, kept nowhere."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        cost = measured_cost(target, grid, [ngram], DEPTH, Silent(), models=models)
    for context in grid.contexts:
        rounds = {p.query_tokens: round(1e3 * p.seconds, 1) for p in cost.points if p.context == context}
        drafting = {p.depth: round(1e3 * p.seconds, 1) for p in cost.drafting if p.context == context}
        print(f"batch {grid.batches[0]:2}, context {context}: rounds {rounds} ms, drafting {drafting} ms", flush=True)
    return cost


def response_record(prompts: Sequence[Sequence[int]], new_tokens: int) -> ResponseRecord:
    numbers = np.arange(len(prompts), dtype=np.int32)
    return ResponseRecord(
        temperature=0.0,
        source="generated",
        ids=tuple(range(len(prompts))),
        prompt_tokens=np.array([len(prompt) for prompt in prompts], dtype=np.int32),
        output_tokens=np.full(len(prompts), new_tokens, dtype=np.int32),
        prompts=numbers,
        samples=np.zeros_like(numbers),
    )


def print_batch(batch: int, plain: float, results: Sequence[Result]) -> None:
    print(f"batch {batch:2}  off     {plain:7.1f} tokens/s")
    for r in results:
        print(
            f"batch {batch:2}  {r.arm:6} {r.tokens_per_second:8.1f} tokens/s  speed-up {r.speedup:.3f} "
            f"[{r.smallest:.3f}, {r.largest:.3f}]  predicted {r.predicted:.3f} ({100 * r.error:+.1f} %)  "
            f"tokens per round {r.tokens_per_round:.3f}, replayed {r.replayed_tokens_per_round:.3f}  "
            f"other texts {r.other_texts}",
            flush=True,
        )


def golden_prompts(num_prompts: int) -> list[list[int]]:
    """The longest of fewer than 128 tokens: a batch reads as many keys of every row as its longest has."""
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    by_length = sorted((row["prompt_token_ids"] for row in rows), key=len, reverse=True)
    return [ids for ids in by_length if len(ids) < 128][:num_prompts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("draft_folder", nargs="?")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shared", action="store_true", help="other programs are running: see above")
    options = parser.parse_args()
    if options.shared:
        torch.set_num_threads(1)
        # For measured and predicted alike.
        time.perf_counter = time.process_time
    specprobe.measure.SECONDS_PER_BLOCK = BLOCK_SECONDS
    results = run(
        load_target(dtype="float32", device="cpu"),
        golden_prompts(options.prompts),
        [int(batch) for batch in options.batches.split(",")],
        options.draft_folder and str(Path(options.draft_folder).resolve()),
        new_tokens=options.new_tokens,
        repeats=options.repeats,
    )
    print(json.dumps([{**asdict(result), "error": result.error} for result in results]))


if __name__ == "__main__":
    main()
