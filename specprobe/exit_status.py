"""One run of the command line: whatever ends it becomes an exit status and at most one line on stderr."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import typer

from specprobe.errors import SpecprobeError, StoppedError

GATE_FAILED = 1
MUST_CHANGE = 2
INTERRUPTED = 130
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# Some versions of typer carry a copy of click, others use the package: the bases of what typer exports hold for both.
UsageError: type[Any] = typer.BadParameter.__mro__[1]
ClickException: type[Any] = typer.BadParameter.__mro__[2]


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit status; every error of a user is one line on stderr."""
    # Python has None for a stream that was closed before it began.
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal of another encoding shows an escape where it has no character, and the report goes on.
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(arguments, prog_name="specprobe", standalone_mode=False)
        # Some versions of typer turn Ctrl-C into this status instead of raising.
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except StoppedError as error:
        _fail(str(error))
        return INTERRUPTED
    except SpecprobeError as error:
        return _fail(str(error))
    except typer.Exit as error:
        return error.exit_code
    except ClickException as error:
        hint = f"; see {error.ctx.command_path} --help" if isinstance(error, UsageError) and error.ctx else ""
        return _fail(error.format_message().rstrip(".") + hint)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted; what was finished is kept, the same command goes on from there")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # typer and rich exit by themselves where whoever read our output has left: that is no failed gate.
        _stop_writing()
        return 0
    except OSError as error:
        if error.filename is not None or error.errno not in DISK_FULL:
            return _unexpected(error)
        _stop_writing()
        return _fail("standard output: the disk is full; free some space and run the same command again")
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    """One line for a fault of specprobe itself; called where the error is handled."""
    if os.environ.get("SPECPROBE_TRACEBACK"):
        raise error
    if isinstance(error, OSError) and error.filename is None:
        _stop_writing()
    return _fail(
        f"unexpected {_described(error)}; a damaged file or a fault of specprobe: set SPECPROBE_TRACEBACK=1 and "
        "report what it shows, which may hold text of your log"
    )


def _fail(message: str) -> int:
    _error(message)
    return MUST_CHANGE


def _described(error: Exception) -> str:
    """Kind and place: the messages of libraries quote what they could not read, which may be a prompt."""
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [f" in {path.name}:{line}" for path, line in frames if path.is_relative_to(Path(__file__).parent)]
    place = own[-1] if own else ""
    return f"{type(error).__name__}{place}"


def _nowhere() -> IO[str]:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123


def _stop_writing() -> None:
    """Nobody can take what stdout still holds, and Python would complain about that once more at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _error(message: str) -> None:
    from specprobe.legible import legible
    from specprobe.notices import inert

    shown = f"error: {inert(' '.join(message.split()), 2000)}"
    # Where nobody can be told, the exit status still says it.
    with contextlib.suppress(OSError):
        print(legible(shown, sys.stderr.encoding or "ascii"), file=sys.stderr, flush=True)
