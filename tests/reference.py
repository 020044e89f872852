"""Slow, plain versions of what specprobe computes fast, written from the rules alone: the tests' second opinion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specprobe.profiles import NgramRule
from specprobe.trajectory import Trajectory, token_ids

Propose = Callable[[list[int], int], list[int]]


def make_trajectory(
    prompt: Sequence[int],
    output: Sequence[int],
    tail: Sequence[int] = (),
    *,
    name: str | int = "p",
    temperature: float = 0.0,
) -> Trajectory:
    return Trajectory(name, token_ids(prompt), token_ids(output), "logged", temperature, token_ids(tail))


@dataclass
class Counters:
    """What an engine's counters hold after one response."""

    rounds: int = 0
    drafted_rounds: int = 0
    drafted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    past_end: int = 0


def draft_and_verify(
    trajectory: Trajectory, propose: Propose, depth: int, max_model_len: int | None = None
) -> Counters:
    """Write the response with a drafter: draft, compare with what the target says next, emit, repeat."""
    target_says = [*trajectory.output_ids.tolist(), *trajectory.tail_ids.tolist()]
    num_output = len(trajectory.output_ids)
    sequence = trajectory.prompt_ids.tolist()
    counters = Counters(accepted_at=[0] * depth)
    if num_output:
        sequence.append(target_says[0])
        counters.emitted.append(target_says[0])
    while 0 < len(counters.emitted) < num_output:
        allowed = depth if max_model_len is None else min(depth, max_model_len - 1 - len(sequence))
        draft = propose(sequence, allowed) if allowed > 0 else []
        position = len(counters.emitted)
        accepted = 0
        while accepted < len(draft) and target_says[position + accepted : position + accepted + 1] == [draft[accepted]]:
            accepted += 1
        counters.rounds += 1
        counters.drafted_rounds += bool(draft)
        counters.drafted_tokens += len(draft)
        for i in range(accepted):
            counters.accepted_at[i] += 1
        emitted = target_says[position : position + accepted + 1]
        sequence += emitted
        counters.emitted += emitted
    counters.past_end = len(counters.emitted) - num_output
    return counters


def ngram_propose(rule: NgramRule, end_tokens: Sequence[int] = ()) -> Propose:
    """An engine's n-gram drafter, by exhaustive search."""

    def propose(history: list[int], depth: int) -> list[int]:
        return pad(copy(history, depth), history, depth)

    def pad(draft: list[int], history: list[int], depth: int) -> list[int]:
        return draft + [history[-1]] * (depth - len(draft)) if rule.pad == "last_token" else draft

    def copy(history: list[int], depth: int) -> list[int]:
        n = len(history)
        if n < rule.min_history:
            return []
        usable = n - rule.skip_newest
        for size in range(rule.max_n, rule.min_n - 1, -1):
            starts = [s for s in range(rule.first_start, usable - size) if history[s : s + size] == history[n - size :]]
            if starts and size <= n:
                start = min(starts) if rule.match == "earliest" else max(starts)
                found = history[start + size : usable][: rule.copy_limit]
                if rule.stop_at_end_token:
                    found = found[: next((i for i, t in enumerate(found) if t in end_tokens), len(found))]
                return found[:depth] if len(found) >= rule.min_copied else []
        return []

    return propose


def llama_cpp_propose(size_n: int, size_m: int) -> Propose:
    """llama.cpp's ngram-simple, n of at least 2, with the newest token apart, as its server has it."""

    def propose(history: list[int], depth: int) -> list[int]:
        known, newest = history[:-1], history[-1]
        if len(known) <= size_n + size_m + 1:
            return []
        wanted = [*known[len(known) - size_n + 1 :], newest]
        starts = [s for s in range(1, len(known) - size_n) if known[s : s + size_n] == wanted]
        copied = known[max(starts) + size_n :][:size_m] if starts else []
        # What does not fit the request is cut off, after it was long enough.
        return copied[:depth] if len(copied) >= size_n else []

    return propose


