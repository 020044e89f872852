"""Responses of the target: batched, seeded, kept one by one, resumed where they stopped. Imports torch.

Batches are cut by position in the workload, never by what is already stored or by who computes: rounding in a
batch depends on its members, so the same requests always meet in the same batch.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from specprobe.crew import Bench
from specprobe.distribution import History, RowProcessors, entropy
from specprobe.errors import SpecprobeError
from specprobe.kv_cache import new_cache
from specprobe.spool import Part, Spool
from specprobe.store import Kept, Response, SettingsStore, TrajectoryStore
from specprobe.target import Target
from specprobe.trajectory import TokenIds, token_ids
from specprobe.writing import WINDOW_BATCHES, Generated, Progress, Request, Sampling, Tally, digest, output_limit

# Prompt and response tokens of a batch at most, which bounds the memory of keys and values.
_BATCH_TOKENS = 2**15


def generate(
    target: Target,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    store: TrajectoryStore | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Generated:
    """A response to each request (distinct ones), read from `store` or written now and kept there.

    A batch of which only a part is stored runs again as a whole, so that an interruption changes nothing; what is
    stored counts.
    """
    longest = target.record.max_position_embeddings
    limits = [output_limit(longest, len(r.prompt_ids), sampling, r.max_new_tokens) for r in requests]
    kept = store.open(_settings(target, sampling)) if store else None
    tally = Tally(limits, on_progress)
    plan = plan_batches([len(r.prompt_ids) for r in requests], limits, sampling.batch_size)
    written: Spool[Response] = Spool()
    places = array("q", bytes(8 * len(requests)))

    def put_away(batch: _Batch) -> None:
        for index, response in batch.responses():
            places[index] = len(written)
            written.append(response)

    unfinished = []
    for indices in plan:
        batch = _Batch(indices, requests, limits, kept, tally)
        if batch.is_finished:
            put_away(batch)
        else:
            unfinished.append(batch)
    for number, tokens, ended in _written(target, unfinished, sampling):
        batch = unfinished[number]
        batch.take(ended)
        tally.step(tokens)
        if batch.is_finished:
            put_away(batch)
            batch.forget()
    return Generated(Part(written, places), tally.reused, tally.changed, tuple(tally.damage))


def plan_batches(prompt_tokens: Sequence[int], limits: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices of the requests of each batch.

    Windows of a few batches are cut in the order of the workload and sorted by length inside, so that requests
    appended to a workload leave the batches of all full windows alone.
    """
    batches: list[list[int]] = []
    window = WINDOW_BATCHES * batch_size
    for start in range(0, len(prompt_tokens), window):
        members = range(start, min(start + window, len(prompt_tokens)))
        batches += _cut(sorted(members, key=lambda i: (prompt_tokens[i], i)), prompt_tokens, limits, batch_size)
    return batches


