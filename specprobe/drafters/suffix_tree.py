"""The tree of suffix decoding, kept as a suffix automaton in flat arrays for numba.

Rules: arctic-inference 0.1.1 (csrc/suffix_decoding/suffix_tree.cc), the version that vLLM asks for. Its tree holds
every string of at most D tokens that occurs in a sequence; a node, which is such a string, counts its occurrences;
children stand in an order of falling count whose ties are settled by history.

Strings that have always occurred at the same places have had the same counts and the same children in the same order:
they are one *state* here, where the tree has a node for each. The strings of a state are the ends of its longest one,
down to the one that is longer by a token than the longest of the state that its *link* leads to (Blumer et al. 1985,
cut off at D tokens). So the ends of a text are a chain of links, and a token raises one count for each state of that
chain, in most texts a few, where the tree has up to D nodes to raise. A state is split when a token reaches only the
shorter ones of its strings. Nothing is ever joined again: a removed sequence may have left another order of children.

A string that has occurred once has no state: the edge that leads to it points into the text, where all that follows
it, its *tail*, is read. So a token that repeats nothing costs an edge, and the tail of a running sequence grows by
itself. A second occurrence makes it a state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Columns of `states`. LENGTH: of the longest string; CHILD: the first of its edges.
LENGTH, LINK, COUNT, CHILD = range(4)
# Columns of `edges`. TARGET: a state, or ~i for a tail that begins at text[i]. PREV of a first edge is the last one.
# GROUP is NONE for an edge that never had a sibling.
TOKEN, TARGET, SOURCE, NEXT, PREV, GROUP = range(6)
# Columns of `groups`: siblings of equal count stand together.
FIRST, SHARED_COUNT = range(2)
# Entries of `state`.
NUM_STATES, FREE_STATE, NUM_EDGES, FREE_EDGE, NUM_GROUPS, FREE_GROUP = range(6)
TABLE_SIZE, NUM_ENTRIES, TEXT_END, RUN_START, NEWEST, NUM_APPENDED, NUM_REMOVED = range(6, 13)

ROOT = 0
NONE = -1
TEXT_GAP = -1  # after every sequence, so that no tail runs into the next one
SMALLEST_TABLE = 256
SMALLEST_CAPACITY = 4096

# For functions that keep no array beyond a call. Counting who holds one, which Numba does at each use of a field and
# with atomic instructions, would take them more time than all else.
borrowing = njit(cache=True, nogil=True, _nrt=False)
# For those called for each state of a chain, where passing all these arrays would take longer than the work.
borrowing_inline = njit(cache=True, nogil=True, _nrt=False, forceinline=True)


class SuffixTree(NamedTuple):
    """The arrays of one tree; a NamedTuple, so that compiled functions can be cached on disk.

    `states` [capacity, 4] int32, `edges` [capacity, 6] int32, `groups` [capacity, 2] int32, `table` [power of two]
    int32 (1 + an edge, by source and token, for edges that have had a sibling; its first TABLE_SIZE places are in use),
    `text` int32, `state` [13] int64. There NEWEST is the state of the longest end of the running sequence that has one;
    NUM_APPENDED and NUM_REMOVED count tokens, and one more for each sequence. `max_depth`: D.
    """

    states: NDArray[np.int32]
    edges: NDArray[np.int32]
    groups: NDArray[np.int32]
    table: NDArray[np.int32]
    text: NDArray[np.int32]
    state: NDArray[np.int64]
    max_depth: int


def new_tree(max_depth: int, num_tokens: int) -> SuffixTree:
    """An empty tree with room for a sequence of `num_tokens`."""
    tree = SuffixTree(
        states=np.empty((0, 4), dtype=np.int32),
        edges=np.empty((0, 6), dtype=np.int32),
        groups=np.empty((0, 2), dtype=np.int32),
        table=np.empty(0, dtype=np.int32),
        text=np.empty(0, dtype=np.int32),
        state=np.zeros(13, dtype=np.int64),
        max_depth=max_depth,
    )
    tree = with_room(tree, num_tokens)
    clear_tree(tree)
    return tree


def with_room(tree: SuffixTree, num_tokens: int) -> SuffixTree:
    """The same tree, its arrays long enough for `num_tokens` more tokens of one sequence.

    A token makes two states at most: one of a string that occurs again, and one by a split. There are fewer edges than
    states and tokens held: one leads to each state by its shortest string, and any other one begins, with the shortest
    string of its source, a way that ends after D tokens or with its sequence, which is another string for each of them.
    """
    state = tree.state
    held = int(state[NUM_APPENDED] - state[NUM_REMOVED]) + num_tokens + 1
    most_states = int(state[NUM_STATES]) + 2 * num_tokens
    most_edges = max(int(state[NUM_EDGES]), most_states + held)
    capacity, text_size = tree.edges.shape[0], tree.text.size
    text_end = int(state[TEXT_END]) + num_tokens + 2
    if most_edges <= capacity and text_end <= text_size:
        return tree
    # What is not used yet costs no memory, so a wide margin does not either.
    if most_edges > capacity:
        capacity = max(2 * most_edges, SMALLEST_CAPACITY)
    if text_end > text_size:
        text_size = max(2 * text_end, SMALLEST_CAPACITY)
    return _moved(tree, capacity, text_size)


def copy_tree(tree: SuffixTree) -> SuffixTree:
    """An independent tree with the same content."""
    return _moved(tree, tree.edges.shape[0], tree.text.size)._replace(state=tree.state.copy())


def _moved(tree: SuffixTree, capacity: int, text_size: int) -> SuffixTree:
    """The same tree in larger arrays; its `state` is shared."""

    def moved(array: NDArray[np.int32], num_used: int, size: int) -> NDArray[np.int32]:
        larger = np.empty((size, *array.shape[1:]), dtype=np.int32)
        larger[:num_used] = array[:num_used]
        return larger

    state = tree.state
    return tree._replace(
        states=moved(tree.states, int(state[NUM_STATES]), capacity),
        edges=moved(tree.edges, int(state[NUM_EDGES]), capacity),
        groups=moved(tree.groups, int(state[NUM_GROUPS]), capacity),
        # Never all full, however many edges there are.
        table=moved(tree.table, int(state[TABLE_SIZE]), 1 << (capacity + capacity // 4).bit_length()),
        text=moved(tree.text, tree.text.size, text_size),
    )


@borrowing
def clear_tree(tree: SuffixTree) -> None:
    """Forget everything, keep the memory."""
    state = tree.state
    state[:] = 0
    state[TABLE_SIZE] = SMALLEST_TABLE
    tree.table[:SMALLEST_TABLE] = 0
    state[FREE_STATE] = NONE
    state[FREE_EDGE] = NONE
    state[FREE_GROUP] = NONE
    state[NEWEST] = _new_state(tree, 0, NONE, 0)
    tree.text[0] = TEXT_GAP


@borrowing
def start_sequence(tree: SuffixTree) -> None:
    """Begin a sequence; the one before it can no longer be extended."""
    state = tree.state
    if state[TEXT_END] > 0:
        state[TEXT_END] += 1
    state[RUN_START] = state[TEXT_END]
    state[NEWEST] = ROOT
    state[NUM_APPENDED] += 1
    tree.text[state[TEXT_END]] = TEXT_GAP


@borrowing
def resume_sequence(tree: SuffixTree, start: int, length: int, newest: int) -> None:
    """Go on with a sequence whose tokens so far are `text[start : start + length]`, after others were extended.

    `newest`: NEWEST as it was when its last token was appended. Where another sequence has since come to the end of a
    tail of this one, a longer end has a state now.
    """
    state = tree.state
    end = start + length
    state[RUN_START] = start
    state[TEXT_END] = end
    if length == 0:
        state[NUM_APPENDED] += 1
    tree.text[end] = TEXT_GAP
    longest = min(length, tree.max_depth)
    while tree.states[newest, LENGTH] < longest:
        # What has no state has none for any longer end.
        match = tree.states[newest, LENGTH] + 1
        longer, _ = find_path(tree, tree.text, end - match, match)
        if longer == NONE:
            break
        newest = longer
    state[NEWEST] = newest


@borrowing
def append_token(tree: SuffixTree, token: int) -> None:
    """Extend the running sequence by one token: a step for each state of the chain of its ends, longest first.

    Edges of neighbours in the chain may lead to the same place; then that is raised once. The places form the chain of
    the longer ends.
    """
    states, edges, text, state = tree.states, tree.edges, tree.text, tree.state
    end = state[TEXT_END]
    text[end] = token
    text[end + 1] = TEXT_GAP
    state[TEXT_END] = end + 1
    state[NUM_APPENDED] += 1
    source = _extensible(tree, state[NEWEST])
    length = min(states[source, LENGTH], tree.max_depth - 1)
    newest, unfolded, tail = ROOT, NONE, NONE
    # Of the last edge that was there: where it led, and the state that it leads to now.
    led_to, target = NONE, ROOT
    has_target = False
    while source != NONE:
        edge = find_edge(tree, source, token)
        if edge == NONE:
            _add_edge(tree, source, token, ~(end + 1))
        else:
            if not has_target or edges[edge, TARGET] != led_to:
                led_to = edges[edge, TARGET]
                reached = led_to
                if led_to < 0:
                    reached = unfolded = _new_state(tree, length + 1, ROOT, 1)
                    tail = ~led_to
                elif states[led_to, LENGTH] > length + 1:
                    reached = _split(tree, led_to, length + 1)
                if has_target:
                    states[target, LINK] = reached
                else:
                    newest = reached
                target, has_target = reached, True
                states[target, COUNT] += 1
            edges[edge, TARGET] = target
            _raise_edge(tree, edge)
        source = states[source, LINK]
        length = states[source, LENGTH]
    if unfolded != NONE and text[tail] != TEXT_GAP and _is_extensible(tree, unfolded):
        _add_edge(tree, unfolded, text[tail], ~(tail + 1))
    state[NEWEST] = newest


@borrowing_inline
def find_edge(tree: SuffixTree, source: int, token: int) -> int:
    """The edge of `source` for `token`, or NONE."""
    edges, table = tree.edges, tree.table
    first = tree.states[source, CHILD]
    if first == NONE or edges[first, TOKEN] == token:
        return first
    if edges[first, NEXT] == NONE:
        return NONE
    mask = tree.state[TABLE_SIZE] - 1
    slot = _home(source, token) & mask
    while table[slot] != 0:
        edge = table[slot] - 1
        if edges[edge, SOURCE] == source and edges[edge, TOKEN] == token:
            return edge
        slot = (slot + 1) & mask
    return NONE


@borrowing
def find_path(tree: SuffixTree, tokens: NDArray[np.int32], start: int, length: int) -> tuple[int, int]:
    """Where `tokens[start : start + length]` ends: a state and NONE, or NONE and its place in a tail.

    (NONE, NONE) where it does not occur.
    """
    state, tail = ROOT, NONE
    for position in range(start, start + length):
        if tail != NONE:
            if tree.text[tail] != tokens[position]:
                return NONE, NONE
            tail += 1
            continue
        edge = find_edge(tree, state, tokens[position])
        if edge == NONE:
            return NONE, NONE
        state = tree.edges[edge, TARGET]
        if state < 0:
            state, tail = NONE, ~state
    return state, tail


@borrowing
def remove_sequence(tree: SuffixTree, start: int, length: int) -> None:
    """Take a finished sequence, `text[start : start + length]`, out of the tree again."""
    states, edges = tree.states, tree.edges
    tree.state[NUM_REMOVED] += length + 1
    newest = ROOT
    for position in range(start, start + length):
        source = newest
        if source != _extensible(tree, source):
            source = _free_if_gone(tree, source)
        newest, target = ROOT, ROOT
        while source != NONE:
            edge = find_edge(tree, source, tree.text[position])
            led_to = edges[edge, TARGET]
            if led_to >= 0 and led_to != target:
                target = led_to
                states[target, COUNT] -= 1
                if newest == ROOT:
                    newest = target
            if led_to < 0 or states[target, COUNT] == 0:
                _remove_edge(tree, edge)
            else:
                _lower_edge(tree, edge)
            source = _free_if_gone(tree, source)
    while newest != NONE:
        newest = _free_if_gone(tree, newest)


@borrowing
def forget_text(tree: SuffixTree, length: int) -> None:
    """Drop the first `length` tokens of the text, of sequences that were all taken out: no tail points there."""
    text, edges, state = tree.text, tree.edges, tree.state
    for place in range(state[TEXT_END] + 1 - length):
        text[place] = text[length + place]
    state[TEXT_END] -= length
    state[RUN_START] -= length
    # Of an edge that is not in use this changes what nobody reads.
    for edge in range(state[NUM_EDGES]):
        if edges[edge, TARGET] < 0:
            edges[edge, TARGET] += length


@borrowing_inline
def _is_extensible(tree: SuffixTree, state: int) -> bool:
    """Whether `state` has a string of less than D tokens."""
    states = tree.states
    return state == ROOT or states[states[state, LINK], LENGTH] < tree.max_depth - 1


@borrowing_inline
def _extensible(tree: SuffixTree, state: int) -> int:
    """`state`, or where no string of it can be extended, the next of its chain."""
    return state if _is_extensible(tree, state) else tree.states[state, LINK]


@borrowing
def _home(source: int, token: int) -> np.int64:
    mixed = np.uint64(source) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(token) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(mixed >> np.uint64(32))


@borrowing
def _new_state(tree: SuffixTree, length: int, link: int, count: int) -> int:
    """A state without edges."""
    states, state = tree.states, tree.state
    if state[FREE_STATE] != NONE:
        new = state[FREE_STATE]
        state[FREE_STATE] = states[new, LINK]
    else:
        new = state[NUM_STATES]
        state[NUM_STATES] += 1
    states[new, LENGTH] = length
    states[new, LINK] = link
    states[new, COUNT] = count
    states[new, CHILD] = NONE
    return new


@borrowing
def _free_if_gone(tree: SuffixTree, state: int) -> int:
    """The state that `state` links to; a state that does not occur any more is free."""
    states = tree.states
    link = states[state, LINK]
    if state != ROOT and states[state, COUNT] == 0:
        states[state, LINK] = tree.state[FREE_STATE]
        tree.state[FREE_STATE] = state
    return link


@borrowing
def _split(tree: SuffixTree, whole: int, length: int) -> int:
    """A new state for those strings of `whole` that have at most `length` tokens; `whole` keeps the longer ones."""
    states, edges, groups = tree.states, tree.edges, tree.groups
    shorter = _new_state(tree, length, states[whole, LINK], states[whole, COUNT])
    states[whole, LINK] = shorter
    is_extensible = _is_extensible(tree, whole)
    edge = states[whole, CHILD]
    group, its_copy = NONE, NONE
    while edge != NONE:
        following = edges[edge, NEXT]
        same = _new_edge(tree, shorter, edges[edge, TOKEN], edges[edge, TARGET])
        _put_last(tree, same)
        if edges[edge, GROUP] != NONE:
            if edges[edge, GROUP] != group:
                group = edges[edge, GROUP]
                _open_group(tree, same, groups[group, SHARED_COUNT])
                its_copy = edges[same, GROUP]
            edges[same, GROUP] = its_copy
            _enter(tree, same)
        edge = following
    while not is_extensible and states[whole, CHILD] != NONE:
        _remove_edge(tree, states[whole, CHILD])
    return shorter


@borrowing
def _new_edge(tree: SuffixTree, source: int, token: int, target: int) -> int:
    edges, state = tree.edges, tree.state
    if state[FREE_EDGE] != NONE:
        edge = state[FREE_EDGE]
        state[FREE_EDGE] = edges[edge, NEXT]
    else:
        edge = state[NUM_EDGES]
        state[NUM_EDGES] += 1
    edges[edge, TOKEN] = token
    edges[edge, TARGET] = target
    edges[edge, SOURCE] = source
    edges[edge, NEXT] = NONE
    edges[edge, PREV] = edge
    edges[edge, GROUP] = NONE
    return edge


@borrowing
def _put_last(tree: SuffixTree, edge: int) -> None:
    """Make it the last of its source's edges."""
    states, edges = tree.states, tree.edges
    source = edges[edge, SOURCE]
    first = states[source, CHILD]
    if first == NONE:
        states[source, CHILD] = edge
        edges[edge, PREV] = edge
    else:
        last = edges[first, PREV]
        edges[last, NEXT] = edge
        edges[edge, PREV] = last
        edges[first, PREV] = edge
    edges[edge, NEXT] = NONE


