"""Work for the workers of test_ray.py, which import it by its name."""

import os
import signal
from pathlib import Path

from specprobe.errors import SpecprobeError


def plain(bench, item):
    return item * 2, os.getpid(), bench.target.record.fingerprint


def deadly_once(bench, item):
    """`item`: a number, and a file that is there once a worker has died of it; None for no danger."""
    number, mark = item
    if mark is not None and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def deadly(bench, item):
    os.kill(os.getpid(), signal.SIGKILL)


def refused(bench, item):
    raise SpecprobeError(f"piece {item}: no")
