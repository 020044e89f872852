"""Shapes of models: what a forward pass reads and multiplies, from tables/shapes.csv or from a few numbers.

Rows marked `verified` were read in a configuration file; the others are from memory and say so.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from specprobe.errors import SpecprobeError

# Bits per weight, scales and zero points included: 16-bit scale per group of 128 (awq, gptq), per 64 with a bias (mlx),
# 8-bit scale per 16 (nvfp4) or 32 (mxfp4); gguf from the sizes that llama.cpp's quantize prints for a Llama of 8B.
WEIGHT_BITS: Mapping[str, float] = {
    "bf16": 16,
    "fp16": 16,
    "float16": 16,
    "bfloat16": 16,
    "f16": 16,
    "fp32": 32,
    "float32": 32,
    "fp8": 8,
    "int8": 8,
    "w8a8": 8,
    "nvfp4": 4.5,
    "mxfp4": 4.25,
    "int4": 4.25,
    "awq": 4.25,
    "gptq": 4.25,
    "w4a16": 4.25,
    "8bit": 8.5,
    "6bit": 6.5,
    "5bit": 5.5,
    "4bit": 4.5,
    "3bit": 3.5,
    "oq8": 8.5,
    "oq4": 4.5,
    "q8": 8.5,
    "q6": 6.56,
    "q5": 5.68,
    "q4": 4.85,
    "iq4": 4.3,
    "q3": 3.9,
    "iq3": 3.3,
    "q2": 3.0,
    "iq2": 2.4,
    "iq1": 1.8,
}
# Words that say the bits before those that only name a method, and longest first: iq4 is not q4, gptq-int8 is int8.
BITS_WORDS = sorted(WEIGHT_BITS, key=lambda word: (not any(c.isdigit() for c in word), -len(word), word))
# Formats whose kernels multiply in their own precision; all others expand weights to 16 bits first.
NATIVE_BITS: Mapping[str, float] = {"fp8": 8, "int8": 8, "w8a8": 8, "nvfp4": 4, "mxfp4": 4}
# What engines keep at 16 bits in a checkpoint of fewer: embeddings and the LM head. gguf and mlx files do quantise it.
HEAD_QUANTISED_FROM = ("gguf", "mlx", "bit", "q2", "q3", "q4", "q5", "q6", "q8")
KV_BYTES = 2.0
SUFFIX = re.compile(
    r"(instruct|chat|it|hf|base|preview|gguf|mlx|bf16|fp16|fp8|dynamic|awq|gptq|nvfp4|mxfp4|int[48]|w\d+a\d+|\d+bit|qat"
    r"|q\d+\w*|iq\d+\w*|ud|thinking|v0\.\d|v1\.\d|2[0-9]{3})$"
)


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How weights are stored and multiplied.

    `head_bits` is that of the LM head; `native` says that the kernels multiply at `bits`, not at 16.
    """

    name: str
    bits: float
    head_bits: float = 16.0
    native: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder. Counts are of parameters, sizes of vectors.

    `dense_layers` have no experts; `kv_layers` keep the whole context (None: all), `window_layers` the last `window`
    tokens; `kv_lora_rank` is set for multi-head latent attention. `shared_experts` count in units of one expert.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    attention: str = "gqa"
    kv_layers: int | None = None
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_dim: int = 0
    window: int = 0
    window_layers: int = 0
    draft_vocab: int = 0
    native_quantization: str = ""
    verified: bool = False
    source: str = ""

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    def first_layers(self, layers: int) -> Shape:
        """The model cut after so many layers, with its LM head; kinds of layers alternate, so each keeps its share."""

        def share(kind: int) -> int:
            return round(kind * layers / self.layers)

        return replace(
            self,
            layers=layers,
            dense_layers=min(self.dense_layers, layers),
            kv_layers=None if self.kv_layers is None else share(self.kv_layers),
            window_layers=share(self.window_layers),
        )

    @property
    def attention_parameters(self) -> float:
        """Of one layer: query, key, value and output projections."""
        if self.kv_lora_rank:
            query = self.heads * (self.head_dim + self.rope_dim)
            rank = self.q_lora_rank
            queries = self.hidden * rank + rank * query if rank else self.hidden * query
            latent = self.hidden * (self.kv_lora_rank + self.rope_dim)
            return queries + latent + self.heads * self.head_dim * (2 * self.kv_lora_rank + self.hidden)
        # Gated attention and linear layers, which stand between full ones, carry one more projection of the heads.
        gate = self.heads if self.attention == "hybrid" else 0
        return float(self.hidden) * self.head_dim * (2 * (self.heads + self.kv_heads) + gate)

    @property
    def expert_parameters(self) -> float:
        """Of one expert: gate, up and down projections."""
        return 3.0 * self.hidden * self.moe_intermediate

    @property
    def dense_parameters(self) -> float:
        """What every token reads whatever it is routed to: attention, dense feed-forward, shared experts, routers."""
        dense_ffn = 3.0 * self.hidden * self.intermediate * (self.layers - self.moe_layers)
        shared = self.moe_layers * (self.shared_experts * self.expert_parameters + self.hidden * self.experts)
        return self.layers * self.attention_parameters + dense_ffn + shared

    @property
    def head_parameters(self) -> float:
        """The LM head, over the drafter's own vocabulary where it has one."""
        return float(self.hidden) * (self.draft_vocab or self.vocab)

    @property
    def active_parameters(self) -> float:
        """What one token is multiplied with: dense parts, its own experts, the LM head."""
        routed = self.moe_layers * self.experts_per_token * self.expert_parameters
        return self.dense_parameters + routed + self.head_parameters

    @property
    def parameters(self) -> float:
        """All of them, input embeddings included."""
        routed = self.moe_layers * self.experts * self.expert_parameters
        embeddings = 0.0 if self.tied else float(self.hidden) * self.vocab
        return self.dense_parameters + routed + self.head_parameters + embeddings

    @property
    def attention_operations(self) -> float:
        """Of one token for each token of its context: scores and weighted values of the layers that keep it all."""
        return 4.0 * self.heads * self.head_dim * (self.layers if self.kv_layers is None else self.kv_layers)

    def kv_bytes(self, context: float) -> float:
        """Bytes of KV cache that one sequence of this context keeps, and reads at each step."""
        if self.kv_lora_rank:
            per_layer = KV_BYTES * (self.kv_lora_rank + self.rope_dim)
        else:
            per_layer = KV_BYTES * 2 * self.kv_heads * self.head_dim
        whole = (self.layers if self.kv_layers is None else self.kv_layers) - self.window_layers
        windowed = self.window_layers * min(context, self.window)
        return per_layer * (whole * context + windowed)

    def weight_bytes(self, quantisation: Quantisation, experts_touched: float) -> float:
        """Bytes of weights that one forward pass reads where it touches this many distinct experts a layer."""
        body = self.dense_parameters + self.moe_layers * experts_touched * self.expert_parameters
        return (body * quantisation.bits + self.head_parameters * quantisation.head_bits) / 8

    def storage_bytes(self, quantisation: Quantisation) -> float:
        """Bytes of all weights."""
        embeddings = 0.0 if self.tied else self.hidden * self.vocab * quantisation.head_bits / 8
        return self.weight_bytes(quantisation, self.experts) + embeddings


