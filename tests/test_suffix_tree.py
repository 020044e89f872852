"""The states of the suffix tree against a tree that has a node for each string: counts, order of children, room."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Trie

from specprobe.drafters.suffix_tree import (
    CHILD,
    COUNT,
    FREE_EDGE,
    FREE_GROUP,
    FREE_STATE,
    LINK,
    NEXT,
    NONE,
    NUM_APPENDED,
    NUM_EDGES,
    NUM_ENTRIES,
    NUM_GROUPS,
    NUM_REMOVED,
    NUM_STATES,
    ROOT,
    RUN_START,
    SMALLEST_CAPACITY,
    TABLE_SIZE,
    TARGET,
    TEXT_GAP,
    TOKEN,
    append_token,
    copy_tree,
    find_path,
    new_tree,
    remove_sequence,
    start_sequence,
    with_room,
)


def children(tree, state: int, tail: int) -> list[tuple[int, int]]:
    """(token, count) of each, in order."""
    if tail != NONE:
        return [] if tree.text[tail] == TEXT_GAP else [(int(tree.text[tail]), 1)]
    found, edge = [], tree.states[state, CHILD]
    while edge != NONE:
        target = tree.edges[edge, TARGET]
        found.append((int(tree.edges[edge, TOKEN]), 1 if target < 0 else int(tree.states[target, COUNT])))
        edge = tree.edges[edge, NEXT]
    return found


def assert_equals(tree, trie: Trie) -> None:
    """Every string of the one is in the other, with the same children."""
    waiting = [([], trie.root)]
    while waiting:
        string, node = waiting.pop()
        state, tail = find_path(tree, np.array(string, dtype=np.int32), 0, len(string))
        expected = [(child["token"], child["count"]) for child in node["children"]]
        if len(string) < trie.max_depth:
            assert children(tree, state, tail) == expected, string
        waiting += [([*string, child["token"]], child) for child in node["children"]]


def free(tree, head: int, column: int, array) -> int:
    """How many entries a list of free ones has."""
    count, entry = 0, tree.state[head]
    while entry != NONE:
        count, entry = count + 1, array[entry, column]
    return count


def assert_fits(tree) -> None:
    states = tree.state[NUM_STATES] - free(tree, FREE_STATE, LINK, tree.states)
    edges = tree.state[NUM_EDGES] - free(tree, FREE_EDGE, NEXT, tree.edges)
    assert edges < states + tree.state[NUM_APPENDED] - tree.state[NUM_REMOVED]
    assert tree.state[NUM_STATES] <= len(tree.states)
    assert tree.state[NUM_EDGES] <= len(tree.edges)
    assert tree.state[NUM_GROUPS] <= len(tree.groups)
    assert tree.state[NUM_ENTRIES] < tree.state[TABLE_SIZE] <= tree.table.size


def grow(tree, trie: Trie, sequence: list[int]):
    tree = with_room(tree, len(sequence))
    start_sequence(tree)
    for length, token in enumerate(sequence, 1):
        append_token(tree, token)
        trie.append(sequence, length)
        assert_fits(tree)
    return tree, (int(tree.state[RUN_START]), len(sequence))


@given(
    sequences=st.lists(
        st.lists(st.integers(0, 2) | st.integers(0, 40), min_size=1, max_size=25), min_size=1, max_size=6
    ),
    max_depth=st.integers(1, 7),
    kept=st.integers(0, 4),
)
@settings(max_examples=100, deadline=None)
def test_counts_and_children_are_those_of_a_node_for_each_string(sequences, max_depth, kept):
    tree, trie, held = new_tree(max_depth, 1), Trie(max_depth), []
    for sequence in sequences:
        tree, place = grow(tree, trie, sequence)
        held.append((place, sequence))
        assert_equals(tree, trie)
        while len(held) > kept:
            place, oldest = held.pop(0)
            remove_sequence(tree, *place)
            trie.remove(oldest)
            assert_equals(tree, trie)
    assert_equals(copy_tree(tree), trie)
    for place, _ in held:
        remove_sequence(tree, *place)
    # Nothing is left but the root.
    assert tree.states[ROOT, CHILD] == NONE
    assert free(tree, FREE_STATE, LINK, tree.states) == tree.state[NUM_STATES] - 1
    assert free(tree, FREE_EDGE, NEXT, tree.edges) == tree.state[NUM_EDGES]
    assert free(tree, FREE_GROUP, 0, tree.groups) == tree.state[NUM_GROUPS]
    assert tree.state[NUM_ENTRIES] == 0
    assert not tree.table[: tree.state[TABLE_SIZE]].any()


def test_a_tree_of_depth_one_has_room_for_tokens_that_all_differ():
    tokens = list(range(3 * SMALLEST_CAPACITY))
    tree = with_room(new_tree(1, 1), len(tokens))
    start_sequence(tree)
    for token in tokens:
        append_token(tree, token)
    assert_fits(tree)
    assert children(tree, ROOT, NONE) == [(token, 1) for token in tokens]


def test_room_goes_by_what_is_held_and_not_by_what_ever_was():
    rng = np.random.default_rng(0)
    tree, held = new_tree(8, 1), []
    sizes = []
    for _ in range(60):
        tokens = rng.integers(0, 50, 400)
        tree = with_room(tree, len(tokens))
        start_sequence(tree)
        for token in tokens:
            append_token(tree, token)
        held.append((int(tree.state[RUN_START]), len(tokens)))
        if len(held) > 2:
            remove_sequence(tree, *held.pop(0))
        sizes.append(len(tree.edges))
    assert sizes[-1] == sizes[4]


def test_what_has_been_seen_twice_costs_nothing_more():
    passage = np.random.default_rng(0).integers(0, 50, 400).tolist()
    tree, sizes = new_tree(24, 1), []
    for _ in range(5):
        tree, _ = grow(tree, Trie(24), passage)
        sizes.append((int(tree.state[NUM_STATES]), int(tree.state[NUM_EDGES])))
    assert sizes[0] < sizes[1] == sizes[2] == sizes[4]
    # Less than two states and three edges for each token; a node for each string would be up to 24.
    assert sizes[4][0] < 2 * 400
    assert sizes[4][1] < 3 * 400
