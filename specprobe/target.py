"""The target: a causal language model on a device, its tokenizer, and what it gives to text that is already there."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specprobe.batches import padded_ids
from specprobe.causal_lm import (
    LoadOptions,
    choose_device,
    choose_precision,
    load_causal_lm,
    loading_errors,
    move,
)
from specprobe.crew import Bench, Item, Result
from specprobe.embedded import EMBEDDED_NAME, HUB_NAME, embedded_folder, is_embedded, missing_error
from specprobe.errors import SpecprobeError, UnreachableError
from specprobe.processors import DEFAULT_RULE, ProcessingRule
from specprobe.quiet import quick_imports, quiet_transformers
from specprobe.tokens import Tokenizer, TokenizerRecord, UnrenderableError, as_ids, load_tokenizer
from specprobe.trajectory import TokenIds, Trajectory

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from specprobe.crew import Crew, Work
    from specprobe.notices import Notice
    from specprobe.prompt import Prompt
    from specprobe.store import TrajectoryStore
    from specprobe.writing import Generated, Progress, Request, Sampling

# Values read of each weight matrix for the fingerprint: a finetune changes nearly all of them.
_SAMPLED_VALUES = 64
# Logits held at once while scoring, in float32 values (1 GB); one long response may take more.
_SCORE_LOGITS = 2**28
# Of these, processed at once (64 MB).
_PROCESSED_LOGITS = 2**24


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """What has to be the same for two targets to write the same.

    `fingerprint`: 16 hex digits of a hash over shapes and sampled values of all weights, as loaded. `revision`: the
    Hub's commit, where the model came from there. `stored_dtype`: what the checkpoint holds; `dtype`: what was
    computed in. `max_position_embeddings`: the model's context in tokens, None where it has no limit.
    """

    name: str
    revision: str | None
    fingerprint: str
    architecture: str
    parameters: int
    stored_dtype: str | None
    dtype: str
    device: str
    device_type: str
    max_position_embeddings: int | None
    vocab_size: int
    tokenizer: TokenizerRecord


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """What the target gives to each token [N] of a response, teacher-forced.

    `log_probs`: log p of the token, and `entropy`: of the distribution it would have been drawn from, in nats, both
    at the trajectory's temperature and under its processors (at 0: at temperature 1). `is_argmax`: whether greedy
    decoding would have chosen it.
    """

    log_probs: NDArray[np.float32]
    entropy: NDArray[np.float32]
    is_argmax: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A transformers model in evaluation mode, with its tokenizer and record.

    `crew`: other processes that do its passes over text, where there are any.
    """

    model: Any
    tokenizer: Tokenizer
    record: TargetRecord
    crew: Crew | None = None

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        device: torch.device = self.model.device
        return device

    @property
    def text_config(self) -> Any:
        """The configuration of the language model, where the checkpoint has other towers too."""
        return self.model.config.get_text_config()

    @property
    def decoder(self) -> Any:
        """The model without its head: embeddings, layers, final norm."""
        return self.model.get_decoder()

    @property
    def layers(self) -> torch.nn.ModuleList:
        """The decoder's layers; raises SpecprobeError for an architecture that keeps them elsewhere."""
        layers = getattr(self.decoder, "layers", None)
        if layers is None:
            raise SpecprobeError(
                f"target {self.record.name}: {self.record.architecture} keeps its layers elsewhere than in `layers`; "
                "drafters that read its hidden states do not work with it"
            )
        return layers

    @property
    def final_norm(self) -> Any:
        """The norm before the head."""
        for name in ("norm", "final_layernorm", "ln_f"):
            if hasattr(self.decoder, name):
                return getattr(self.decoder, name)
        raise SpecprobeError(
            f"target {self.record.name}: {self.record.architecture} has no final norm where specprobe looks; "
            "drafters that read its hidden states do not work with it"
        )

    @property
    def shows_states(self) -> bool:
        """Whether what its head reads can be watched."""
        try:
            return len(self.layers) > 0 and self.final_norm is not None and bool(self.model.get_output_embeddings())
        except SpecprobeError:
            return False

    def release_layers(self) -> None:
        """Give the memory of the layers back; embeddings, final norm and head, which drafters share, stay."""
        import torch

        self.decoder.layers = torch.nn.ModuleList()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.device.type == "mps":
            torch.mps.empty_cache()

    def park_layers(self) -> None:
        """Keep the layers in main memory, for drafters to look at, while a GPU's is needed for something else."""
        import torch

        if self.device.type == "cuda" and self.shows_states:
            self.layers.to("cpu")
            torch.cuda.empty_cache()

    def fetch_layers(self) -> None:
        """Bring layers that were parked back, to run them."""
        if self.device.type == "cuda" and self.shows_states:
            self.layers.to(self.device)

    def close(self) -> None:
        """Let the crew go."""
        if self.crew is not None:
            self.crew.close()

    def each(self, work: Work[Item, Result], items: Iterable[Item]) -> Iterator[tuple[int, Result]]:
        """The number of each item and what `work` made of it: in order here, in any order where there is a crew."""
        if self.crew is not None:
            yield from self.crew.each(work, items)
            return
        bench = Bench(self)
        for number, item in enumerate(items):
            yield number, work(bench, item)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a response."""
        return self.tokenizer.eos_ids

    @property
    def max_positions(self) -> int | None:
        """The model's context in tokens, None where it has no limit."""
        return self.record.max_position_embeddings

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Nothing is odd about a model that writes here."""
        return ()

    def encode_all(self, prompts: Sequence[Prompt]) -> list[TokenIds | UnrenderableError]:
        """The ids of each prompt, as the model is given it; or why its chat template refuses it."""
        return self.tokenizer.encode_all(prompts)

    def write(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        store: TrajectoryStore | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Generated:
        """A response to each request, as `generate` writes them."""
        from specprobe.generate import generate

        return generate(self, requests, sampling, store=store, on_progress=on_progress)

    def forward_inputs(self) -> tuple[str, list[str]]:
        """What this architecture calls its cache, and which inputs it takes of those that not every one does."""
        taken = inspect.signature(self.model.forward).parameters
        # transformers renamed the cache within version 5.
        for cache_input in ("cache", "past_key_values"):
            if cache_input in taken:
                return cache_input, [name for name in ("position_ids", "logits_to_keep") if name in taken]
        raise SpecprobeError(
            f"target {self.record.name}: {self.record.architecture} keeps no keys and values; use one with attention"
        )

    def score(
        self,
        trajectories: Sequence[Trajectory],
        rule: ProcessingRule = DEFAULT_RULE,
        on_response: Callable[[], None] | None = None,
    ) -> list[Score]:
        """Each response under this model, as its request asks: could it have written it? In the order given."""
        batches = list(self._score_batches(trajectories))
        scores: dict[int, Score] = {}
        for number, found in self.each(_score_batch, (([trajectories[i] for i in batch], rule) for batch in batches)):
            for index, score in zip(batches[number], found, strict=True):
                scores[index] = score
                if on_response:
                    on_response()
        return [scores[i] for i in range(len(trajectories))]

    def _score_batches(self, trajectories: Sequence[Trajectory]) -> Iterator[list[int]]:
        """Indices by similar length, in batches whose logits fit."""
        # Gone through once: those of a large log are read from the disk.
        lengths = [(len(trajectory.prompt_ids), len(trajectory.output_ids)) for trajectory in trajectories]
        batch: list[int] = []
        for index in sorted(range(len(lengths)), key=lengths.__getitem__):
            grown = [lengths[i] for i in [*batch, index]]
            if batch and _logits_size(grown, self.record.vocab_size) > _SCORE_LOGITS:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch


def load_target(
    name: str | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Target:
    """Load a Hub id or a folder, by default the embedded target; for the options see `LoadOptions`."""
    options = LoadOptions(device, dtype, trust_remote_code)
    folder = embedded_folder() if is_embedded(name) else None
    location = str(folder) if folder else HUB_NAME if is_embedded(name) else str(name)
    with quick_imports():
        import torch  # noqa: F401  # with garbage collection off, whoever imports it next

        with nullcontext() if folder else quiet_transformers():
            place = choose_device(options.device)
            if folder:
                with loading_errors("target", location):
                    model, stored = _embedded_model(folder, choose_precision(options.dtype, place))
                    for parameter in model.parameters():
                        parameter.requires_grad_(False)
                model = move("target", location, model, place)
            else:
                try:
                    model, stored = load_causal_lm("target", location, place, options)
                except UnreachableError as error:
                    raise missing_error() if is_embedded(name) else error from error.__cause__
            with loading_errors("target", location):
                ends = as_ids(model.generation_config.eos_token_id if model.generation_config else None)
            tokenizer = load_tokenizer(
                name, template_kwargs=template_kwargs, eos_ids=ends, trust_remote_code=trust_remote_code
            )
    return Target(model, tokenizer, target_record(model, EMBEDDED_NAME if folder else location, stored, tokenizer))


def _embedded_model(folder: Path, precision: Any) -> tuple[Any, Any]:
    """The same, without transformers."""
    import torch

    from specprobe.llama import load_llama

    return load_llama(folder, torch.bfloat16 if precision == "auto" else precision), torch.bfloat16


def target_record(model: Any, name: str, stored_dtype: Any, tokenizer: Tokenizer) -> TargetRecord:
    """Of a model that is loaded, under the name that the user gave it."""
    config = model.config.get_text_config()
    return TargetRecord(
        name=name,
        revision=getattr(model.config, "_commit_hash", None),
        fingerprint=_fingerprint(model),
        architecture=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        stored_dtype=None if stored_dtype is None else str(stored_dtype).removeprefix("torch."),
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        device_type=model.device.type,
        max_position_embeddings=getattr(config, "max_position_embeddings", None),
        vocab_size=config.vocab_size,
        tokenizer=tokenizer.record,
    )


def _fingerprint(model: Any) -> str:
    import torch

    names, samples = [], []
    for name, weight in model.state_dict().items():
        names.append(f"{name} {tuple(weight.shape)}")
        flat = weight.reshape(-1)
        samples.append(flat[:: max(1, len(flat) // _SAMPLED_VALUES)].to(torch.float32))
    digest = hashlib.sha256("\n".join(names).encode())
    digest.update(torch.cat(samples).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _logits_size(lengths: Sequence[tuple[int, int]], vocab_size: int) -> int:
    """Values of a batch of texts, by the lengths of prompt and response."""
    first = min(prompt for prompt, _ in lengths)
    last = max(prompt + output for prompt, output in lengths)
    return len(lengths) * (last - first + 1) * vocab_size


def _score_batch(bench: Bench, item: tuple[Sequence[Trajectory], ProcessingRule]) -> list[Score]:
    import torch

    target, (trajectories, rule) = bench.running_target(), item
    rows = [np.concatenate([t.prompt_ids, t.output_ids]) for t in trajectories]
    first = min(len(t.prompt_ids) for t in trajectories) - 1
    inputs = torch.from_numpy(padded_ids(rows)).to(target.device)
    length = inputs.shape[1]
    scores = []
    with torch.inference_mode():
        logits = target.model(input_ids=inputs, use_cache=False, logits_to_keep=length - first).logits
        for row, trajectory in enumerate(trajectories):
            start = len(trajectory.prompt_ids) - 1 - first
            stop = start + len(trajectory.output_ids)
            scores.append(_score(logits[row, start:stop], trajectory, rule))
    return scores


def _score(logits: torch.Tensor, trajectory: Trajectory, rule: ProcessingRule) -> Score:
    """From logits [N, V] in the model's precision, some rows at a time: a few tables of their size are needed."""
    import torch

    from specprobe.distribution import entropy, processed_logits

    written = torch.from_numpy(trajectory.output_ids.astype(np.int64)).to(logits.device)
    # Also of a response without tokens.
    found = [[np.empty(0, dtype=kind) for kind in (np.float32, np.float32, np.bool_)]]
    step = max(1, _PROCESSED_LOGITS // logits.shape[-1])
    for first in range(0, len(logits), step):
        rows = torch.arange(first, min(first + step, len(logits)), device=logits.device)
        processed = processed_logits(logits[rows].float(), trajectory, rows, rule)
        log_p = torch.log_softmax(processed, dim=-1)
        chosen = written[rows]
        facts = log_p.gather(-1, chosen[:, None])[:, 0], entropy(log_p), processed.argmax(-1) == chosen
        found.append([fact.cpu().numpy() for fact in facts])
    return Score(*(np.concatenate(facts) for facts in zip(*found, strict=True)))
