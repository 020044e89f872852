"""The engines' n-gram rules on hand-made texts, drafter specs, and profiles."""

from __future__ import annotations

import pytest
from reference import make_trajectory

from specprobe.drafters import MODEL_FREE, Limits, parse_drafter
from specprobe.errors import SpecprobeError
from specprobe.profiles import other_ngram_runner, outside_known_versions, resolve_profile

# History 1 2 3 9 1 2 4 8 1 2 | then the first draft follows the newest "1 2".
PROMPT, SEEN = [1, 2, 3, 9, 1, 2, 4, 8, 1], [2]


def drafted_and_accepted(engine: str, spec: str, output: list[int], depth: int = 3, prompt: list[int] = PROMPT):
    """Row `depth` of what is proposed for the first round."""
    drafter = parse_drafter(spec, resolve_profile(engine))
    work = make_trajectory(prompt, output)
    (proposals,) = drafter.proposals([work], depth, Limits(end_token_ids=(9,)))
    return proposals.drafted[depth - 1, 1], proposals.accepted[depth - 1, 1]


@pytest.mark.parametrize(
    ("engine", "copied"),
    [("vllm@0.30", [3, 9, 1]), ("vllm-v1@0.33", [3, 9, 1]), ("vllm@0.33", [4, 8, 1]), ("hf", [3])],
)
def test_which_occurrence_is_copied(engine, copied):
    spec = "ngram:max=2" if engine == "hf" else "ngram:min=2,max=2"
    drafted, accepted = drafted_and_accepted(engine, spec, SEEN + copied + [7, 7, 7])
    assert accepted == len(copied)
    # transformers cuts the copy before an end token (9 here).
    assert drafted == (1 if engine == "hf" else 3)


def test_v1_drafts_what_is_there_and_v2_pads_with_the_last_token():
    # The newest "5 5" occurs one token earlier: one token can be copied.
    prompt, output = [1, 5, 5], [5, 5, 5, 5, 2]
    assert drafted_and_accepted("vllm@0.30", "ngram:min=2,max=2", output, prompt=prompt) == (1, 1)
    assert drafted_and_accepted("vllm@0.33", "ngram:min=2,max=2", output, prompt=prompt) == (3, 3)


def test_v2_pads_even_without_a_match():
    assert drafted_and_accepted("vllm@0.33", "ngram", [7, 7, 7, 7, 1]) == (3, 3)
    assert drafted_and_accepted("vllm@0.30", "ngram", [7, 7, 7, 7, 1]) == (0, 0)


def test_the_longest_lookup_wins_over_the_earliest():
    # "4 2" occurs later than "2" alone.
    prompt, output = [2, 6, 4, 2, 8, 4], [2, 8, 4, 2]
    assert drafted_and_accepted("vllm@0.30", "ngram:min=1,max=2", output, prompt=prompt) == (3, 3)
    assert drafted_and_accepted("vllm@0.30", "ngram:min=1,max=1", output, prompt=prompt) == (3, 0)


def test_llama_cpp_needs_a_long_history_and_copies_a_whole_gram():
    text = list(range(100, 100 + 30))
    spec = "ngram:min=4,max=4"
    output = [103, 104, 105, 106, 0]
    # The history without its newest token must be longer than n + m + 1 = 13: it is 13, then 14.
    short, enough = [*text[:10], 100, 101, 102], [0, *text[:10], 100, 101, 102]
    assert drafted_and_accepted("llama.cpp", spec, output, 8, prompt=short) == (0, 0)
    assert drafted_and_accepted("llama.cpp", spec, output, 8, prompt=enough) == (8, 3)
    # A match at position 0 counts as none.
    assert drafted_and_accepted("llama.cpp", spec, output, 8, prompt=[*text[:13], 100, 101, 102]) == (0, 0)
    # One token fewer is drafted from a history that is one token shorter; fewer than the lookup's four are none.
    assert drafted_and_accepted("llama.cpp", spec, output, 7, prompt=short) == (0, 0)
    assert drafted_and_accepted("llama.cpp", spec, output, 7, prompt=[0, *text[:9], 100, 101, 102]) == (7, 3)
    assert drafted_and_accepted("llama.cpp", spec, output, 3, prompt=enough) == (0, 0)
    # No more are copied than that, whatever the depth.
    assert drafted_and_accepted("llama.cpp", f"{spec},copy=5", output, 8, prompt=enough) == (5, 3)


