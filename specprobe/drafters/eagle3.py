"""EAGLE-3 and 3.1, and P-EAGLE: one or more layers that read states from inside the target.

g_t = fc(states of the tapped layers at t). The first layer attends over [norm(embedding of x_{t+1}) ; norm(g_t)]; its
output is fed back in place of g (arXiv 2503.01840; SafeAILab/EAGLE eagle/model/cnets.py, vLLM llama_eagle3.py,
vllm-project/speculators models/eagle3). P-EAGLE drafts all positions in one pass, from mask tokens. Imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from specprobe.checkpoint import Checkpoint, open_checkpoint
from specprobe.drafters.base import refuse_unknown_options
from specprobe.drafters.chain import ChainState, read_context
from specprobe.drafters.heads import Batch, HeadCache, HeadDrafter, OpenHead
from specprobe.drafters.models import DraftContext, ModelSpec
from specprobe.drafters.scores import DraftVocabulary
from specprobe.drafters.shared import SharingNetwork, check_mask_token, own_or_shared
from specprobe.drafters.stack import decoder_config, decoder_stack
from specprobe.errors import SpecprobeError
from specprobe.features import LAST, Features
from specprobe.notices import Notice
from specprobe.profiles import Profile

Capture = Literal["input_of", "output_of"]
MASK_TOKEN_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")


@dataclass(frozen=True, slots=True)
class Eagle3Settings:
    """What a checkpoint's config.json says, in either dialect, with the defaults of its engine.

    `taps`: states of the target, see `Features`; `capture`: how the config's layer ids were read. `mask_token`: of
    P-EAGLE, None for a chain.
    """

    taps: tuple[int, ...]
    capture: Capture
    uses_fc: bool
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    logit_scale: float
    mask_token: int | None

    @property
    def is_parallel(self) -> bool:
        """Whether all positions come from one pass."""
        return self.mask_token is not None


class Eagle3Network(SharingNetwork):
    """fc, layers, final norm, and a head over the draft vocabulary."""

    nested = True
    fc: Any
    fc_norm: Any
    input_norm: Any
    norm: Any
    mask_hidden: torch.nn.Parameter

    def __init__(self, checkpoint: Checkpoint, config: Any, settings: Eagle3Settings, target_hidden: int) -> None:
        super().__init__()
        self.settings = settings
        self.stack, self.norm = decoder_stack(checkpoint, config)
        hidden, width = config.hidden_size, len(settings.taps) * target_hidden
        first = self.stack.layers[0]
        norm_type = type(self.norm)
        with torch.device("meta"):
            for name in ("q_proj", "k_proj", "v_proj"):
                old = getattr(first.self_attn, name)
                setattr(first.self_attn, name, torch.nn.Linear(2 * hidden, old.out_features, bias=old.bias is not None))
            first.hidden_norm = norm_type(hidden, eps=config.rms_norm_eps)
            if settings.uses_fc:
                self.fc = torch.nn.Linear(width, hidden, bias=False)
            if settings.norm_before_fc:
                self.input_norm = norm_type(width, eps=config.rms_norm_eps)
            if settings.fc_norm:
                self.fc_norm = torch.nn.ModuleList(
                    norm_type(target_hidden, eps=config.rms_norm_eps) for _ in settings.taps
                )
            if settings.is_parallel:
                self.mask_hidden = torch.nn.Parameter(torch.empty(1, width))

    def begin(self, batch: Batch, depth: int) -> ChainState:  # noqa: ARG002
        """The context: every token with the states of the target before it."""
        return read_context(batch, len(self.stack.layers), self.settings.taps, self.read)

    def read(
        self,
        tokens: torch.Tensor,
        states: Mapping[int, torch.Tensor],
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: HeadCache,
    ) -> torch.Tensor:
        """Outputs [B, T, H] over tokens [B, T] of the text, from the target's states before each, by tap."""
        return self._step(tokens, self._fuse([states[tap] for tap in self.settings.taps]), positions, mask, cache)

    def go_on(
        self,
        tokens: torch.Tensor,
        outputs: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: HeadCache,
    ) -> torch.Tensor:
        """Outputs [B, A, H] after drafts [B, A], from its own outputs before them."""
        features = self.norm(outputs) if self.settings.norm_output else outputs
        return self._step(tokens, features, positions, mask, cache)

    def draft(self, state: ChainState, position: int, starts: torch.Tensor) -> torch.Tensor:
        """Position 1 is the context's; later ones go on from their own output, or in P-EAGLE from a mask."""
        if position == 1:
            outputs = state.first(starts)
        else:
            positions, mask = state.positions(starts, position), state.mask(starts)
            if self.settings.mask_token is not None:
                tokens = torch.full_like(starts, self.settings.mask_token)
                chunks = self.mask_hidden.chunk(len(self.settings.taps), dim=-1)
                features = self._fuse(list(chunks)).expand(*starts.shape, -1)
                outputs = self._step(tokens, features, positions, mask, state.cache)
            else:
                tokens = state.batch.tokens(state.batch.newest(starts) + position - 1)
                outputs = self.go_on(tokens, state.before(starts), positions, mask, state.cache)
        state.keep(starts, outputs)
        return outputs

    def rewind(self, state: ChainState) -> None:
        """The rounds' keys and values go."""
        state.cache.forget_rounds()

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:  # noqa: ARG002
        """Over the draft vocabulary."""
        return self.settings.logit_scale * self.shared.head(self.norm(states))

    def _fuse(self, taps: list[torch.Tensor]) -> torch.Tensor:
        """g [..., H] from the tapped states [..., target hidden] of each layer."""
        if self.settings.fc_norm:
            taps = [norm(tap) for norm, tap in zip(self.fc_norm, taps, strict=True)]
        joined = torch.cat(taps, dim=-1)
        if self.settings.norm_before_fc:
            joined = self.input_norm(joined)
        fused: torch.Tensor = self.fc(joined) if self.settings.uses_fc else joined
        return fused

    def _step(
        self,
        tokens: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: HeadCache,
    ) -> torch.Tensor:
        first: Any = self.stack.layers[0]
        embedded = first.input_layernorm(self.shared.embed(tokens).to(features.dtype))
        normed = first.hidden_norm(features)
        attended, *_ = first.self_attn(
            torch.cat([embedded, normed], dim=-1), **self.stack.arguments(features, positions, mask, cache.cache)
        )
        states: torch.Tensor = (normed if self.settings.norm_before_residual else features) + attended
        states = states + first.mlp(first.post_attention_layernorm(states))
        for layer in self.stack.layers[1:]:
            states = self.stack.run_layer(layer, states, positions, mask, cache.cache)
        return states


