"""No text of prompts or answers anywhere but in the private store, unless it was asked for.

Words that occur nowhere else are put into everything that a log can hold; then all commands run, and all that they
print or write is searched for them.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toy_target as toy

from specprobe.cli import run_command

PLACES = ("system", "user", "answer", "reasoning", "tool", "argument", "result", "column", "schema", "name", "settings")
CANARIES = {place: f"qzx{place}xzq" for place in PLACES}
ANY = "qzx"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPROBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPECPROBE_TRACEBACK", raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(toy.write_checkpoint(tmp_path_factory.mktemp("toy"), toy.TOOLS, max_position_embeddings=512))


def row(number: int) -> dict:
    """A conversation with a word of its own in everything but its id."""
    say = CANARIES
    call = {"id": "c", "type": "function", "function": {"name": say["name"], "arguments": {"a": say["argument"]}}}
    return {
        "id": f"row-{number}",
        "team": "red" if number % 2 else "blue",
        "messages": [
            {"role": "system", "content": f"{say['system']} be brief"},
            {"role": "user", "content": f"{say['user']} {number} {say['user']}"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": say["result"], "tool_call_id": "c"},
            {"role": "assistant", "content": f"{say['answer']} {number}", "reasoning_content": say["reasoning"]},
        ],
        "tools": [{"type": "function", "function": {"name": say["name"], "description": say["tool"]}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": say["schema"], "schema": {}}},
        "temperature": say["settings"],
        "metadata": {"note": say["column"]},
    }


def write_log(name: str = "log.jsonl", count: int = 4) -> str:
    Path(name).write_text("".join(json.dumps(row(number)) + "\n" for number in range(count)))
    return name


def leaks(*texts: str, besides: tuple[str, ...] = ()) -> list[str]:
    """Where words of the log are: in the texts, in the names of files, in files outside of `besides`."""
    found = [text[max(0, text.find(ANY) - 80) :][:200] for text in texts if ANY in text]
    for path in Path().rglob("*"):
        shown = str(path)
        if ANY in shown:
            found.append(f"name {shown}")
        if path.is_file() and path.parts[0] != "given" and not shown.startswith(besides):
            content = path.read_bytes()
            if content[:2] == b"\x1f\x8b":
                content = gzip.decompress(content)
            if ANY.encode() in content or ANY.encode("utf-16-le") in content:
                found.append(f"content {shown}")
    return found


def run(capfd, *arguments: str, status: int = 0) -> tuple[str, str]:
    done = run_command(arguments)
    out, err = capfd.readouterr()
    assert done == status, (arguments, err)
    return out, err


COST = {
    "schema": "specprobe.cost/1",
    "points": [
        {"batch": b, "query_tokens": q, "context": c, "seconds": 0.01} for b in (1, 8) for q in (1, 9) for c in (8, 512)
    ],
}


def test_no_command_shows_or_writes_text_of_the_log(capfd, model):
    Path("given").mkdir()
    log = write_log("given/log.jsonl")
    Path("cost.json").write_text(json.dumps(COST))
    shown: list[str] = []
    generate = ("--target", model, "--responses", "generate", "--max-new-tokens", "6", "--max-model-len", "500")
    logged = ("--tokenizer", model, "--group-by", "team")
    for arguments in (
        ("inspect", log),
        ("analyze", log, *generate, "--temperature", "0,0.8", "--out", "a.json", "--drafter", "early-exit:layers=1"),
        ("analyze", log, *logged, "--out", "b.json"),
        ("analyze", log, *logged, "--out", "c.json", "--responses", "logged", "--drafter", "suffix"),
        ("recommend", "b.json", "--cost", "cost.json"),
        ("compare", "b.json", "b.json", "--force"),
        (
            "gate",
            "b.json",
            "--min-tokens-per-round",
            "0.5",
            "--junit",
            "j.xml",
            "--summary",
            "s.md",
            "--allow-undecided",
        ),
        ("export", "b.json", "--rows", "rows.csv"),
        ("export", "b.json", "--rows", "rows.parquet"),
        ("doctor",),
    ):
        shown += run(capfd, *arguments)
        shown += run(capfd, *arguments, "--json")
    assert not leaks(*shown)
    assert {path.name for path in Path().glob("*.*")} >= {"a.json", "b.json", "j.xml", "s.md", "rows.csv"}


HOSTILE = {
    "keyed by its prompts": json.dumps({f"{CANARIES['user']} what is it": CANARIES["answer"]}) + "\n",
    "cut in the middle": json.dumps(row(0))[:-40] + "\n",
    "not JSON": f"{CANARIES['user']} {{]\n",
    "not UTF-8": json.dumps(row(0)).replace("qzxuserxzq", "qzxuser\udcffxzq", 1) + "\n",
    "another type": json.dumps({"id": 1, "messages": [CANARIES["user"], {"role": CANARIES["name"], "content": 3}]})
    + "\n",
    "an id that is the prompt": json.dumps(
        {"id": f"{CANARIES['user']} and more", "prompt": f"{CANARIES['user']} and more"}
    )
    + "\n",
    "a long id": json.dumps({"id": f"{CANARIES['column']} " * 20, "prompt": "a"}) + "\n",
    "a role that nobody knows": json.dumps({"messages": [{"role": f"{CANARIES['name']}", "content": "x"}]}) + "\n",
    "no usable column": json.dumps({"remark": CANARIES["column"], CANARIES["name"] + " and so on": 1}) + "\n",
    "ids of tokens that are none": json.dumps({"prompt_token_ids": [CANARIES["user"]], "output_token_ids": [1]}) + "\n",
    "huge ids": json.dumps({"prompt_token_ids": [10**30], "output_token_ids": [1]}) + "\n",
    "a CSV without header": f"{CANARIES['user']},{CANARIES['answer']}\n{CANARIES['user']},x\n",
    "a CSV with a broken quote": f'prompt,response\n"{CANARIES["user"]},{CANARIES["answer"]}\n',
    "settings that are text": json.dumps({"prompt": "a", "response": "b", "temperature": CANARIES["settings"]}) + "\n",
    "nested deeply": '{"messages": ' + "[" * 5000 + f'"{CANARIES["user"]}"' + "]" * 5000 + "}\n",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_no_error_shows_text_of_a_row_that_is_odd(capfd, model, content):
    Path("given").mkdir()
    Path("given/log.jsonl").write_text(content, errors="surrogateescape")
    shown: list[str] = []
    for arguments in (
        ("inspect", "given/log.jsonl"),
        ("analyze", "given/log.jsonl", "--tokenizer", model),
        ("analyze", "given/log.jsonl", "--tokenizer", model, "--group-by", "nothing"),
        ("analyze", "given/log.jsonl", "--tokenizer", model, "--temperature", "log", "--json"),
    ):
        assert run_command(arguments) in (0, 2)
        shown += capfd.readouterr()
    assert not leaks(*shown)


def test_damaged_containers_show_no_text(capfd):
    Path("given").mkdir()
    pq.write_table(pa.table({"remark": [CANARIES["column"]] * 50}), "given/a.parquet", compression="none")
    whole = Path("given/a.parquet").read_bytes()
    Path("given/b.parquet").write_bytes(whole[: len(whole) // 2] + whole[-8:])
    Path("given/c.jsonl.gz").write_bytes(gzip.compress(json.dumps(row(0)).encode() * 40)[:-20])
    Path("given/d.json").write_text(json.dumps([row(0)])[:-30])
    shown = []
    for name in ("a.parquet", "b.parquet", "c.jsonl.gz", "d.json"):
        assert run_command(["inspect", f"given/{name}"]) == 2
        shown += capfd.readouterr()
    assert not leaks(*shown)


def test_a_group_must_be_a_label(capfd, model):
    Path("given").mkdir()
    rows = [{"prompt": f"{CANARIES['user']} {n} and more", "response": "b"} for n in range(3)]
    Path("given/log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, err = run(capfd, "analyze", "given/log.jsonl", "--tokenizer", model, "--group-by", "prompt", status=2)
    assert "name a column of labels" in err
    assert not leaks(out, err)


def test_an_id_that_is_text_is_no_id(capfd, model):
    text = "What is the name of this?"
    rows = [{"id": text, "prompt": text, "response": "b"}, {"id": "what-1", "prompt": text, "response": "b"}]
    Path("log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, _ = run(capfd, "analyze", "log.jsonl", "--tokenizer", model, "--json")
    assert json.loads(out)["responses"][0]["ids"] == ["log.jsonl:1", "what-1"]


def test_text_goes_into_the_run_only_where_it_is_asked_for(capfd, model):
    log = write_log()
    out, _ = run(capfd, "analyze", log, "--tokenizer", model, "--json", "--include-text")
    (responses,) = json.loads(out)["responses"]
    assert len(responses["texts"]) == len(responses["ids"])
    for number, text in enumerate(responses["texts"][1::2]):
        assert f"{CANARIES['user']} {number} {CANARIES['user']}" in text["prompt"]
        assert f"{CANARIES['answer']} {number}" in text["response"]
    (kept,) = Path(".specprobe/runs").glob("*-with-text.json")
    # What reads such a run shows no more than of any other.
    Path("cost.json").write_text(json.dumps(COST))
    shown = run(capfd, "recommend", str(kept), "--cost", "cost.json", "--json")
    shown += run(capfd, "gate", str(kept), "--min-tokens-per-round", "0.5", "--allow-undecided")
    shown += run(capfd, "export", str(kept), "--rows", "rows.csv")
    assert not leaks(*shown, besides=(".specprobe/runs", "log.jsonl"))
    run(capfd, "clean")
    assert not leaks(besides=("log.jsonl",))


def test_rows_of_ids_have_no_text_without_a_tokenizer(capfd):
    Path("rows.jsonl").write_text('{"prompt_token_ids": [1, 2], "output_token_ids": [2, 1, 2]}\n')
    out, _ = run(capfd, "analyze", "rows.jsonl", "--json", "--include-text")
    document = json.loads(out)
    assert "texts" not in document["responses"][0]
    assert "text_not_known" in [notice["code"] for notice in document["warnings"]]


def test_what_is_kept_is_the_owners_alone_whatever_the_umask(capfd, model):
    log = write_log()
    before = os.umask(0)
    try:
        generate = ("--target", model, "--responses", "generate", "--max-new-tokens", "4", "--max-model-len", "500")
        run(capfd, "analyze", log, *generate, "--drafter", "early-exit:layers=1", "--out", "mine/run.json")
    finally:
        os.umask(before)
    kept = [Path(".specprobe"), *Path(".specprobe").rglob("*"), *Path("mine").rglob("*")]
    assert any(path.suffix == ".jsonl" for path in kept)
    for path in kept:
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path
    assert Path(".specprobe/.gitignore").read_text() == "*\n"


def test_clean_removes_all_that_holds_text(capfd, model):
    log = write_log()
    generate = ("--target", model, "--responses", "generate", "--max-new-tokens", "4", "--max-model-len", "500")
    run(capfd, "analyze", log, *generate)
    run(capfd, "analyze", log, *generate, "--include-text")
    # As processes leave them that were killed while they wrote.
    (folder,) = Path(".specprobe/trajectories").iterdir()
    states = Path(".specprobe/states/999999999-x")
    states.mkdir(parents=True)
    for path in (folder / ".settings.json.abc", folder / "odd.bin", states / "1.bin"):
        path.write_text(CANARIES["user"])
    Path(".specprobe/runs/.20260101-000000-1.json.abc").write_text(CANARIES["user"])
    out, _ = run(capfd, "clean", "--json")
    left = {str(path) for path in Path(".specprobe").rglob("*") if path.is_file()}
    (other,) = Path(".specprobe/runs").iterdir()
    assert left == {".specprobe/.gitignore", str(other)}
    assert json.loads(out)["files"] >= 7
    assert not leaks(out, besides=("log.jsonl",))
