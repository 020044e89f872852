"""The system's Chromium, for tests that look at pages as readers do."""

from __future__ import annotations

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str:
    """Its path. Without one a developer's test is skipped, and CI's fails: there it is to be installed."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        said = "no Chromium: install one (apt-get install chromium), or name it in CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(said)
        pytest.skip(said)
    return found
