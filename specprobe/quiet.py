"""Keeping the libraries below from writing to stderr, from starting slowly and from fighting over processors."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import large libraries without garbage collection: they make millions of objects, none of them garbage.

    This saves a sixth of the time of importing torch and transformers. What was imported is then left out of later
    collections, the one at exit included (half a second).
    """
    # Threads that wait for each other by spinning stand in each other's way as soon as the machine has other work:
    # a decode step then takes ten times as long. OpenMP reads this when torch loads it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Otherwise tokenizers warns when the process forks.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and nothing below an error from transformers and huggingface_hub while this lasts."""
    from transformers.utils import logging as transformers_logging

    hub_logger = logging.getLogger("huggingface_hub")
    level, hub_level = transformers_logging.get_verbosity(), hub_logger.level
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    hub_logger.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        hub_logger.setLevel(hub_level)
        if bars:
            transformers_logging.enable_progress_bar()
