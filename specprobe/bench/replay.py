"""What a drafter would have been counted to do over the answers of a bench: the replay of `analyze`, on these texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specprobe.acceptance import Acceptance
from specprobe.analyze import analyze
from specprobe.bench.client import Written
from specprobe.bench.counters import SpecCounters
from specprobe.errors import SpecprobeError
from specprobe.interval import Interval, ratio_intervals
from specprobe.options import AnalyzeOptions
from specprobe.progress import Stages
from specprobe.prompt import Message, Prompt
from specprobe.run import Run
from specprobe.scratch import scratch_folder


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Which drafter the speculative server runs, and by whose rules. `tokenizer`: where the server tells no token ids;
    `target`: for drafters that read its states.
    """

    drafter: str
    depth: int
    engine: str
    tokenizer: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A run over the answers of a bench, and the result of the drafter in it.

    `left_out`: answers whose text, cut by the tokenizer, is not as many tokens as the server counted: models write
    tokens that no tokenizer would cut so.
    """

    run: Run
    acceptance: Acceptance
    depth: int
    left_out: int

    def counters(self, prompt: int) -> SpecCounters | None:
        """What the engine is expected to count for this prompt's answer; None where it was not replayed."""
        try:
            row = self.acceptance.ids.index(str(prompt))
        except ValueError:
            return None
        k = self.depth - 1
        return SpecCounters(
            self.acceptance.drafted_tokens[row, k].item(),
            self.acceptance.accepted_tokens[row, k].item(),
            self.acceptance.drafted_rounds[row, k].item(),
            tuple(self.acceptance.accepted_at[row, k, : self.depth].tolist()),
        )

    def rate_interval(self) -> Interval | None:
        """The acceptance rate over prompts."""
        accepted, drafted = (
            self.acceptance.by_prompt(counts[:, self.depth - 1 : self.depth]).astype(np.float64)
            for counts in (self.acceptance.accepted_tokens, self.acceptance.drafted_tokens)
        )
        return ratio_intervals(accepted, drafted, scale="linear")[0]


def replay_answers(
    options: ReplayOptions,
    prompts: Sequence[Prompt],
    answers: Mapping[int, Written],
    tails: Mapping[int, tuple[int, ...]],
    *,
    temperature: float,
    max_new_tokens: int,
    max_model_len: int | None,
    stages: Stages,
) -> Replayed:
    """Replay the drafter over answers, by number of the prompt; ids of the run are these numbers as text.

    `tails`: tokens that would have followed an answer. Raises SpecprobeError where ids are not known and no tokenizer
    was named, and whatever `analyze` raises.
    """
    rows = list(_rows(options, prompts, answers, tails))
    if not rows:
        raise SpecprobeError(
            "no answer, cut by --tokenizer, is as many tokens as the server counted; name the served model's tokenizer"
        )
    # The file holds what was written, so it is private, and goes.
    with scratch_folder() as folder:
        path = folder / "answers.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        path.chmod(0o600)
        run = analyze(
            AnalyzeOptions(
                prompts=(str(path),),
                target=options.target,
                tokenizer=options.tokenizer if options.target is None else None,
                drafters=(options.drafter,),
                depth=options.depth,
                temperatures=(temperature,),
                responses="logged",
                engine=options.engine,
                draft_sampling="greedy" if temperature else None,
                max_model_len=max_model_len,
                logged_cut_at=max_new_tokens,
            ),
            stages,
        )
    return Replayed(run, run.results[0], options.depth, len(answers) - len(rows))


def _rows(
    options: ReplayOptions,
    prompts: Sequence[Prompt],
    answers: Mapping[int, Written],
    tails: Mapping[int, tuple[int, ...]],
) -> Iterator[dict[str, Any]]:
    tokenizer = None
    for number, written in sorted(answers.items()):
        prompt_ids, output_ids = written.prompt_ids, written.output_ids
        if output_ids is None or prompt_ids is None:
            if options.tokenizer is None:
                raise SpecprobeError(
                    "the server tells no token ids, so what it drafted cannot be replayed; name its tokenizer with "
                    "--tokenizer"
                )
            if tokenizer is None:
                from specprobe.tokens import load_tokenizer

                tokenizer = load_tokenizer(options.tokenizer)
            prompt_ids = tuple(tokenizer.encode_prompt(prompts[number]).tolist())
            # Without a template: the text goes on from the prompt as it is.
            raw = Prompt(number, "", 0, "", text="", answer=Message("assistant", written.text))
            ids = tokenizer.encode_answer(raw)[0].tolist()
            ended = written.finish_reason == "stop" and bool(tokenizer.eos_ids)
            if written.num_tokens and len(ids) not in (written.num_tokens, written.num_tokens - ended):
                continue
            output_ids = (*ids, *(tokenizer.eos_ids[-1:] if ended else ()))
        yield {
            "id": str(number),
            "prompt_token_ids": list(prompt_ids),
            "output_token_ids": list(output_ids),
            **({"tail_token_ids": list(tails[number])} if tails.get(number) else {}),
        }
