"""One trajectory of the target: the token ids of a prompt and of a response, and how the response came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specprobe.processors import PLAIN, Processors

TokenIds = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """The tokens every drafter and every depth is replayed over.

    `prompt_ids` [P], `output_ids` [N], `tail_ids` [any]: int32. `log_probs` [N] is log p(x) of each output token
    under the target's processed distribution, where it is known, and `entropy` [N] that distribution's, in nats (at
    temperature 0 both are of temperature 1). `exact` is False where the chat template dropped or changed part of a
    logged answer, so that the tokens are near to what was served, not equal to it. `processors`: what the request
    asks for besides the temperature. `sample`: the how-manieth response to this prompt.
    `group`: the label of its row, for a breakdown. `conversation`: as in `Prompt`.
    """

    id: str | int
    prompt_ids: TokenIds
    output_ids: TokenIds
    source: Literal["generated", "logged"]
    temperature: float
    tail_ids: TokenIds
    log_probs: NDArray[np.float32] | None = None
    finish_reason: Literal["stop", "length"] | None = None
    exact: bool = True
    processors: Processors = PLAIN
    entropy: NDArray[np.float32] | None = None
    sample: int = 0
    group: str | None = None
    conversation: int | None = None


def token_ids(ids: object = ()) -> TokenIds:
    """A read-only int32 vector of token ids."""
    vector = np.asarray(ids, dtype=np.int32).reshape(-1)
    vector.flags.writeable = False
    return vector


def prompt_numbers(trajectories: Sequence[Trajectory]) -> NDArray[np.int32]:
    """[P]: which responses are one piece of evidence, by number in order of appearance.

    Those to one and the same prompt are, and those to several prompts of one conversation.
    """
    contents = [trajectory.prompt_ids.tobytes() for trajectory in trajectories]
    opening: dict[int, bytes] = {}
    of_several = {
        t.conversation
        for t, content in zip(trajectories, contents, strict=True)
        if t.conversation is not None and opening.setdefault(t.conversation, content) != content
    }
    numbers: dict[bytes | int, int] = {}
    keys = (
        t.conversation if t.conversation is not None and t.conversation in of_several else content
        for t, content in zip(trajectories, contents, strict=True)
    )
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int32)