def quantisation_of(name: str, shape: Shape) -> Quantisation:
    """The quantisation that a table or user names; without a name that of the checkpoint, else 16 bits.

    Raises SpecprobeError where the name says nothing of the bits.
    """
    words = (name or shape.native_quantization or "bf16").strip().lower()
    compact = re.sub(r"[^a-z0-9]+", "", words)
    found = next((word for word in BITS_WORDS if word in compact), None)
    if found is None:
        raise SpecprobeError(
            f"quantization {name!r}: unknown; write bf16, fp8, awq-int4, nvfp4, gguf-q4_k_m or the like"
        )
    bits = WEIGHT_BITS[found]
    if bits == 16 and shape.native_quantization:
        # A dtype names the activations of a checkpoint that is stored with fewer bits.
        return quantisation_of(shape.native_quantization, replace(shape, native_quantization=""))
    quantised_head = bits < 16 and any(word in compact for word in HEAD_QUANTISED_FROM)
    # llama.cpp keeps the output matrix at 6 bits and more.
    head_bits = max(bits, 6.56) if quantised_head else max(bits, 16.0)
    gguf = "gguf" in compact
    return Quantisation(words, bits, head_bits, native=found in NATIVE_BITS and not gguf)


def find_shape(name: str) -> Shape:
    """The shape of a model by name: as the table has it, else without organisation, quantisation and tuning suffixes.

    Raises SpecprobeError where the table has none.
    """
    for key in _keys(name):
        if shape := _by_key().get(key):
            return replace(shape, native_quantization=_named_quantisation(name) or shape.native_quantization)
    raise SpecprobeError(f"model {name[:80]!r}: its shape is not in the table; give a configuration instead")