@dataclass(frozen=True)
class OpenEagle3(OpenHead):
    """An EAGLE-3 checkpoint that fits the target."""

    spec: ModelSpec
    context: DraftContext
    checkpoint: Checkpoint
    network: Eagle3Network
    vocabulary: DraftVocabulary | None
    taps: tuple[int, ...]
    notices: tuple[Notice, ...]

    def load(self, features: Features | None) -> HeadDrafter:
        """Weights in the target's precision, on its device."""
        assert features is not None
        target = self.context.needed_target(self.spec.name)
        self.checkpoint.fill_module(self.network, _renamed(self.checkpoint), target.device, target.model.dtype)
        rows = None if self.vocabulary is None else self.vocabulary.to_target.numel()
        self.network.share(
            own_or_shared(self.checkpoint, target, head_rows=rows, hidden_size=self.network.norm.weight.numel())
        )
        settings = self.network.settings
        return self.head_drafter(
            self.network,
            features,
            {
                "layer_ids": [tap - (settings.capture == "output_of") for tap in settings.taps],
                "capture": settings.capture,
                "draft_vocabulary": rows,
                "parallel": settings.is_parallel,
            },
            max_positions=self.context.positions_heeded(self.network.stack.config),
            vocabulary=self.vocabulary.to(target.device) if self.vocabulary else None,
        )


def open_eagle3(spec: ModelSpec, context: DraftContext) -> OpenEagle3:
    """`eagle3:MODEL[,capture=input_of|output_of]`, in the layout of the EAGLE repository or of speculators."""
    refuse_unknown_options(spec.options, ("capture",), spec.name)
    target = context.needed_target(spec.name)
    checkpoint = open_checkpoint(spec.model)
    settings = read_settings(checkpoint, target.text_config.num_hidden_layers, context.profile, spec.options)
    fields = checkpoint.settings.section("transformer_layer_config").values or checkpoint.config
    config = decoder_config(checkpoint, {"num_hidden_layers": 1, **fields})
    network = Eagle3Network(checkpoint, config, settings, target.text_config.hidden_size)
    checkpoint.check_module(network, _renamed(checkpoint))
    vocabulary = read_vocabulary(checkpoint, target.text_config.vocab_size)
    rows = None if vocabulary is None else vocabulary.to_target.numel()
    own_or_shared(checkpoint, target, check_only=True, head_rows=rows, hidden_size=config.hidden_size)
    if settings.mask_token is not None:
        check_mask_token(checkpoint, settings.mask_token, target)
    notices = (*_notices(spec, checkpoint, context), *context.context_notices(spec.label, config))
    return OpenEagle3(spec, context, checkpoint, network, vocabulary, settings.taps, notices)


