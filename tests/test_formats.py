"""Rows of every dialect -> prompts and logged answers; and no JSON value of any shape breaks a format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messy import ask, chat, share

from specprobe.containers import Skip
from specprobe.formats import FORMATS, parse, parse_as, parse_field
from specprobe.formats.answers import is_error_answer
from specprobe.formats.conversation import Parsed, Requests, requests
from specprobe.formats.turns import ROLES, turn
from specprobe.prompt import Prompt
from specprobe.prompt_keys import measures
from specprobe.scan import RowPrompts
from specprobe.workload import to_prompts


def offered(row: Any) -> Requests:
    _, found = parse(row)
    assert isinstance(found, Parsed), found
    return requests(found)


def prompts(row: Any) -> list[Prompt]:
    name, found = parse(row)
    assert isinstance(found, Parsed), (name, found)
    return list(to_prompts(RowPrompts("log.jsonl", 7, row, found, requests(found).by_default())))


def only(row: Any) -> Prompt:
    (prompt,) = prompts(row)
    return prompt


def said(prompt: Prompt) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in prompt.messages]


QA = [("user", "q"), ("assistant", "a")]

# Row, format, column, what is sent, the logged answer or None.
DIALECTS: list[tuple[Any, str, str, list[tuple[str, str]], str | None]] = [
    (share(("human", "q"), ("gpt", "a")), "sharegpt", "conversations", [("user", "q")], "a"),
    (share(("Human", "q"), ("ChatGPT", "a")), "sharegpt", "conversations", [("user", "q")], "a"),
    ({"conversation": [{"human": "q", "assistant": "a"}]}, "sharegpt", "conversation", [("user", "q")], "a"),
    ({"conversations": json.dumps(share(*QA)["conversations"])}, "sharegpt", "conversations", [("user", "q")], "a"),
    (
        {"conversations": [json.dumps({"from": "human", "value": "q"}), None, {"from": "bard", "value": "a"}]},
        "sharegpt",
        "conversations",
        [("user", "q")],
        "a",
    ),
    (
        {"items": [{"from": "human", "text": "q"}, {"from": "bing", "markdown": "a"}]},
        "sharegpt",
        "items",
        [("user", "q")],
        "a",
    ),
    (
        {**share(("human", "q"), ("gpt", "a")), "system": "s"},
        "sharegpt",
        "conversations",
        [("system", "s"), ("user", "q")],
        "a",
    ),
    (
        {**share(("human", "q")), "chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"}},
        "sharegpt",
        "conversations",
        [("user", "q")],
        "a",
    ),
    (chat(*QA), "messages", "messages", [("user", "q")], "a"),
    (chat(*QA)["messages"], "messages", "messages", [("user", "q")], "a"),
    (chat(("developer", "s"), *QA), "messages", "messages", [("system", "s"), ("user", "q")], "a"),
    ({**chat(("user", "q")), "response": "a"}, "messages", "messages", [("user", "q")], "a"),
    ({"chosen": chat(*QA)["messages"], "rejected": []}, "preference", "chosen", [("user", "q")], "a"),
    ({"custom_id": "1", "body": chat(("user", "q"))}, "batch", "body.messages", [("user", "q")], None),
    ({"request": chat(("user", "q"))}, "batch", "request.messages", [("user", "q")], None),
    (
        {"request": chat(*QA, ("user", "r")), "response": {"choices": [{"message": {"content": "b"}}]}},
        "batch",
        "request.messages",
        [*QA, ("user", "r")],
        "b",
    ),
    (
        {"custom_id": "1", "params": {"system": "s", **chat(("user", [{"type": "text", "text": "q"}]))}},
        "batch",
        "params.messages",
        [("system", "s"), ("user", "q")],
        None,
    ),
    (
        {"body": {"input": "q", "instructions": "s"}, "url": "/v1/responses"},
        "batch",
        "body.input",
        [("system", "s"), ("user", "q")],
        None,
    ),
    ({"input": chat(("user", "q"))}, "batch", "input.messages", [("user", "q")], None),
    ({"instance_id": "i", "text": "ready", "problem_statement": "p"}, "swe-bench", "text", [("user", "ready")], None),
    (
        {"instance_id": "i", "problem_statement": "p", "patch": "d"},
        "swe-bench",
        "problem_statement",
        [("user", "p")],
        None,
    ),
    ({"turns": ["q", "r"], "reference": ["a"]}, "turns", "turns", [("user", "q")], None),
    ({"prompt": ["q", "r"]}, "prompt", "prompt", [("user", "q")], None),
    (
        {"prompt": chat(("user", "q"))["messages"], "completion": [{"role": "assistant", "content": "a"}]},
        "prompt",
        "prompt",
        [("user", "q")],
        "a",
    ),
    ({"prompt": "q", "canonical_solution": "a"}, "prompt", "prompt", [("user", "q")], None),
    ({"prompt": "q", "completion": "a"}, "prompt", "prompt", [("user", "q")], "a"),
    ({"prompt": "q", "chosen": "a", "rejected": "b"}, "prompt", "prompt", [("user", "q")], "a"),
    ({"instruction": "q", "input": "", "output": "a"}, "alpaca", "instruction", [("user", "q")], "a"),
    ({"instruction": "q", "input": "x", "output": "a"}, "alpaca", "instruction+input", [("user", "q\nx")], "a"),
    ({"instruction": "q", "context": "x", "response": "a"}, "alpaca", "instruction+context", [("user", "q\nx")], "a"),
    ({"question": "q", "answer": "a"}, "question", "question", [("user", "q")], None),
    ({"context": "c", "question": "q"}, "question", "context+question", [("user", "c\n\nq")], None),
    (
        {"system_prompt": "s", "question": "q", "response": "a"},
        "question",
        "question",
        [("system", "s"), ("user", "q")],
        "a",
    ),
    ({"problem": "q", "generation": "a", "expected_answer": "b"}, "problem", "problem", [("user", "q")], "a"),
    ({"input": chat(("user", "q"))["messages"], "target": "a"}, "inspect", "input", [("user", "q")], None),
    ({"input": "q", "target": "a"}, "inspect", "input", [("user", "q")], None),
    ({"text": "q", "code": "a"}, "text", "text", [("user", "q")], None),
    ({"query": "q", "response": "a"}, "query", "query", [("user", "q")], "a"),
    (
        {
            "trajectory": [
                {"role": "system", "system_prompt": "s", "text": None},
                {"role": "user", "text": "q"},
                {"role": "ai", "text": "a"},
            ]
        },
        "swe-agent",
        "trajectory",
        [("system", "s"), ("user", "q")],
        "a",
    ),
]


@pytest.mark.parametrize("case", DIALECTS, ids=lambda case: f"{case[1]}:{case[2]}")
def test_dialect(case: tuple[Any, str, str, list[tuple[str, str]], str | None]) -> None:
    row, name, column, sent, answer = case
    assert parse(row)[0] == name
    prompt = only(row)
    assert prompt.column == column
    assert said(prompt) == sent
    assert (prompt.answer.content if prompt.answer else None) == answer


def test_one_prompt_for_each_answer() -> None:
    row = {"id": "x", **share(("human", "q"), ("gpt", "a"), ("human", "r"), ("gpt", ""), ("human", "s"), ("gpt", "c"))}
    first, second = prompts(row)
    assert (first.id, second.id) == ("x#1", "x#2")
    assert said(first) == [("user", "q")]
    assert len(second.messages) == 5
    assert [prompt.answer.content for prompt in (first, second) if prompt.answer] == ["a", "c"]


def test_unanswered_user_turns_are_sent_together_but_the_peers_take_the_first() -> None:
    row = chat(("user", "q"), ("user", "r"))
    assert said(only(row)) == [("user", "q"), ("user", "r")]
    found = offered(row)
    assert found.first is not None
    assert found.first.end == 1


@pytest.mark.parametrize(
    ("row", "identity"),
    [
        ({"id": 5, **ask("q")}, 5),
        ({"id": "", "task_id": "t", **ask("q")}, "t"),
        ({"id": True, **ask("q")}, "log.jsonl:7"),
        ({"custom_id": "c", "body": chat(("user", "q"))}, "c"),
        ({"id": 9, **chat(*QA, *QA)}, "9#1"),
        (chat(*QA, *QA), "log.jsonl:7#1"),
    ],
)
def test_ids(row: Any, identity: str | int) -> None:
    assert prompts(row)[0].id == identity


def test_raw_completions_get_no_chat_template() -> None:
    prompt = only(
        {
            "url": "/v1/completions",
            "body": {"prompt": "def f(", "max_tokens": 5},
            "response": {"choices": [{"text": "x):"}]},
        }
    )
    assert (prompt.text, prompt.messages) == ("def f(", ())
    assert prompt.answer is not None
    assert prompt.answer.content == "x):"
    assert prompt.settings == {"max_tokens": 5}


def test_token_rows() -> None:
    row = {"id": 1, "prompt_token_ids": [1, 2], "output_token_ids": [3], "tail_token_ids": [4]}
    prompt = only(row)
    assert list(map(list, (prompt.token_ids, prompt.answer_token_ids, prompt.tail_token_ids))) == [[1, 2], [3], [4]]
    assert prompt.has_answer
    assert parse({"prompt_token_ids": [1, "x"]})[1] == Skip("no_prompt")
    assert not only({"prompt_token_ids": [1]}).has_answer


def test_a_failed_request_is_no_answer() -> None:
    row = {
        "request": chat(("user", "q")),
        "response": {"status_code": 429, "body": {"error": {"message": "slow down"}}},
    }
    found = offered(row)
    assert found.answered == []
    assert found.unusable == ["error_answer"]


def test_responses_api_items() -> None:
    items = [
        {"role": "user", "content": "q"},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "f", "arguments": '{"a": 1}', "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "out"},
    ]
    row = {
        "body": {"input": items},
        "response": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}]},
    }
    prompt = only(row)
    assert said(prompt) == [("user", "q"), ("assistant", ""), ("tool", "out")]
    assert prompt.messages[1].tool_calls[0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert prompt.answer is not None
    assert prompt.answer.content == "a"


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("{a: 1}", "{a: 1}"), ("", {}), (None, {}), ([1], "[1]")],
)
def test_tool_arguments_are_a_mapping_where_they_can_be(arguments: Any, kept: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    for raw in (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "function_call": call["function"]},
    ):
        assert turn(raw).tool_calls[0]["function"]["arguments"] == kept
        assert turn(raw).says_something


def test_sharegpt_calls_and_observations() -> None:
    call = json.dumps({"name": "f", "arguments": {"a": 1}})
    row = share(("human", "q"), ("function_call", call), ("observation", "out"), ("gpt", "a"))
    first, second = prompts(row)
    assert first.answer is not None
    assert first.answer.tool_calls[0]["function"]["name"] == "f"
    assert said(second)[1:] == [("assistant", ""), ("tool", "out")]
    broken = turn({"from": "function_call", "value": "f(1)"})
    assert (broken.text, broken.tool_calls) == ("f(1)", ())


def test_content_parts() -> None:
    parts = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "a"},
        "b",
        {"text": "c"},
        {"type": "text", "value": "d"},
    ]
    found = turn(
        {"role": "assistant", "content": [*parts, {"type": "tool_call", "value": '{"name": "f", "arguments": "{}"}'}]}
    )
    assert (found.text, found.reasoning, found.problem) == ("abcd", "hm", None)
    assert found.tool_calls[0]["function"] == {"name": "f", "arguments": {}}
    assert turn({"role": "user", "content": [{"type": "document", "source": {}}]}).problem == "multimodal"
    result = turn(
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"text": "out"}]}]}
    )
    assert (result.role, result.text, result.tool_call_id) == ("tool", "out", "t")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_kept_apart(key: str) -> None:
    message = turn({"role": "assistant", "content": "<think>x</think>a", key: "why"}).message()
    assert (message.content, message.reasoning) == ("<think>x</think>a", "why")


def test_roles_are_known_in_lower_case() -> None:
    assert all(name == name.lower() for name in ROLES)
    assert turn({"role": " USER ", "content": "q"}).role == "user"
    assert turn({"role": "narrator", "content": "q"}).problem == "unknown_role"
    assert turn({"role": ["user"], "content": "q"}).problem == "unknown_role"


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}],
        [{"name": "f", "parameters": '{"a": 1}'}],
        '[{"name": "f", "parameters": {"a": 1}}]',
        ['{"type": "function", "function": {"name": "f", "parameters": "{\\"a\\": 1}"}}'],
        [{"name": "f", "input_schema": {"a": 1}}],
    ],
)
def test_tools(tools: Any) -> None:
    expected = {"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}
    assert only({**chat(("user", "q")), "tools": tools}).tools == (expected,)


def test_settings_are_finite_and_in_range() -> None:
    row = {
        **ask("q"),
        "temperature": 0.5,
        "top_p": float("nan"),
        "top_k": 40,
        "min_p": 3,
        "max_tokens": float("inf"),
        "output_tokens": -5,
        "seed": True,
        "presence_penalty": "1",
        "sampling_params": {"max_tokens": 64, "repetition_penalty": 1.1},
    }
    assert only(row).settings == {"temperature": 0.5, "top_k": 40, "max_tokens": 64, "repetition_penalty": 1.1}
    assert only({"body": {**chat(("user", "q")), "temperature": 0}}).settings == {"temperature": 0}


@pytest.mark.parametrize(
    ("keys", "constrained"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "text"}}, False),
        ({"text": {"format": {"type": "json_schema"}}}, True),
        ({"guided_json": {"type": "object"}}, True),
        ({"extra_body": {"guided_grammar": "root ::= x"}}, True),
        ({"structured_outputs": {"json": {}}}, True),
        ({"guided_json": None}, False),
        ({}, False),
    ],
)
def test_structured_output(keys: dict[str, Any], constrained: bool) -> None:
    assert only({"body": {**chat(("user", "q")), **keys}}).structured_output is constrained


SYSTEM, TASK = {"role": "system", "content": "s"}, {"role": "user", "content": "q"}
DID, SAW = {"role": "assistant", "content": "a"}, {"role": "user", "content": "seen"}


@pytest.mark.parametrize(
    "steps",
    [
        [{"query": [SYSTEM, TASK], "response": "a"}, {"query": [SYSTEM, TASK, DID, SAW], "response": "b"}],
        [
            {"messages": [SYSTEM, TASK, DID, SAW], "response": "a"},
            {"messages": [SYSTEM, TASK, DID, SAW, {**DID, "content": "b"}, SAW], "response": "b"},
        ],
        [{"response": "a", "action": "ls"}, {"response": "b", "action": "ls"}],
    ],
    ids=["query", "messages", "history"],
)
def test_trajectories(steps: list[Any]) -> None:
    demo = {"role": "user", "content": "example", "is_demo": True}
    row = {"trajectory": steps, "history": [SYSTEM, demo, TASK, DID, SAW, {**DID, "content": "b"}, SAW], "info": {}}
    found = offered(row)
    assert found.first is not None
    first, second = prompts(row)
    assert [first.answer.content, second.answer.content] == ["a", "b"]  # type: ignore[union-attr]
    assert said(first)[-1] == ("user", "q")
    assert said(second)[-1] == ("user", "seen")


def test_tool_calls_of_a_step_come_from_the_next_input() -> None:
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    row = {"trajectory": [{"query": [TASK], "response": ""}, {"query": [TASK, called, SAW], "response": "b"}]}
    first, _ = prompts(row)
    assert first.answer is not None
    assert first.answer.tool_calls


@pytest.mark.parametrize(
    "row",
    [
        {"text": "q", "spans": [{"start": 0, "label": "x"}]},
        {"prompt": "q", "mapping": {"a": 1}, "attributes": {"color": "red"}},
        {"prompt": "q", "trace_id": "t", "type": "GENERATION"},
        {"instruction": "q", "history": [["p", "a"]]},
    ],
)
def test_rows_that_only_look_like_exports(row: Any) -> None:
    assert offered(row).first is not None


@pytest.mark.parametrize(
    "text",
    [
        "Too many requests in 1 hour. Try again later.",
        "Error code: 429 - {'error': {'message': 'x'}}",
        "503 Service Unavailable",
        "Internal Server Error",
        '{"error": {"code": 500}}',
        "network error",
    ],
)
def test_error_answers(text: str) -> None:
    assert is_error_answer(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Too",
        "404 pages are shown when nothing is found.",
        "Internal server errors have many causes.",
        'Return {"error": "x"}.',
        "An error occurred in 1912 on the bridge.",
        "500 is the square of about 22.36.",
    ],
)
def test_answers_about_errors_are_answers(text: str) -> None:
    assert not is_error_answer(text)


def test_the_named_column() -> None:
    name, found = parse_field({"data": "q", "output": "a"}, "data")
    assert name == "field"
    assert isinstance(found, Parsed)
    assert len(requests(found).answered) == 1
    _, nested = parse_field({"x": {"y": "q"}}, "x.y")
    assert isinstance(nested, Parsed)
    assert nested.items[0].column == "x.y"
    assert parse_field({"x": 1}, "x.y")[1] == Skip("no_prompt")
    assert parse_field([1], "x")[1] == Skip("not_object")


def test_a_forced_format() -> None:
    row = {"question": "q", "prompt": "p"}
    _, found = parse_as(row, "question")
    assert isinstance(found, Parsed)
    assert found.items[0].column == "question"
    assert parse_as(row, "messages")[1] == Skip("no_prompt")


KEYS = [
    "id",
    "messages",
    "conversations",
    "conversation",
    "items",
    "turns",
    "prompt",
    "instruction",
    "input",
    "question",
    "context",
    "text",
    "instance_id",
    "problem",
    "problem_statement",
    "query",
    "output",
    "response",
    "completion",
    "generation",
    "chosen",
    "body",
    "request",
    "params",
    "trajectory",
    "history",
    "query",
    "role",
    "from",
    "content",
    "value",
    "tools",
    "functions",
    "tool_calls",
    "function_call",
    "function",
    "name",
    "arguments",
    "type",
    "system",
    "images",
    "url",
    "prompt_token_ids",
    "output_token_ids",
    "tail_token_ids",
    "response_format",
    "temperature",
    "spans",
    "attributes",
    "mapping",
    "observations",
    "trace_id",
    "chat",
    "call_type",
    "parts",
    "thinking",
    "choices",
    "message",
    "status_code",
    "error",
    "human",
    "assistant",
    "is_demo",
    "requests",
    "extra_body",
    "sampling_params",
]
TEXTS = st.sampled_from(
    ["", " ", "q", "user", "assistant", "human", "gpt", "[]", "{}", '[{"role": "user"}]', "text", "tool_use"]
)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | TEXTS
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=5), st.sampled_from([None, *FORMATS]))
def test_no_row_breaks_a_format(row: dict[str, Any], name: str | None) -> None:
    _, found = parse_as(row, name) if name else parse(row)
    if isinstance(found, Parsed):
        offer = requests(found)
        for uses in (offer.by_default(), offer.by_first_turn()):
            handed = RowPrompts("x", 1, row, found, uses)
            keys, lengths = measures(handed)
            assert len(keys) == len(lengths) == len(list(to_prompts(handed))) == len(uses)
            for prompt in to_prompts(handed):
                assert sum((bool(prompt.messages), prompt.text is not None, prompt.token_ids is not None)) == 1


def test_short_texts_that_differ_in_a_bit_have_keys_of_their_own():
    """Of a seed that names the role they would not: XXH3 puts both together by xor."""
    words = [f"{first}{second}{third}" for first in "dy" for second in "eo" for third in "fghrst"]
    keys = set()
    for role in ("system", "user"):
        for word in words:
            row = {"messages": [{"role": role, "content": word}, {"role": "user", "content": "Next?"}]}
            _, found = parse(row)
            assert isinstance(found, Parsed)
            keys.add(measures(RowPrompts("x", 1, row, found, requests(found).by_first_turn()[-1:]))[0][0])
    assert len(keys) == 2 * len(words)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["human", "gpt", "system", "narrator"]), st.sampled_from(["", "a", "b"])), max_size=7
    )
)
def test_every_answer_is_counted_once(turns: list[tuple[str, str]]) -> None:
    _, found = parse({"id": 1, **share(*turns)})
    if isinstance(found, Skip):
        assert not turns
        return
    offer = requests(found)
    answers = sum(role == "gpt" for role, _ in turns)
    assert len(offer.answered) + len(offer.unusable) + len(offer.cut) == answers
    assert (offer.first is None) == (offer.reason is not None)