@borrowing
def _add_edge(tree: SuffixTree, source: int, token: int, target: int) -> None:
    """A new edge of count 1, last among its siblings."""
    states, edges, groups = tree.states, tree.edges, tree.groups
    edge = _new_edge(tree, source, token, target)
    first = states[source, CHILD]
    if first != NONE:
        if edges[first, GROUP] == NONE:
            led_to = edges[first, TARGET]
            _open_group(tree, first, 1 if led_to < 0 else states[led_to, COUNT])
            _enter(tree, first)
        group = edges[edges[first, PREV], GROUP]
        if groups[group, SHARED_COUNT] == 1:
            edges[edge, GROUP] = group
        else:
            _open_group(tree, edge, 1)
        _enter(tree, edge)
    _put_last(tree, edge)


@borrowing_inline
def _raise_edge(tree: SuffixTree, edge: int) -> None:
    """Count one more through `edge` and move it among its siblings as arctic-inference does.

    A riser that is not the first of its equals goes before all of them. The first of its equals joins the next
    higher group at its head, if that group is exactly one above, and stays where it is otherwise.
    """
    states, edges, groups = tree.states, tree.edges, tree.groups
    group = edges[edge, GROUP]
    if group == NONE:
        return
    first = groups[group, FIRST]
    count = groups[group, SHARED_COUNT] + 1
    above = NONE
    if first != states[edges[edge, SOURCE], CHILD]:
        above = edges[edges[first, PREV], GROUP]
        if groups[above, SHARED_COUNT] != count:
            above = NONE
    if edge != first:
        _move_before(tree, edge, first)
        if above != NONE:
            edges[edge, GROUP] = above
        else:
            _open_group(tree, edge, count)
    elif above != NONE:
        _leave_group(tree, edge)
        _move_before(tree, edge, groups[above, FIRST])
        groups[above, FIRST] = edge
        edges[edge, GROUP] = above
    elif _is_alone(tree, edge):
        groups[group, SHARED_COUNT] = count
    else:
        _leave_group(tree, edge)
        _open_group(tree, edge, count)


