"""Whole runs of `specprobe analyze` that die or meet: `python -m tests.analyze_faults FOLDER KILLS [FRESH]`.

Each of KILLS runs is ended by SIGKILL at a random moment, some of them twice in a row; then the same command is given
again. It has to print the document, and to leave the run and the file of --out, of a run that nothing disturbed, byte
for byte. Runs are forked from a process that has imported everything, so that the moments fall into the work; FRESH
further ones are started as `python -m specprobe`. Then several of them run at once in one folder. Prints counts as
JSON. Needs POSIX.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PROMPTS = 24
TOGETHER = 3
ARGUMENTS = (
    *("analyze", "log.jsonl", "--device", "cpu", "--responses", "generate", "--temperature", "0,0.8"),
    *("--max-new-tokens", "40", "--batch-size", "4", "--depth", "4", "--json", "--out", "out.json"),
)


class Runs:
    """Starts runs in folders of their own, all of the same command."""

    def __init__(self, root: Path) -> None:
        import torch

        torch.set_num_threads(1)
        import toy_target as toy

        self.root = root
        self.model = str(toy.write_checkpoint(root / "model", max_position_embeddings=512))
        self.arguments = (*ARGUMENTS, "--target", self.model)
        # What every run imports, and what is compiled at first use.
        self.finish(self.folder("warm"), self.forked)
        started = time.monotonic()
        self.undisturbed = self.finish(self.folder("undisturbed"), self.forked)
        self.seconds = time.monotonic() - started

    def folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True)
        rows = [{"id": f"row-{n}", "prompt": f"{'word ' * (n % 9)}{n}"} for n in range(PROMPTS)]
        (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    def forked(self, folder: Path) -> int:
        """The process id of a run in this folder, whose output goes to files there."""
        from specprobe.cli import run_command

        child = os.fork()
        if child:
            return child
        os.chdir(folder)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
        os._exit(run_command(self.arguments))

    def fresh(self, folder: Path) -> int:
        """The same, of an interpreter of its own."""
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
            process = subprocess.Popen(
                [sys.executable, "-m", "specprobe", *self.arguments],
                cwd=folder,
                stdout=out,
                stderr=err,
                # As many threads as a forked run has: sums in another order differ in their last digits.
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
        process.returncode = 0  # Waited for below, by its id.
        return process.pid

    def finish(self, folder: Path, start: Callable[[Path], int]) -> bytes:
        """A run to its end: what it printed, which must also be what it left."""
        _, status = os.waitpid(start(folder), 0)
        return self.left(folder, status)

    def left(self, folder: Path, status: int) -> bytes:
        assert os.WIFEXITED(status), status
        assert os.WEXITSTATUS(status) == 0, (folder / "stderr").read_text()
        printed = (folder / "stdout").read_bytes()
        assert (folder / "out.json").read_bytes() == printed
        for path in (folder / ".specprobe" / "runs").glob("*.json"):
            assert path.read_bytes() == printed, path
        assert "damaged" not in (folder / "stderr").read_text()
        return printed


def kill(runs: Runs, name: str, start: Callable[[Path], int], seconds: float, rng: random.Random) -> tuple[int, int]:
    """Returns how many processes were killed, and how many responses the last one found there."""
    folder, killed = runs.folder(name), 0
    for _ in range(rng.choice((1, 1, 2))):
        child = start(folder)
        time.sleep(rng.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        # What is there under its name is whole.
        for path in (folder / "out.json", *(folder / ".specprobe" / "runs").glob("*.json")):
            assert not path.exists() or path.read_bytes() == runs.undisturbed, path
    assert runs.finish(folder, start) == runs.undisturbed, name
    words = (folder / "stderr").read_text().split()
    counts = [words[at - 1] for at, word in enumerate(words) if word == "responses"]
    return killed, sum(int(count) for count in counts if count.isdigit())


def meet(runs: Runs, name: str, start: Callable[[Path], int]) -> int:
    """Several at once in one folder, none of which is to be disturbed; returns how many."""
    folder = runs.folder(name)
    children = [start(folder) for _ in range(TOGETHER)]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    assert all(os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 for status in statuses), statuses
    documents = [path.read_bytes() for path in (folder / ".specprobe" / "runs").glob("*.json")]
    assert documents == [runs.undisturbed] * TOGETHER
    assert (folder / "out.json").read_bytes() == runs.undisturbed
    # And what they kept serves the next.
    assert runs.finish(folder, start) == runs.undisturbed
    assert f"{PROMPTS} responses" in " ".join((folder / "stderr").read_text().split())
    return len(documents)


def main() -> None:
    """See the module."""
    root, kills = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    fresh = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    rng = random.Random(0)
    runs = Runs(root)
    found = [kill(runs, f"kill-{n}", runs.forked, runs.seconds, rng) for n in range(kills)]
    started = time.monotonic()
    if fresh:
        assert runs.finish(runs.folder("fresh"), runs.fresh) == runs.undisturbed
    seconds = time.monotonic() - started
    found += [kill(runs, f"fresh-kill-{n}", runs.fresh, seconds, rng) for n in range(fresh)]
    print(
        json.dumps(
            {
                "runs": len(found),
                "killed": sum(killed for killed, _ in found),
                "resumed_with_responses": sum(reused > 0 for _, reused in found),
                "seconds": round(runs.seconds, 2),
                "together": meet(runs, "meet", runs.forked),
                "together_fresh": meet(runs, "meet-fresh", runs.fresh) if fresh else 0,
            }
        )
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
