"""Good files of every kind that specprobe reads, out of the other tests: what hostile ones are bent from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import messy
import test_engine_numbers as engines
import test_formats
import test_logs

GOLDEN = Path(__file__).parents[1] / "golden"


def _objects(data: bytes) -> list[Any]:
    rows = []
    for line in data.split(b"\n"):
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return [row for row in rows if isinstance(row, dict) and len(json.dumps(row)) < 5000]


ROWS: list[Any] = [
    *(row for row, *_ in test_formats.DIALECTS),
    *(row for _, row in test_logs.SPANS.values()),
    *(row for sample in messy.FILES.values() for row in _objects(sample.data)),
    test_logs.WEBUI,
    *test_logs.CHATGPT,
    *test_logs.FLAT,
    {
        "id": "a",
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "x"}}],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "r"},
            {"role": "assistant", "content": "a", "reasoning_content": "t"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "response_format": {"type": "json_object"},
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 5,
        "stop": ["x"],
    },
    {"prompt_token_ids": [1, 2, 3], "output_token_ids": [2, 3, 0], "id": 7},
    {"custom_id": "1", "response": {"status_code": 200, "body": {"choices": [{"message": {"content": "a"}}]}}},
]

BENCHMARK = {
    "backend": "vllm",
    "completed": 10,
    "total_input_tokens": 1000,
    "total_output_tokens": 2000,
    "spec_decode_acceptance_rate": 50.0,
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_num_drafts": 300,
    "spec_decode_draft_tokens": 900,
    "spec_decode_accepted_tokens": 450,
    "spec_decode_per_position_acceptance_rates": [0.7, 0.5, 0.3],
}
ENGINE_JSON: list[Any] = [
    engines.ANSWER,
    BENCHMARK,
    {
        "meta_info": {
            "spec_verify_ct": 5,
            "completion_tokens": 12,
            "prompt_tokens": 4,
            "id": "x",
            "spec_accept_length": 2.4,
        }
    },
    {"timings": {"draft_n": 9, "draft_n_accepted": 4, "predicted_n": 9, "prompt_n": 4}, "tokens_predicted": 9},
]
ENGINE_TEXT = [
    engines.prometheus(engines.golden("draft_k3_t0")["counters"], 20, 500),
    engines.LLAMA_METRICS,
    engines.SGLANG_METRICS,
    engines.SGLANG_COUNTERS,
    engines.vllm_line(engines.golden("draft_k3_t0")["counters"]),
    *engines.LLAMA_LINES.values(),
]

COST: dict[str, Any] = {
    "schema": "specprobe.cost/1",
    "source": "file",
    "conditions": {"device": "made up"},
    "log_deviation": 0.1,
    "prefill_token_seconds": 1e-5,
    "prefill_pair_seconds": 0.0,
    "prefill_step_seconds": 0.01,
    "memory": {"available_bytes": 8e10, "weight_bytes": 2e10, "kv_token_bytes": 1e5, "drafters": {"suffix": [0, 0]}},
    "drafter_seconds": {"ngram": 1e-5},
    "drafter_prefill_seconds": {"suffix": 1e-5},
    "drafting": [
        {"drafter": "draft:m", "batch": b, "depth": k, "context": c, "seconds": 0.001}
        for b in (1, 8)
        for k in (1, 3)
        for c in (8, 512)
    ],
    "points": [
        {"batch": b, "query_tokens": q, "context": c, "seconds": 0.01 * b, "spread_seconds": 0.001, "repeats": 3}
        for b in (1, 8)
        for q in (1, 9)
        for c in (8, 512)
    ],
}
COST_CSV = "batch,query_tokens,context,seconds,drafter,depth\n" + "".join(
    f"{b},{q},{c},{0.01 * b},,\n" for b in (1, 8) for q in (1, 9) for c in (8, 512)
)

TRACES: list[bytes] = [
    b"".join(b'{"timestamp": %d, "input_length": 9, "output_length": 2, "hash_ids": [1]}\n' % t for t in (0, 5, 9)),
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0,110,27\n",
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,472,18,490,chat\n7,m,3,4,7,chat\n",
]

PUBLISHED = (Path(__file__).parents[1] / "published_invented.csv").read_text()
POINTS = {
    "schema": "specprobe.points/1",
    "points": [
        {"batch": 1, "context": 100, "seconds": 0.01, "spread_seconds": 0.001, "repeats": 3},
        {"concurrency": 8, "context": 100, "tokens_per_second": 400.0},
        {
            "batch": 1,
            "context": 100,
            "method": "ngram",
            "depth": 3,
            "acceptance_length": 1.5,
            "tokens_per_round": 1.2,
            "speedup": 1.1,
        },
    ],
}
SETTINGS = """
[analyze]
engine = "vllm@0.33"
drafter = ["ngram", "suffix"]
temperature = [0, 0.7]
max-prompts = 500

[recommend]
gpu = "h100"
concurrency = [1, 16, 64]

[gate]
min-tokens-per-round = 1.5
max-regression = "5%"
drafter = "suffix"
"""
