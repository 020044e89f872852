"""What libraries below say is not the user's: of a Hub that does not answer there is one line."""

from __future__ import annotations

import logging

import pytest

from specprobe.quiet import quiet_hub, quiet_transformers, tell_once


@pytest.fixture(autouse=True)
def _untold():
    tell_once.cache_clear()
    yield
    tell_once.cache_clear()


def ask_in_vain() -> None:
    """What huggingface_hub 2 logs when nobody answers (utils/_http.py)."""
    logger = logging.getLogger("huggingface_hub.utils._http")
    for number in range(1, 6):
        logger.warning("'[Errno -2] Name or service not known' thrown while requesting HEAD https://h/a/config.json")
        logger.warning(f"Retrying in {number}s [Retry {number}/5].")
    logger.warning("something else")


@pytest.mark.parametrize("quiet", [quiet_hub, quiet_transformers])
def test_retries_are_told_in_one_line(quiet, capsys):
    logger = logging.getLogger("huggingface_hub")
    with quiet():
        before = list(logger.handlers)
        ask_in_vain()
    with quiet():
        ask_in_vain()
    assert logger.handlers != before
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "the Hugging Face Hub does not answer, asking again; HF_HUB_OFFLINE=1 never asks it\n"


def test_what_is_logged_afterwards_is_the_library_s_own_again():
    logger = logging.getLogger("huggingface_hub")
    with quiet_hub():
        pass
    handlers = list(logger.handlers)
    with pytest.raises(OSError, match="gone"), quiet_hub():
        raise OSError("gone")
    assert logger.handlers == handlers
