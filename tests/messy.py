"""Hostile input files, one for each way a log goes wrong, with what the reader must make of them."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard


@dataclass(frozen=True)
class Messy:
    """`error` is a part of the one-line message; `lines` are the places that the report must name."""

    data: bytes
    first_turns: int = 0
    answers: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    lines: tuple[int, ...] = ()
    container: str | None = None


def jsonl(*rows: Any, end: str = "\n") -> bytes:
    return ("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + end).encode()


def ask(text: str) -> dict[str, Any]:
    return {"prompt": text}


def chat(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def share(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": text} for role, text in turns]}


TWO = jsonl(ask("Name a river."), ask("Name a hill."))
DEEP = b'{"prompt": "deep", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"

FILES: dict[str, Messy] = {
    # bytes
    "mark.jsonl": Messy(b"\xef\xbb\xbf" + TWO, 2, container="jsonl"),
    "mark_array.json": Messy(b"\xef\xbb\xbf" + json.dumps([ask("a"), ask("b")]).encode(), 2, container="array"),
    "windows.jsonl": Messy(TWO.replace(b"\n", b"\r\n"), 2),
    "separators.jsonl": Messy(jsonl(ask("a\u2028b\u0085c\u2029d")), 1),
    "latin1.jsonl": Messy(TWO + b'{"prompt": "caf\xe9"}\n', 2, skipped={"bad_encoding": 1}, lines=(3,)),
    "latin1_array.json": Messy(
        b'[{"prompt": "a"}, {"prompt": "caf\xe9"}, {"prompt": "b"}]', 2, skipped={"bad_encoding": 1}, lines=(2,)
    ),
    "utf16.jsonl": Messy(TWO.decode().encode("utf-16"), error="looks like UTF-16; save as UTF-8"),
    "utf16_unmarked.jsonl": Messy(TWO.decode().encode("utf-16-be"), error="not UTF-8 (looks like UTF-16)"),
    "utf32.jsonl": Messy(TWO.decode().encode("utf-32"), error="looks like UTF-32"),
    "zeros_at_end.jsonl": Messy(TWO + b"\0" * 99, 2, skipped={"bad_json": 1}, lines=(3,)),
    # containers
    "empty.jsonl": Messy(b"", error="no rows (empty file)"),
    "white.jsonl": Messy(b" \n\t\n", error="no rows (only white space)"),
    "nothing.json": Messy(b"[ ]", error="no rows"),
    "only_mark.json": Messy(b"\xef\xbb\xbf", error="no rows"),
    "blank_lines.jsonl": Messy(b"\n\n" + TWO.replace(b"\n", b"\n \n") + b"\n", 2),
    "no_end.jsonl": Messy(TWO.rstrip(), 2),
    "array_named.jsonl": Messy(json.dumps([ask("a"), ask("b")]).encode(), 2, container="array"),
    "array_lines.json": Messy(b'[\n{"prompt": "a"}\n,\n{"prompt": "b"}]\n', 2, container="array"),
    "array_cut.json": Messy(
        b'[{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c', 2, skipped={"bad_json": 1}, lines=(3,)
    ),
    "array_fault.json": Messy(
        b'[{"prompt": "a"}, {"prompt": "x" "y": {"z": "]"}}, {"prompt": "b"}, nonsense, {"prompt": "c"}]',
        3,
        skipped={"bad_json": 2},
        lines=(2, 4),
    ),
    "array_trailing_comma.json": Messy(b'[{"prompt": "a"}, {"prompt": "b"},]', 2),
    "pretty.json": Messy(json.dumps(share(("human", "q"), ("gpt", "a")), indent=1).encode(), 1, 1, container="json"),
    "pretty_many.json": Messy(b"\n".join(json.dumps(ask(t), indent=2).encode() for t in "abc"), 3, container="json"),
    "arrays_one_after_another.json": Messy(
        (json.dumps([ask("a")], indent=1) + json.dumps([ask("b")], indent=1)).encode(), 2, container="json"
    ),
    "first_line_bad.jsonl": Messy(b'{"prompt": "cut off\n' + TWO, 2, skipped={"bad_json": 1}, lines=(1,)),
    "log_line_first.jsonl": Messy(b"INFO starting\n" + TWO, 2, skipped={"bad_json": 1}, lines=(1,)),
    "python_repr.jsonl": Messy(
        b"{'prompt': 'a'}\n{'prompt': 'b'}\n", skipped={"bad_json": 2}, error="no usable prompt", lines=(1, 2)
    ),
    "scalars.jsonl": Messy(
        b'"text"\n7\nnull\n[1]\n' + TWO, 2, skipped={"not_object": 4}, lines=(1, 2, 3, 4), container="jsonl"
    ),
    "bare_chats.jsonl": Messy(
        jsonl(chat(("user", "q"), ("assistant", "a"))["messages"], chat(("user", "r"))["messages"]), 2, 1
    ),
    "deep.jsonl": Messy(TWO + DEEP, 2, skipped={"bad_json": 1}, lines=(3,)),
    "deep_first.jsonl": Messy(DEEP + b"\n" + TWO, 2, skipped={"bad_json": 1}, lines=(1,)),
    "deep_array.json": Messy(
        b'[{"prompt": "a"},' + DEEP + b',{"prompt": "b"}]', 2, skipped={"bad_json": 1}, lines=(2,)
    ),
    "digits.jsonl": Messy(b'{"id": ' + b"7" * 5000 + b"}\n" + TWO, 2, skipped={"bad_json": 1}, lines=(1,)),
    # compression
    "zipped.jsonl": Messy(gzip.compress(TWO), 2),
    "not_zipped.jsonl.gz": Messy(TWO, 2),
    "members.jsonl.gz": Messy(gzip.compress(TWO) + gzip.compress(TWO), 4),
    "cut.jsonl.gz": Messy(gzip.compress(TWO * 500, mtime=0)[:-40], error="gzip data ends early"),
    "damaged.jsonl.gz": Messy(gzip.compress(TWO)[:-8] + b"\1" * 8, error="damaged gzip data"),
    "squeezed.jsonl": Messy(zstandard.compress(TWO), 2),
    "frames.jsonl.zst": Messy(zstandard.compress(TWO) + zstandard.compress(TWO), 4),
    "cut.jsonl.zst": Messy(zstandard.compress(TWO * 5)[:-5], error="zstd data"),
    "empty.jsonl.gz": Messy(gzip.compress(b""), error="no rows"),
    # other kinds of file
    "page.html": Messy(b"\n<!doctype html><html>gone</html>", error="HTML, not JSON (line 2)"),
    "feed.xml": Messy(b'<?xml version="1.0"?><rss/>', error="XML or HTML, not JSON (line 1)"),
    "pointer.parquet": Messy(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", error="Git LFS pointer; fetch the file"
    ),
    "server.log": Messy(b"2026-01-02 10:11:12 INFO got request\n", error="a text log, not JSON"),
    "notes.txt": Messy(b"Buy milk, then write prompts.\n", error="plain text, not JSON"),
    "noise.bin": Messy(bytes(range(128, 256)) * 20, error="binary data, not JSON"),
    "files.zip": Messy(b"PK\x03\x04" + b"\0" * 30, error="a zip archive"),
    "rows.pkl": Messy(b"\x80\x04\x95", error="pickle"),
    "broken.parquet": Messy(b"PAR1" + b"\0" * 40 + b"PAR1", error="Parquet, not JSON"),
    # csv
    "quotes.csv": Messy(b'id,prompt\r\n1,"Say ""hi"",\r\nthen go"\r\n2,plain\r\n', 2, container="csv"),
    "tabs.txt": Messy(b"prompt\tresponse\nq\ta\nr\tb\n", 2, 2, container="csv"),
    "latin1.csv": Messy(b"prompt,x\nok,1\ncaf\xe9,2\n", 1, skipped={"bad_encoding": 1}, lines=(3,)),
    "lengths.csv": Messy(
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n1,374,44\r\n2,396,109",
        skipped={"length_only": 2},
        error="lengths only, no text",
    ),
    "burst.csv": Messy(
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,472,18,490,chat\n",
        skipped={"length_only": 1},
        error="lengths only, no text",
    ),
    # rows
    "lengths.jsonl": Messy(
        jsonl({"timestamp": 1, "input_length": 9, "output_length": 2, "hash_ids": [1]}),
        skipped={"length_only": 1},
        error="lengths only, no text: cannot be replayed",
    ),
    "blanks.jsonl": Messy(
        jsonl(ask("  "), {"prompt": None}, {"prompt": 5}, {"prompt": {"a": 1}}, {"prompt": [1, 2]}, {}, ask("q")),
        1,
        skipped={"empty": 2, "no_prompt": 4},
    ),
    "union_of_columns.jsonl": Messy(
        jsonl({"messages": None, "prompt": "q"}, {"messages": [], "prompt": "r"}, {"prompt": "", "text": "t"}), 3
    ),
    "pictures.jsonl": Messy(
        jsonl(
            chat(("user", [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "x"}}])),
            {**chat(("user", "<image> what is it?"), ("assistant", "a cat")), "images": ["a.png"]},
            {**ask("what is it?"), "image": "a.png"},
            {**ask("no picture"), "images": []},
            chat(("user", "q"), ("assistant", "a"), ("user", [{"type": "input_audio"}]), ("assistant", "b")),
        ),
        2,
        1,
        skipped={"multimodal": 3},
    ),
    "strangers.jsonl": Messy(
        jsonl(share(("narrator", "Once."), ("gpt", "a")), share(("human", "q"), ("narrator", "x"), ("gpt", "a"))),
        1,
        skipped={"unknown_role": 1},
    ),
    "no_user.jsonl": Messy(
        jsonl(share(("gpt", "a")), share(("system", "s")), share(("gpt", "hi"), ("human", "q"), ("gpt", "a"))),
        1,
        1,
        skipped={"no_user_turn": 2},
    ),
    "placeholder.jsonl": Messy(
        jsonl({"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]}, ask("q")),
        1,
        skipped={"placeholder": 1},
    ),
    "failures.jsonl": Messy(
        jsonl(
            share(("human", "q"), ("gpt", "!Too many requests in 1 hour. Try again later.")),
            {"prompt": "q", "response": "Error: 502 Bad Gateway"},
            {"prompt": "q", "output": '{"error": {"message": "overloaded"}}'},
            {"prompt": "q", "output": " "},
            {"prompt": "what is 404?", "output": "Status 404 says that the server found nothing there."},
        ),
        5,
        1,
        skipped={"error_answer": 3, "empty_answer": 1},
    ),
    "answers_only.jsonl": Messy(
        jsonl({"custom_id": "a", "response": {"status_code": 200, "body": {}}, "error": None}),
        skipped={"no_prompt": 1},
        error="give the batch input file",
    ),
    "other_keys.jsonl": Messy(
        jsonl({"data": "q", "\x1b[31mred": 1}), skipped={"no_prompt": 1}, error="keys seen: data;"
    ),
    "embeddings.jsonl": Messy(
        jsonl({"custom_id": "1", "url": "/v1/embeddings", "body": {"input": ["x"]}}, ask("q")),
        1,
        skipped={"no_prompt": 1},
    ),
    "same_key_twice.jsonl": Messy(b'{"prompt": "a", "prompt": "b"}\n', 1),
}


def write(folder: Path) -> dict[str, Path]:
    """Write every file; name -> path."""
    paths = {name: folder / name for name in FILES}
    for name, path in paths.items():
        path.write_bytes(FILES[name].data)
    return paths