@borrowing
def _lower_edge(tree: SuffixTree, edge: int) -> None:
    """Count one less through `edge`: the mirror image of `_raise_edge`."""
    edges, groups = tree.edges, tree.groups
    group = edges[edge, GROUP]
    if group == NONE:
        return
    count = groups[group, SHARED_COUNT] - 1
    lower = edges[edge, NEXT]
    while lower != NONE and edges[lower, GROUP] == group:
        lower = edges[lower, NEXT]
    _leave_group(tree, edge)
    if edges[edge, NEXT] != lower:
        if lower == NONE:
            _unlink(tree, edge)
            _put_last(tree, edge)
        else:
            _move_before(tree, edge, lower)
    if lower != NONE and groups[edges[lower, GROUP], SHARED_COUNT] == count:
        edges[edge, GROUP] = edges[lower, GROUP]
        groups[edges[lower, GROUP], FIRST] = edge
    else:
        _open_group(tree, edge, count)


@borrowing
def _remove_edge(tree: SuffixTree, edge: int) -> None:
    edges, state = tree.edges, tree.state
    if edges[edge, GROUP] != NONE:
        _leave_group(tree, edge)
        _withdraw(tree, edge)
        edges[edge, GROUP] = NONE
    _unlink(tree, edge)
    edges[edge, NEXT] = state[FREE_EDGE]
    state[FREE_EDGE] = edge


