"""MTP: the modules inside DeepSeek-V3, GLM-4.5, Qwen3-Next and MiMo checkpoints that predict further tokens.

z_t = P([N_e(embedding of x_{t+1}) ; N_h(h_t)]), one decoder layer of the target's kind, a final norm and the target's
head; h_t is what the target's head reads (arXiv 2412.19437, section 2.2). With one module, position i feeds its own
output back; with several, module i continues the outputs of module i - 1, over the whole context. Imports torch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from specprobe.checkpoint import Checkpoint, open_checkpoint
from specprobe.drafters.base import Adoption, refuse_unknown_options
from specprobe.drafters.chain import ChainState, begin_chain
from specprobe.drafters.heads import Batch, HeadDrafter, OpenHead, RoundCache
from specprobe.drafters.models import DraftContext, ModelSpec
from specprobe.drafters.shared import SharedParts
from specprobe.drafters.stack import LayerStack
from specprobe.errors import SpecprobeError
from specprobe.features import LAST, Features
from specprobe.notices import Notice
from specprobe.profiles import Profile
from specprobe.target import Target

FeedBack = Literal["pre_norm", "post_norm"]


@dataclass(frozen=True, slots=True)
class MtpFamily:
    """How one family of checkpoints stores its modules, and how engines run them.

    `names`: the checkpoint's names of a module's parts, below `prefix(module, number of the target's layers)`; the
    decoder layer is below `layer`. `hidden_first`: the order of the concatenation. `zeroes_first`: whether vLLM
    leaves out the embedding of the first entry. `reuses`: whether a module may draft more than one position.
    """

    prefix: Callable[[int, int], str]
    layer: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str
    hidden_first: bool = False
    zeroes_first: bool = True
    reuses: bool = True


_DEEPSEEK = MtpFamily(
    prefix=lambda module, layers: f"model.layers.{layers + module}.",
    layer="",
    embedding_norm="enorm",
    hidden_norm="hnorm",
    projection="eh_proj",
    final_norm="shared_head.norm",
)
_QWEN3_NEXT = MtpFamily(
    # One module, so its number does not occur.
    prefix=lambda module, _: "mtp." if module == 0 else f"mtp.no-module-{module}.",
    layer="layers.0.",
    embedding_norm="pre_fc_norm_embedding",
    hidden_norm="pre_fc_norm_hidden",
    projection="fc",
    final_norm="norm",
    zeroes_first=False,
)
_MIMO = MtpFamily(
    prefix=lambda module, _: f"model.mtp_layers.{module}.",
    layer="",
    embedding_norm="token_layernorm",
    hidden_norm="hidden_layernorm",
    projection="input_proj",
    final_norm="final_layernorm",
    hidden_first=True,
    # vLLM 0.33 model_executor/models/mimo_mtp.py drafts one token a module.
    reuses=False,
)
# By the target's model_type.
FAMILIES = {
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "mimo": _MIMO,
}


@dataclass(frozen=True, slots=True)
class MtpRules:
    """What engines do differently with the same modules.

    `feeds_back`: whether the next position gets a module's output before or after its final norm. `zeroes_first`: see
    `MtpFamily`.
    """

    feeds_back: FeedBack
    zeroes_first: bool


class MtpModule(torch.nn.Module):
    """One module: norms, projection, a decoder layer of the target's kind, final norm."""

    embedding_norm: Any
    hidden_norm: Any
    projection: Any
    final_norm: Any
    stack: LayerStack

    def __init__(self, target: Target) -> None:
        super().__init__()
        config = _layer_config(target)
        norm_type = type(target.final_norm)
        hidden = config.hidden_size
        with torch.device("meta"):
            self.embedding_norm = norm_type(hidden, eps=config.rms_norm_eps)
            self.hidden_norm = norm_type(hidden, eps=config.rms_norm_eps)
            self.projection = torch.nn.Linear(2 * hidden, hidden, bias=False)
            self.final_norm = norm_type(hidden, eps=config.rms_norm_eps)
            layer = type(target.layers[-1])(config, 0)
        self.stack = LayerStack(torch.nn.ModuleList([layer]), type(target.decoder.rotary_emb), config)


