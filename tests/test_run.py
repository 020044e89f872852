"""Runs: what a document holds, that it comes back, and what is derived from the counts."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import make_trajectory

from specprobe import run_document as run_document_module
from specprobe.acceptance import DepthTotals
from specprobe.documents import dump_document
from specprobe.drafters import parse_drafter
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice
from specprobe.profiles import resolve_profile
from specprobe.progress import Silent
from specprobe.replay import replay
from specprobe.run import ResponseRecord, Run
from specprobe.run_document import load_run, run_document, run_text
from specprobe.summary import summarize_run
from specprobe.trajectory import prompt_numbers


def make_run(works, depth: int = 4) -> Run:
    profile = resolve_profile("vllm")
    lengths = ResponseRecord(
        0.0,
        "logged",
        tuple(work.id for work in works),
        np.array([work.prompt_ids.size for work in works], dtype=np.int32),
        np.array([work.output_ids.size for work in works], dtype=np.int32),
        prompts=prompt_numbers(works),
        samples=np.zeros(len(works), dtype=np.int32),
    )
    return Run(
        workload={"sources": ["a.jsonl"], "rows": len(works), "prompts": len(works), "format": "tokens", "skipped": {}},
        target=None,
        engine_profile=profile.name,
        settings={"depth": depth},
        responses=(lengths,),
        results=tuple(replay(parse_drafter(spec, profile), works, depth) for spec in ("ngram:min=1,max=3", "suffix")),
        notices=(Notice("too_few_prompts", "few"),),
    )


def document_of(run: Run) -> dict:
    return run_document(run, summarize_run(run))


WORKS = [make_trajectory([10 + i, 1, 2, 3, 1, 2], [3, 1, 2, 3, 9, 1, 2, 3], name=i) for i in range(20)]
WORKS += [make_trajectory([4], [5], name="short"), make_trajectory([4], [], name="empty")]


@pytest.mark.parametrize("block", [1, 3, 256])
@pytest.mark.parametrize("works", [WORKS, WORKS[:1], []], ids=len)
def test_the_text_in_pieces_is_that_of_the_document(monkeypatch, works, block):
    monkeypatch.setattr(run_document_module, "BLOCK_RESPONSES", block)
    run = make_run(works)
    summary = summarize_run(run)
    pieces = list(run_text(run, summary))
    assert "".join(pieces) == dump_document(run_document(run, summary))
    # None of them holds more rows than a block has.
    assert max(piece.count('"drafted_at"') for piece in pieces) <= max(block * 4, 4)


def test_the_document_has_what_scripts_rely_on():
    document = document_of(make_run(WORKS))
    assert {"schema", "specprobe_version", "workload", "target", "engine_profile", "results"} <= set(document)
    assert document["schema"] == "specprobe.run/1"
    for result in document["results"]:
        assert {"drafter", "config", "temperature", "draft_sampling", "depths", "curve", "per_prompt"} <= set(result)
        assert [entry["depth"] for entry in result["depths"]] == [1, 2, 3, 4]
        for entry in result["depths"]:
            assert len(entry["accepted_at"]) == entry["depth"]
            assert sum(entry["accepted_at"]) == entry["accepted_tokens"]
            assert entry["interval"]["level"] == 0.9
            low, high = entry["interval"]["tokens_per_round"]
            assert 1 <= low <= entry["tokens_per_round"] <= high <= entry["depth"] + 1
        # Every prompt and depth appears, also those without a round.
        assert [(row["id"], row["depth"]) for row in result["per_prompt"]] == [
            (work.id, depth) for work in WORKS for depth in (1, 2, 3, 4)
        ]
        for depth in (1, 2, 3, 4):
            rows = [row for row in result["per_prompt"] if row["depth"] == depth]
            total = result["depths"][depth - 1]
            for key in ("rounds", "drafted_rounds", "drafted_tokens"):
                assert sum(row[key] for row in rows) == total[key]
            assert np.sum([row["accepted_at"] for row in rows], axis=0).tolist() == total["accepted_at"]


@given(
    texts=st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.lists(st.integers(0, 3), max_size=9)),
        min_size=1,
        max_size=6,
    ),
    depth=st.integers(1, 4),
)
@settings(max_examples=30, deadline=None)
def test_a_run_comes_back(tmp_path_factory, texts, depth):
    run = make_run([make_trajectory(p, o, name=i) for i, (p, o) in enumerate(texts)], depth)
    path = tmp_path_factory.mktemp("runs") / "run.json"
    path.write_text(dump_document(document_of(run)))
    assert dump_document(document_of(load_run(path))) == path.read_text()


def test_padded_ngram_is_fitted_and_suffix_is_not():
    padded, suffix = document_of(make_run(WORKS))["results"]
    assert padded["curve"]["fitted"]
    assert padded["curve"]["best"] in {model["name"] for model in padded["curve"]["models"]}
    assert not suffix["curve"]["fitted"]
    assert sum(suffix["curve"]["draft_length_shares"]) == pytest.approx(1.0)
    assert "reason" in suffix["curve"]


def test_rates_are_those_of_vllm():
    # Earliest match of up to 2 tokens. The prefill emits 2. Round 1 finds "1 2 -> 3 1": both accepted, 2 is the bonus.
    # Round 2 finds "1 2 -> 3 1" again, wants 5: nothing accepted. The text ends.
    works = [make_trajectory([7, 1, 2, 3, 1], [2, 3, 1, 2, 5], name="a")]
    totals = replay(parse_drafter("ngram:min=1,max=2", resolve_profile("vllm@0.30")), works, 2).totals(2)
    assert (totals.rounds, totals.drafted_rounds, totals.drafted_tokens, totals.accepted_tokens) == (2, 2, 4, 2)
    assert totals.acceptance_rate == 0.5
    assert totals.mean_acceptance_length == 2.0
    assert totals.tokens_per_round == 2.0
    assert totals.survival == (0.5, 0.5)
    assert totals.conditional == (0.5, 1.0)
    assert totals.coverage == 1.0


def test_sums_of_expectations_never_make_a_share_of_more_than_all():
    # 0.1 + 0.2 is a hair above 0.3.
    totals = DepthTotals(1, 1, 1, 0.3, (0.1 + 0.2,), (0.3,), (0.1 + 0.2 + 1e-17,))
    assert totals.drafted_at[0] > totals.rounds
    assert (totals.coverage, totals.conditional, totals.survival) == (1.0, (1.0,), (1.0,))
    assert totals.acceptance_rate == 1.0


def test_nothing_drafted_has_no_rates_instead_of_wrong_ones():
    works = [make_trajectory([1], [2, 3, 4])]
    totals = replay(parse_drafter("ngram", resolve_profile("vllm@0.30")), works, 3).totals(3)
    assert totals.rounds == 2
    assert (totals.acceptance_rate, totals.mean_acceptance_length, totals.survival) == (None, None, None)
    assert totals.tokens_per_round == 1.0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON"),
        ("[]", "schema"),
        ('{"schema": "specprobe.run/2"}', "specprobe.run/2"),
        ('{"schema": "specprobe.run/1"}', "damaged"),
    ],
)
def test_what_is_not_a_run_is_refused(tmp_path, content, said):
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(SpecprobeError, match=said) as refused:
        load_run(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [3], {"a": 1}, 2**40])
@pytest.mark.parametrize("key", ["responses", "results", "warnings", "workload"])
def test_a_damaged_run_is_refused_whatever_is_damaged(tmp_path, key, value):
    document = json.loads(dump_document(document_of(make_run(WORKS))))
    document[key] = value
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    # Whatever is wrong with it, no other error comes out.
    with contextlib.suppress(SpecprobeError):
        load_run(path)


def test_counts_beyond_32_bits_are_refused(tmp_path):
    document = json.loads(dump_document(document_of(make_run(WORKS))))
    document["results"][0]["per_prompt"][0]["rounds"] = 2**40
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SpecprobeError, match="damaged"):
        load_run(path)


def test_a_cut_run_is_refused(tmp_path):
    document = json.loads(dump_document(document_of(make_run(WORKS))))
    document["results"][0]["per_prompt"].pop()
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SpecprobeError, match="damaged"):
        load_run(path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("results", 0, "per_prompt", 3, "rounds"), 1),
        (("results", 0, "per_prompt", 3, "rounds"), 10**6),
        (("results", 0, "per_prompt", 3, "accepted_at", 0), 500),
        (("responses", 0, "prompt_tokens", 0), 1.5),
        (("responses", 0, "output_tokens", 0), 2**30),
    ],
)
def test_counts_that_cannot_be_of_these_responses_are_refused(tmp_path, place, value):
    document = json.loads(dump_document(document_of(make_run(WORKS))))
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SpecprobeError, match="damaged"):
        load_run(path)


def test_a_large_run_is_announced_before_it_is_read(tmp_path, monkeypatch):
    class Heard(Silent):
        def __init__(self):
            self.said = []

        def say(self, message):
            self.said.append(message)

    path = tmp_path / "run.json"
    path.write_text(dump_document(document_of(make_run(WORKS))))
    heard = Heard()
    load_run(path, heard)
    assert heard.said == []
    monkeypatch.setattr(run_document_module, "LARGE_RUN_BYTES", 1)
    load_run(path, heard)
    assert heard.said == [f"reading run.json ({path.stat().st_size / 1000:.0f} kB)"]
