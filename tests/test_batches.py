"""Which items go through a model together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specprobe.batches import WINDOW, windows

sizes = st.lists(st.integers(1, 300) | st.integers(280, 300), max_size=3 * WINDOW)


@given(sizes, st.integers(600, 6000))
def test_batches_hold_everything_once_and_little_padding(sizes, most):
    seen: list[int] = []
    for number, window in enumerate(windows(sizes, most)):
        for batch in window:
            assert all(index // WINDOW == number for index in batch)
            padded = len(batch) * max(sizes[i] for i in batch)
            assert padded <= most
            # What is added to 1024 tokens or more leaves at most a tenth of the batch empty.
            if sum(sizes[i] for i in batch[:-1]) >= 1024:
                assert padded - sum(sizes[i] for i in batch) <= 0.1 * padded
            # Whoever is given the items of a batch makes the same batch of them.
            ((again,),) = windows([sizes[i] for i in batch], most)
            assert [batch[i] for i in again] == batch
            seen += batch
    assert sorted(seen) == list(range(len(sizes)))


def test_an_item_that_is_too_long_is_alone():
    assert list(windows([5, 700, 6], 600)) == [[[0, 2], [1]]]


def test_items_that_stay_together_count_as_so_many():
    assert list(windows([10, 10, 10], 40, counts=[2, 2, 1])) == [[[0, 1], [2]]]
