"""Turns of one conversation are one piece of evidence: how they are recognised, and that intervals take them so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import make_trajectory
from toy_target import byte_tokenizer

from specprobe.bench.client import Served
from specprobe.bench.figures import measured
from specprobe.checks import check_responses
from specprobe.conversations import units
from specprobe.trajectories import logged_trajectories
from specprobe.trajectory import prompt_numbers
from specprobe.workload import read_workload


def turns(*texts: str) -> list[dict[str, str]]:
    """User and assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def numbers(tmp_path: Path, *rows: Any) -> list[int]:
    """Which prompts of a log are taken together."""
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload = read_workload([str(path)])
    found = logged_trajectories(workload.prompts, byte_tokenizer(), temperature=0.0)
    assert len(found.trajectories) == len(workload.prompts)
    return prompt_numbers(found.trajectories).tolist()


def asked(*texts: str) -> dict[str, Any]:
    """A request as it was logged, history included, and its answer."""
    *history, answer = turns(*texts)
    return {"request": {"messages": history}, "response": {"choices": [{"message": answer}]}}


def test_the_turns_of_a_row_are_one(tmp_path):
    two = {"messages": turns("a question", "an answer", "another", "its answer")}
    one = {"messages": turns("some question", "some answer")}
    assert numbers(tmp_path, two, one, two | {"messages": turns("third", "x", "y", "z")}) == [0, 0, 1, 2, 2]


def test_requests_logged_one_by_one_are_one_where_each_goes_on_from_the_last(tmp_path):
    first, second = ("plan a trip", "where to?"), ("plan a trip", "where to?", "to the sea", "by train")
    third = (*second, "when?", "in May")
    other = ("write a poem", "roses")
    assert numbers(tmp_path, asked(*first), asked(*other), asked(*third), asked(*second)) == [0, 1, 0, 0]


def test_requests_that_only_begin_alike_are_not_one(tmp_path):
    examples = ("2 + 2", "4", "3 + 3", "6")
    assert numbers(tmp_path, *(asked(*examples, f"{i} + 1", str(i + 1)) for i in range(3))) == [0, 1, 2]
    hello = ("hi", "hello, what can I do?")
    anna = (*hello, "tell a joke", "no")
    assert numbers(
        tmp_path, asked(*hello), asked(*anna), asked(*hello, "what is 1 + 1?", "2"), asked(*anna, "why?", "so")
    ) == [0, 1, 2, 1]


def test_equal_prompts_are_one_and_what_is_known_of_no_conversation_is_by_itself():
    works = [make_trajectory([i % 3], [5], name=i) for i in range(6)]
    assert prompt_numbers(works).tolist() == [0, 1, 2, 0, 1, 2]
    # The first two are turns of one conversation, the fourth asks the same as its first turn on another day.
    works[0], works[1] = (replace(work, conversation=7) for work in works[:2])
    works[3] = replace(works[3], conversation=8)
    assert prompt_numbers(works).tolist() == [0, 0, 1, 2, 3, 1]
    assert prompt_numbers([]).tolist() == []


def test_that_turns_count_as_one_is_said():
    works = [make_trajectory([i], np.random.default_rng(i).integers(0, 99, 60), name=i) for i in range(40)]
    assert not check_responses(works)
    of_two = [replace(work, conversation=i // 2) for i, work in enumerate(works)]
    (notice,) = check_responses(of_two)
    assert notice.code == "conversations"
    assert notice.message.startswith("40 prompts are of 20 conversations")
    of_four = [replace(work, conversation=i // 4) for i, work in enumerate(works)]
    assert [notice.code for notice in check_responses(of_four)] == ["conversations", "too_few_prompts"]


def test_a_bench_draws_conversations(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"messages": turns(f"{i}?", "a", "b", "c")}) + "\n" for i in range(10)))
    prompts = read_workload([str(path)]).prompts
    assert units(prompts) == [i // 2 for i in range(20)]
    assert units([replace(prompt, conversation=None) for prompt in prompts]) == list(range(20))
    rng = np.random.default_rng(0)
    # What a conversation gains is the same in both of its turns.
    gains = np.exp(rng.normal(0.3, 0.2, 10)).repeat(2)

    def served(seconds: np.ndarray) -> list[Served]:
        starts = np.concatenate([[0.0], seconds.cumsum()[:-1]])
        return [
            Served(i, float(start), (float(start) + 0.01, float(start + took)), None, 9, 50, "stop", "", None)
            for i, (start, took) in enumerate(zip(starts, seconds, strict=True))
        ]

    arms = [[served(np.ones(20) * (1 + 0.001 * k))] * 2 for k in (0, 1)]
    arms[1] = [served(1 / gains)] * 2
    alone, together = (measured(1, *arms, units=drawn) for drawn in (None, units(prompts)))
    assert (alone.prompts, together.prompts) == (20, 10)
    assert together.speedup == alone.speedup
    assert together.interval.standard_error == pytest.approx(2**0.5 * alone.interval.standard_error, rel=0.05)
