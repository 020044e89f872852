"""N-gram drafting (prompt lookup): copy what followed an earlier occurrence of the newest tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from specprobe.drafters.base import Adoption, Limits, Proposals, known_tokens, read_option, refuse_unknown_options
from specprobe.errors import SpecprobeError
from specprobe.profiles import NgramRule, Profile
from specprobe.trajectory import Trajectory

_UNLIMITED = int(np.iinfo(np.int16).max)
# Each length has a table of its own, and no engine's users look up more.
LONGEST_LOOKUP = 256


@dataclass(frozen=True, slots=True)
class NgramDrafter:
    """Prompt lookup by one engine's rule; see `NgramRule` for what the rule fixes."""

    rule: NgramRule
    name: str = "ngram"
    adoption: Adoption = Adoption.FLAG

    @property
    def config(self) -> Mapping[str, Any]:
        """Lookup lengths and the engine's choices."""
        config: dict[str, Any] = {
            "min": self.rule.min_n,
            "max": self.rule.max_n,
            "match": self.rule.match,
            "pad": self.rule.pad,
        }
        if self.rule.copy_limit is not None:
            config["copy"] = self.rule.copy_limit
        return config

    @property
    def fixed_length(self) -> bool:
        """Only a padded draft always has the length asked for."""
        return self.rule.pad == "last_token"

    def proposals(self, trajectories: Iterable[Trajectory], depth: int, limits: Limits) -> Iterator[Proposals]:
        """Each response is looked up in its own prompt and in what it wrote so far."""
        rule = self.rule
        by_depth = [rule.at_depth(k) for k in range(1, depth + 1)]
        copied = np.array([_UNLIMITED if at.copy_limit is None else at.copy_limit for at in by_depth], dtype=np.int64)
        histories = np.array([at.min_history for at in by_depth], dtype=np.int64)
        ends = np.asarray(limits.end_token_ids if rule.stop_at_end_token else (), dtype=np.int32)
        for trajectory in trajectories:
            num_output = trajectory.output_ids.size
            drafted = np.zeros((depth, num_output), dtype=np.int16)
            accepted = np.zeros((depth, num_output), dtype=np.int16)
            missed = np.full((depth, num_output), -1, dtype=np.int32)
            _propose(
                known_tokens(trajectory),
                trajectory.prompt_ids.size,
                num_output,
                rule.min_n,
                rule.max_n,
                rule.match == "latest",
                rule.pad == "last_token",
                rule.skip_newest,
                rule.first_start,
                copied,
                rule.min_copied,
                histories,
                ends,
                limits.longest_drafts(trajectory.prompt_ids.size, num_output),
                drafted,
                accepted,
                missed,
            )
            yield Proposals(drafted, accepted, missed=missed)


def make_ngram(options: Mapping[str, str], profile: Profile) -> NgramDrafter:
    """`ngram[:min=N,max=N]`; where one is missing it equals the other, as in vLLM.

    llama.cpp adds `copy=M`; transformers always goes down to 1.
    """
    rule = profile.ngram
    assert rule is not None, f"{profile.name} has no n-gram drafter that is replayed"
    known = ("min", "max") if rule.copy_limit is None else ("min", "max", "copy")
    refuse_unknown_options(options, known, f"ngram of {profile.name}")
    max_n = read_option(options, "max", 0, int, (1, LONGEST_LOOKUP), "ngram")
    min_n = read_option(options, "min", 0, int, (1, LONGEST_LOOKUP), "ngram")
    if profile.has_ngram_min:
        rule = replace(rule, min_n=min_n or max_n or rule.min_n, max_n=max_n or min_n or rule.max_n)
    elif min_n in (0, rule.min_n):
        rule = replace(rule, max_n=max_n or rule.max_n)
    else:
        raise SpecprobeError(
            f"--drafter: ngram: {profile.name} always looks up lengths down to {rule.min_n}; leave min out"
        )
    if rule.min_n > rule.max_n:
        raise SpecprobeError(f"--drafter: ngram: min={rule.min_n} is above max={rule.max_n}")
    if rule.copy_limit is not None:
        if rule.min_n != rule.max_n:
            raise SpecprobeError(f"--drafter: ngram: {profile.name} looks up one length; give min equal to max")
        copy_limit = read_option(options, "copy", rule.copy_limit, int, (1, _UNLIMITED), "ngram")
        size = rule.max_n
        rule = replace(rule, copy_limit=copy_limit, min_copied=size)
    return NgramDrafter(rule)