class Trie:
    """A suffix tree of limited depth without path compression, its children in arctic-inference's order."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.root: dict = {"count": 0, "children": []}

    def append(self, sequence: Sequence[int], length: int) -> None:
        """Count every suffix of `sequence[:length]` of at most max_depth tokens, ended by its newest token."""
        for start in range(max(0, length - self.max_depth), length):
            node = self.root
            for token in sequence[start : length - 1]:
                node = next(c for c in node["children"] if c["token"] == token)
            child = next((c for c in node["children"] if c["token"] == sequence[length - 1]), None)
            if child is None:
                node["children"].append({"token": sequence[length - 1], "count": 1, "children": []})
            else:
                raise_count(node["children"], child)

    def remove(self, sequence: Sequence[int]) -> None:
        """Take a whole sequence out again."""
        for start in range(len(sequence)):
            node = self.root
            for token in sequence[start : start + self.max_depth]:
                child = next(c for c in node["children"] if c["token"] == token)
                lower_count(node["children"], child)
                node = child

    def draft(self, context: Sequence[int], limit: int, factor: float, floor: float) -> tuple[list[int], np.float32]:
        """The best draft over all match lengths, and its score."""
        best: list[int] = []
        best_score = np.float32(0)
        for match in range(1, len(context)):
            node = self.root
            for token in context[len(context) - match :]:
                node = next((c for c in node["children"] if c["token"] == token), None)
                if node is None:
                    break
            if node is None:
                break
            draft: list[int] = []
            score, prob = np.float32(0), np.float32(1)
            while len(draft) < min(limit, int(match * factor + 1e-6)) and node["children"]:
                child = node["children"][0]
                prob = np.float32(prob * np.float32(np.float32(child["count"]) / np.float32(node["count"])))
                if prob < np.float32(floor):
                    break
                draft.append(child["token"])
                score = np.float32(score + prob)
                node = child
            if score >= best_score:
                best, best_score = draft, score
        return best, best_score


def raise_count(siblings: list[dict], child: dict) -> None:
    index = siblings.index(child)
    child["count"] += 1
    if index == 0 or siblings[index - 1]["count"] > child["count"]:
        return
    before = siblings[index - 1]["count"]
    siblings.pop(index)
    siblings.insert(next(i for i, c in enumerate(siblings) if c["count"] == before), child)


def lower_count(siblings: list[dict], child: dict) -> None:
    index = siblings.index(child)
    before = child["count"]
    child["count"] -= 1
    if child["count"] == 0:
        siblings.pop(index)
        return
    if index + 1 < len(siblings) and siblings[index + 1]["count"] == before:
        siblings.pop(index)
        lower = next((i for i, c in enumerate(siblings) if c["count"] < before), len(siblings))
        siblings.insert(lower, child)


class SuffixCache:
    """Suffix decoding over requests, one at a time."""

    def __init__(self, max_depth: int, max_cached: int, factor: float, floor: float) -> None:
        self.max_depth, self.max_cached, self.factor, self.floor = max_depth, max_cached, factor, floor
        self.shared = Trie(max_depth)
        self.cached: list[list[int]] = []

    def start(self, prompt: list[int]) -> None:
        self.local, self.num_prompt, self.num_local, self.num_shared = Trie(self.max_depth), len(prompt), 0, 0
        if self.max_cached:
            while len(self.cached) >= self.max_cached:
                self.shared.remove(self.cached.pop(0))

    def see(self, sequence: list[int]) -> None:
        while self.num_local < len(sequence):
            self.num_local += 1
            self.local.append(sequence, self.num_local)
        response = sequence[self.num_prompt :]
        while self.max_cached and self.num_shared < len(response):
            self.num_shared += 1
            self.shared.append(response, self.num_shared)

    def propose(self, sequence: list[int], depth: int) -> list[int]:
        self.see(sequence)
        context = sequence[-self.max_depth :]
        local, local_score = self.local.draft(context, depth, self.factor, self.floor)
        shared, shared_score = self.shared.draft(context, depth, self.factor, self.floor)
        return local if local_score >= shared_score else shared

    def stop(self, sequence: list[int]) -> None:
        self.see(sequence)
        if self.max_cached:
            self.cached.append(sequence[self.num_prompt :])


@dataclass
class InFlight:
    """A request of `run_in_flight`: its text so far, and what the engine will verify next."""

    number: int
    sequence: list[int]
    draft: list[int] = field(default_factory=list)
    local: Trie | None = None


class SharedSuffixCache:
    """Suffix decoding over requests that run side by side, call by call as an engine makes them."""

    def __init__(self, max_depth: int, max_cached: int, factor: float, floor: float) -> None:
        self.max_depth, self.max_cached, self.factor, self.floor = max_depth, max_cached, factor, floor
        self.shared = Trie(max_depth)
        self.responses: dict[int, list[int]] = {}

    def start(self, request: InFlight) -> None:
        request.local = Trie(self.max_depth)
        for length in range(1, len(request.sequence) + 1):
            request.local.append(request.sequence, length)
        if self.max_cached:
            self.responses[request.number] = []
            while len(self.responses) > self.max_cached:
                self.shared.remove(self.responses.pop(next(iter(self.responses))))

    def add(self, request: InFlight, tokens: list[int]) -> None:
        response = self.responses.get(request.number)
        for token in tokens:
            request.sequence.append(token)
            request.local.append(request.sequence, len(request.sequence))
            if response is not None:
                response.append(token)
                self.shared.append(response, len(response))

    def speculate(self, request: InFlight, depth: int) -> list[int]:
        context = request.sequence[-self.max_depth :]
        local, local_score = request.local.draft(context, depth, self.factor, self.floor)
        shared, shared_score = self.shared.draft(context, depth, self.factor, self.floor)
        return local if local_score >= shared_score else shared


def run_in_flight(
    works: Sequence[Trajectory],
    cache: SharedSuffixCache,
    depth: int,
    in_flight: int,
    max_model_len: int | None = None,
) -> list[Counters]:
    """A closed loop of engine steps: verify every running request's draft, then draft for one after the other."""
    all_counters = [Counters(accepted_at=[0] * depth) for _ in works]
    waiting = list(range(len(works)))
    running: list[InFlight] = []
    while waiting or running:
        while waiting and len(running) < in_flight:
            number = waiting.pop(0)
            running.append(InFlight(number, works[number].prompt_ids.tolist()))
        sampled = []
        for request in running:
            work, counters = works[request.number], all_counters[request.number]
            target_says = [*work.output_ids.tolist(), *work.tail_ids.tolist()]
            position, accepted = len(counters.emitted), 0
            while target_says[position + accepted :][:1] == request.draft[accepted:][:1] != []:
                accepted += 1
            emitted = target_says[position : position + accepted + 1]
            if request.local is not None:
                counters.rounds += 1
                counters.drafted_rounds += bool(request.draft)
                counters.drafted_tokens += len(request.draft)
                for i in range(accepted):
                    counters.accepted_at[i] += 1
            counters.emitted += emitted
            sampled.append(emitted)
        for request, emitted in zip(running, sampled, strict=True):
            if request.local is None:
                cache.start(request)
            cache.add(request, emitted)
            length = len(request.sequence)
            allowed = depth if max_model_len is None else min(depth, max_model_len - 1 - length)
            request.draft = cache.speculate(request, allowed) if allowed > 0 else []
        running = [r for r in running if len(all_counters[r.number].emitted) < works[r.number].output_ids.size]
    return all_counters
