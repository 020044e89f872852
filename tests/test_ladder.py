"""What a step up to a dearer drafter bought: order, pairing, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest

from specprobe.acceptance import Acceptance
from specprobe.drafters import Adoption
from specprobe.ladder import climb
from specprobe.options import read_ladder


def acceptance(name: str, adoption: Adoption, accepted: np.ndarray, output: np.ndarray, **fields) -> Acceptance:
    """A drafter at depth 1 that drafts in every round and has so many of them accepted, by prompt."""
    rounds = (output - 1 - accepted)[:, None].astype(np.int32)
    return Acceptance(
        drafter=name,
        config=fields.pop("config", {}),
        fixed_length=True,
        temperature=0.0,
        draft_sampling="greedy",
        ids=tuple(range(len(output))),
        output_tokens=output.astype(np.int32),
        rounds=rounds,
        drafted_at=rounds[:, :, None],
        at_risk_at=rounds[:, :, None],
        accepted_at=accepted[:, None, None].astype(np.int32),
        adoption=adoption,
        **fields,
    )


def works(num_prompts: int = 32):
    """Prompts that differ a lot from each other, and what a drafter accepts on each: half as much, or a little more."""
    rng = np.random.default_rng(0)
    output = rng.integers(50, 400, num_prompts)
    share = rng.uniform(0.05, 0.4, num_prompts)
    return output, (share * output).astype(int)


def test_rungs_go_up_by_what_they_take_and_are_held_against_the_best_before():
    output, accepted = works()
    rungs = climb(
        [
            acceptance("eagle3", Adoption.TRAINED_HEAD, accepted + 20, output),
            acceptance("draft", Adoption.SECOND_MODEL, accepted // 2, output, config={"model": "a/b/tiny"}),
            acceptance("suffix", Adoption.FLAG, accepted, output),
        ]
    )
    assert [rung.label for rung in rungs] == ["suffix", "draft:tiny", "eagle3"]
    assert [rung.standing for rung in rungs] == ["first", "no better", "better"]
    assert [rung.over for rung in rungs] == [None, "suffix", "suffix"]
    emitted = (output - 1).sum()
    assert rungs[2].step.point == pytest.approx((emitted - accepted.sum()) / (emitted - (accepted + 20).sum()))
    # Paired by prompt: prompts differ by more than the step, the interval of the step does not.
    assert rungs[2].step.high - rungs[2].step.low < 0.2


def test_few_prompts_never_say_better_and_a_broken_model_is_called_broken():
    output, accepted = works(8)
    rungs = climb(
        [
            acceptance("suffix", Adoption.FLAG, accepted // 2, output),
            acceptance("draft", Adoption.SECOND_MODEL, accepted + 20, output),
            acceptance("eagle3", Adoption.TRAINED_HEAD, accepted // 20, output),
        ]
    )
    assert [rung.standing for rung in rungs] == ["first", "open", "broken"]


def test_a_ladder_file_has_a_drafter_a_line(tmp_path):
    path = tmp_path / "ladder.txt"
    path.write_bytes("\ufeffngram  # cheapest\r\n\r\n# none\nsuffix\ndraft:models/a#b\n".encode())
    assert read_ladder(path) == ("ngram", "suffix", "draft:models/a#b")
