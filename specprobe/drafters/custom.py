"""`python:package.module:Class`: the user's own drafter, called as an engine would call it."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from specprobe.drafters.base import Adoption, Limits, Proposals, known_tokens
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.trajectory import TokenIds, Trajectory


class CustomDrafter(Protocol):
    """What a class named with `python:` has to offer (docs/custom-drafter.md). It is made without arguments.

    It may also have `start(prompt_ids)`, which is called before the first round of each response and depth, and
    `config`, a mapping that is kept with the result.
    """

    def propose(self, token_ids: TokenIds, num_draft_tokens: int) -> Sequence[int]:
        """Up to `num_draft_tokens` ids to follow `token_ids` (prompt and response so far); may be empty."""


@dataclass(frozen=True, slots=True)
class PythonDrafter:
    """A user's object as a drafter whose drafts are one-hot.

    It is asked where an engine would ask it: at the round starts of each depth, in order, so that it may keep state
    from round to round. What it never proposes is never accepted.
    """

    # Two objects of one class draft alike, as far as anyone can tell.
    drafter: CustomDrafter = field(compare=False)
    config: Mapping[str, Any]
    name: str = "python"
    fixed_length: bool = False
    adoption: Adoption = Adoption.FLAG

    def proposals(self, trajectories: Iterable[Trajectory], depth: int, limits: Limits) -> Iterator[Proposals]:
        """One walk over the rounds of each response for each depth."""
        for trajectory in trajectories:
            num_prompt, num_output = trajectory.prompt_ids.size, trajectory.output_ids.size
            tokens = known_tokens(trajectory)
            tokens.flags.writeable = False
            longest = limits.longest_drafts(num_prompt, num_output)
            drafted, accepted = np.zeros((2, depth, num_output), dtype=np.int16)
            missed = np.full((depth, num_output), -1, dtype=np.int32)
            for k in range(1, depth + 1):
                self._start(trajectory.prompt_ids)
                start = 1
                while start < num_output:
                    most = min(k, int(longest[start]))
                    draft = self._draft(tokens[: num_prompt + start], most) if most else np.empty(0, dtype=np.int64)
                    written = tokens[num_prompt + start :][: draft.size]
                    right = draft[: written.size] == written
                    num_accepted = int(right.size if right.all() else right.argmin())
                    drafted[k - 1, start], accepted[k - 1, start] = draft.size, num_accepted
                    if num_accepted < draft.size and 0 <= draft[num_accepted] <= np.iinfo(np.int32).max:
                        missed[k - 1, start] = draft[num_accepted]
                    start += num_accepted + 1
            yield Proposals(drafted, accepted, missed=missed)

    def _start(self, prompt_ids: TokenIds) -> None:
        with _users_code("start"):
            start = getattr(self.drafter, "start", None)
            if start is not None:
                start(prompt_ids)

    def _draft(self, token_ids: TokenIds, most: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        # A copy: a view would show what comes next to whoever looks behind it.
        seen = token_ids.copy()
        seen.flags.writeable = False
        with _users_code("propose"):
            draft = np.asarray(self.drafter.propose(seen, most)).reshape(-1)
        if draft.size and not np.issubdtype(draft.dtype, np.integer):
            raise SpecprobeError("--drafter python: propose must return whole numbers, token ids")
        return draft[:most].astype(np.int64)


@contextmanager
def _users_code(what: str) -> Iterator[None]:
    """Whatever a user's code raises becomes one line, and what it prints goes where our own progress goes."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        try:
            said = str(error)
        except Exception:
            said = "it cannot say why"
        raise SpecprobeError(
            f"--drafter python: {what} raised {type(error).__name__}: {inert(said, 200)}; mend the class"
        ) from None


def make_custom(path: str) -> PythonDrafter:
    """The drafter `package.module:Class`, found as Python would find it from the current folder."""
    module_name, _, class_name = path.partition(":")
    if not module_name or not class_name:
        raise SpecprobeError("--drafter python: write python:package.module:Class")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with _users_code(f"making {path}"):
        made = getattr(importlib.import_module(module_name), class_name)()
        can_propose = callable(getattr(made, "propose", None))
    with _users_code(f"{path}: its config"):
        config = dict(getattr(made, "config", {}))
        json.dumps(config, allow_nan=False)
    if not can_propose:
        raise SpecprobeError(f"--drafter python:{path}: has no method propose(token_ids, num_draft_tokens)")
    return PythonDrafter(made, {"class": path, **config})
