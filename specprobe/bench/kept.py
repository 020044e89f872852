"""Finished passes of a bench on the disk, so that one that was interrupted can go on.

A machine and its servers drift, so passes of two sittings are not mixed unasked, and never within a repeat at one
concurrency: there both arms are of one sitting, and what changed in between falls on both.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specprobe.bench.client import Asking, Written
from specprobe.bench.plan import ARMS, Arm, BenchPlan, Pass
from specprobe.bench.result import PassRecord
from specprobe.bench.servers import Commands
from specprobe.checked_lines import append_record, read_lines
from specprobe.completion_server import ServedModel
from specprobe.paths import benches_folder, file_errors, make_private_folder
from specprobe.prompt import Prompt
from specprobe.server import Server

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class KeptPass:
    """A finished pass with its answers by prompt, the model that the server said to serve, and when it ended (Unix).

    `sitting`: a word that all passes of one run of the command have in common.
    """

    record: PassRecord
    written: Mapping[int, Written]
    model: ServedModel
    sitting: str
    ended: float


class KeptPasses:
    """The passes of one bench: of the same prompts, servers and plan. `sitting`: of this run of the command."""

    def __init__(self, path: Path, sitting: str) -> None:
        self._path, self._sitting = path, sitting

    @property
    def count(self) -> int:
        """Passes on the disk that another sitting can use."""
        return len(self.resumable())

    def keep(self, record: PassRecord, written: Mapping[int, Written], model: ServedModel) -> None:
        """A pass that this sitting has finished; when this returns, it is on the disk."""
        make_private_folder(self._path.parent)
        kept = {
            "sitting": self._sitting,
            "ended": time.time(),
            "model": asdict(model),
            "pass": record.to_json(),
            "written": {str(number): one.to_json() for number, one in written.items()},
        }
        append_record(self._path, kept, "passes finished before this one are kept")

    def resumable(self) -> dict[Pass, KeptPass]:
        """What earlier sittings finished in both arms, by pass; of several sittings the newest."""
        by_pair: dict[tuple[int, int, str], dict[Arm, KeptPass]] = {}
        for _, told in read_lines(self._path).records:
            one = _kept(told)
            key = one.record.key
            by_pair.setdefault((key.repeat, key.concurrency, one.sitting), {})[key.arm] = one
        pairs = (pair for pair in by_pair.values() if len(pair) == len(ARMS))
        return {one.record.key: one for pair in pairs for one in pair.values()}

    def remove(self) -> None:
        """The bench is finished, and its answers need not lie here."""
        with file_errors(self._path):
            self._path.unlink(missing_ok=True)


def open_kept(
    prompts: Sequence[Prompt],
    servers: Mapping[Arm, Server],
    commands: Commands | None,
    model: str | None,
    plan: BenchPlan,
    sitting: str,
) -> KeptPasses:
    """Where the passes of this bench are kept; any other prompts, addresses, commands or plan are another bench's.

    What the servers serve is told with each pass, since it is not known before they run.
    """
    asking = Asking(servers["plain"], "", plan.temperature, plan.max_new_tokens)
    settings = {
        "format_version": FORMAT_VERSION,
        "requests": [asking.body(prompt, salt="", seed=None) for prompt in prompts],
        "servers": {arm: server.name for arm, server in servers.items()},
        "commands": None if commands is None else [commands.plain, commands.speculative],
        "model": model,
        "plan": plan.to_json(),
    }
    canonical = json.dumps(settings, sort_keys=True).encode("ascii")
    return KeptPasses(benches_folder() / f"{hashlib.sha256(canonical).hexdigest()[:16]}.jsonl", sitting)


def _kept(told: Mapping[str, Any]) -> KeptPass:
    return KeptPass(
        record=replace(PassRecord.from_json(told["pass"]), reused=True),
        written={int(number): Written.from_json(one) for number, one in told["written"].items()},
        model=ServedModel(**told["model"]),
        sitting=told["sitting"],
        ended=told["ended"],
    )
