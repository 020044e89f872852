"""Every constant of the roofline, in one place, with where it comes from.

None belongs to a model, a device or a table of results. `Efficiencies` say how much of a data sheet's figure real
kernels reach; an `Overhead` says what an engine adds to a step. The overheads are round figures of one significant
digit or two. Where a published table was looked at to choose one, that is said, since then an error over that table
is not a test of it: docs/validation.md shows how far each figure moves with each constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of the peaks, the same for all engines but for the factors of an `Overhead`.

    bandwidth: large matrix-vector products and paged attention reach 85 to 95 % of the memory's data sheet.
    compute: matrix products of tens to a few hundred rows reach 50 to 70 % of the dense peak.
    expert_bandwidth: routed experts are many small matrices; grouped kernels reach less of the bandwidth on them.
    weight_only: kernels that expand weights of few bits as they multiply, against those of 16 bits: they are slower
    than these beyond a few rows, by a tenth to a half.
    expert_independence: the share of a sequence's further drafted tokens that are routed as if on their own; the
    others meet the experts of the first. 1 is independent routing; consecutive tokens share experts (papers on
    speculation for MoE report between 0.3 and 1), and half is the middle.
    all_reduce_seconds: one small all-reduce over NVLink with a custom kernel, 5 to 10 microseconds by the engines'
    own benchmarks. interconnect: share of the link's data sheet for the bytes themselves.
    ngram_coverage: share of rounds in which prompt lookup finds a match to draft from; between 0.4 and 1 by workload.
    default_context: KV tokens of a sequence where a table does not say.
    memory: share of a device's memory that an engine takes (vLLM's gpu_memory_utilization is 0.9 to 0.92);
    reserved_bytes: of these, what activations, graphs and buffers of a device hold (1 to 4 GB at start-up of vLLM).
    """

    bandwidth: float = 0.9
    compute: float = 0.6
    expert_bandwidth: float = 0.7
    weight_only: float = 0.7
    expert_independence: float = 0.5
    all_reduce_seconds: float = 8e-6
    interconnect: float = 0.7
    ngram_coverage: float = 0.8
    default_context: float = 512.0
    memory: float = 0.9
    reserved_bytes: float = 2e9


@dataclass(frozen=True, slots=True)
class Overhead:
    """What an engine adds, in seconds.

    step: a forward of the target: scheduling, inputs, sampling, as far as it is not hidden behind the device.
    sequence: that for each sequence of the step. layer, moe_layer: gaps and small kernels of a layer, and what
    routing adds to it; with `eager` they are host time that the device's own work hides behind, or hides.
    round: a verification beyond a plain step: accept, roll back, wait for the host. round_sequence: that for each
    sequence. draft_step: one step of the drafter beyond its own layers. tree: each step that expands a tree, and the
    verification of one.
    compute_factor, bandwidth_factor: kernels against those of `Efficiencies`; prefill_compute_factor: those of prompts,
    of hundreds of rows, which multiply in the device's own precision whatever weights are stored in.
    expands_batch: a verify of K drafts is K + 1 sequences, each with its own KV reads. splits_layers: several devices
    hold layers, and work one after the other.
    """

    step: float
    sequence: float
    layer: float
    moe_layer: float
    round: float
    round_sequence: float
    draft_step: float
    tree: float
    compute_factor: float = 1.0
    bandwidth_factor: float = 1.0
    prefill_compute_factor: float = 1.0
    eager: bool = False
    expands_batch: bool = False
    splits_layers: bool = False


EFFICIENCIES = Efficiencies()

# The standard deviation of log(predicted / measured speed-up) that stands for the median absolute errors over the
# published cells of today's engines (docs/validation.md): 9.2 % cold, of a normal error 0.67 deviations.
COLD_LOG_DEVIATION = 0.136

# vllm, sglang: CUDA graphs, so a layer costs a dozen kernels of about a microsecond of gap each; scheduling mostly
# overlapped; a speculative round waits for the accepted counts (a millisecond with drafter and sampler, as
# SpecDecode-Bench's per-step overhead of 1.2 ms on vLLM 0.10 says).
# vllm-v0: Python between steps, no overlap; the spec worker of 0.6 copies, expands and scores each sequence in
# Python. Chosen with the published cells of vLLM 0.6.6 in view: the one engine of its kind there is a table for.
# hf: eager PyTorch, about 25 kernels a layer at 30 microseconds of host time each; research code that drafts and
# rearranges trees in eager mode too.
# llama.cpp: CUDA graphs or Metal command buffers; its quantised kernels multiply in int8 dot products, not in tensor
# cores, at small batches. mlx: lazily built Metal graphs, each drafted token evaluated and read back by the host, a few
# milliseconds; quantised products of a few rows run at a fraction of peak.
_CUDA_GRAPHS = Overhead(
    step=0.5e-3,
    sequence=10e-6,
    layer=15e-6,
    moe_layer=25e-6,
    round=1.0e-3,
    round_sequence=5e-6,
    draft_step=0.3e-3,
    tree=0.2e-3,
)
OVERHEADS: Mapping[str, Overhead] = {
    "vllm": _CUDA_GRAPHS,
    "sglang": _CUDA_GRAPHS,
    "vllm-v0": replace(
        _CUDA_GRAPHS, step=3.5e-3, sequence=20e-6, round_sequence=250e-6, draft_step=1.3e-3, expands_batch=True
    ),
    "trtllm": Overhead(
        step=0.3e-3,
        sequence=5e-6,
        layer=12e-6,
        moe_layer=20e-6,
        round=0.5e-3,
        round_sequence=5e-6,
        draft_step=0.2e-3,
        tree=0.2e-3,
    ),
    "hf": Overhead(
        step=1.0e-3,
        sequence=50e-6,
        layer=750e-6,
        moe_layer=2000e-6,
        round=2.0e-3,
        round_sequence=0.2e-3,
        draft_step=1.0e-3,
        tree=1.5e-3,
        eager=True,
    ),
    "llama.cpp": Overhead(
        step=0.5e-3,
        sequence=50e-6,
        layer=20e-6,
        moe_layer=20e-6,
        round=1.0e-3,
        round_sequence=0.1e-3,
        draft_step=0.5e-3,
        tree=0.5e-3,
        compute_factor=0.2,
        bandwidth_factor=0.85,
        splits_layers=True,
    ),
    "mlx": Overhead(
        step=1.0e-3,
        sequence=50e-6,
        layer=20e-6,
        moe_layer=40e-6,
        round=3.0e-3,
        round_sequence=0.1e-3,
        draft_step=3.0e-3,
        tree=1.0e-3,
        compute_factor=0.7,
        bandwidth_factor=0.9,
    ),
}
