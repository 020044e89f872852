"""What people see: whole reports at several widths, without colour, in other encodings, as plain lines, in pipes.

After a wanted change, `SPECPROBE_RENEW_SNAPSHOTS=1 pytest tests/test_terminal.py` writes tests/snapshots anew; read the
difference before you keep it.
"""

from __future__ import annotations

import difflib
import io
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from invented_reports import REPORTS, USUAL_NOTICES, advice, invented_cost, invented_run, recommended

from specprobe.blocks import Block, Cell, Column, Figures, Medium, Sentence
from specprobe.heat_map import HeatMap
from specprobe.legible import legible
from specprobe.notices import Notice
from specprobe.progress import OnStderr
from specprobe.speedup_grid import SpeedupGrid
from specprobe.terminal import ReportConsole
from specprobe.units import evenly, format_bar, format_curve

ROOT = Path(__file__).parents[1]
SNAPSHOTS = ROOT / "tests" / "snapshots"
WIDTHS = (60, 80, 120)
COMMAND = re.compile(r"^(vllm serve|llama-server|model\.generate)")


class Screen(io.StringIO):
    """A stream that calls itself a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self.shown_encoding = encoding

    @property
    def encoding(self) -> str:
        return self.shown_encoding

    def isatty(self) -> bool:
        return True


@cache
def report(name: str) -> Block:
    return REPORTS[name]()


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "SPECPROBE_PLAIN"):
        monkeypatch.delenv(name, raising=False)


def printed(monkeypatch, block: Block, width: int = 80, *, encoding: str = "utf-8", plain=False, color=False) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    if not color:
        monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(encoding)
    ReportConsole(screen, is_plain=plain).print(block, crop=False)
    # Without colour there is still bold and dim.
    return screen.getvalue() if color else re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())


@pytest.mark.parametrize("name", REPORTS)
def test_reports_are_as_they_were(monkeypatch, name):
    block = report(name)
    variants = {f"{width} columns": printed(monkeypatch, block, width) for width in WIDTHS}
    variants["80 columns, cp437"] = printed(monkeypatch, block, encoding="cp437")
    variants["plain"] = printed(monkeypatch, block, plain=True)
    monkeypatch.delenv("NO_COLOR")
    variants["80 columns, coloured"] = printed(monkeypatch, block, color=True).replace("\x1b[", "^[")
    now = "".join(f"======== {title}\n{text}" for title, text in variants.items())
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("SPECPROBE_RENEW_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(now, encoding="utf-8")
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    difference = difflib.unified_diff(before.splitlines(), now.splitlines(), path.name, "now", lineterm="")
    assert now == before, "\n".join(difference)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
@pytest.mark.parametrize("name", REPORTS)
def test_nothing_is_wider_than_the_screen_but_commands_and_words(monkeypatch, name, width):
    for line in printed(monkeypatch, report(name), width).splitlines():
        assert len(line) <= width or COMMAND.match(line) or len(line.split()) == 1, line


@pytest.mark.parametrize("name", REPORTS)
def test_no_width_loses_a_figure(monkeypatch, name):
    figures = re.compile(r"\d+\.\d+")
    wide = set(figures.findall(printed(monkeypatch, report(name), 200)))
    narrow = set(figures.findall(printed(monkeypatch, report(name), 60)))
    assert wide <= narrow


@pytest.mark.parametrize("name", REPORTS)
def test_plain_reports_are_ascii_lines_of_a_name_and_a_value(monkeypatch, name):
    text = printed(monkeypatch, report(name), 40, plain=True, color=True)
    assert text.isascii()
    assert "\x1b" not in text
    for line in text.splitlines():
        assert re.match(r"\S.*: \S", line), line
        assert not re.search(r"[|#_=+*.-]{4}", line.replace("--details", "")), line
    assert len(set(text.splitlines())) == len(text.splitlines()) or name == "backtest"


@pytest.mark.parametrize("encoding", ["ascii", "cp437", "cp1252", "latin-1", "utf-8"])
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_holds_only_what_its_encoding_has(monkeypatch, name, encoding):
    printed(monkeypatch, report(name), encoding=encoding).encode(encoding)


def test_recommend_fits_a_screen_and_begins_with_the_verdict(monkeypatch):
    lines = printed(monkeypatch, report("recommend")).splitlines()
    assert len(lines) <= 24
    assert lines[0].startswith("concurrency 1: speculate with eagle3")
    assert any(COMMAND.match(line) for line in lines)
    assert "--details" in lines[-1]


def test_analyze_fits_a_screen_and_begins_with_the_best(monkeypatch):
    lines = printed(monkeypatch, report("analyze-temperatures")).splitlines()
    assert len(lines) <= 24
    assert lines[0].startswith("Most tokens per round: eagle3")


def test_what_puts_a_verdict_in_doubt_is_never_shortened(monkeypatch):
    doubt = Notice("too_few_prompts", "6 prompts: intervals are too narrow; use more prompts before you decide")
    many = [Notice(f"code_{i}", f"what was seen {i}; why it matters") for i in range(9)]
    found = advice(invented_run(notices=(*USUAL_NOTICES, *many, doubt)), invented_cost(0.0001), 1)
    text = printed(monkeypatch, recommended(found))
    assert doubt.message in " ".join(text.split())
    assert "8 more warnings: --details" in text
    assert "why it matters" not in text
    in_full = " ".join(printed(monkeypatch, recommended(found, details=True)).split())
    assert all(notice.message in in_full for notice in (*USUAL_NOTICES, *many, doubt))


def grid_of(speedup: np.ndarray) -> HeatMap:
    return HeatMap(SpeedupGrid("ngram", {}, "greedy", tuple(2**i for i in range(len(speedup))), 1, speedup))


def test_a_map_reads_without_colour():
    lines = [line.plain for line in grid_of(np.array([[1.1, 1.42, 1.3], [0.97, 0.93, 0.5]])).lines(Medium(80))]
    assert lines[0].split() == ["conc.", "1", "2", "3"]
    assert lines[1].split() == ["1", "1.10x", "1.42*", "1.30x"]
    # Where nothing beats not speculating, nothing is marked as the best.
    assert lines[2].split() == ["2", "0.97-", "0.93-", "0.50-"]


def test_a_map_that_does_not_fit_leaves_out_depths_but_the_best_and_says_so():
    speedup = np.tile(np.linspace(1.0, 1.5, 16), (3, 1))
    speedup[1, 6] = 2.0
    lines = [line.plain for line in grid_of(speedup).lines(Medium(60))]
    shown = [int(word) for word in lines[0].split()[1:]]
    assert len(shown) == 7
    assert {1, 7, 16} <= set(shown)
    assert "9 of 16 depths do not fit" in lines[4]
    assert "2.00*" in lines[2]


def test_colours_follow_the_speed_up_and_no_color_removes_them(monkeypatch):
    block = grid_of(np.array([[0.5, 2.0]]))
    assert len(set(re.findall(r"\x1b\[[\d;]*m", printed(monkeypatch, block, color=True)))) >= 3
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*[34]\d", printed(monkeypatch, block, color=True))


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert printed(monkeypatch, Sentence("verdict", "don't"), color=True) == "verdict: don't\n"


def test_figures_turn_from_a_table_into_paragraphs():
    columns = [Column("file", is_number=False, wraps=True), Column("first turns"), Column("answers", "logged answers")]
    table = Figures(columns, [("some file.jsonl", "12,345", "7")])
    assert [line.plain for line in table.lines(Medium(40))] == [
        "file             first turns  answers",
        "some file.jsonl       12,345        7",
    ]
    assert [line.plain for line in table.lines(Medium(28))] == [
        "              first",
        "file          turns  answers",
        "some         12,345        7",
        "file.jsonl",
    ]
    assert [line.plain for line in table.lines(Medium(24))] == [
        "some file.jsonl",
        "  first turns 12,345;",
        "  answers 7",
    ]
    shorter = Figures([Column("a"), Column("b")], [(Cell("12.34", "12.34"), Cell("a long one", "in words", "short"))])
    assert shorter.lines(Medium(20))[1].plain == "12.34  a long one"
    assert shorter.lines(Medium(14))[1].plain == "12.34  short"
    assert shorter.lines(Medium(9))[0].plain == "a 12.34"
    assert table.facts() == [("some file.jsonl, first turns", "12,345"), ("some file.jsonl, logged answers", "7")]


def test_a_word_is_never_broken_and_a_figure_keeps_its_unit():
    lines = Sentence("", "see some/long/path-of-twenty for 12.5 % of it").lines(Medium(12))
    assert [line.plain for line in lines] == ["see", "some/long/path-of-twenty", "for 12.5 %", "of it"]


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("a → b × 2 …", "ascii", "a -> b x 2 ..."),
        ("a → b × 2 …", "cp1252", "a -> b × 2 …"),
        ("a ÷ b", "cp437", "a ÷ b"),
        ("表", "cp437", "\\u8868"),
        ("表", "utf-8", "表"),
        (format_bar(0.6, 4), "utf-8", "██▍ "),
        (format_bar(0.6, 4), "cp437", "##  "),
        (format_curve([0.0, 0.5, 1.0]), "utf-8", "▁▅█"),
        (format_curve([0.0, 0.5, 1.0]), "cp437", "_=#"),
    ],
)
def test_what_an_encoding_lacks_is_written_otherwise(text, encoding, shown):
    assert legible(text, encoding) == shown


@pytest.mark.parametrize(
    ("count", "most", "kept"), [(3, 5, [0, 1, 2]), (9, 5, [0, 2, 4, 6, 8]), (5, 2, [0, 4]), (5, 1, [0])]
)
def test_evenly(count, most, kept):
    assert evenly(count, most) == kept


def test_progress_of_plain_output_is_lines_even_on_a_terminal(monkeypatch):
    screen = Screen("ascii")
    monkeypatch.setattr(sys, "stderr", screen)
    with OnStderr(is_plain=True).track("timing ×", 3) as advance:
        advance(1, "")
    assert screen.getvalue() == "timing x ...\n"


ROWS = "".join(
    f'{{"id": {i}, "prompt_token_ids": [1, 2, 3, 4, 5, {i}], "output_token_ids": [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 9]}}\n'
    for i in range(20)
)


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SPECPROBE_CACHE": str(Path.cwd()), **environment}
    whole = command.replace("specprobe", f"{sys.executable} -m specprobe", 1)
    return subprocess.run(["bash", "-c", whole], env=variables, capture_output=True, check=False, timeout=120)


@pytest.fixture
def log() -> str:
    Path("журнал-表.jsonl").write_text(ROWS, encoding="utf-8")
    return "журнал-表.jsonl"


@pytest.mark.parametrize("encoding", ["ascii", "cp437", "cp1252", "utf-8"])
def test_windows_code_pages_get_the_whole_report(log, encoding):
    result = shell(f"specprobe analyze {log} --depth 3 --details", PYTHONIOENCODING=encoding)
    assert result.returncode == 0, result.stderr
    text = result.stdout.decode(encoding)
    assert b"Traceback" not in result.stderr
    assert ("журнал-表" in text) == (encoding == "utf-8")
    assert ("\\u8868" in text) == (encoding != "utf-8")
    assert ("█" in text) == (encoding == "utf-8")


def test_the_environment_asks_for_plain_lines(log):
    asked = shell(f"specprobe inspect {log} --plain").stdout
    assert asked == shell(f"specprobe inspect {log}", SPECPROBE_PLAIN="1").stdout
    assert b"prompts: 20 prompts" in asked


def test_a_file_is_80_columns_wide_and_columns_says_otherwise(log):
    shell(f"specprobe analyze {log} > wide.txt", COLUMNS="120")
    shell(f"specprobe analyze {log} > usual.txt")
    wide, usual = (Path(name).read_text().splitlines() for name in ("wide.txt", "usual.txt"))
    assert 80 < max(map(len, wide)) <= 120
    assert 60 < max(map(len, usual)) <= 80


@pytest.mark.skipif(os.name == "nt", reason="no SIGPIPE there")
@pytest.mark.parametrize("options", ["", "--details", "--plain", "--json"])
def test_a_reader_that_leaves_early_is_no_failure(log, options):
    result = shell(f"specprobe analyze {log} {options} | head -1; exit ${{PIPESTATUS[0]}}")
    assert result.returncode == 0
    assert result.stdout.count(b"\n") == 1
    assert b"Traceback" not in result.stderr
    assert b"Exception" not in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals there")
@pytest.mark.parametrize(("columns", "expected"), [(60, 60), (100, 100)])
def test_a_pager_gets_the_width_of_the_terminal_it_is_on(log, columns, expected):
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SPECPROBE_CACHE": str(Path.cwd())}
    command = [sys.executable, "-m", "specprobe", "inspect", log]
    # A pipe that a pager reads, and a terminal for errors.
    result = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=theirs, check=False, timeout=120)
    os.close(ours)
    os.close(theirs)
    assert result.returncode == 0
    is_table = result.stdout.decode().startswith("file ")
    assert is_table == (expected > 60)


def test_what_was_seen_ends_at_a_semicolon_outside_of_parentheses():
    from specprobe.notice_report import _what_was_seen
    from specprobe.notices import Notice

    said = {"3 of 10 rows (empty 2; no answer 1); the rest was used": "3 of 10 rows (empty 2; no answer 1)",
            "a (b; c": "a (b", "plain": "plain", "; x": ""}  # fmt: skip
    assert [_what_was_seen(Notice("code", message)) for message in said] == list(said.values())
