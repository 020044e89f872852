"""The memory of `analyze` does not grow with what is in the log, only by what tells its prompts apart."""

from __future__ import annotations

import pytest

from tests.benchmarks.peers.commands import peak_of_analyze

FEW, MANY = 4000, 16_000
# Not even the tokens of a prompt and its answer, at four bytes each.
BYTES_OF_TOKENS = 4 * 300


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("as_ids", [True, False], ids=["token ids", "text"])
def test_a_longer_log_takes_hardly_more_memory(as_ids):
    few, many = (peak_of_analyze(count, as_ids=as_ids) for count in (FEW, MANY))
    assert (many - few) / (MANY - FEW) < BYTES_OF_TOKENS / 2
