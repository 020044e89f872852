"""The benchmarks against peers run, at their smallest size; parts whose peer or model is not here are left out."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from tests.benchmarks.peers.__main__ import COMPARISONS, main


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_command_prints_a_table_and_nothing_is_far_off(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["peers", "--small"])
    threads = torch.get_num_threads()
    main()
    torch.set_num_threads(threads)
    out, err = capsys.readouterr()
    *table, last = out.splitlines()
    found = json.loads(last)
    assert list(found) == list(COMPARISONS)
    # Without a peer, or a second model for transformers.
    assert {name for name, rows in found.items() if not rows} == {"assisted", "suffix", "ngram"}
    assert len(table) == 2 + sum(map(len, found.values()))
    assert all(name in err for name in ("assisted", "suffix", "ngram"))
    # Without drafters that have a model, the grid is little more than its responses.
    (grid,), (scoring,), (start,) = (found[name] for name in ("grid", "scoring", "start"))
    assert max(grid["values"]) <= 2
    assert min(scoring["values"]) >= 0.5
    assert min(start["values"]) <= 3
