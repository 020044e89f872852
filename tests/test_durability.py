"""The store and whole runs under real faults; see tests/store_faults.py and tests/analyze_faults.py."""

import json
import subprocess
import sys

import pytest

from tests.analyze_faults import TOGETHER
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


@pytest.mark.timeout(1800)
def test_whole_runs_that_die_or_meet_leave_what_an_undisturbed_one_leaves(tmp_path):
    """The script asserts it; here it has to have come to something."""
    command = [sys.executable, "-m", "tests.analyze_faults", str(tmp_path), "8", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["killed"] >= 8
    assert found["resumed_with_responses"] >= 1
    assert found["together"] == found["together_fresh"] == TOGETHER