@borrowing
def _unlink(tree: SuffixTree, edge: int) -> None:
    """Take `edge` out of the list of its siblings."""
    states, edges = tree.states, tree.edges
    source = edges[edge, SOURCE]
    following, before = edges[edge, NEXT], edges[edge, PREV]
    head = states[source, CHILD]
    if edge == head:
        states[source, CHILD] = following
        if following != NONE:
            edges[following, PREV] = before
        return
    edges[before, NEXT] = following
    if following != NONE:
        edges[following, PREV] = before
    else:
        edges[head, PREV] = before


@borrowing
def _move_before(tree: SuffixTree, edge: int, other: int) -> None:
    """Put `edge` directly before its sibling `other`."""
    states, edges = tree.states, tree.edges
    if edges[edge, NEXT] == other:
        return
    _unlink(tree, edge)
    source = edges[edge, SOURCE]
    before = edges[other, PREV]
    edges[edge, NEXT] = other
    edges[edge, PREV] = before
    edges[other, PREV] = edge
    if states[source, CHILD] == other:
        states[source, CHILD] = edge
    else:
        edges[before, NEXT] = edge


@borrowing
def _open_group(tree: SuffixTree, edge: int, count: int) -> None:
    """Give `edge` a group of its own."""
    groups, state = tree.groups, tree.state
    if state[FREE_GROUP] != NONE:
        group = state[FREE_GROUP]
        state[FREE_GROUP] = groups[group, FIRST]
    else:
        group = state[NUM_GROUPS]
        state[NUM_GROUPS] += 1
    groups[group, FIRST] = edge
    groups[group, SHARED_COUNT] = count
    tree.edges[edge, GROUP] = group


