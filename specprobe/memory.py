"""How much memory this machine has, and how much of it is free."""

from __future__ import annotations

import os
import re
from pathlib import Path


def free_bytes() -> int | None:
    """What could be had, caches given up; None where the system does not say."""
    try:
        # sysconf's free pages leave the caches out.
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.M)
    return 1024 * int(found.group(1)) if found else None


def used_bytes() -> int | None:
    """What this process holds in memory now; None where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.M)
    return 1024 * int(found.group(1)) if found else None


def total_bytes() -> int | None:
    """All that is built in; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
