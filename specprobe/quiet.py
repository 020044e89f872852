"""Keeping the libraries below from writing to stderr, from starting slowly and from fighting over processors."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# How huggingface_hub (1 and 2, utils/_http.py) begins to say that it waits before it asks once more.
_WAITING = ("Retrying in", "Rate limited")


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
    """No progress bars and nothing below an error from transformers, and `quiet_hub`, while this lasts."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        with quiet_hub():
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Of the messages of huggingface_hub only that it waits for the Hub, in one line of ours, while this lasts."""
    # It puts up its own handler as it is imported.
    import huggingface_hub  # noqa: F401

    logger = logging.getLogger("huggingface_hub")
    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [_Waiting(logging.WARNING)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate


class _Waiting(logging.Handler):
    """Says that the Hub is waited for, whatever else is said."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(_WAITING):
            tell_once("the Hugging Face Hub does not answer, asking again; HF_HUB_OFFLINE=1 never asks it")


@cache
def tell_once(line: str) -> None:
    """A line on stderr, however often there is a reason for it."""
    print(line, file=sys.stderr, flush=True)