@borrowing
def _is_alone(tree: SuffixTree, first: int) -> bool:
    """Whether the first of a group is all of it."""
    edges = tree.edges
    following = edges[first, NEXT]
    return following == NONE or edges[following, GROUP] != edges[first, GROUP]


@borrowing
def _leave_group(tree: SuffixTree, edge: int) -> None:
    """Take `edge` out of its group, before it moves in the list."""
    edges, groups, state = tree.edges, tree.groups, tree.state
    group = edges[edge, GROUP]
    if groups[group, FIRST] != edge:
        return
    if _is_alone(tree, edge):
        groups[group, FIRST] = state[FREE_GROUP]
        state[FREE_GROUP] = group
    else:
        groups[group, FIRST] = edges[edge, NEXT]


@borrowing
def _enter(tree: SuffixTree, edge: int) -> None:
    """Enter an edge in the hash table, of which twice as much is used, if there is, where it is more than half full."""
    state = tree.state
    state[NUM_ENTRIES] += 1
    if 2 * state[NUM_ENTRIES] <= state[TABLE_SIZE] or state[TABLE_SIZE] == tree.table.size:
        _place(tree, edge)
        return
    state[TABLE_SIZE] *= 2
    tree.table[: state[TABLE_SIZE]] = 0
    for other in range(state[NUM_EDGES]):
        if tree.edges[other, GROUP] != NONE:
            _place(tree, other)


@borrowing
def _place(tree: SuffixTree, edge: int) -> None:
    table = tree.table
    mask = tree.state[TABLE_SIZE] - 1
    slot = _home(tree.edges[edge, SOURCE], tree.edges[edge, TOKEN]) & mask
    while table[slot] != 0:
        slot = (slot + 1) & mask
    table[slot] = edge + 1


@borrowing
def _withdraw(tree: SuffixTree, edge: int) -> None:
    """Take an edge out of the hash table; later entries of the same run move up (linear probing)."""
    edges, table = tree.edges, tree.table
    tree.state[NUM_ENTRIES] -= 1
    mask = tree.state[TABLE_SIZE] - 1
    gap = _home(edges[edge, SOURCE], edges[edge, TOKEN]) & mask
    while table[gap] != edge + 1:
        gap = (gap + 1) & mask
    slot = gap
    while True:
        slot = (slot + 1) & mask
        other = table[slot]
        if other == 0:
            break
        home = _home(edges[other - 1, SOURCE], edges[other - 1, TOKEN]) & mask
        if ((slot - home) & mask) >= ((slot - gap) & mask):
            table[gap] = other
            gap = slot
    table[gap] = 0
