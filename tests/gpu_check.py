"""The cost surface of this GPU, measured with and without CUDA graphs, beside what the roofline predicts for it.

    python -m tests.gpu_check [--seconds 540]

Needs no files and no network: targets of the shapes of Llama-3.2-1B and Llama-3.1-8B in bfloat16 with random weights, a
draft model of four layers, and a drafter of one layer of the target's. Ends in time: what is left out is said. Without
CUDA it exits with 2; `--device cpu --tiny` goes the same way over tiny models. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from specprobe.cost import CostPoint, DraftingPoint
from specprobe.drafters.vocabularies import VocabularyMatch
from specprobe.errors import SpecprobeError
from specprobe.hardware import Hardware, find_hardware
from specprobe.live_drafters import LiveDraftModel, LiveEarlyExit
from specprobe.measure import CostGrid, Forward, check_memory, forward_kind, measure_block, measure_drafting_block
from specprobe.roofline import Deployment, Draft, Drafter, drafting_seconds, engine_overhead, step_seconds
from specprobe.shapes import quantisation_of, shape_from_config
from specprobe.speculation import LiveDrafter
from specprobe.target import Target, target_record
from tests.toy_target import byte_tokenizer

LLAMA_1B = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128_256, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128_256, "tie_word_embeddings": False,
}  # fmt: skip
TINY = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 260, "tie_word_embeddings": True,
}  # fmt: skip
DRAFT_LAYERS, DRAFT_SHARE = 4, 2
GRID = CostGrid((1, 4, 16, 64), (1, 2, 4, 8), (512, 4096))
TINY_GRID = CostGrid((1, 2), (1, 3), (8,))


@dataclass(frozen=True, slots=True)
class Line:
    """A measured point, of drafting where there is a drafter, and the roofline's prediction for it."""

    target: str
    forward: str
    drafter: str
    batch: int
    query_tokens: int
    context: int
    seconds: float
    spread_seconds: float
    predicted_seconds: float | None

    @property
    def error(self) -> float | None:
        """Of the prediction, relative to what was measured."""
        return self.predicted_seconds / self.seconds - 1 if self.predicted_seconds and self.seconds else None


