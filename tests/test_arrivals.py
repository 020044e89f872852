"""Traces of arrivals: three published formats, their traps, and the Poisson process."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from specprobe.arrivals import poisson_arrivals, read_trace
from specprobe.errors import SpecprobeError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def written(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_mooncake_is_in_milliseconds(tmp_path: Path) -> None:
    lines = [
        '{"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}',
        '{"timestamp": 30500, "input_length": 12, "output_length": 3, "hash_ids": []}',
    ]
    trace = read_trace(written(tmp_path, "\n".join(lines)))
    assert trace.format == "mooncake"
    assert trace.arrival_seconds.tolist() == [0.0, 3.5]
    assert trace.prompt_tokens.tolist() == [6758, 12]
    assert trace.output_tokens.tolist() == [500, 3]
    assert trace.skipped == {}


def test_azure_has_dates_of_seven_digits(tmp_path: Path) -> None:
    """CRLF, a byte order mark, no newline at the end, and a day that begins between two requests."""
    rows = [AZURE, "2023-11-16 23:59:59.5000000,374,44", "2023-11-17 00:00:00.7500009,396,109"]
    trace = read_trace(written(tmp_path, b"\xef\xbb\xbf" + "\r\n".join(rows).encode()))
    assert trace.format == "azure"
    assert trace.arrival_seconds == pytest.approx([0.0, 1.25], abs=2e-6)
    assert trace.output_tokens.tolist() == [44, 109]


def test_azure_with_zones(tmp_path: Path) -> None:
    rows = [AZURE, "2024-05-10 02:00:00.009930+02:00,1,2", "2024-05-10 00:00:01.009930+00:00,3,4"]
    assert read_trace(written(tmp_path, "\n".join(rows))).arrival_seconds == pytest.approx([0.0, 1.0], abs=2e-6)


def test_burstgpt_columns_go_by_name(tmp_path: Path) -> None:
    """A newer version has more columns, in other places; a failed request has no response tokens."""
    rows = [
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,7,1.5,ChatGPT,472,18,490,Conversation log",
        "45.5,7,0,GPT-4,1087,0,1087,API log",
        "47,8,2,ChatGPT,9,3.0,12,API log",
    ]
    trace = read_trace(written(tmp_path, "\n".join(rows)))
    assert trace.format == "burstgpt"
    assert trace.arrival_seconds.tolist() == [0.0, 42.0]
    assert trace.prompt_tokens.tolist() == [472, 9]
    assert trace.skipped == {"no_output": 1}


@pytest.mark.parametrize("header", [BURST, BURST.upper(), BURST.replace(" ", "_")])
def test_case_and_spaces_of_headers_do_not_matter(tmp_path: Path, header: str) -> None:
    assert read_trace(written(tmp_path, f"{header}\n5,GPT-4,10,20,30,API log\n\n")).output_tokens.tolist() == [20]


def test_rows_are_sorted_and_equal_times_keep_their_order(tmp_path: Path) -> None:
    rows = [BURST, *(f"{t},m,{n},1,0,l" for n, t in enumerate([9, 5, 9, 7, 5], 1))]
    trace = read_trace(written(tmp_path, "\n".join(rows)))
    assert trace.arrival_seconds.tolist() == [0, 0, 2, 4, 4]
    assert trace.prompt_tokens.tolist() == [2, 5, 4, 1, 3]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"timestamp": 1, "input_length": 2}', "missing_field"),
        ('{"timestamp": null, "input_length": 2, "output_length": 3}', "bad_timestamp"),
        ('{"timestamp": true, "input_length": 2, "output_length": 3}', "bad_timestamp"),
        ('{"timestamp": NaN, "input_length": 2, "output_length": 3}', "bad_timestamp"),
        ('{"timestamp": 1e999, "input_length": 2, "output_length": 3}', "bad_timestamp"),
        ('{"timestamp": 1' + "0" * 400 + ', "input_length": 2, "output_length": 3}', "bad_timestamp"),
        ('{"timestamp": [1], "input_length": 2, "output_length": 3}', "bad_timestamp"),
        ('{"timestamp": 1, "input_length": -2, "output_length": 3}', "bad_length"),
        ('{"timestamp": 1, "input_length": 2.5, "output_length": 3}', "bad_length"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3000000000}', "bad_length"),
        ('{"timestamp": 1, "input_length": "", "output_length": 3}', "bad_length"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 3}', "no_prompt"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 0}', "no_output"),
        ("[1, 2, 3]", "not_object"),
        ('{"timestamp": 1, "input_len', "bad_json"),
    ],
)
def test_a_row_that_is_no_request_is_counted(tmp_path: Path, row: str, reason: str) -> None:
    good = '{"timestamp": 5, "input_length": 2, "output_length": 3}'
    trace = read_trace(written(tmp_path, f"{good}\n{row}\n{good}\n"))
    assert trace.arrival_seconds.tolist() == [0, 0]
    assert trace.skipped == {reason: 1}


@pytest.mark.parametrize("date", ["yesterday", "", "2023-13-01 00:00:00", "2023-11-16 18:15:46.68O", "0"])
def test_dates_that_are_none(tmp_path: Path, date: str) -> None:
    trace = read_trace(written(tmp_path, f"{AZURE}\n{date},1,2\n2023-11-16 18:15:46,1,2\n"))
    assert trace.skipped == {"bad_timestamp": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty file"),
        ('{"prompt": "hello"}\n', "no trace"),
        (f"{BURST}\n", "no trace"),
        (f"{BURST}\n5,GPT-4,10,0,10,API log\n", "1 no_output"),
        (b"\xff\xfea\x00", "UTF-16"),
    ],
)
def test_a_file_without_a_usable_row_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(SpecprobeError, match=message) as error:
        read_trace(written(tmp_path, text))
    assert "\n" not in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecprobeError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")


def test_compressed(tmp_path: Path) -> None:
    text = f"{AZURE}\n2023-11-16 18:15:46.6805900,374,44\n".encode()
    assert read_trace(written(tmp_path, gzip.compress(text), "trace.csv.gz")).prompt_tokens.tolist() == [374]


def test_poisson_arrivals() -> None:
    arrivals = poisson_arrivals(4.0, 20_000, seed=1)
    gaps = np.diff(arrivals, prepend=0.0)
    assert (gaps > 0).all()
    # Mean and standard deviation of an exponential are equal; 5 standard errors.
    assert gaps.mean() == pytest.approx(0.25, rel=5 / np.sqrt(20_000))
    assert gaps.std() == pytest.approx(0.25, rel=0.05)
    assert (arrivals == poisson_arrivals(4.0, 20_000, seed=1)).all()
    assert (arrivals != poisson_arrivals(4.0, 20_000, seed=2)).any()


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_rates_that_are_none(rate: float) -> None:
    with pytest.raises(SpecprobeError, match="request rate"):
        poisson_arrivals(rate, 3)
