"""Groups of requests and how the gain is spread over requests: counts that add up, and figures done by hand."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from specprobe.acceptance import Acceptance
from specprobe.breakdown import MAX_GROUPS, by_group, concentration
from specprobe.interval import MIN_PROMPTS
from specprobe.summary import summarize
from specprobe.temperature_report import render_concentration, render_groups


def acceptance(output: Sequence[int], accepted: Sequence[int], *, ids: Sequence[str | int] | None = None) -> Acceptance:
    """By response: tokens, and how many of them were drafted at depth 2; half of these at depth 1."""
    tokens, at_two = np.array(output, dtype=np.int32), np.array(accepted, dtype=np.int32)
    kept = np.stack([at_two // 2, at_two], axis=1)
    rounds = (np.maximum(tokens - 1, 0)[:, None] - kept).astype(np.int32)
    drafted_at, accepted_at = np.zeros((2, len(tokens), 2, 2), dtype=np.int32)
    drafted_at[:, :, 0], accepted_at[:, :, 0] = rounds, kept
    return Acceptance(
        drafter="ngram",
        config={},
        fixed_length=False,
        temperature=0.0,
        draft_sampling="greedy",
        ids=tuple(range(len(tokens)) if ids is None else ids),
        output_tokens=tokens,
        rounds=rounds,
        drafted_at=drafted_at,
        at_risk_at=drafted_at,
        accepted_at=accepted_at,
    )


def printed(renderable: RenderableType) -> str:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def test_the_best_depth_has_the_fewest_rounds_and_of_equals_is_the_shallowest():
    assert acceptance([11, 21], [4, 0]).depth_of_fewest_rounds == 2
    assert acceptance([11, 21], [0, 1]).depth_of_fewest_rounds == 2
    assert acceptance([11, 21], [0, 0]).depth_of_fewest_rounds == 1


def test_groups_by_hand():
    code, chat, none = by_group(acceptance([11, 11, 21, 31], [5, 4, 8, 0]), ["code", "code", "chat", None])
    assert [group.label for group in (code, chat, none)] == ["code", "chat", "(none)"]
    document = code.to_json()
    assert document.pop("interval")["level"] == 0.9
    assert document == {
        "group": "code",
        "depth": 2,
        "responses": 2,
        "emitted_tokens": 20,
        "rounds": 11,
        "drafted_rounds": 11,
        "accepted_tokens": 9,
        "tokens_per_round": 20 / 11,
        "acceptance_rate": 9 / 11,
        "mean_acceptance_length": 1 + 9 / 11,
        "enough_prompts": False,
    }
    assert code.interval.low < 20 / 11 < code.interval.high
    # One prompt has no interval.
    assert chat.to_json()["interval"]["tokens_per_round"] is None
    assert none.totals.tokens_per_round == 1


def test_one_group_of_all_is_the_whole_result():
    rng = np.random.default_rng(0)
    output = rng.integers(50, 200, 40)
    result = acceptance(output, output // 3 - rng.integers(0, 15, 40))
    (group,) = by_group(result, ["all"] * 40)
    assert group.totals == result.totals(2)
    assert group.interval == summarize(result).tokens_per_round[1]
    assert group.enough_prompts


def test_only_prompts_with_a_round_count_as_enough():
    output = [10] * (MIN_PROMPTS - 1) + [1]
    (group,) = by_group(acceptance(output, [2] * (MIN_PROMPTS - 1) + [0]), [None] * MIN_PROMPTS)
    assert (group.totals.responses, group.num_prompts, group.enough_prompts) == (MIN_PROMPTS, MIN_PROMPTS - 1, False)


@given(data=st.data())
def test_groups_add_up_to_the_totals(data):
    rows = data.draw(
        st.lists(
            st.integers(0, 30).flatmap(
                lambda n: st.tuples(
                    st.just(n), st.integers(0, max(0, (n - 1) // 2)), st.one_of(st.none(), st.integers(0, 40).map(str))
                )
            ),
            max_size=60,
        )
    )
    result = acceptance(*([row[i] for row in rows] for i in (0, 1)))
    groups = by_group(result, [row[2] for row in rows])
    assert len(groups) <= MAX_GROUPS
    totals = result.totals(result.depth_of_fewest_rounds)
    for key in ("responses", "emitted_tokens", "rounds", "drafted_rounds", "accepted_tokens"):
        assert sum(getattr(group.totals, key) for group in groups) == getattr(totals, key)
    speeds = [group.totals.tokens_per_round or 0 for group in groups]
    assert speeds == sorted(speeds, reverse=True)


def test_the_smallest_groups_are_merged():
    names = [str(name) for name in range(25) for _ in range(25 - name)]
    groups = by_group(acceptance([11] * len(names), [4] * len(names)), names)
    sizes = {group.label: group.totals.responses for group in groups}
    assert len(sizes) == MAX_GROUPS
    assert sizes["0"] == 25
    assert sizes["18"] == 7
    assert "19" not in sizes
    assert sizes["(other groups)"] == 6 + 5 + 4 + 3 + 2 + 1


def test_concentration_by_hand():
    # Saved rounds 40, 10, 10, 5, 5, 0, 0; the response of one token had no round.
    result = acceptance([101, 31, 21, 11, 41, 51, 2, 1], [40, 10, 10, 5, 5, 0, 0, 0], ids="abcdefgh")
    found = concentration(result)
    assert (found.depth, found.requests, found.requests_with_nothing_accepted) == (2, 7, 2)
    assert found.saved_rounds.tolist() == [40, 10, 10, 5, 5, 0, 0]
    assert found.top_tenth_share == pytest.approx(40 / 70)
    assert found.requests_for_half == 1
    # 100/60, 30/20, 20/10, 10/5, 40/35, 1, 1: sorted 1, 1, 8/7, 3/2, 5/3, 2, 2.
    assert found.quartiles == pytest.approx(((1 + 8 / 7) / 2, 3 / 2, (5 / 3 + 2) / 2))
    # Of equals the longer one first; g emitted one token, which is one round with any drafter.
    assert found.best == (("c", 2.0), ("d", 2.0), ("a", pytest.approx(100 / 60)))
    assert found.worst == (("f", 1.0), ("e", pytest.approx(40 / 35)), ("b", 1.5))
    document = found.to_json()
    assert json.loads(json.dumps(document)) == document
    assert document["best"][0] == {"id": "c", "tokens_per_round": 2.0}
    assert not {"saved_rounds", "rounds", "emitted_tokens"} & set(document)


def test_half_of_the_gain_and_a_tenth_of_the_requests():
    found = concentration(acceptance([101] * 21, [10] * 20 + [40]))
    # 240 saved; 40 + 8 x 10 = 120 is half. Three of 21 are a tenth, rounded up.
    assert found.requests_for_half == 9
    assert found.requests_in_top_tenth == 3
    assert found.top_tenth_share == pytest.approx(60 / 240)


def test_few_requests_are_named_once():
    found = concentration(acceptance([11, 11, 11, 11], [4, 3, 2, 1]))
    assert [name for name, _ in found.best] == [0, 1, 2]
    assert [name for name, _ in found.worst] == [3]


def test_nothing_gained_and_nothing_at_all():
    found = concentration(acceptance([11, 2], [0, 0]))
    assert (found.top_tenth_share, found.requests_for_half) == (None, None)
    assert "none of 2 requests gained anything" in printed(render_concentration(found))
    empty = concentration(acceptance([1], [0]))
    assert (empty.requests, empty.quartiles, empty.best, empty.worst) == (0, None, (), ())
    json.dumps(empty.to_json())
    assert by_group(acceptance([], []), []) == ()
    assert "0 requests" in printed(render_concentration(empty))


def test_groups_read_in_80_columns_and_show_labels_as_they_are():
    labels = ["[bold]a\x1b[0m", "a group with quite a long name, longer than fits"]
    text = printed(render_groups(by_group(acceptance([1011, 11, 21], [505, 4, 8]), [labels[0], labels[0], labels[1]])))
    assert "[bold]a\\x1b[0m" in text
    assert "\x1b" not in text
    assert "fewer than 16 prompts" in text
    # 509 of the 511 rounds of the first group had their draft accepted.
    assert "2.00 " in text
    assert "99.6 %" in text


def test_of_one_request_and_of_sums_there_is_nothing_to_spread():
    words = printed(render_concentration(concentration(acceptance([101], [40]))))
    assert "one request alone" in words
    assert "half" not in words
    assert "sums" in printed(render_concentration(None))
    assert summarize(acceptance([101, 51], [40, 20]), is_of_sums=True).concentration is None


def test_concentration_in_plain_words():
    found = concentration(acceptance([101, 31, 51], [40, 10, 0], ids=["[red]x", 7, "z"]))
    words = " ".join(printed(render_concentration(found)).split())
    assert "half of the gain comes from 1 of 3 requests; 1 request got nothing." in words
    assert "most: [red]x (1.67), 7 (1.50), z (1.00)." in words
