"""The whole grid (drafters, depths 1..8, three temperatures) against generating alone, and against a run per cell."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from specprobe.analyze import analyze
from specprobe.options import AnalyzeOptions
from specprobe.profiles import resolve_profile
from specprobe.progress import SILENT
from specprobe.responses import get_responses, open_origin
from specprobe.scan import ReadOptions
from specprobe.store import TrajectoryStore
from specprobe.target import load_target
from specprobe.workload import read_workload
from tests.benchmarks.peers.side_by_side import ROOT, Row, Settings, at_least, at_most, in_turn, medians
from tests.benchmarks.peers.side_by_side import processor_seconds as seconds_of

WORKLOAD = ROOT / "workloads" / "chat.json"
TEMPERATURES, DEPTH = (0.0, 0.5, 1.0), 8
# The depth of a cell that is timed: in the middle of 1..8.
TIMED_DEPTH = 4


def compare_grid(settings: Settings) -> Iterator[Row]:
    """Everything that `analyze` does, against the same responses and nothing else; both load the target."""
    prompts, tokens = settings.size(8, 2), settings.size(32, 8)
    options = grid_options(settings, prompts, tokens)
    _warm_up(options)
    measured = in_turn(
        settings.size(2, 1),
        lambda: _in_own_folder(lambda store: _generate(options, store)),
        lambda: _in_own_folder(lambda store: analyze(options, SILENT, store)),
    )
    alone, whole = medians(measured)
    yield at_most(
        f"whole grid ({_names(options)}; depths 1 to {DEPTH}; temperatures 0, 0.5, 1) against generating its "
        f"responses ({prompts} prompts, at most {tokens} tokens)",
        1.3,
        [ours / theirs for theirs, ours in measured],
        f"{whole:.1f} s against {alone:.1f} s",
    )


def compare_assisted(settings: Settings) -> Iterator[Row]:
    """transformers' assisted generation, one run for each cell, on the prompts of the grid.

    Cells are timed in the middle of the depths, at the first and the last temperature. A drafter that transformers
    does not have is counted as the cheaper of the two that it has.
    """
    if settings.target is None or settings.draft is None:
        return
    prompts, tokens = settings.size(8, 1), settings.size(32, 8)
    options = grid_options(settings, prompts, tokens)
    _warm_up(options)
    peer = _Assisted(settings.target, settings.draft, _prompt_ids(options, prompts), tokens)
    timed = (TEMPERATURES[0], TEMPERATURES[-1])
    measured = in_turn(
        settings.size(2, 1),
        lambda: _in_own_folder(lambda store: analyze(options, SILENT, store)),
        lambda: mean(seconds_of(lambda t=t: peer.look_up(t)) for t in timed),
        lambda: mean(seconds_of(lambda t=t: peer.assist(t)) for t in timed),
    )
    grid, look_up, assist = medians(measured)
    each, count = DEPTH * len(TEMPERATURES), len(options.drafters)

    def cells(look_up: float, assist: float) -> float:
        return each * (look_up + assist + (count - 2) * min(look_up, assist))

    yield at_least(
        f"the same grid against assisted generation of transformers, a run for each of {each * count} cells "
        f"({prompts} prompts, at most {tokens} tokens; cells of depth {TIMED_DEPTH} at temperatures 0 and 1 timed, "
        "the others counted as these)",
        100,
        [cells(look_up, assist) / grid for grid, look_up, assist in measured],
        f"{grid:.1f} s against {look_up:.1f} s a cell (prompt lookup), {assist:.1f} s (draft model)",
    )


def grid_options(settings: Settings, prompts: int, tokens: int) -> AnalyzeOptions:
    """n-gram, suffix decoding, and the drafters with a model that are named; as the engine drafts, both ways."""
    named = {"draft": settings.draft, "pard": settings.pard}
    models = (f"{name}:{folder}" for name, folder in named.items() if folder is not None)
    return AnalyzeOptions(
        prompts=(str(WORKLOAD),),
        drafters=("ngram", "suffix", *models),
        depth=DEPTH,
        temperatures=TEMPERATURES,
        responses="generate",
        engine="vllm@0.30",
        max_new_tokens=tokens,
        read=ReadOptions(max_prompts=prompts),
    )


class _Assisted:
    """transformers' own speculative decoding; one request at a time, which is all it does."""

    def __init__(self, target: Path, draft: Path, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        from transformers import AutoModelForCausalLM

        self._target, self._draft = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for folder in (target, draft)
        )
        # The depth is what was asked for, not what the last rounds suggest.
        self._draft.generation_config.num_assistant_tokens = TIMED_DEPTH
        self._draft.generation_config.num_assistant_tokens_schedule = "constant"
        self._draft.generation_config.assistant_confidence_threshold = 0.0
        self._prompts = [torch.tensor([list(ids)]) for ids in prompts]
        self._tokens = tokens

    def look_up(self, temperature: float) -> None:
        """One cell of prompt lookup."""
        self._generate(temperature, prompt_lookup_num_tokens=TIMED_DEPTH)

    def assist(self, temperature: float) -> None:
        """One cell of the draft model."""
        self._generate(temperature, assistant_model=self._draft)

    def _generate(self, temperature: float, **drafter: Any) -> None:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        torch.manual_seed(0)
        for ids in self._prompts:
            mask = torch.ones_like(ids)
            self._target.generate(ids, attention_mask=mask, max_new_tokens=self._tokens, **sampling, **drafter)


def _generate(options: AnalyzeOptions, store: TrajectoryStore) -> None:
    """What `analyze` does up to the responses."""
    workload = read_workload(options.prompts, max_prompts=options.read.max_prompts)
    profile = resolve_profile(options.engine)
    origin = open_origin(options, profile, workload.prompts, SILENT, model_free=False)
    get_responses(origin, options, SILENT, store)


def _in_own_folder(task: Any) -> float:
    """Processor seconds of a task that is given an empty store."""
    with tempfile.TemporaryDirectory() as folder:
        return seconds_of(lambda: task(TrajectoryStore(Path(folder))))


def _warm_up(options: AnalyzeOptions) -> None:
    """Imports and compiled code are loaded once, by whichever side runs first."""
    little = replace(options, max_new_tokens=4, read=ReadOptions(max_prompts=1))
    _in_own_folder(lambda store: analyze(little, SILENT, store))


def _prompt_ids(options: AnalyzeOptions, count: int) -> list[list[int]]:
    tokenizer = load_target().tokenizer
    prompts = read_workload(options.prompts, max_prompts=count).prompts
    return [tokenizer.encode_prompt(prompt).tolist() for prompt in prompts]


def _names(options: AnalyzeOptions) -> str:
    return ", ".join(drafter.partition(":")[0] for drafter in options.drafters)
