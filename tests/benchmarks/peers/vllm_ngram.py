"""vLLM's n-gram proposer over logged answers, round for round; run by `logged.py` in an interpreter that has vLLM.

    PYTHON vllm_ngram.py WORKS.npz MIN_N MAX_N DEPTH

Each line of its input is one pass over all answers, and gives a line of JSON: rounds, and processor seconds.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import numpy as np
from vllm.v1.spec_decode.ngram_proposer import NgramProposer

works = np.load(sys.argv[1])
known, num_prompt = np.ascontiguousarray(works["known"], dtype=np.int32), int(works["prompt_tokens"])
min_n, max_n, depth = map(int, sys.argv[2:])
proposer = NgramProposer(
    SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=min_n, prompt_lookup_max=max_n, num_speculative_tokens=depth
        ),
        # Far enough that no draft meets the context limit.
        model_config=SimpleNamespace(max_model_len=known.shape[1] + depth + 1),
        scheduler_config=SimpleNamespace(max_num_seqs=1024),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
)


def count_rounds(texts: np.ndarray) -> int:
    rounds = 0
    for text in texts:
        seen = text[None]
        end = num_prompt + 1
        while end < text.size:
            rounds += 1
            (draft,) = proposer.propose(depth, [[0]], np.array([end], dtype=np.int32), seen)
            accepted = 0
            while accepted < min(len(draft), text.size - end) and draft[accepted] == text[end + accepted]:
                accepted += 1
            end += accepted + 1
    return rounds


# Its first call compiles.
count_rounds(known[:1])
for _ in sys.stdin:
    begin = time.process_time()
    rounds = count_rounds(known)
    print(json.dumps({"rounds": rounds, "seconds": time.process_time() - begin}), flush=True)