def read_settings(
    checkpoint: Checkpoint, num_layers: int, profile: Profile, options: Mapping[str, str]
) -> Eagle3Settings:
    """Both dialects' keys, and what is meant where one is missing (methods: vLLM 0.33, SGLang 0.5.23, speculators)."""
    config = checkpoint.settings
    nested = config.section("eagle_config")
    is_speculators = config.has("speculators_model_type")
    is_parallel = checkpoint.config.get("speculators_model_type") == "peagle" or "mask_hidden" in checkpoint
    mask_key = next((key for key in MASK_TOKEN_KEYS if config.has(key)), None)
    if is_parallel and mask_key is None:
        raise SpecprobeError(f"drafter {checkpoint.name}: P-EAGLE needs mask_token_id in config.json")
    uses_fc = nested.flag("use_aux_hidden_state", True)
    ids, capture = _layer_ids(checkpoint, num_layers, options)
    return Eagle3Settings(
        taps=tuple(layer + (capture == "output_of") for layer in ids) if uses_fc else (LAST,),
        capture=capture,
        uses_fc=uses_fc,
        # vLLM's loader takes True where a speculators EAGLE-3 checkpoint does not say; all others take False.
        norm_before_residual=config.flag(
            "norm_before_residual", is_speculators and not is_parallel and profile.engine.startswith("vllm")
        ),
        norm_before_fc=config.flag("norm_before_fc", nested.flag("norm_before_fc", False)),
        fc_norm=config.flag("fc_norm", False),
        norm_output=config.flag("norm_output", False),
        logit_scale=config.number("logit_scale", 1.0),
        mask_token=config.whole(mask_key, 0, least=0) if is_parallel and mask_key else None,
    )


def _layer_ids(checkpoint: Checkpoint, num_layers: int, options: Mapping[str, str]) -> tuple[list[int], Capture]:
    """The config's layer ids and whether they mean what enters a layer or what leaves it."""
    config, nested = checkpoint.settings, checkpoint.settings.section("eagle_config")
    capture: Capture = "input_of"
    ids = config.layers("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        ids = nested.layers("eagle_aux_hidden_state_layer_ids")
        # The nested key is SGLang's and SpecForge's, whose ids name the layer whose output is taken.
        capture = "input_of" if ids is None else "output_of"
        ids = nested.layers("layer_ids") if ids is None else ids
    if ids is None:
        ids = [2, num_layers // 2, num_layers - 3]
    asked = options.get("capture", capture)
    if asked not in ("input_of", "output_of"):
        raise SpecprobeError(f"--drafter eagle3: capture={asked} must be input_of or output_of")
    capture = "input_of" if asked == "input_of" else "output_of"
    for layer in ids:
        if not 0 <= layer + (capture == "output_of") <= num_layers:
            raise SpecprobeError(
                f"drafter {checkpoint.name}: reads layer {layer} ({capture}), the target has {num_layers} layers; "
                "it was trained for another target"
            )
    return ids, capture


def read_vocabulary(checkpoint: Checkpoint, target_size: int) -> DraftVocabulary | None:
    """From `d2t`, the offset of each draft id to the target's; None where the whole vocabulary is drafted."""
    size = checkpoint.settings.whole("draft_vocab_size", target_size)
    if "d2t" not in checkpoint:
        if size < target_size:
            raise checkpoint.missing("d2t", [size])
        return None
    rows = size if checkpoint.settings.has("draft_vocab_size") else checkpoint.rows("d2t")
    checkpoint.check_shape("d2t", [rows])
    to_target = torch.arange(rows) + checkpoint.tensor("d2t").to(torch.long)
    return DraftVocabulary.checked(to_target, target_size, f"drafter {checkpoint.name}: d2t")


def _renamed(checkpoint: Checkpoint) -> Any:
    """A weight's name in the checkpoint: the EAGLE repository calls the first layer `midlayer`."""
    first = "midlayer." if any(name.startswith("midlayer.") for name in checkpoint.names) else "layers.0."

    def rename(name: str) -> str:
        return name.removeprefix("stack.").replace("layers.0.", first, 1)

    return rename


def _notices(spec: ModelSpec, checkpoint: Checkpoint, context: DraftContext) -> list[Notice]:
    has_nested = checkpoint.settings.section("eagle_config").has("eagle_aux_hidden_state_layer_ids")
    if has_nested and "capture" not in spec.options and context.profile.engine.startswith("vllm"):
        return [
            Notice(
                "layer_ids_convention",
                f"{spec.name} names the layers it reads in eagle_config, as SGLang does (their outputs); vLLM's V1 "
                "runner reads the ids as inputs, one layer lower, and its V2 runner ignores them: replay that with "
                "capture=input_of, and expect the engine to accept less",
            )
        ]
    return []
