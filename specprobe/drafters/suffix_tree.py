"""The suffix tree of suffix decoding, as flat arrays for numba.

Rules: arctic-inference 0.1.1 (csrc/suffix_decoding/suffix_tree.cc), the version that vLLM asks for. Every token of a
sequence opens a suffix and extends the D newest ones, so a path is never deeper than D; a node counts the suffixes
that pass through it; children stand in an order of falling count whose ties are settled by history.

A suffix that has left all others behind is not stored token by token: its last node, a leaf, only points into the
text, where its tail is read. So a token that repeats nothing costs one node, and the tail of a running sequence grows
by itself. A leaf is unfolded by one node when a second suffix reaches it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Columns of `nodes`. PREV of a first child is the last child; GROUP is -1 for a child that never had a sibling.
TOKEN, COUNT, PARENT, CHILD, NEXT, PREV, GROUP, TAIL = range(8)
# Entries of `state`.
NUM_NODES, FREE_NODE, NUM_GROUPS, FREE_GROUP, TEXT_END, RUN_START, NUM_ACTIVE, NUM_REMOVED = range(8)
# Columns of `groups`: siblings of equal count stand together; a group knows its first member and its size.
FIRST, SIZE = range(2)

ROOT = 0
NONE = -1
TEXT_GAP = -1  # after every sequence, so that no tail runs into the next one


class SuffixTree(NamedTuple):
    """The arrays of one tree; a NamedTuple, so that compiled functions can be cached on disk.

    `nodes` [capacity, 8] int32, `groups` [capacity, 2] int32, `table` [power of two] int32 (node ids by parent and
    token, for children that have had a sibling), `text` int32, `active` [D + 1] int32 (active[m]: the node of the
    newest m tokens, while they are stored as a node), `state` [8] int64.
    """

    nodes: NDArray[np.int32]
    groups: NDArray[np.int32]
    table: NDArray[np.int32]
    text: NDArray[np.int32]
    active: NDArray[np.int32]
    state: NDArray[np.int64]


def new_tree(max_depth: int, num_tokens: int) -> SuffixTree:
    """An empty tree with room for a sequence of `num_tokens`."""
    tree = SuffixTree(
        nodes=np.empty((0, 8), dtype=np.int32),
        groups=np.empty((0, 2), dtype=np.int32),
        table=np.zeros(0, dtype=np.int32),
        text=np.empty(0, dtype=np.int32),
        active=np.zeros(max_depth + 1, dtype=np.int32),
        state=np.array([1, NONE, 0, NONE, 0, 0, 0, 0], dtype=np.int64),
    )
    tree = with_room(tree, num_tokens)
    clear_tree(tree)
    return tree


def with_room(tree: SuffixTree, num_tokens: int) -> SuffixTree:
    """The same tree, its arrays long enough for `num_tokens` more tokens of one sequence."""
    # A token touches at most D suffixes, and each can add a leaf and unfold one.
    most_new_nodes = 2 * (tree.active.size - 1) * num_tokens
    needed = int(tree.state[NUM_NODES]) + most_new_nodes
    nodes, groups, table, text = tree.nodes, tree.groups, tree.table, tree.text
    if needed > nodes.shape[0]:
        # np.empty leaves pages untouched until they are used: a wide margin costs no memory.
        capacity = needed + nodes.shape[0]
        nodes = np.empty((capacity, 8), dtype=np.int32)
        nodes[: tree.nodes.shape[0]] = tree.nodes
        groups = np.empty((capacity, 2), dtype=np.int32)
        groups[: tree.groups.shape[0]] = tree.groups
    if 2 * int(tree.state[NUM_NODES]) + 64 * num_tokens > table.size:
        size = 1024
        while size < 4 * int(tree.state[NUM_NODES]) + 128 * num_tokens:
            size *= 2
        table = np.zeros(size, dtype=np.int32)
        _fill_table(table, nodes, int(tree.state[NUM_NODES]))
    text_needed = int(tree.state[TEXT_END]) + num_tokens + 2
    if text_needed > text.size:
        text = np.empty(2 * text_needed, dtype=np.int32)
        text[: tree.text.size] = tree.text
    return SuffixTree(nodes, groups, table, text, tree.active, tree.state)


def copy_tree(tree: SuffixTree) -> SuffixTree:
    """An independent tree with the same content."""
    return SuffixTree(
        tree.nodes.copy(),
        tree.groups.copy(),
        tree.table.copy(),
        tree.text.copy(),
        tree.active.copy(),
        tree.state.copy(),
    )


@njit(cache=True, nogil=True)
def _fill_table(table: NDArray[np.int32], nodes: NDArray[np.int32], num_nodes: int) -> None:
    """Enter every child that has had a sibling."""
    for node in range(1, num_nodes):
        if nodes[node, COUNT] > 0 and nodes[node, GROUP] != NONE:
            slot = _home(table, nodes[node, PARENT], nodes[node, TOKEN])
            while table[slot] != 0:
                slot = (slot + 1) & (table.size - 1)
            table[slot] = node


@njit(cache=True, nogil=True)
def clear_tree(tree: SuffixTree) -> None:
    """Forget everything, keep the memory."""
    tree.table[:] = 0
    tree.state[:] = 0
    tree.state[NUM_NODES] = 1
    tree.state[FREE_NODE] = NONE
    tree.state[FREE_GROUP] = NONE
    _reset_node(tree.nodes, ROOT, NONE, NONE, NONE)
    tree.nodes[ROOT, COUNT] = 0
    tree.text[0] = TEXT_GAP


@njit(cache=True, nogil=True)
def start_sequence(tree: SuffixTree) -> None:
    """Begin a sequence; the one before it can no longer be extended."""
    if tree.state[TEXT_END] > 0:
        tree.state[TEXT_END] += 1
    tree.state[RUN_START] = tree.state[TEXT_END]
    tree.state[NUM_ACTIVE] = 0
    tree.text[tree.state[TEXT_END]] = TEXT_GAP
    tree.active[0] = ROOT


@njit(cache=True, nogil=True)
def resume_sequence(tree: SuffixTree, start: int, length: int, active: NDArray[np.int32], num_active: int) -> None:
    """Go on with a sequence whose tokens so far are `text[start : start + length]`, after others were extended.

    `active` [D + 1], `num_active`: what the tree held of it when its newest token was appended. Where another sequence
    has since come to the end of a tail of this one, the tail is a node now, and that suffix is active again.
    """
    end = start + length
    tree.state[RUN_START] = start
    tree.state[TEXT_END] = end
    tree.text[end] = TEXT_GAP
    tree.active[:] = active
    tree.active[0] = ROOT
    # What holds for a suffix holds for all shorter ones.
    while num_active < min(length, tree.active.size - 1):
        node, tail = find_path(tree, tree.text, end - num_active - 1, num_active + 1)
        if tail != NONE or tree.nodes[node, TAIL] != NONE:
            break
        num_active += 1
        tree.active[num_active] = node
    tree.state[NUM_ACTIVE] = num_active


@njit(cache=True, nogil=True)
def append_token(tree: SuffixTree, token: int) -> None:
    """Extend the running sequence by one token.

    Longest suffix first: where a shorter suffix reaches the leaf of a longer one of the same sequence, that leaf's
    tail must already hold this token.
    """
    nodes, text, active, state = tree.nodes, tree.text, tree.active, tree.state
    end = state[TEXT_END]
    text[end] = token
    text[end + 1] = TEXT_GAP
    state[TEXT_END] = end + 1
    max_depth = active.size - 1
    num_active = 0
    for m in range(min(state[NUM_ACTIVE], max_depth - 1), -1, -1):
        parent = active[m]
        child = find_child(tree, parent, token)
        if child == NONE:
            _add_child(tree, parent, token, end + 1)
            continue
        _raise_count(tree, child)
        tail = nodes[child, TAIL]
        if tail != NONE:
            nodes[child, TAIL] = NONE
            if text[tail] != TEXT_GAP and m + 1 < max_depth:
                _add_child(tree, child, text[tail], tail + 1)
        active[m + 1] = child
        num_active = max(num_active, m + 1)
    state[NUM_ACTIVE] = num_active


@njit(cache=True, nogil=True)
def find_child(tree: SuffixTree, parent: int, token: int) -> int:
    """The child of `parent` for `token`, or NONE."""
    nodes = tree.nodes
    first = nodes[parent, CHILD]
    if first == NONE or nodes[first, TOKEN] == token:
        return first
    if nodes[first, NEXT] == NONE:
        return NONE
    slot = _home(tree.table, parent, token)
    while tree.table[slot] != 0:
        node = tree.table[slot]
        if nodes[node, PARENT] == parent and nodes[node, TOKEN] == token:
            return node
        slot = (slot + 1) & (tree.table.size - 1)
    return NONE


@njit(cache=True, nogil=True)
def find_path(tree: SuffixTree, tokens: NDArray[np.int32], start: int, length: int) -> tuple[int, int]:
    """Where `tokens[start : start + length]` ends in the tree: its node, and its place in that node's tail or NONE.

    (NONE, NONE) where the tree does not hold it.
    """
    node = ROOT
    tail = NONE
    for position in range(start, start + length):
        if tail == NONE and tree.nodes[node, CHILD] == NONE:
            tail = tree.nodes[node, TAIL]
            if tail == NONE:
                return NONE, NONE
        if tail != NONE:
            if tree.text[tail] != tokens[position]:
                return NONE, NONE
            tail += 1
            continue
        node = find_child(tree, node, tokens[position])
        if node == NONE:
            return NONE, NONE
    return node, tail


@njit(cache=True, nogil=True)
def remove_sequence(tree: SuffixTree, start: int, length: int) -> None:
    """Take a finished sequence, `text[start : start + length]`, out of the tree again."""
    nodes, text = tree.nodes, tree.text
    tree.state[NUM_REMOVED] += 1
    max_depth = tree.active.size - 1
    for suffix in range(start, start + length):
        node = ROOT
        for position in range(suffix, min(suffix + max_depth, start + length)):
            child = find_child(tree, node, text[position])
            is_last = nodes[child, TAIL] != NONE or nodes[child, COUNT] == 1
            below = nodes[child, CHILD]
            _lower_count(tree, child)
            if is_last:
                # Nothing but this suffix passes here: what hangs below is its own chain of single nodes.
                while below != NONE:
                    deeper = nodes[below, CHILD]
                    _lower_count(tree, below)
                    below = deeper
                break
            node = child


@njit(cache=True, nogil=True)
def forget_text(tree: SuffixTree, length: int) -> None:
    """Drop the first `length` tokens of the text, of sequences that were all taken out: no tail points there."""
    nodes, text, state = tree.nodes, tree.text, tree.state
    kept = state[TEXT_END] + 1 - length
    for place in range(kept):
        text[place] = text[length + place]
    state[TEXT_END] -= length
    state[RUN_START] -= length
    for node in range(1, state[NUM_NODES]):
        if nodes[node, COUNT] > 0 and nodes[node, TAIL] != NONE:
            nodes[node, TAIL] -= length


@njit(cache=True, nogil=True)
def _home(table: NDArray[np.int32], parent: int, token: int) -> np.int64:
    mixed = np.uint64(parent) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(token) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64((mixed >> np.uint64(32)) & np.uint64(table.size - 1))


@njit(cache=True, nogil=True)
def _reset_node(nodes: NDArray[np.int32], node: int, parent: int, token: int, tail: int) -> None:
    nodes[node, TOKEN] = token
    nodes[node, COUNT] = 1
    nodes[node, PARENT] = parent
    nodes[node, CHILD] = NONE
    nodes[node, NEXT] = NONE
    nodes[node, PREV] = node
    nodes[node, GROUP] = NONE
    nodes[node, TAIL] = tail


@njit(cache=True, nogil=True)
def _add_child(tree: SuffixTree, parent: int, token: int, tail: int) -> None:
    """A new leaf of count 1, last among its siblings."""
    nodes, groups, state = tree.nodes, tree.groups, tree.state
    if state[FREE_NODE] != NONE:
        node = state[FREE_NODE]
        state[FREE_NODE] = nodes[node, NEXT]
    else:
        node = state[NUM_NODES]
        state[NUM_NODES] += 1
    _reset_node(nodes, node, parent, token, tail)
    first = nodes[parent, CHILD]
    if first == NONE:
        nodes[parent, CHILD] = node
        return
    if nodes[first, GROUP] == NONE:
        _open_group(tree, first)
        _enter(tree, first)
    last = nodes[first, PREV]
    nodes[last, NEXT] = node
    nodes[node, PREV] = last
    nodes[first, PREV] = node
    if nodes[last, COUNT] == 1:
        nodes[node, GROUP] = nodes[last, GROUP]
        groups[nodes[last, GROUP], SIZE] += 1
    else:
        _open_group(tree, node)
    _enter(tree, node)


@njit(cache=True, nogil=True)
def _raise_count(tree: SuffixTree, node: int) -> None:
    """Count one more suffix through `node` and move it among its siblings as arctic-inference does.

    A riser that is not the first of its equals goes before all of them. The first of its equals joins the next
    higher group at its head, if that group is exactly one above, and stays where it is otherwise.
    """
    nodes, groups = tree.nodes, tree.groups
    count = nodes[node, COUNT]
    nodes[node, COUNT] = count + 1
    group = nodes[node, GROUP]
    if group == NONE:
        return
    first = groups[group, FIRST]
    head = nodes[nodes[node, PARENT], CHILD]
    if node == first:
        above = NONE if node == head else nodes[node, PREV]
        _leave_group(tree, node)
        if above != NONE and nodes[above, COUNT] == count + 1:
            target = nodes[above, GROUP]
            _move_before(tree, node, groups[target, FIRST])
            groups[target, FIRST] = node
            groups[target, SIZE] += 1
            nodes[node, GROUP] = target
        else:
            _open_group(tree, node)
        return
    above = NONE if first == head else nodes[first, PREV]
    _leave_group(tree, node)
    _move_before(tree, node, first)
    if above != NONE and nodes[above, COUNT] == count + 1:
        nodes[node, GROUP] = nodes[above, GROUP]
        groups[nodes[above, GROUP], SIZE] += 1
    else:
        _open_group(tree, node)


@njit(cache=True, nogil=True)
def _lower_count(tree: SuffixTree, node: int) -> None:
    """Count one suffix less through `node`: the mirror image of `_raise_count`; at 0 the node goes."""
    nodes, groups = tree.nodes, tree.groups
    count = nodes[node, COUNT]
    nodes[node, COUNT] = count - 1
    parent = nodes[node, PARENT]
    if nodes[node, GROUP] == NONE:
        if count == 1:
            nodes[parent, CHILD] = NONE
            _free_node(tree, node)
        return
    if count == 1:
        _leave_group(tree, node)
        _unlink(tree, node)
        _withdraw(tree, node)
        _free_node(tree, node)
        return
    lower = nodes[node, NEXT]
    while lower != NONE and nodes[lower, COUNT] == count:
        lower = nodes[lower, NEXT]
    _leave_group(tree, node)
    if nodes[node, NEXT] != lower:
        if lower == NONE:
            _unlink(tree, node)
            head = nodes[parent, CHILD]
            last = nodes[head, PREV]
            nodes[last, NEXT] = node
            nodes[node, PREV] = last
            nodes[node, NEXT] = NONE
            nodes[head, PREV] = node
        else:
            _move_before(tree, node, lower)
    if lower != NONE and nodes[lower, COUNT] == count - 1:
        target = nodes[lower, GROUP]
        groups[target, FIRST] = node
        groups[target, SIZE] += 1
        nodes[node, GROUP] = target
    else:
        _open_group(tree, node)


@njit(cache=True, nogil=True)
def _unlink(tree: SuffixTree, node: int) -> None:
    """Take `node` out of its list of siblings."""
    nodes = tree.nodes
    parent = nodes[node, PARENT]
    following, before = nodes[node, NEXT], nodes[node, PREV]
    head = nodes[parent, CHILD]
    if node == head:
        nodes[parent, CHILD] = following
        if following != NONE:
            nodes[following, PREV] = before
        return
    nodes[before, NEXT] = following
    if following != NONE:
        nodes[following, PREV] = before
    else:
        nodes[head, PREV] = before


@njit(cache=True, nogil=True)
def _move_before(tree: SuffixTree, node: int, other: int) -> None:
    """Put `node` directly before its sibling `other`."""
    nodes = tree.nodes
    if nodes[node, NEXT] == other:
        return
    _unlink(tree, node)
    parent = nodes[node, PARENT]
    before = nodes[other, PREV]
    nodes[node, NEXT] = other
    nodes[node, PREV] = before
    nodes[other, PREV] = node
    if nodes[parent, CHILD] == other:
        nodes[parent, CHILD] = node
    else:
        nodes[before, NEXT] = node


@njit(cache=True, nogil=True)
def _open_group(tree: SuffixTree, node: int) -> None:
    """Give `node` a group of its own."""
    groups, state = tree.groups, tree.state
    if state[FREE_GROUP] != NONE:
        group = state[FREE_GROUP]
        state[FREE_GROUP] = groups[group, FIRST]
    else:
        group = state[NUM_GROUPS]
        state[NUM_GROUPS] += 1
    groups[group, FIRST] = node
    groups[group, SIZE] = 1
    tree.nodes[node, GROUP] = group


@njit(cache=True, nogil=True)
def _leave_group(tree: SuffixTree, node: int) -> None:
    """Take `node` out of its group, before it moves in the list."""
    nodes, groups, state = tree.nodes, tree.groups, tree.state
    group = nodes[node, GROUP]
    groups[group, SIZE] -= 1
    if groups[group, SIZE] == 0:
        groups[group, FIRST] = state[FREE_GROUP]
        state[FREE_GROUP] = group
    elif groups[group, FIRST] == node:
        groups[group, FIRST] = nodes[node, NEXT]


@njit(cache=True, nogil=True)
def _enter(tree: SuffixTree, node: int) -> None:
    """Enter a child in the hash table."""
    table = tree.table
    slot = _home(table, tree.nodes[node, PARENT], tree.nodes[node, TOKEN])
    while table[slot] != 0:
        slot = (slot + 1) & (table.size - 1)
    table[slot] = node


@njit(cache=True, nogil=True)
def _withdraw(tree: SuffixTree, node: int) -> None:
    """Take a child out of the hash table; later entries of the same run move up (linear probing)."""
    nodes, table = tree.nodes, tree.table
    mask = table.size - 1
    gap = _home(table, nodes[node, PARENT], nodes[node, TOKEN])
    while table[gap] != node:
        gap = (gap + 1) & mask
    slot = gap
    while True:
        slot = (slot + 1) & mask
        other = table[slot]
        if other == 0:
            break
        home = _home(table, nodes[other, PARENT], nodes[other, TOKEN])
        if ((slot - home) & mask) >= ((slot - gap) & mask):
            table[gap] = other
            gap = slot
    table[gap] = 0


@njit(cache=True, nogil=True)
def _free_node(tree: SuffixTree, node: int) -> None:
    tree.nodes[node, COUNT] = 0
    tree.nodes[node, NEXT] = tree.state[FREE_NODE]
    tree.state[FREE_NODE] = node