def shape_from_config(config: Mapping[str, object], name: str = "") -> Shape:
    """The shape that a Hugging Face configuration describes. Raises SpecprobeError where a size is missing."""

    def number(*keys: str, default: int | None = None) -> int:
        for key in keys:
            value = config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
        if default is None:
            raise SpecprobeError(f"configuration {name!r}: no {keys[0]}")
        return default

    heads = number("num_attention_heads")
    hidden = number("hidden_size")
    layers = number("num_hidden_layers")
    experts = number("num_experts", "n_routed_experts", "num_local_experts", default=0)
    intermediate = number("intermediate_size", default=0)
    types = config.get("layer_types")
    listed = types if isinstance(types, list) else []
    lora_rank = number("kv_lora_rank", default=0)
    return Shape(
        name=name,
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("v_head_dim" if lora_rank else "head_dim", default=hidden // max(heads, 1)),
        vocab=number("vocab_size"),
        tied=config.get("tie_word_embeddings") is True,
        experts=experts,
        experts_per_token=number("num_experts_per_tok", "num_experts_per_token", default=1 if experts else 0),
        moe_intermediate=number("moe_intermediate_size", default=intermediate) if experts else 0,
        shared_experts=number("n_shared_experts", default=0),
        dense_layers=number("first_k_dense_replace", default=0),
        attention="mla" if lora_rank else "gqa",
        kv_layers=layers - sum(kind == "linear_attention" for kind in listed) if listed else None,
        q_lora_rank=number("q_lora_rank", default=0),
        kv_lora_rank=lora_rank,
        rope_dim=number("qk_rope_head_dim", default=0),
        window=number("sliding_window", default=0),
        window_layers=sum(kind == "sliding_attention" for kind in listed),
        draft_vocab=number("draft_vocab_size", default=0),
        native_quantization=_configured_quantisation(config.get("quantization_config")),
        verified=True,
        source="configuration file",
    )


def _configured_quantisation(config: object) -> str:
    """The name of the quantisation that a checkpoint's `quantization_config` describes, empty without one."""
    if not isinstance(config, Mapping):
        return ""
    method = str(config.get("quant_method", "")).lower()
    groups = config.get("config_groups")
    weights: object = None
    if isinstance(groups, Mapping) and groups:
        group = next(iter(groups.values()))
        weights = group.get("weights") if isinstance(group, Mapping) else None
    if isinstance(weights, Mapping):
        # compressed-tensors: bits and kind of number of each group of layers; one group in nearly all checkpoints.
        kinds = {"float": {8: "fp8", 4: "nvfp4"}, "int": {8: "int8", 4: "int4"}}
        bits = weights.get("num_bits")
        return kinds.get(str(weights.get("type")), {}).get(bits if isinstance(bits, int) else 0, "")
    if method in ("fp8", "mxfp4", "modelopt", "fbgemm_fp8"):
        return str(config.get("quant_algo", "fp8")).lower() if method == "modelopt" else method
    if method == "bitsandbytes":
        return "int4" if config.get("load_in_4bit") else "int8"
    return f"{config.get('bits', 4)}bit" if method in ("gptq", "awq") else ""


def _keys(name: str) -> list[str]:
    """Spellings of a name from exact to loose."""
    words = [word for word in re.split(r"[^a-z0-9.]+", name.strip().lower().rsplit("/", 1)[-1]) if word]
    keys = ["".join(words)]
    while len(words) > 1 and SUFFIX.fullmatch(words[-1]):
        words.pop()
        keys.append("".join(words))
    loose = [word for word in words if word not in ("meta", "instruct", "chat", "it", "hf")]
    keys += ["".join(loose)]
    return [key for key in dict.fromkeys(keys) if key]


@cache
def _by_key() -> dict[str, Shape]:
    text = (files("specprobe") / "tables" / "shapes.csv").read_text("utf-8")
    table: dict[str, Shape] = {}
    rows = [_shape(row) for row in csv.DictReader(text.splitlines())]
    for shape in rows:
        table[_keys(shape.name)[0]] = shape
    # A bare name falls back on the first tuned or quantised checkpoint of it.
    for shape in rows:
        for key in _keys(shape.name)[1:]:
            table.setdefault(key, replace(shape, native_quantization=_kept_quantisation(shape)))
    return table


def _kept_quantisation(shape: Shape) -> str:
    """The quantisation that belongs to the model itself, not to the suffix of one checkpoint."""
    return "" if _named_quantisation(shape.name) else shape.native_quantization


def _named_quantisation(name: str) -> str:
    """The quantisation that the name of a checkpoint ends in, empty without one."""
    match = re.search(r"(nvfp4|mxfp4|fp8|awq|gptq|w\d+a\d+|int[48]|[3-8]-?bit|oq\d)", name.lower())
    return match[0].replace("-", "") if match else ""


def _shape(row: Mapping[str, str]) -> Shape:
    def number(key: str) -> int:
        return int(row[key] or 0)

    return Shape(
        name=row["name"],
        layers=number("layers"),
        hidden=number("hidden"),
        intermediate=number("intermediate"),
        heads=number("heads"),
        kv_heads=number("kv_heads"),
        head_dim=number("head_dim"),
        vocab=number("vocab"),
        tied=row["tied"] == "true",
        experts=number("experts"),
        experts_per_token=number("experts_per_token"),
        moe_intermediate=number("moe_intermediate"),
        shared_experts=number("shared_experts"),
        dense_layers=number("dense_layers"),
        attention=row["attention"],
        kv_layers=number("kv_layers") if row["kv_layers"] else None,
        q_lora_rank=number("q_lora_rank"),
        kv_lora_rank=number("kv_lora_rank"),
        rope_dim=number("rope_dim"),
        window=number("window"),
        window_layers=number("window_layers"),
        draft_vocab=number("draft_vocab"),
        native_quantization=row["native_quantization"],
        verified=row["verified"] == "yes",
        source=row["source"],
    )
