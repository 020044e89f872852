"""The servers of a bench: two that run, or one that the user's own commands start, one arm at a time."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from specprobe.bench.plan import Arm
from specprobe.completion_server import ServedModel, find_model
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.progress import Stages
from specprobe.server import Server, get_json

SECONDS_BETWEEN_LOOKS = 0.5
# For a server that is told to end, and lets its requests and children finish.
SECONDS_TO_END = 20.0
TAIL_BYTES = 4096
TAIL_LINES = 3


@dataclass(frozen=True, slots=True)
class Commands:
    """The user's commands that start the server of each arm, split into words; no shell reads them."""

    plain: tuple[str, ...]
    speculative: tuple[str, ...]
    ready_seconds: float


def parse_commands(plain: str, speculative: str, ready_seconds: float) -> Commands:
    """The commands of --start and --start-speculative. Raises SpecprobeError where one cannot be split or is empty."""
    if not 0 < ready_seconds <= 1e6:
        raise SpecprobeError(f"--start-timeout {ready_seconds:g}: a number of seconds above 0")
    return Commands(_words(plain, "--start"), _words(speculative, "--start-speculative"), ready_seconds)


def _words(command: str, option: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise SpecprobeError(f"{option}: not a command ({error}); quote it as for a shell") from None
    if not words:
        raise SpecprobeError(f"{option}: is empty; give the command that starts the server")
    return words


class Fleet:
    """Gives the server of an arm, started where that is asked for; to be used as a context manager."""

    def __init__(
        self,
        servers: dict[Arm, Server],
        commands: Commands | None,
        model_name: str | None,
        stages: Stages,
    ) -> None:
        self._servers, self._commands, self._model_name, self._stages = servers, commands, model_name, stages
        self._running: tuple[Arm, subprocess.Popen[bytes], IO[bytes]] | None = None
        self.models: dict[Arm, ServedModel] = {}

    @property
    def restarts(self) -> bool:
        """Whether changing the arm restarts a server."""
        return self._commands is not None

    @contextmanager
    def open(self) -> Iterator[Fleet]:
        """Ends what was started, however the block ends."""
        try:
            yield self
        finally:
            self._stop()

    def server(self, arm: Arm) -> tuple[Server, bool]:
        """The arm's server, ready, and whether it was started just now; raises SpecprobeError where it does not come
        up.
        """
        server = self._servers[arm]
        started = False
        if self._commands is not None and (self._running is None or self._running[0] != arm):
            self._stop()
            self._start(arm, server)
            started = True
        if arm not in self.models:
            self.models[arm] = find_model(server, self._model_name)
        return server, started

    def check(self) -> None:
        """Raise SpecprobeError, with the end of its log, where the server that was started has ended."""
        if self._running is None:
            return
        arm, process, log = self._running
        status = process.poll()
        if status is not None:
            raise SpecprobeError(f"{_option(arm)}: the server ended with status {status}; {_tail(log)}")

    def _start(self, arm: Arm, server: Server) -> None:
        assert self._commands is not None
        if _answers(server):
            raise SpecprobeError(
                f"{server.name}: answers before the server was started; stop what runs there, or leave --start out"
            )
        words = self._commands.plain if arm == "plain" else self._commands.speculative
        # Appended to, so that reading its end here does not move where the server writes.
        log = tempfile.TemporaryFile("a+b")  # noqa: SIM115
        try:
            # A group of its own, so that its children end with it, and Ctrl-C reaches it by way of us only.
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            log.close()
            reason = (error.strerror or str(error)).lower()
            raise SpecprobeError(f"{_option(arm)}: {inert(words[0], 80)}: {reason}; check the command") from None
        self._running = (arm, process, log)
        self._stages.say(f"starting the {arm} server")
        end = time.monotonic() + self._commands.ready_seconds
        while not _answers(server):
            self.check()
            if time.monotonic() > end:
                raise SpecprobeError(
                    f"{_option(arm)}: {server.name} does not answer after {self._commands.ready_seconds:g} s; raise "
                    f"--start-timeout, or check the port; {_tail(log)}"
                )
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _stop(self) -> None:
        if self._running is None:
            return
        _, process, log = self._running
        self._running = None
        try:
            end_group(process)
        finally:
            log.close()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: asked first, then made to."""
    for number, patience in ((signal.SIGTERM, SECONDS_TO_END), (signal.SIGKILL, SECONDS_TO_END)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        end = time.monotonic() + patience
        while time.monotonic() < end and _group_lives(process):
            time.sleep(0.05)
        if not _group_lives(process):
            break
    process.wait()


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    # Without it the process itself would stay in its group as a zombie.
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _answers(server: Server) -> bool:
    try:
        get_json(server, f"{server.path}/models")
    except SpecprobeError:
        return False
    return True


def _option(arm: Arm) -> str:
    return "--start" if arm == "plain" else "--start-speculative"


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - TAIL_BYTES))
    lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    log.seek(0, os.SEEK_END)
    return f"its log ends: {inert(' | '.join(lines[-TAIL_LINES:]), 400)}" if lines else "its log is empty"