def random_target(name: str, fields: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Target:
    model = random_model(fields, device, dtype)
    tokenizer = byte_tokenizer()
    return Target(model, tokenizer, target_record(model, name, dtype, tokenizer))


def random_model(fields: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    config = LlamaConfig(max_position_embeddings=8192, **fields)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def draft_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """A model of the same family, narrower and with few layers."""
    narrower = {key: fields[key] // DRAFT_SHARE for key in ("hidden_size", "intermediate_size", "num_attention_heads")}
    kv_heads = max(1, fields["num_key_value_heads"] // DRAFT_SHARE)
    layers = min(DRAFT_LAYERS, fields["num_hidden_layers"])
    return {**fields, **narrower, "num_key_value_heads": kv_heads, "num_hidden_layers": layers}


class Check:
    """Measures one target until the time is up."""

    def __init__(self, target: Target, fields: dict[str, Any], hardware: Hardware | None, deadline: float) -> None:
        self.target, self.fields, self.hardware, self.deadline = target, fields, hardware, deadline
        self.lines: list[Line] = []
        self.skipped: list[str] = []

    def run(self, forwards: Sequence[Forward], grid: CostGrid, drafters: dict[str, LiveDrafter]) -> None:
        depths = [query - 1 for query in grid.query_tokens if query > 1]
        for batch, context in grid.blocks:
            for forward in forwards:
                where = f"{self.target.record.name}, {forward}, batch {batch}, context {context}"
                if not self._fits(batch, context, grid, where):
                    continue
                for point in measure_block(self.target, batch, context, grid.query_tokens, forward):
                    self.lines.append(self._round(point, forward))
                for name, drafter in drafters.items():
                    if self._fits(batch, context, grid, f"{where}, {name}"):
                        found = measure_drafting_block(self.target, drafter, name, batch, context, depths, forward)
                        self.lines += [self._drafting(point, forward) for point in found]

    def _fits(self, batch: int, context: int, grid: CostGrid, where: str) -> bool:
        try:
            check_memory(self.target, CostGrid((batch,), grid.query_tokens, (context,)))
        except SpecprobeError as error:
            self.skipped.append(f"{where}: {error}")
            return False
        if time.monotonic() > self.deadline:
            self.skipped.append(f"{where}: no time left")
            return False
        return True

    def _deployment(self, fields: dict[str, Any], forward: str) -> Deployment | None:
        if self.hardware is None:
            return None
        shape = shape_from_config({"model_type": "llama", **fields})
        overhead = engine_overhead("vllm" if forward == "CUDA graph" else "hf")
        return Deployment(shape, quantisation_of("bf16", shape), self.hardware, 1, overhead)

    def _round(self, point: CostPoint, forward: str) -> Line:
        deployment = self._deployment(self.fields, forward)
        predicted = deployment and step_seconds(deployment, point.batch, point.query_tokens, point.context)
        return Line(
            self.target.record.name, forward, "", point.batch, point.query_tokens, point.context, point.seconds,
            point.spread_seconds, predicted,
        )  # fmt: skip

    def _drafting(self, point: DraftingPoint, forward: str) -> Line:
        deployment = self._deployment(self.fields, forward)
        predicted = None
        if deployment is not None:
            one_layer = {**self.fields, "num_hidden_layers": 1}
            shape = shape_from_config(
                {"model_type": "llama", **(draft_fields(self.fields) if point.drafter == "draft" else one_layer)}
            )
            drafter = Drafter("model", shape, quantisation_of("bf16", shape))
            draft = Draft(point.depth, point.depth)
            predicted = drafting_seconds(deployment, drafter, draft, point.batch, point.context)
        return Line(
            self.target.record.name, forward, point.drafter, point.batch, 1 + point.depth, point.context, point.seconds,
            point.spread_seconds, predicted,
        )  # fmt: skip


def print_lines(lines: Sequence[Line]) -> None:
    print(f"{'target':9} {'forward':14} {'what':10} batch query context  measured   spread  roofline    error")
    for line in lines:
        measured = f"{1e3 * line.seconds:6.2f} ms {1e3 * line.spread_seconds:5.2f} ms"
        predicted = "-" if line.predicted_seconds is None else f"{1e3 * line.predicted_seconds:6.2f} ms"
        error = "-" if line.error is None else f"{100 * line.error:+.0f} %"
        print(
            f"{line.target:9} {line.forward:14} {line.drafter or 'round':10} {line.batch:5} {line.query_tokens:5} "
            f"{line.context:7} {measured} {predicted:>9} {error:>8}"
        )
    kinds = sorted({(line.target, line.forward, bool(line.drafter)) for line in lines})
    for target, forward, drafts in kinds:
        errors = [
            abs(line.error)
            for line in lines
            if (line.target, line.forward, bool(line.drafter)) == (target, forward, drafts) and line.error is not None
        ]
        if errors:
            what = "drafting" if drafts else "rounds"
            print(f"{target}, {forward}, {what}: median error of the roofline {100 * statistics.median(errors):.0f} %")


def hardware_of(device: torch.device) -> Hardware | None:
    if device.type != "cuda":
        return None
    try:
        return find_hardware(torch.cuda.get_device_name(device))
    except SpecprobeError as error:
        print(error)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models and few points")
    parser.add_argument("--seconds", type=float, default=540.0)
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("gpu_check: no CUDA device here; nothing was measured")
        return 2
    deadline = time.monotonic() + options.seconds
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    hardware = hardware_of(device)
    sizes = {"tiny": TINY} if options.tiny else {"llama-1b": LLAMA_1B, "llama-8b": LLAMA_8B}
    grid = TINY_GRID if options.tiny else GRID
    lines, skipped = [], []
    for number, (name, fields) in enumerate(sizes.items(), 1):
        target = random_target(name, fields, device, dtype)
        vocab = fields["vocab_size"]
        draft = random_model(draft_fields(fields), device, dtype)
        drafters: dict[str, LiveDrafter] = {
            "draft": LiveDraftModel(draft, VocabularyMatch(vocab, vocab, vocab, equal_sizes=True), vocab),
            "one layer": LiveEarlyExit(target, 1),
        }
        found = forward_kind(target)
        if found != "CUDA graph":
            skipped.append(f"{name}, CUDA graph: none could be captured on {device.type}")
        forwards: list[Forward] = ["CUDA graph", "eager forward"] if found == "CUDA graph" else [found]
        # The time that is left is shared among the targets that are.
        share = (deadline - time.monotonic()) / (len(sizes) - number + 1)
        check = Check(target, fields, hardware, time.monotonic() + share)
        check.run(forwards, grid, drafters)
        lines += check.lines
        skipped += check.skipped
        del target, draft, drafters, check
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print_lines(lines)
    for what in skipped:
        print(f"left out: {what}")
    print(json.dumps({"hardware": hardware and hardware.name, "lines": [asdict(line) for line in lines]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