def _cut(
    by_length: Sequence[int], prompt_tokens: Sequence[int], limits: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    batch: list[int] = []
    for index in by_length:
        longest = prompt_tokens[index] + max(limits[i] for i in [*batch, index])
        if batch and (len(batch) == batch_size or longest * (len(batch) + 1) > _BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    request: Request
    limit: int


class _Batch:
    """Requests that are written together, and their responses as far as there are any.

    `indices`: of its requests among all; `limits`: of all responses, in tokens.
    """

    def __init__(
        self,
        indices: Sequence[int],
        requests: Sequence[Request],
        limits: Sequence[int],
        kept: SettingsStore | None,
        tally: Tally,
    ) -> None:
        self._indices, self._requests, self._limits, self._kept, self._tally = indices, requests, limits, kept, tally
        self._keys = [requests[i].key for i in indices]
        self._name = digest(*(key.encode() for key in self._keys))
        found = kept.read(self._name) if kept else Kept({}, ())
        self._responses = found.responses
        self._num_missing = len(indices)
        if all(key in self._responses for key in self._keys):
            self._num_missing = 0
            for index, key in zip(indices, self._keys, strict=True):
                tally.reuse(limits[index], self._responses[key])
        else:
            tally.damage += found.damage

    @property
    def is_finished(self) -> bool:
        """Whether all of it is stored, or was written."""
        return not self._num_missing

    @property
    def rows(self) -> list[_Row]:
        """What is to be written together."""
        return [_Row(self._requests[i], self._limits[i]) for i in self._indices]

    def take(self, ended: Sequence[tuple[int, Response]]) -> None:
        """Responses that have ended, by row; those that were stored before count, and are not kept twice."""
        for row, response in ended:
            key = self._keys[row]
            if key in self._responses:
                self._tally.changed += not np.array_equal(self._responses[key].output_ids, response.output_ids)
            else:
                self._responses[key] = response
                if self._kept:
                    self._kept.append(self._name, key, response)
            self._tally.finish(self._limits[self._indices[row]], response)
        self._num_missing -= len(ended)

    def forget(self) -> None:
        """Let go of what others have by now."""
        self._responses, self._keys = {}, []

    def responses(self) -> Iterator[tuple[int, Response]]:
        """By index in the workload, once all have ended."""
        return ((index, self._responses[key]) for index, key in zip(self._indices, self._keys, strict=True))


def _written(
    target: Target, batches: Sequence[_Batch], sampling: Sampling
) -> Iterator[tuple[int, int, list[tuple[int, Response]]]]:
    """Number of a batch, tokens written, and responses that ended: step by step here, whole batches of a crew."""
    if target.crew is None:
        for number, batch in enumerate(batches):
            for tokens, ended in _steps(target, batch.rows, sampling):
                yield number, tokens, ended
        return
    # The tokens are all that it takes: the turns that they were made of stay here.
    bare = ([_Row(replace(row.request, prompt=None), row.limit) for row in batch.rows] for batch in batches)
    for number, ended in target.crew.each(_write_batch, ((rows, sampling) for rows in bare)):
        yield number, sum(response.output_ids.size for _, response in ended), ended


def _write_batch(bench: Bench, item: tuple[Sequence[_Row], Sampling]) -> list[tuple[int, Response]]:
    return [found for _, ended in _steps(bench.running_target(), *item) for found in ended]


def _steps(
    target: Target, rows: Sequence[_Row], sampling: Sampling
) -> Iterator[tuple[int, list[tuple[int, Response]]]]:
    """Decode one batch; each step gives the number of tokens written and the responses that ended with it."""
    try:
        yield from _decode(target, rows, sampling)
    except torch.OutOfMemoryError as error:
        raise SpecprobeError(
            f"target {target.record.name}: out of memory on {target.record.device} while generating; "
            "lower --max-model-len or --max-new-tokens, or use --device cpu (finished responses are kept)"
        ) from error


def _decode(
    target: Target, rows: Sequence[_Row], sampling: Sampling
) -> Iterator[tuple[int, list[tuple[int, Response]]]]:
    room = max(row.limit for row in rows)
    forward = BatchForward(target, [row.request.prompt_ids for row in rows], room)
    draws = _draws(rows, sampling, target.device)  # [B, most new tokens]
    processors = RowProcessors([row.request.processors for row in rows], rows[0].request.rule, target.device)
    alive = list(range(len(rows)))
    written: list[list[tuple[int, float, float]]] = [[] for _ in rows]
    logits = forward.prefill()
    for step in range(room):
        history = forward.history() if processors.penalizes else None
        tokens, facts = choose_tokens(processors, logits, sampling.temperature, draws[:, step], history)
        # One transfer a step: float32 holds every token id exactly (they are below 2^24).
        host = torch.stack((tokens.to(torch.float32), *facts)).cpu().numpy()
        if np.isnan(host).any():
            raise SpecprobeError(
                f"target {target.record.name}: its logits are not numbers in {target.record.dtype}; use --dtype float32"
            )
        for row, token, log_p, nats in zip(alive, *host, strict=True):
            written[row].append((int(token), float(log_p), float(nats)))
        ends = {row: reason for row in alive if (reason := _end(written[row], rows[row].limit, target.eos_ids))}
        yield len(alive), [(row, _response(written[row], reason)) for row, reason in ends.items()]
        if ends:
            left = [i for i, row in enumerate(alive) if row not in ends]
            if not left:
                return
            alive = [alive[i] for i in left]
            index = torch.tensor(left, device=target.device)
            forward.keep(index)
            processors = processors.select(left)
            tokens, draws = tokens[index], draws[index]
        logits = forward.extend(tokens)


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch that `generate` would write, or has: prompt lengths and limits of its rows, in tokens.

    `num_kept`: responses that are stored; where that is all of them the batch does not run.
    """

    prompt_tokens: tuple[int, ...]
    limits: tuple[int, ...]
    num_kept: int

    @property
    def size(self) -> int:
        """How many responses."""
        return len(self.limits)


def planned_batches(
    target: Target, requests: Sequence[Request], sampling: Sampling, store: TrajectoryStore | None
) -> list[PlannedBatch]:
    """What `generate` would do with these requests; nothing is written."""
    lengths = [len(r.prompt_ids) for r in requests]
    limits = [output_limit(target.max_positions, len(r.prompt_ids), sampling, r.max_new_tokens) for r in requests]
    kept = store.open(_settings(target, sampling)) if store else None
    planned = []
    for batch in plan_batches(lengths, limits, sampling.batch_size):
        keys = [requests[i].key for i in batch]
        stored = kept.load(digest(*(key.encode() for key in keys))) if kept else {}
        rows = tuple(lengths[i] for i in batch), tuple(limits[i] for i in batch)
        planned.append(PlannedBatch(*rows, sum(key in stored for key in keys)))
    return planned


class BatchForward:
    """The model over a batch that grows at its right end; shorter prompts are padded on the left."""

    def __init__(self, target: Target, prompts: Sequence[TokenIds], room: int) -> None:
        lengths = np.array([len(ids) for ids in prompts])
        width = int(lengths.max())
        ids = np.stack([np.pad(ids, (width - len(ids), 0)) for ids in prompts]).astype(np.int64)
        mask = np.arange(width + room) >= (width - lengths)[:, None]
        self._model = target.model
        # [B, width + room], and how much of it is written.
        self._ids = torch.from_numpy(np.pad(ids, ((0, 0), (0, room)))).to(target.device)
        self._mask = torch.from_numpy(mask.astype(np.int64)).to(target.device)  # [B, width + room]
        self._lengths = torch.from_numpy(lengths).to(target.device)  # [B], tokens seen, without padding
        self._first = torch.from_numpy(width - lengths).to(target.device)  # [B], columns of padding
        self._prompt_width = self._width = width
        self._cache = new_cache(target.model.config)
        self._cache_input, self._optional = target.forward_inputs()

    @torch.inference_mode()
    def prefill(self) -> torch.Tensor:
        """Logits [B, V] after the prompts."""
        positions = (self._mask[:, : self._width].cumsum(-1) - 1).clamp(min=0)
        return self._run(self._ids[:, : self._width], positions)

    def history(self) -> History:
        """What penalties see of each row."""
        size = len(self._ids)
        return History(
            ids=self._ids[:, : self._width],
            first=self._first,
            prompt_end=self._first.new_full((size,), self._prompt_width),
            end=self._first.new_full((size,), self._width),
        )

    @torch.inference_mode()
    def extend(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] after one more token [B]."""
        positions = self._lengths[:, None]
        self._lengths = self._lengths + 1
        self._ids[:, self._width] = tokens
        self._width += 1
        return self._run(tokens[:, None], positions)

    @torch.inference_mode()
    def keep(self, index: torch.Tensor) -> None:
        """Drop the rows that are not in `index`: they would cost as much as the others."""
        self._cache.batch_select_indices(index)
        self._mask, self._lengths = self._mask[index], self._lengths[index]
        self._ids, self._first = self._ids[index], self._first[index]

    def _run(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        optional: dict[str, Any] = {"position_ids": positions, "logits_to_keep": 1}
        inputs = {name: optional[name] for name in self._optional} | {self._cache_input: self._cache}
        output = self._model(input_ids=ids, attention_mask=self._mask[:, : self._width], use_cache=True, **inputs)
        logits: torch.Tensor = output.logits[:, -1].to(torch.float32)
        return logits


@torch.inference_mode()
def choose_tokens(
    processors: RowProcessors, logits: torch.Tensor, temperature: float, draws: torch.Tensor, history: History | None
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Tokens [B] from logits [B, V]: the largest, or the inverse of the CDF at draws [B]; their log p and the entropy.

    Both [B], in nats, of the distribution that is sampled from; at temperature 0 of that at temperature 1.
    """
    log_p = torch.log_softmax(processors.process(logits, temperature, history), dim=-1)
    if temperature == 0:
        tokens = log_p.argmax(-1)
    else:
        cumulated = log_p.to(draws.dtype).exp().cumsum(-1)
        # The first token whose cumulated probability exceeds the draw: never one of probability 0.
        point = draws[:, None] * cumulated[:, -1:]
        tokens = torch.searchsorted(cumulated, point, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return tokens, (log_p.gather(-1, tokens[:, None])[:, 0], entropy(log_p))


def _draws(rows: Sequence[_Row], sampling: Sampling, device: torch.device) -> torch.Tensor:
    """Uniform numbers [B, most new tokens], one a token: a row's depend on its request and the seed alone."""
    # Apple's GPUs have no float64.
    precision = torch.float32 if device.type == "mps" else torch.float64
    width = max(row.limit for row in rows)
    if sampling.temperature == 0:
        return torch.zeros(1, 1, dtype=precision, device=device).expand(len(rows), width)
    return torch.from_numpy(np.stack([uniforms(row.request, sampling, width) for row in rows])).to(device, precision)


def uniforms(request: Request, sampling: Sampling, count: int) -> NDArray[np.float64]:
    """The first `count` draws of a request, in [0, 1)."""
    words = f"{sampling.seed} {request.key} {sampling.temperature!r}".encode()
    key = int.from_bytes(hashlib.sha256(words).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key)).random(count)


def _end(
    written: Sequence[tuple[int, float, float]], limit: int, eos_ids: Sequence[int]
) -> Literal["stop", "length"] | None:
    if written[-1][0] in eos_ids:
        return "stop"
    return "length" if len(written) >= limit else None


def _response(written: Sequence[tuple[int, float, float]], reason: Literal["stop", "length"]) -> Response:
    tokens, log_probs, nats = zip(*written, strict=True)
    return Response(token_ids(tokens), _floats(log_probs), _floats(nats), reason)


def _floats(values: Sequence[float]) -> NDArray[np.float32]:
    array = np.array(values, dtype=np.float32)
    array.flags.writeable = False
    return array


def _settings(target: Target, sampling: Sampling) -> dict[str, Any]:
    """Everything besides the requests that changes what is written."""
    record = target.record
    return {
        "weights": record.fingerprint,
        "dtype": record.dtype,
        "device_type": record.device_type,
        "max_position_embeddings": record.max_position_embeddings,
        "eos_ids": list(target.eos_ids),
        "temperature": sampling.temperature,
        "seed": sampling.seed if sampling.temperature else None,
        "max_new_tokens": sampling.max_new_tokens,
        "max_model_len": sampling.max_model_len,
        "batch_size": sampling.batch_size,
        "batch_tokens": _BATCH_TOKENS,
    }
