"""Whole commands: how soon they begin, how fast they read, how much memory they hold."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.side_by_side import ROOT, Row, Settings, at_least, at_most, in_turn, medians, run_child

LINES_ALONE = "import json, sys\nfor line in open(sys.argv[1], 'rb'): json.loads(line)"
SPECPROBE = ("-m", "specprobe")


def compare_start(settings: Settings) -> Iterator[Row]:
    """`specprobe --help` against the two libraries that draw it."""
    commands = ((*SPECPROBE, "--help"), ("-c", "import typer, rich"), ("-c", "pass"))
    measured = in_turn(settings.size(15, 2), *(lambda c=c: run_child(c).seconds for c in commands))
    ours, libraries, python = medians(measured)
    yield at_most(
        "`specprobe --help` against importing typer and rich",
        2.0,
        [own / theirs for own, theirs, _ in measured],
        f"{ours:.3f} s against {libraries:.3f} s; Python alone {python:.3f} s",
    )


def compare_inspect(settings: Settings) -> Iterator[Row]:
    """`specprobe inspect` of a log of two formats, half and half; parsing its JSON alone for comparison."""
    size = settings.size(1 << 30, 4 << 20)
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log.jsonl"
        write_chats(log, size)
        commands = ((*SPECPROBE, "inspect", log, "--json"), ("-c", LINES_ALONE, log))
        measured = in_turn(settings.size(3, 1), *(lambda c=c: run_child(c, Path(name)).seconds for c in commands))
        megabytes = log.stat().st_size / 1e6
    _, alone = medians(measured)
    yield at_least(
        f"`specprobe inspect` of {megabytes:,.0f} MB of JSONL",
        200,
        [megabytes / own for own, _ in measured],
        f"Python's json.loads of its lines and nothing else: {megabytes / alone:,.0f} MB/s",
        "MB/s",
    )


def compare_memory(settings: Settings) -> Iterator[Row]:
    """The most memory of `analyze` over logs of different length, answered in text and in token ids.

    Both are longer than the 2,000 units that intervals are resampled from, whose tables are as large for any log.
    """
    small, large = settings.size(4000, 20), settings.size(20_000, 200)
    for kind in ("token ids", "text"):
        few, many = (peak_of_analyze(count, as_ids=kind == "token ids") for count in (small, large))
        yield at_most(
            f"peak memory of `analyze` (n-gram), {large:,} logged answers ({kind}) against {small:,}",
            1.0,
            [many / few],
            f"{many / 2**20:,.0f} MiB against {few / 2**20:,.0f}; {(many - few) / (large - small):,.0f} bytes a prompt "
            "of 300 tokens",
        )


def peak_of_analyze(count: int, *, as_ids: bool) -> int:
    """The most memory that `analyze` with n-gram holds, in bytes, over so many answered prompts of 300 tokens each."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log.jsonl"
        write_answered(log, count, as_ids=as_ids)
        options = ("--responses", "logged", "--tokenizer", "embedded", "--drafter", "ngram")
        return run_child([*SPECPROBE, "analyze", log, *options], Path(name)).peak_bytes


def write_chats(path: Path, num_bytes: int) -> None:
    """At least so many bytes of JSONL: conversations of 2 to 8 turns, in both formats, no two rows alike."""
    rng = random.Random(0)
    rows = [_chat_row(rng, number) for number in range(500)]
    with path.open("wb") as file:
        for number, row in enumerate(itertools.cycle(rows)):
            file.write(row.replace(b"@@", b"%08d" % number))
            if file.tell() >= num_bytes:
                return


def _chat_row(rng: random.Random, number: int) -> bytes:
    """`@@` stands where rows differ. A third holds what is not ASCII, half of it as it is and half as escapes."""
    words = WORDS if number % 3 else (*WORDS, *ACCENTED * (len(WORDS) // 100))
    lengths = ((rng.randint(8, 80), rng.randint(60, 400)) for _ in range(rng.randint(1, 4)))
    texts = [_text(rng, length, words) for exchange in lengths for length in exchange]
    texts[0] = f"@@ {texts[0]}"
    row: dict[str, Any]
    if number % 2:
        turns = [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]
        row = {"id": "chat-@@", "conversations": turns}
    else:
        turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        row = {"id": "chat-@@", "model": "some-model", "temperature": 0.7, "messages": turns}
    return json.dumps(row, ensure_ascii=number % 4 < 2).encode() + b"\n"


ACCENTED = ("café", "“so-called”", "naïve", "—", "日本")


def _words() -> tuple[str, ...]:
    text = (ROOT / "workloads" / "summaries.jsonl").read_text() + (ROOT / "workloads" / "chat.json").read_text()
    plain = [word for word in text.split() if not set(word) & set('{}[]\\"') and word.isascii()]
    # A few that JSON escapes, as real text has.
    return (*plain, *("\n\n", "\n- ", '"quoted"') * (len(plain) // 60))


WORDS = _words()


def _text(rng: random.Random, length: int, words: Sequence[str] = WORDS) -> str:
    return " ".join(rng.choices(words, k=length))


def write_answered(path: Path, count: int, *, as_ids: bool) -> None:
    """`count` different answered prompts: some 100 tokens, and 200 of the answer."""
    rng = random.Random(0)
    with path.open("w") as file:
        for number in range(count):
            row: dict[str, Any] = {"id": f"request-{number}"}
            if as_ids:
                ids = [rng.randrange(49_152) for _ in range(300)]
                row |= {"prompt_token_ids": ids[:100], "output_token_ids": ids[100:]}
            else:
                turns = [{"role": "user", "content": _text(rng, 75)}, {"role": "assistant", "content": _text(rng, 150)}]
                row["messages"] = turns
            file.write(json.dumps(row) + "\n")