def _layer_config(target: Target) -> Any:
    """The target's config, for a layer of its own: with full attention, and with experts where the target has them."""
    config = copy.deepcopy(target.text_config)
    for field, value in (("layer_types", ["full_attention"]), ("mlp_layer_types", ["sparse"])):
        if getattr(config, field, None) is not None:
            setattr(config, field, value)
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    config._attn_implementation = "sdpa"
    return config


@dataclass(slots=True)
class MtpState:
    """Rounds of the modules: `chain` of the newest outputs, a cache for each module, and its outputs over the context.

    A module's context is run when the first round gets to it.
    """

    chain: ChainState
    caches: list[RoundCache]
    contexts: list[torch.Tensor]


class MtpNetwork(torch.nn.Module):
    """All modules and what they share with the target."""

    nested = True

    def __init__(self, target: Target, family: MtpFamily, num_modules: int, rules: MtpRules) -> None:
        super().__init__()
        self.modules_in_order: Any = torch.nn.ModuleList(MtpModule(target) for _ in range(num_modules))
        self._family, self._rules = family, rules
        self._shared = SharedParts(target.model.get_input_embeddings(), target.model.get_output_embeddings())

    def begin(self, batch: Batch, depth: int) -> MtpState:  # noqa: ARG002
        """The first module over the context."""
        caches = [RoundCache(1, batch.device) for _ in self.modules_in_order]
        context = self._over_context(batch, 0, batch.features[LAST][:, :-1], caches[0])
        return MtpState(begin_chain(batch, caches[0], context), caches, [context])

    def draft(self, state: MtpState, position: int, starts: torch.Tensor) -> torch.Tensor:
        """The outputs before the final norm."""
        chain, number = state.chain, (position - 1) % len(self.modules_in_order)
        if position <= len(self.modules_in_order):
            if position > len(state.contexts):
                # Given that all drafts were accepted, a further module sees the same context in every round.
                fed = self._fed_back(state.contexts[number - 1], number - 1)
                state.contexts.append(self._over_context(chain.batch, number, fed, state.caches[number]))
            chain.context = state.contexts[number]
            outputs = chain.first(starts)
        else:
            newest = chain.batch.newest(starts)
            fed = self._fed_back(chain.before(starts), (position - 2) % len(self.modules_in_order))
            mask = state.caches[number].add_round(starts, newest - 1)
            positions = (newest - 1 + position - 1 - number).clamp(min=0)
            tokens = chain.batch.tokens(newest + position - 1)
            outputs = self._run(number, self._embed(tokens), fed, positions, mask, state.caches[number])
        chain.keep(starts, outputs)
        return outputs

    def rewind(self, state: MtpState) -> None:
        """The rounds' keys and values go."""
        for cache in state.caches:
            cache.forget_rounds()

    def logits(self, states: torch.Tensor, position: int) -> torch.Tensor:
        """The target's head behind the module's norm."""
        module = self.modules_in_order[(position - 1) % len(self.modules_in_order)]
        return self._shared.head(module.final_norm(states))

    def _over_context(self, batch: Batch, number: int, states: torch.Tensor, cache: RoundCache) -> torch.Tensor:
        """Module `number` at every t, from the token t + 1 + number and the states [B, T, H] of the one before."""
        num_tokens = states.shape[1]
        cache.add_context(num_tokens)
        positions = torch.arange(num_tokens, device=batch.device)[None].expand(len(states), -1)
        embedded = self._embed(batch.tokens(positions + 1 + number))
        if self._rules.zeroes_first:
            embedded = torch.where((positions == 0)[..., None], 0, embedded)
        return self._run(number, embedded, states, positions, None, cache)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._shared.embed(tokens)

    def _fed_back(self, outputs: torch.Tensor, number: int) -> torch.Tensor:
        if self._rules.feeds_back == "pre_norm":
            return outputs
        normed: torch.Tensor = self.modules_in_order[number].final_norm(outputs)
        return normed

    def _run(
        self,
        number: int,
        embedded: torch.Tensor,
        states: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: RoundCache,
    ) -> torch.Tensor:
        module = self.modules_in_order[number]
        parts = [module.embedding_norm(embedded), module.hidden_norm(states)]
        entries = module.projection(torch.cat(parts[::-1] if self._family.hidden_first else parts, dim=-1))
        output: torch.Tensor = module.stack(entries, positions, mask, cache.cache)
        return output


