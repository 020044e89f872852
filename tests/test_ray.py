"""`--ray` on a real local cluster: the same bytes as one process, workers that are killed, runs that are cut off.

Clusters get two processors, and workers one thread each, so there are two of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import toy_target as toy

from specprobe.causal_lm import LoadOptions
from specprobe.errors import SpecprobeError

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    # More processors than two would mean more workers, none of them different.
    "RAY_OVERRIDE_RESOURCES": '{"CPU": 2}',
}
PROMPTS = [{"prompt": f"{n} " + "word " * (n % 9)} for n in range(96)]
DRAFTERS = ("ngram", "suffix", "draft:../draft", "early-exit:layers=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models, a log, and what one process makes of it."""
    here = tmp_path_factory.mktemp("ray")
    toy.write_checkpoint(here / "target")
    toy.write_checkpoint(here / "draft", seed=1)
    (here / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    return here


@pytest.fixture(scope="module")
def alone(folder):
    out, _ = finished(start(folder / "alone"))
    return out


def start(folder: Path, *further: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    words = [word for spec in DRAFTERS for word in ("--drafter", spec)]
    given = ["../log.jsonl", "--target", "../target", "--device", "cpu", "--temperature", "0,0.8", "--depth", "3"]
    given += ["--max-new-tokens", "60", "--batch-size", "2", *words, *further, "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "specprobe", "analyze", *given],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell has what it runs in the background ignore Ctrl-C, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finished(process: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=600)
    assert process.returncode == status, err
    return out, err


def num_kept(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(".specprobe/trajectories/*/*.jsonl"))


def descendants(process: int) -> list[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Those that do a piece of work right now: Ray names them by it."""
    found = []
    for one in descendants(process.pid):
        try:
            name = Path(f"/proc/{one}/cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::Worker.do"):
            found.append(one)
    return found


def wait_until(condition, process: subprocess.Popen[str]):
    deadline = time.monotonic() + 300
    while not (found := condition()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def test_two_workers_write_the_document_of_one_process(folder, alone):
    out, err = finished(start(folder / "shared", "--ray"))
    assert "sharing the work out over up to 2 workers of this machine (1 thread each)" in err
    assert out == alone
    assert {result["drafter"] for result in json.loads(out)["results"]} == {"ngram", "suffix", "draft", "early-exit"}
    # Neither needs the other's help to go on.
    for more in ((), ("--ray",)):
        again, err = finished(start(folder / "shared", *more))
        assert "96 responses at temperature 0 were there already" in err
        assert again == alone


def test_a_worker_that_is_killed_in_the_middle_changes_nothing(folder, alone):
    process = start(folder / "killed", "--ray")
    wait_until(lambda: num_kept(folder / "killed") >= 8, process)
    victim = wait_until(lambda: workers_of(process), process)[0]
    os.kill(victim, signal.SIGKILL)
    out, err = finished(process)
    assert err.count("was lost") == 1, err
    assert "its work is given to another" in err
    # Ray would say the same at length.
    assert "raylet" not in err
    assert out == alone


def test_a_run_that_is_interrupted_goes_on_without_ray(folder, alone):
    process = start(folder / "interrupted", "--ray")
    wait_until(lambda: num_kept(folder / "interrupted") >= 8, process)
    # As a terminal does: all of Ray's processes get it, too.
    os.killpg(process.pid, signal.SIGINT)
    _, err = finished(process, 130)
    assert err.rstrip().splitlines()[-1].startswith("error: interrupted; what was finished is kept")
    kept = num_kept(folder / "interrupted")
    assert 8 <= kept < 2 * len(PROMPTS)
    out, err = finished(start(folder / "interrupted"))
    assert f"{min(kept, 96) // 2 * 2} responses at temperature 0 were there already" in err
    assert out == alone


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_whose_driver_is_ended_goes_on_without_ray_and_leaves_no_process(folder, alone, end):
    here = folder / end.name
    process = start(here, "--ray")
    wait_until(lambda: num_kept(here) >= 8, process)
    left = descendants(process.pid)
    assert left
    os.kill(process.pid, end)
    finished(process, -end)
    deadline = time.monotonic() + 300
    while any(is_running(one) for one in left):
        assert time.monotonic() < deadline, [one for one in left if is_running(one)]
        time.sleep(0.1)
    assert 8 <= num_kept(here) < 2 * len(PROMPTS)
    out, _ = finished(start(here))
    assert out == alone


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Lines:
    """Progress that is kept."""

    def __init__(self):
        self.said = []

    def say(self, message):
        self.said.append(message)


@pytest.fixture
def crew_of(folder, monkeypatch):
    """Makes crews in this process; each has a cluster of its own."""
    from specprobe.ray_crew import RayCrew
    from specprobe.ray_worker import Arrival, Replica, facts_of, hardware_of
    from specprobe.target import load_target

    for name in ("PYTHONPATH", "RAY_OVERRIDE_RESOURCES"):
        monkeypatch.setenv(name, ENVIRONMENT[name])
    target = load_target(str(folder / "target"), device="cpu")
    replica = Replica(str(folder / "target"), LoadOptions("cpu"), {}, 1, str(folder))
    made = []

    def make(address="local", **facts):
        stages = Lines()
        here = Arrival("here", facts_of(target) | facts, hardware_of(target))
        made.append(RayCrew(address, replica, here, stages))
        return made[-1], stages

    yield make
    for crew in made:
        crew.close()


def test_both_work_and_what_they_raise_is_raised_here(crew_of):
    import ray_chores

    crew, _ = crew_of()
    assert list(crew.each(ray_chores.plain, [])) == []
    assert crew.size == 0
    found = dict(crew.each(ray_chores.plain, range(40)))
    assert [found[n][0] for n in range(40)] == [2 * n for n in range(40)]
    deadline = time.monotonic() + 300
    pids = set()
    while len(pids) < 2:
        assert time.monotonic() < deadline
        pids |= {pid for _, (_, pid, _) in crew.each(ray_chores.plain, range(8))}
    assert crew.size == 2
    with pytest.raises(SpecprobeError, match="piece 3: no"):
        list(crew.each(ray_chores.refused, [3]))


def test_work_is_done_though_workers_die_and_given_up_where_it_kills_each(crew_of, tmp_path):
    import ray_chores

    crew, stages = crew_of()
    marks = {5: str(tmp_path / "a"), 11: str(tmp_path / "b"), 12: str(tmp_path / "c")}
    found = list(crew.each(ray_chores.deadly_once, [(n, marks.get(n)) for n in range(20)]))
    assert sorted(found) == [(n, n) for n in range(20)]
    assert sum("was lost" in line for line in stages.said) == 3
    with pytest.raises(SpecprobeError, match="the same piece of work ended 3 workers"):
        list(crew.each(ray_chores.deadly, [0]))


def test_a_replica_that_is_not_the_same_writes_nothing(crew_of):
    import ray_chores

    crew, _ = crew_of(weights="0123456789abcdef")
    with pytest.raises(SpecprobeError, match=r"has other weights .* than this process"):
        list(crew.each(ray_chores.plain, [1]))


def test_where_no_cluster_is_it_is_one_line(crew_of):
    import ray_chores

    crew, _ = crew_of("127.0.0.1:1")
    with pytest.raises(SpecprobeError, match=r"--ray 127\.0\.0\.1:1: no cluster answers there"):
        list(crew.each(ray_chores.plain, [1]))
