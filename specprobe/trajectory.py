"""One trajectory of the target: the token ids of a prompt and of a response, and how the response came about."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
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
    digests, conversations = bytearray(), array("q")
    for trajectory in trajectories:
        digests += _digest(trajectory.prompt_ids)
        conversations.append(_NO_CONVERSATION if trajectory.conversation is None else trajectory.conversation)
    of_content = np.unique(np.frombuffer(digests, dtype=_DIGESTS), return_inverse=True)[1].astype(np.int64)
    talks, first, of_talk = np.unique(np.frombuffer(conversations, dtype=np.int64), True, True)
    of_several = np.zeros(talks.size, dtype=bool)
    of_several[of_talk[of_content != of_content[first][of_talk]]] = True
    of_several &= talks != _NO_CONVERSATION
    keys = np.where(of_several[of_talk], -1 - of_talk, of_content)
    _, first, of_key = np.unique(keys, True, True)
    numbers: NDArray[np.int32] = np.argsort(np.argsort(first)).astype(np.int32)[of_key]
    return numbers


def num_distinct_prompts(trajectories: Iterable[Trajectory]) -> int:
    """How many of them have other tokens in their prompt than all before."""
    digests = bytearray().join(_digest(trajectory.prompt_ids) for trajectory in trajectories)
    return int(np.unique(np.frombuffer(digests, dtype=_DIGESTS)).size)


_NO_CONVERSATION = -1
# In place of the tokens themselves, which may be many; equal digests of different prompts will not occur.
_DIGESTS = "S16"


def _digest(ids: TokenIds) -> bytes:
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