def mtp_rules(profile: Profile, model_type: str) -> MtpRules:
    """vLLM feeds back after the norm for DeepSeek since 0.26, for Qwen3-Next always; transformers 5.24 always does."""
    family = FAMILIES[model_type]
    if not profile.engine.startswith("vllm"):
        return MtpRules("post_norm", zeroes_first=False)
    after = family is _QWEN3_NEXT or (model_type.startswith("deepseek") and profile.mtp_feeds_back == "post_norm")
    return MtpRules("post_norm" if after else "pre_norm", family.zeroes_first)


@dataclass(frozen=True)
class OpenMtp(OpenHead):
    """Modules that were found in the target's checkpoint."""

    spec: ModelSpec
    context: DraftContext
    checkpoint: Checkpoint
    network: MtpNetwork
    rules: MtpRules
    rename: Callable[[str], str]
    taps: tuple[int, ...] = (LAST,)
    adoption = Adoption.FLAG
    notices: tuple[Notice, ...] = ()

    def load(self, features: Features | None) -> HeadDrafter:
        """Weights in the target's precision, on its device."""
        assert features is not None
        target = self.context.needed_target(self.spec.name)
        self.checkpoint.fill_module(self.network, self.rename, target.device, target.model.dtype)
        facts = {"modules": len(self.network.modules_in_order), "feeds_back": self.rules.feeds_back}
        return self.head_drafter(self.network, features, facts)


def open_mtp(spec: ModelSpec, context: DraftContext) -> OpenMtp:
    """`mtp`, from the target's own checkpoint, or `mtp:MODEL` from another one of the same layout."""
    refuse_unknown_options(spec.options, (), spec.name)
    target = context.needed_target(spec.name)
    kind = getattr(target.text_config, "model_type", "llama")
    if kind not in FAMILIES:
        raise SpecprobeError(
            f"--drafter mtp: a {kind} checkpoint has no modules for further tokens that specprobe knows; "
            f"known are {', '.join(FAMILIES)}"
        )
    family, num_layers = FAMILIES[kind], target.text_config.num_hidden_layers
    checkpoint = open_checkpoint(spec.model or target.record.name)
    num_modules = 0
    while f"{family.prefix(num_modules, num_layers)}{family.projection}.weight" in checkpoint:
        num_modules += 1
    if not num_modules:
        raise checkpoint.missing(f"{family.prefix(0, num_layers)}{family.projection}.weight")
    if not family.reuses and context.depth > num_modules:
        raise SpecprobeError(
            f"--drafter mtp: {kind} drafts one token a module and has {num_modules}; use --depth {num_modules}"
        )
    rules = mtp_rules(context.profile, kind)
    network = MtpNetwork(target, family, num_modules, rules)
    rename = _renamed(family, num_layers)
    checkpoint.check_module(network, rename)
    return OpenMtp(spec, context, checkpoint, network, rules, rename)


def _renamed(family: MtpFamily, num_layers: int) -> Callable[[str], str]:
    """A weight's name in the checkpoint."""
    parts = {part: getattr(family, part) for part in ("embedding_norm", "hidden_norm", "projection", "final_norm")}

    def rename(name: str) -> str:
        number, _, rest = name.removeprefix("modules_in_order.").partition(".")
        prefix = family.prefix(int(number), num_layers)
        if rest.startswith("stack.layers.0."):
            return prefix + family.layer + rest.removeprefix("stack.layers.0.")
        part, _, kind = rest.partition(".")
        return f"{prefix}{parts[part]}.{kind}"

    return rename
