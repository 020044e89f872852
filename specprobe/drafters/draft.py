"""Drafters whose q depends on the tokens before it alone: a second model, and the target's own first layers.

One teacher-forced pass gives what they draft after every token, hence every round and every depth. Imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from specprobe.batches import in_order, padded_ids
from specprobe.causal_lm import choose_device, load_causal_lm, loading_errors
from specprobe.checkpoint import open_checkpoint
from specprobe.drafters.base import Adoption, Limits, Proposals, known_tokens, read_option, refuse_unknown_options
from specprobe.drafters.models import DraftContext, ModelSpec, OpenModel, describe_model
from specprobe.drafters.scores import (
    DraftRule,
    DraftVocabulary,
    Drawing,
    Draws,
    Scores,
    acceptance_probability,
    chunk_rows,
    drawing,
    longest_by_depth,
    outside_mass,
    prefix_proposals,
    score_rows,
    target_log_probs,
)
from specprobe.drafters.vocabularies import VocabularyMatch, match_vocabularies
from specprobe.errors import SpecprobeError
from specprobe.features import Features
from specprobe.notices import Notice
from specprobe.quiet import quick_imports, quiet_transformers
from specprobe.target import Target
from specprobe.target_distribution import ResponseDistribution
from specprobe.tokens import load_tokenizer
from specprobe.trajectory import Trajectory


class _Next(Protocol):
    """Scores [N + tail - 1] of the drafts for every token that follows the first output token, of a batch of
    trajectories; their overlap [N - 1].
    """

    def __call__(
        self, works: list[Trajectory], rules: Sequence[DraftRule], known: Sequence[ResponseDistribution | None]
    ) -> Iterator[Scores]:
        """For each response, in order; a rule and, where it is known, p of each."""


_CPU = torch.device("cpu")


def score_response(
    logits: Callable[[slice], torch.Tensor],
    trajectory: Trajectory,
    rule: DraftRule,
    p: ResponseDistribution | None,
    vocab_size: int,
    vocabulary: DraftVocabulary | None = None,
    device: torch.device = _CPU,
) -> Scores:
    """The drafts of one response, a few rows at a time: `logits` gives those of a slice, [R, draft vocabulary]."""
    written = np.concatenate([trajectory.output_ids, trajectory.tail_ids])[1:].astype(np.int64)
    num_inside = trajectory.output_ids.size - 1
    found: list[Scores] = []
    for rows in chunk_rows(written.size, vocab_size, device):
        some = logits(rows)
        inside = torch.arange(written.size, device=device)[rows]
        inside = inside[inside < num_inside]
        # Output token 0 has no draft: row 0 drafts for token 1.
        p_inside = p.p(inside + 1) if rule.sampled and p is not None and len(inside) else None
        found.append(score_rows(some, torch.from_numpy(written[rows]).to(device), rule, vocabulary, p_inside))
    if not found:
        nothing = torch.zeros(0)
        return Scores(nothing.bool(), nothing.long(), nothing, nothing if p is not None else None)
    overlap = [scores.overlap for scores in found if scores.overlap is not None]
    hits, choice, log_q = (torch.cat([getattr(s, name) for s in found]) for name in ("hits", "choice", "log_q"))
    return Scores(hits, choice, log_q, torch.cat(overlap) if overlap else None)


@dataclass(frozen=True, slots=True)
class PrefixDrafter:
    """What `score` says of each token, read as rounds."""

    name: str
    config: Mapping[str, Any]
    adoption: Adoption
    score: _Next
    drawing: Drawing
    vocabulary: DraftVocabulary | None = None
    max_positions: int | None = None
    fixed_length: bool = True

    def proposals(self, trajectories: Iterable[Trajectory], depth: int, limits: Limits) -> Iterator[Proposals]:
        """Batches of responses of like length, in windows, so that results come in order."""
        works = list(trajectories)

        def run(indices: list[int]) -> Iterator[Proposals]:
            # Requests of one temperature may differ in what else they ask for.
            some = [works[i] for i in indices]
            rules = [self.drawing.rule(work) for work in some]
            known = [self.drawing.p(work, self.vocabulary) for work in some]
            with torch.inference_mode():
                scored = list(self.score(some, rules, known))
            for work, rule, p, found in zip(some, rules, known, scored, strict=True):
                yield self._proposals(work, depth, limits, found, rule, p)

        yield from in_order(works, run)

    def _proposals(
        self,
        trajectory: Trajectory,
        depth: int,
        limits: Limits,
        found: Scores,
        rule: DraftRule,
        p: ResponseDistribution | None,
    ) -> Proposals:
        # The prefill writes the first output token: nothing is drafted for it.
        hits = np.concatenate([[False], found.hits.cpu().numpy()])
        choices = np.concatenate([[-1], found.choice.cpu().numpy()]).astype(np.int32)
        draws: Draws | None = None
        num_output = trajectory.output_ids.size
        if rule.sampled:
            log_q = found.log_q[: num_output - 1].cpu().numpy()
            given = acceptance_probability(log_q, target_log_probs(trajectory)[1:], rule.accept)
            overlap = None if found.overlap is None else found.overlap.cpu().numpy().astype(np.float64)
            draws = Draws(np.concatenate([[0.0], given]), None if overlap is None else np.concatenate([[0.0], overlap]))
        longest = longest_by_depth(trajectory, depth, limits, self.max_positions)
        outside = None if self.vocabulary is None else outside_mass(self.vocabulary, trajectory, p)
        return prefix_proposals(trajectory, depth, longest, hits, choices, draws, outside)


def logits_at(model: Any, ids: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Logits [R, V] of a model of transformers after tokens (`row`, `column`) [R] of `ids` [B, L].

    Its head, which is most of a small model, runs over these alone; what a model does to logits behind it (a cap, a
    scale) is done to them, too.
    """

    def pick(_head: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        states = given[0]
        if states.shape[:2] != ids.shape:
            return None
        return states[row, column][None], *given[1:]

    head = model.get_output_embeddings()
    handles = [] if head is None else [head.register_forward_pre_hook(pick)]
    try:
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    # Some models do not say which their head is, or read its matrix without calling it.
    return logits[row, column] if logits.shape[:2] == ids.shape else logits[0]


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A causal language model of transformers that drafts the next token."""

    model: Any
    match: VocabularyMatch

    def __call__(
        self, works: list[Trajectory], rules: Sequence[DraftRule], known: Sequence[ResponseDistribution | None]
    ) -> Iterator[Scores]:
        """See `_Next`."""
        texts = [known_tokens(work) for work in works]
        ids = torch.from_numpy(padded_ids(texts)).to(self.model.device)
        inputs = self.match.draft_ids(ids, self.model.get_input_embeddings().num_embeddings)
        # After the first output token, and so on up to the last but one.
        columns = [np.arange(work.prompt_ids.size, len(text) - 1) for work, text in zip(works, texts, strict=True)]
        counts = [len(some) for some in columns]
        places = np.repeat(np.arange(len(works)), counts), np.concatenate(columns)
        logits = logits_at(self.model, inputs, *(torch.from_numpy(index).to(ids.device) for index in places))
        vocabulary = self.match.mapping
        for row, (work, mine) in enumerate(zip(works, torch.split(logits, counts), strict=True)):
            yield score_response(
                mine.__getitem__, work, rules[row], known[row], logits.shape[-1], vocabulary, ids.device
            )


@dataclass(frozen=True)
class OpenDraftModel(OpenModel):
    """A draft model whose vocabulary was compared with the target's."""

    spec: ModelSpec
    context: DraftContext
    match: VocabularyMatch
    notices: tuple[Notice, ...]
    taps: tuple[int, ...] = ()

    @property
    def can_sample(self) -> bool:
        """vLLM drafts greedily across vocabularies (use_heterogeneous_vocab)."""
        return self.match.mapping is None or not self.context.profile.engine.startswith("vllm")

    def load(self, features: Features | None) -> PrefixDrafter:  # noqa: ARG002
        """The model, in its own right: on the target's device where there is one."""
        place = self.context.target.device if self.context.target else choose_device(self.context.options.device)
        with quick_imports(), quiet_transformers():
            model, _ = load_causal_lm("drafter", self.spec.model, place, self.context.options)
        mapping = self.match.mapping.to(place) if self.match.mapping else None
        match = replace(self.match, mapping=mapping)
        return PrefixDrafter(
            name=self.spec.name,
            config=describe_model(
                self.spec, parameters=sum(p.numel() for p in model.parameters()), **self.match.record
            ),
            adoption=Adoption.SECOND_MODEL,
            score=DraftModel(model, match),
            drawing=drawing(self.context, self.spec.name),
            vocabulary=mapping,
            max_positions=self.context.positions_heeded(model.config.get_text_config()),
        )


def open_draft(spec: ModelSpec, context: DraftContext) -> OpenDraftModel:
    """`draft:MODEL`: any causal language model of transformers."""
    refuse_unknown_options(spec.options, (), spec.name)
    tokenizer, config = context.tokenizer, check_model(spec.model, context)
    rows = config.vocab_size
    target_rows = (
        context.target.text_config.vocab_size if context.target else tokenizer.vocab_size if tokenizer else rows
    )
    if tokenizer is None:
        # Rows of token ids without a tokenizer: ids are all there is to go by.
        return OpenDraftModel(spec, context, VocabularyMatch(rows, rows, rows, equal_sizes=True), ())
    draft_tokenizer = load_tokenizer(spec.model, trust_remote_code=context.options.trust_remote_code)
    match = match_vocabularies(tokenizer, draft_tokenizer, target_rows, rows, f"{spec.name}:{spec.model}")
    notices = [*context.context_notices(spec.label, config)]
    is_vllm = context.profile.engine.startswith("vllm")
    if match.mapping is not None:
        if context.sampled and not context.greedy and context.may_be_warm and is_vllm:
            raise SpecprobeError(
                f"--drafter {spec.name}:{spec.model}: its tokenizer differs from the target's, and vLLM then drafts "
                "greedily only; use --draft-sampling greedy"
            )
        notices.append(
            Notice(
                "vocabulary_mapped",
                f"{spec.name} {spec.model}: its tokenizer differs from the target's; {match.shared} of "
                f"{match.target_size} target tokens can be drafted (vLLM: use_heterogeneous_vocab, greedy drafts only)",
            )
        )
    elif is_vllm and rows != target_rows:
        notices.append(
            Notice(
                "vocabulary_sizes_differ",
                f"{spec.label}: its matrix has {rows} rows, the target's {target_rows}; ids agree, so it is replayed "
                "as it is, but vLLM asks for use_heterogeneous_vocab then, and drafts greedily",
            )
        )
    if context.profile.engine == "hf":
        notices.append(
            Notice(
                "confidence_not_replayed",
                f"{spec.label}: transformers stops a draft of low confidence (assistant_confidence_threshold 0.4); "
                "replayed is a draft of full length, as with a threshold of 0",
            )
        )
    return OpenDraftModel(spec, context, match, tuple(notices))


def check_model(model: str, context: DraftContext) -> Any:
    """Check a checkpoint's tensors against its config, before any is loaded; returns the config of its text model."""
    checkpoint = open_checkpoint(model)
    checkpoint.check_layers(checkpoint.config)
    trust = context.options.trust_remote_code
    with quick_imports(), loading_errors("drafter", model), quiet_transformers():
        from transformers import AutoConfig, AutoModelForCausalLM

        from specprobe.mimo import register_mimo

        register_mimo()
        config = AutoConfig.from_pretrained(model, trust_remote_code=trust)
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(config, trust_remote_code=trust)
        shapes = {name: weight.shape for name, weight in whole.state_dict().items()}
    if "quantization_config" in checkpoint.config:
        # Packed weights have shapes of their own, which transformers knows.
        return config.get_text_config()
    for name in sorted(shapes.keys() & set(checkpoint.names)):
        checkpoint.check_shape(name, shapes[name])
    # transformers renames and joins tensors of some architectures; where it has nothing to rename, all must be there.
    if not set(checkpoint.names) - shapes.keys():
        tied = getattr(whole, "_tied_weights_keys", None) or {}
        for name in sorted(shapes.keys() - set(checkpoint.names)):
            if name not in tied or not config.get_text_config().tie_word_embeddings:
                raise checkpoint.missing(name, shapes[name])
    return config.get_text_config()


@dataclass(frozen=True, slots=True)
class EarlyExit:
    """The target's states after its first layers, read by its own norm and head."""

    features: Features
    tap: int
    target: Target

    def __call__(
        self, works: list[Trajectory], rules: Sequence[DraftRule], known: Sequence[ResponseDistribution | None]
    ) -> Iterator[Scores]:
        """See `_Next`."""
        norm, head = self.target.final_norm, self.target.model.get_output_embeddings()
        for work, rule, p in zip(works, rules, known, strict=True):
            states = self.features.read(self.tap, work)[work.prompt_ids.size : -1].to(self.target.device)

            def logits(rows: slice, states: torch.Tensor = states) -> torch.Tensor:
                found: torch.Tensor = head(norm(states[rows]))
                return found

            vocab_size = self.target.record.vocab_size
            yield score_response(logits, work, rule, p, vocab_size, device=self.target.device)


@dataclass(frozen=True)
class OpenEarlyExit(OpenModel):
    """The target's first layers as its drafter; its tap is what leaves the last of them."""

    spec: ModelSpec
    context: DraftContext
    taps: tuple[int]
    notices: tuple[Notice, ...] = ()

    def load(self, features: Features | None) -> PrefixDrafter:
        """Nothing to load: the target's own."""
        assert features is not None
        return PrefixDrafter(
            name=self.spec.name,
            config={"layers": self.taps[0]},
            adoption=Adoption.FLAG,
            score=EarlyExit(features, self.taps[0], self.context.needed_target(self.spec.name)),
            drawing=drawing(self.context, self.spec.name),
        )


def open_early_exit(spec: ModelSpec, context: DraftContext) -> OpenEarlyExit:
    """`early-exit:layers=N` (LayerSkip, arXiv 2404.16710; transformers 5.24 assistant_early_exit)."""
    refuse_unknown_options(spec.options, ("layers",), spec.name)
    target = context.needed_target(spec.name)
    if spec.model or "layers" not in spec.options:
        raise SpecprobeError(
            "--drafter early-exit: write early-exit:layers=N, the number of the target's layers to run"
        )
    most = target.text_config.num_hidden_layers - 1
    num_layers = read_option(spec.options, "layers", 1, int, (1, most), spec.name)
    return OpenEarlyExit(spec, context, (num_layers,))
