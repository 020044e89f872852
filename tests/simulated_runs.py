"""Runs over simulated prompts: each prompt has an acceptance probability of its own, so rounds come in clusters."""

from __future__ import annotations

import numpy as np

from specprobe.acceptance import Acceptance
from specprobe.run import ResponseRecord, Run
from specprobe.run_document import run_document
from specprobe.summary import summarize_run


def draw_prompts(rng, num_prompts: int, a: float = 6.0, b: float = 4.0, median: float = 200, sigma: float = 0.6):
    """Acceptance probability ~ Beta(a, b) and output tokens, log-normal; [P] each."""
    output = np.exp(rng.normal(np.log(median), sigma, num_prompts))
    return rng.beta(a, b, num_prompts), np.clip(output, 8, 1024).astype(int)


def shifted(p, log_odds: float):
    return 1 / (1 + np.exp(-(np.log(p / (1 - p)) + log_odds)))


def walk(rng, p, output, depth: int):
    """Rounds [P] and, by position, rounds that accepted it [P, depth], until each text is written."""
    left = output - 1
    accepted = np.minimum(rng.geometric(1 - p[:, None], (len(p), int(left.max()))) - 1, depth)
    before = np.cumsum(accepted + 1, axis=1) - accepted - 1
    is_round = before < left[:, None]
    accepted = np.minimum(accepted, left[:, None] - before)
    by_position = [(is_round & (accepted >= i)).sum(axis=1) for i in range(1, depth + 1)]
    return is_round.sum(axis=1), np.stack(by_position, axis=1)


def acceptance(rng, p, output, depth: int, drafter: str = "eagle3", **fields) -> Acceptance:
    shape = (len(p), depth, depth)
    rounds, drafted, accepted = np.zeros(shape[:2]), np.zeros(shape), np.zeros(shape)
    for k in range(1, depth + 1):
        rounds[:, k - 1], accepted[:, k - 1, :k] = walk(rng, p, output, k)
        drafted[:, k - 1, :k] = rounds[:, k - 1, None]
    return Acceptance(
        drafter=drafter,
        config=fields.pop("config", {}),
        fixed_length=True,
        temperature=fields.pop("temperature", 0.0),
        draft_sampling="greedy",
        ids=fields.pop("ids", tuple(f"p{i}" for i in range(len(p)))),
        output_tokens=output.astype(np.int32),
        rounds=rounds.astype(np.int32),
        drafted_at=drafted.astype(np.int32),
        at_risk_at=np.concatenate([drafted[:, :, :1], accepted[:, :, :-1]], axis=2).astype(np.int32),
        accepted_at=accepted.astype(np.int32),
        prompts=fields.pop("prompts", np.arange(len(p), dtype=np.int32)),
        **fields,
    )


def run_of(*results: Acceptance, **changes) -> Run:
    """A run of results over the same responses at one temperature or several; `changes`: its other fields."""
    responses = {
        result.temperature: ResponseRecord(
            temperature=result.temperature,
            source="logged",
            ids=result.ids,
            prompt_tokens=np.full(len(result.ids), 9, dtype=np.int32),
            output_tokens=result.output_tokens,
            prompts=result.prompts,
            samples=np.zeros(len(result.ids), dtype=np.int32),
        )
        for result in results
    }
    fields = {
        "workload": {"sources": ["log.jsonl"], "rows": 1, "prompts": 1, "format": "tokens", "skipped": {}},
        "target": None,
        "engine_profile": "vllm@0.33",
        "settings": {"depth": results[0].depth},
        "responses": tuple(responses.values()),
        "results": results,
        "notices": (),
    }
    return Run(**{**fields, **changes})


def document_of(run: Run) -> dict:
    return run_document(run, summarize_run(run))