def test_lookup_lengths_default_to_the_engine_and_to_each_other():
    assert parse_drafter("ngram", resolve_profile("vllm@0.30")).config["min"] == 5
    assert parse_drafter("ngram:max=3", resolve_profile("vllm")).config == {
        "min": 3,
        "max": 3,
        "match": "latest",
        "pad": "last_token",
    }
    assert parse_drafter("ngram", resolve_profile("hf")).config["max"] == 2
    assert parse_drafter("ngram", resolve_profile("llama.cpp")).config["copy"] == 48


@pytest.mark.parametrize(
    "spec",
    ["", "eagle9", "ngram:min", "ngram:min=", "ngram:min=x", "ngram:min=0", "ngram:min=4,max=2", "ngram:size=3",
     "suffix:min_token_prob=1.5", "suffix:max_spec_factor=inf", "suffix:max_spec_factor=nan", "suffix:depth=3"],
)  # fmt: skip
def test_a_bad_spec_is_refused_in_one_line(spec):
    with pytest.raises(SpecprobeError, match="--drafter") as refused:
        parse_drafter(spec, resolve_profile("vllm"))
    assert "\n" not in str(refused.value)


def test_an_engine_refuses_what_it_does_not_have():
    with pytest.raises(SpecprobeError, match="does not offer"):
        parse_drafter("suffix", resolve_profile("llama.cpp"))


@pytest.mark.parametrize(
    ("asked", "applies"),
    [("vllm", "vllm@0.33"), ("vllm@0.32", "vllm@0.30"), ("vllm@0.32.0", "vllm@0.30"), ("vllm@0.30", "vllm@0.30"),
     ("vllm@v0.33.1", "vllm@0.33"), ("vllm@1.0", "vllm@0.33"), ("vllm@0.6.6", "vllm@0.13"), ("VLLM@0.22", "vllm@0.22"),
     ("transformers@5.30", "hf@5.24"), ("llama.cpp@b9999", "llama.cpp@2026-10"), ("vllm-v1", "vllm-v1@0.33"),
     ("vllm-v1@0.32", "vllm-v1@0.32"), ("vllm-v2@0.32.1", "vllm-v2@0.32")],
)  # fmt: skip
def test_the_newest_profile_not_above_applies(asked, applies):
    assert resolve_profile(asked).name == applies


@pytest.mark.parametrize(
    ("engine", "other"),
    [("vllm@0.30", None), ("vllm@0.32", "vllm-v2@0.32"), ("vllm@0.32.0", "vllm-v2@0.32"), ("vllm@0.33", None),
     ("vllm", None), ("vllm-v1@0.32", None), ("sglang@0.32", None)],
)  # fmt: skip
def test_where_two_runners_look_up_ngrams_the_other_one_is_named(engine, other):
    assert other_ngram_runner(engine) == other
    if other is not None:
        assert resolve_profile(other).ngram != resolve_profile(engine).ngram


@pytest.mark.parametrize("engine", ["", "tgi", "vllm@", "vllm@latest", "@0.3"])
def test_an_unknown_engine_is_refused(engine):
    if engine == "vllm@":
        assert resolve_profile(engine).name == "vllm@0.33"
        return
    with pytest.raises(SpecprobeError, match="--engine"):
        resolve_profile(engine)


def test_transformers_always_goes_down_to_one():
    hf = resolve_profile("hf")
    assert parse_drafter("ngram:max=4", hf).config["min"] == 1
    assert parse_drafter("ngram:min=1,max=4", hf).config["max"] == 4
    with pytest.raises(SpecprobeError, match="down to 1"):
        parse_drafter("ngram:min=2", hf)


@pytest.mark.parametrize(
    ("engine", "outside"),
    [("vllm@0.6.6", "older"), ("vllm@0.13", None), ("vllm@0.31", None), ("vllm@0.33.2", None), ("vllm@0.34", "newer"),
     ("vllm", None), ("llama.cpp@b9999", None), ("llama.cpp@2025-01", "older"),
     ("hf@4.0", "older"), ("transformers@5.24.1", None)],
)  # fmt: skip
def test_a_version_outside_the_known_ones_is_said(engine, outside):
    assert outside_known_versions(engine) == outside


def test_every_drafter_says_what_decides_its_drafts():
    for name, factory in MODEL_FREE.items():
        drafter = factory({}, resolve_profile("vllm"))
        assert drafter.name == name
        assert drafter.config
