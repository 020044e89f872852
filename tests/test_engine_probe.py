"""Timing a live server: what is measured, what is sent, and one line for everything that can go wrong."""

from __future__ import annotations

import json
import socket
import threading

import pytest
from fake_server import serving

import specprobe.engine_probe as engine_probe
from specprobe.cli import run_command
from specprobe.completion_server import Answer, find_model
from specprobe.engine_probe import ProbePlan, gaps_while_all_run, probe_server
from specprobe.errors import SpecprobeError
from specprobe.measured_points import read_points
from specprobe.progress import Silent
from specprobe.server import parse_server
from specprobe.side_by_side import THREAD_NAME

PLAN = ProbePlan((1, 3), (32,), output_tokens=24, repeats=1)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("SPECPROBE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def probe(url, plan=PLAN, *, keep=None, timeout=5.0):
    server = parse_server(url, timeout_seconds=timeout)
    return probe_server(server, find_model(server, None), plan, Silent(), keep=keep)


def test_gaps_count_only_while_all_requests_run():
    times = [[0.0, 1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5]]
    assert gaps_while_all_run(times) == [1.0, 1.0, 1.0]
    assert gaps_while_all_run([[0.0, 1.0], [2.0, 3.0]]) == []
    assert gaps_while_all_run([[], [1.0, 2.0]]) == []


def test_steps_grow_with_concurrency_as_the_server_makes_them():
    with serving(step_seconds=lambda running: 0.01 + 0.01 * running) as server:
        one, three = probe(server.url)
    assert (one.batch, three.batch) == (1, 3)
    assert one.from_engine
    assert one.query_tokens == 1
    # Sleeps of 20 and 40 ms; a busy machine lengthens them.
    assert 0.015 < one.seconds < 0.1
    assert three.seconds > 1.3 * one.seconds
    # The prompt has the tokens asked for, two to a word here, and half of the answer.
    assert one.context == pytest.approx(32 + 12, abs=2)


def test_prompts_are_distinct_and_requests_say_what_they_need():
    with serving() as server:
        probe(server.url)
    bodies = [body for _, _, body in server.seen if body]
    prompts = [body["prompt"] for body in bodies]
    assert len(set(prompts)) == len(prompts) == 1 + 1 + 3
    for body in bodies:
        assert body["model"] == "served"
        assert body["temperature"] == 0
        assert body["stream"]
        assert body["ignore_eos"]
    assert not any("Authorization" in headers for _, headers, _ in server.seen)


def test_the_key_goes_into_the_header_and_nowhere_else(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SPECPROBE_API_KEY", "sk-very-secret")
    monkeypatch.chdir(tmp_path)
    with serving() as server:
        assert run_command(command(server.url, "--keep-points", "points.json")) == 0
        assert all(headers["Authorization"] == "Bearer sk-very-secret" for _, headers, _ in server.seen)
    with serving(status=401, reason={"error": {"message": "wrong key sk-very-secret"}}) as server:
        assert run_command(command(server.url)) == 2
    captured = capsys.readouterr()
    assert "wrong key ***" in captured.err
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any("sk-very-secret" in text for text in (*written, captured.out, captured.err))


def test_a_server_that_does_not_take_ignore_eos_is_asked_without():
    with serving(refuses_ignore_eos=True) as server:
        probe(server.url, ProbePlan((1,), (8,), output_tokens=16, repeats=2))
    assert ["ignore_eos" in body for _, _, body in server.seen if body] == [True, False, False, False]


def test_answers_are_made_longer_until_requests_run_together(monkeypatch):
    asked = []

    def staggered(_server, _asking, concurrency, _context, output_tokens):
        """Each request begins 20 steps after the one before it."""
        asked.append(output_tokens)
        return [
            Answer(tuple(0.5 * (20 * late + step) for step in range(output_tokens)), 10, output_tokens)
            for late in range(concurrency)
        ]

    monkeypatch.setattr(engine_probe, "_run_together", staggered)
    with serving(step_seconds=lambda _running: 0.0005) as server:
        (point,) = probe(server.url, ProbePlan((3,), (8,), output_tokens=16, repeats=2))
    assert asked == [16, 32, 64, 64]
    assert point.seconds == 0.5


def command(url, *further):
    return [
        *("calibrate", "--server", url, "--model", "SmolLM2-135M", "--gpu", "cpu", "--concurrency", "1,2"),
        *("--context", "16", "--output-tokens", "24", "--repeats", "1", "--timeout", "5", "--json", *further),
    ]


def test_a_cost_file_out_of_a_live_server(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with serving() as server:
        assert run_command(command(server.url, "--out", "cost.json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == "engine"
    assert document["conditions"]["server_model"] == "served"
    assert document["conditions"]["server_version"] == "0.33.0"
    cost = json.loads((tmp_path / "cost.json").read_text())
    assert cost["source"] == "engine"
    assert max(point["query_tokens"] for point in cost["points"]) == 9


def test_a_server_needs_model_and_gpu_before_it_is_asked(capsys):
    with serving() as server:
        arguments = [word for word in command(server.url) if word not in ("--gpu", "cpu")]
        assert run_command(arguments) == 2
        assert server.seen == []
    assert "name --model and --gpu" in capsys.readouterr().err


FAILURES = {
    "401": ({"status": 401, "reason": {"error": {"message": "no key"}}}, "SPECPROBE_API_KEY"),
    "403": ({"status": 403, "reason": {"detail": "forbidden"}}, "SPECPROBE_API_KEY"),
    "404": ({"status": 404, "reason": {"detail": "Not Found"}}, "most end in /v1"),
    "429": ({"status": 429, "reason": {"error": {"message": "slow down"}}}, "lower --concurrency"),
    "500": ({"status": 500, "reason": b"<html>Oops</html>"}, "server's log"),
    "503": ({"status": 503, "reason": {"error": "loading model"}}, "loading model"),
    "301": ({"status": 301, "reason": b""}, "final address"),
    "400": ({"status": 400, "reason": {"message": "too long"}}, "--output-tokens"),
    "418": ({"status": 418, "reason": b"\xff\xfe"}, "check --server"),
    "not a stream": ({"content_type": "application/json"}, "without streaming"),
    "chunk not JSON": ({"first_chunk": b"data: {oops\n\n"}, "not JSON"),
    "chunk no object": ({"first_chunk": b"data: [1]\n\n"}, "no object"),
    "chunk without choices": ({"first_chunk": b'data: {"text": "a"}\n\n'}, "without choices"),
    "error in the stream": (
        {"first_chunk": b'data: {"error": {"message": "out of\x1b memory"}}\n\n'.replace(b"\x1b", b"\\u001b")},
        "out of",
    ),
    "broken off": ({"ends_early": True}, "broke off"),
    "no token": (
        {
            "first_chunk": b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 9}}\n\n'
            b"data: [DONE]\n"
        },
        "without a token",
    ),
    "no usage": ({"usage": False}, "include_usage"),
    "speculates": ({"tokens_a_chunk": 3}, "3.0 tokens a chunk"),
    "ends at once": ({"longest_answer": 4}, "never ran together"),
    "never stops": ({"is_endless": True}, "does not stop at max_tokens"),
    "no HTTP": ({"raw": b"hello\r\n"}, "does not speak HTTP"),
    "hangs": ({"hangs_seconds": 1.0}, "silent for 0.2 s"),
    "no model": ({"models": {"data": []}}, "--server-model"),
    "several models": ({"models": {"data": [{"id": "a"}, {"id": "b\x1b[2J"}]}}, "--server-model"),
    "models no list": ({"models": [1]}, "no list of models"),
    "models not JSON": ({"models": b"<html>"}, "not JSON"),
}


@pytest.mark.parametrize(("behaviour", "says"), FAILURES.values(), ids=FAILURES)
def test_every_failure_is_one_line_that_says_what_to_do(behaviour, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    timeout = "0.2" if "hangs_seconds" in behaviour else "5"
    with serving(step_seconds=lambda _running: 0.0005, **behaviour) as server:
        assert run_command(command(server.url, "--timeout", timeout)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert says in line
    assert "\x1b" not in line
    assert "unexpected" not in line
    assert list(tmp_path.iterdir()) == []


def test_nobody_listens_and_no_such_host(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert run_command(command(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")) == 2
    assert "start the server" in capsys.readouterr().err
    assert run_command(command("http://no-such-host.invalid/v1")) == 2
    assert capsys.readouterr().err.startswith("error: http://no-such-host.invalid:80/v1: ")
    with serving() as server:
        assert run_command(command(server.url.replace("http", "https"))) == 2
    assert "no secure connection" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://host/v1", "http://", "http://h:99999/v1", "http://user:pw@host/v1", "http://h/v1?a=b"],
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(SpecprobeError, match="--server") as refused:
        parse_server(url, timeout_seconds=1)
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"concurrencies": ()}, "--concurrency"),
        ({"concurrencies": (0,)}, "--concurrency"),
        ({"concurrencies": (1000,)}, "--concurrency"),
        ({"contexts": ()}, "--context"),
        ({"contexts": tuple(range(1, 40))}, "at most"),
        ({"output_tokens": 1}, "--output-tokens"),
        ({"repeats": 0}, "--repeats"),
    ],
)
def test_a_plan_that_cannot_be_measured_is_refused(change, says):
    with pytest.raises(SpecprobeError, match=says):
        ProbePlan(**{"concurrencies": (1,), "contexts": (8,), "output_tokens": 64, "repeats": 3} | change)


def test_ctrl_c_keeps_what_was_measured_and_the_same_command_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    together, levels = engine_probe._run_together, []

    def interrupted(server, asking, concurrency, *further):
        levels.append(concurrency)
        if concurrency == 2:
            raise KeyboardInterrupt
        return together(server, asking, concurrency, *further)

    with serving() as server:
        monkeypatch.setattr(engine_probe, "_run_together", interrupted)
        assert run_command(command(server.url, "--keep-points", "points.json")) == 130
        assert levels == [1, 2]
        (kept,) = read_points([tmp_path / "points.json"])
        assert kept.batch == 1
        monkeypatch.setattr(engine_probe, "_run_together", together)
        before = len(server.seen)
        assert run_command(command(server.url, "--keep-points", "points.json")) == 0
        # The warm-up and the level of two that was missing.
        assert len([body for _, _, body in server.seen[before:] if body]) == 1 + 2
        capsys.readouterr()
        server.behaviour.version = "0.34.0"
        assert run_command(command(server.url, "--keep-points", "points.json")) == 2
        assert "name another file" in capsys.readouterr().err


def test_a_damaged_file_of_points_is_refused(tmp_path):
    path = tmp_path / "points.json"
    header = {"schema": "specprobe.points/1", "server_model": "served", "server_version": "0.33.0"}
    with serving() as server:
        for points in (None, [1], [{"batch": 1}], [{"prompt_tokens_asked": 1, "batch": 1, "context": 1}]):
            path.write_text(json.dumps({**header, "points": points}))
            with pytest.raises(SpecprobeError, match=r"points\.json"):
                probe(server.url, keep=path)


def test_threads_of_a_measurement_end():
    with serving(step_seconds=lambda _running: 0.0005) as server:
        probe(server.url)
        server.behaviour.status = 500
        with pytest.raises(SpecprobeError):
            probe(server.url)
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join(timeout=10)
            assert not thread.is_alive()