@njit(cache=True, nogil=True)
def _propose(
    tokens: NDArray[np.int32],
    num_prompt: int,
    num_output: int,
    min_n: int,
    max_n: int,
    latest: bool,
    pad: bool,
    skip_newest: int,
    first_start: int,
    copied: NDArray[np.int64],
    min_copied: int,
    histories: NDArray[np.int64],
    ends: NDArray[np.int32],
    longest: NDArray[np.int64],
    drafted: NDArray[np.int16],
    accepted: NDArray[np.int16],
    missed: NDArray[np.int32],
) -> None:
    """Fill `drafted`, `accepted` and `missed` [K, N] for every start, with one hash table per lookup length.

    `copied`, `histories` [K]: by depth, the most tokens copied and the shortest history that is looked up in.

    A table maps an n-gram to the start of its earliest (or latest) occurrence among those that may be copied at
    the current history; it grows by one n-gram as the history does, so a start costs O(max_n^2) at worst.
    """
    depth = drafted.shape[0]
    num_known = tokens.size
    size = 16
    while size < 2 * num_known:
        size *= 2
    tables = np.full((max_n - min_n + 1, size), -1, dtype=np.int32)
    for history in range(1, num_prompt + num_output):
        for n in range(min_n, max_n + 1):
            start = history - 1 - skip_newest - n
            if start >= first_start:
                slot = _find(tables[n - min_n], tokens, start, n)
                if latest or tables[n - min_n, slot] < 0:
                    tables[n - min_n, slot] = start
        if history <= num_prompt:
            continue
        copy_from = -1
        if history >= histories[0]:
            for n in range(min_n, min(max_n, history) + 1):
                found = tables[n - min_n, _find(tables[n - min_n], tokens, history - n, n)]
                if found < 0:
                    # A longer suffix can only have occurred where this one did.
                    break
                copy_from = found + n
        available = 0
        if copy_from >= 0:
            available = min(history - skip_newest - copy_from, copied[depth - 1])
            for j in range(available):
                if _contains(ends, tokens[copy_from + j]):
                    available = j
                    break
            if available < min_copied:
                available = 0
        column = history - num_prompt
        length = 0
        for k in range(depth):
            here = min(available, copied[k]) if history >= histories[k] else 0
            if here < min_copied:
                here = 0
            drafted[k, column] = min(k + 1 if pad else min(here, k + 1), longest[column])
            length = max(length, drafted[k, column])
        matched = 0
        draft = -1
        while matched < length and history + matched < num_known:
            draft = tokens[copy_from + matched] if matched < available else tokens[history - 1]
            if draft != tokens[history + matched]:
                break
            matched += 1
        for k in range(depth):
            accepted[k, column] = min(matched, drafted[k, column])
            if matched < drafted[k, column]:
                missed[k, column] = draft


@njit(cache=True, nogil=True)
def _find(table: NDArray[np.int32], tokens: NDArray[np.int32], start: int, n: int) -> np.int64:
    """The slot that holds the n-gram at `start`, or the free slot where it belongs (linear probing)."""
    mask = table.size - 1
    mixed = np.uint64(0)
    for j in range(n):
        mixed = (mixed ^ np.uint64(tokens[start + j])) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    slot = np.int64(mixed & np.uint64(mask))
    while True:
        other = table[slot]
        if other < 0:
            return slot
        same = True
        for j in range(n):
            if tokens[other + j] != tokens[start + j]:
                same = False
                break
        if same:
            return slot
        slot = (slot + 1) & mask


@njit(cache=True, nogil=True)
def _contains(values: NDArray[np.int32], value: int) -> bool:
    for candidate in values:
        if candidate == value:
            return True
    return False
