"""The memory of `analyze` does not grow with what is in the log, only by what tells its prompts apart."""

from __future__ import annotations

import pytest

from tests.benchmarks.peers.commands import peak_of_analyze

FEW, MANY = 4000, 16_000
# Not even the tokens of a prompt and its answer, at four bytes each.
BYTES_OF_TOKENS = 4 * 300


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("drafter", "as_ids"), [("ngram", True), ("ngram", False), ("suffix:max_cached_requests=1000", True)]
)
def test_a_longer_log_takes_hardly_more_memory(drafter, as_ids):
    few, many = (peak_of_analyze(count, drafter, as_ids=as_ids) for count in (FEW, MANY))
    assert (many - few) / (MANY - FEW) < BYTES_OF_TOKENS / 2
