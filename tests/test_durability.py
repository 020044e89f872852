"""The store under real faults; see tests/store_faults.py."""

import json
import subprocess
import sys

import pytest

from tests.store_faults import RESPONSES_A_WRITER, WRITERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="fork and SIGKILL are of POSIX"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    command = [sys.executable, "-m", "tests.store_faults", str(tmp_path_factory.mktemp("store")), "200"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_kill_at_any_byte_loses_no_finished_response(report):
    assert report["kill_points"] == 200
    # Some random points lie past the end of what is written.
    assert report["killed"] > 150


def test_two_processes_at_once_lose_nothing(report):
    assert report["kept_together"] == WRITERS * RESPONSES_A_WRITER


def test_a_full_disk_keeps_what_was_finished_and_says_so(report):
    assert report["kept_before_full"] > 3
    assert "is kept" in report["told_when_full"]
