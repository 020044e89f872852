"""`bench` against real vLLM servers on the CPU; not part of the tests, since it takes an engine and half an hour.

    python tests/engines/vllm_bench.py ENGINE_PYTHON TARGET DRAFT PROMPTS [--timing]

ENGINE_PYTHON: the interpreter of an environment with vLLM (0.32, CPU, was used); TARGET, DRAFT: checkpoints. Starts a
server without speculation, one with n-gram and one with the draft model, both of 3 draft tokens, and checks that

- greedy answers are counted exactly as replayed, at concurrency 1, 4 and 16, wherever the arms agree;
- at temperature 0.8 n-gram on a build without triton-cpu ends in "broken" and on one with it in a verdict.

With --timing three repeats of each are timed, predicted after `calibrate` on concurrency 4 alone, and printed as a
table in Markdown; nothing else should run on the machine then. Exits with 1 where a check fails.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
READY_SECONDS = 600
CONCURRENCIES = "1,4,16"
# triton itself may be installed without what the CPU needs.
TRITON_FOR_CPU = "import triton.backends as t; raise SystemExit('cpu' not in t.backends)"


def start(stack: ExitStack, python: str, target: str, config: dict[str, Any] | None, folder: Path, name: str) -> str:
    """The address of a server, once it answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", target, "--served-model-name", "target"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "16"]
    command += ["--port", str(port)]
    if config is not None:
        command += ["--speculative-config", json.dumps(config), "--per-request-spec-decode-metrics", "detailed"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    stack.callback(process.wait)
    stack.callback(os.killpg, process.pid, signal.SIGTERM)
    end = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).close()
        except OSError:
            time.sleep(1)
        else:
            return f"http://127.0.0.1:{port}/v1"
    sys.exit(f"{name}: did not come up; see {log.name}")


def specprobe(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The status and the document of a command."""
    print("specprobe", *arguments, file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "specprobe", *arguments, "--json"], stdout=subprocess.PIPE, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def check_counters(document: dict[str, Any], label: str) -> bool:
    """Print what agrees, and whether all that agrees is exact."""
    is_right = True
    for level in document["by_concurrency"]:
        check, greedy = level["acceptance"], level["greedy"]
        told, expected = check["measured"], check["expected"]
        print(
            f"{label}, concurrency {level['concurrency']}: {greedy['compared'] - greedy['diverging']} of "
            f"{greedy['compared']} answers alike; counters exact in {check['exact']} of {check['compared']}; accepted "
            f"{told['accepted_tokens']} of {told['drafted_tokens']}, replayed {expected['accepted_tokens']} of "
            f"{expected['drafted_tokens']}",
            flush=True,
        )
        is_right &= check["exact"] == check["compared"] > 0 and check["totals_exact"] is not False
    return is_right


def timing_table(label: str, document: dict[str, Any]) -> None:
    """Rows of the table in docs/validation.md."""
    for level in document["by_concurrency"]:
        speedup, predicted = level["speedup"], level["predicted"]
        print(
            f"| {label} | {level['concurrency']} | {level['plain']['output_tokens_per_second']:.1f} | "
            f"{level['speculative']['output_tokens_per_second']:.1f} | {speedup['point']:.2f} "
            f"[{speedup['low']:.2f}, {speedup['high']:.2f}] | {100 * level['spread']:.0f} % | "
            f"{predicted['speedup_as_run']:.2f} | {100 * level['prediction_error']:+.0f} % | "
            f"{'yes' if level['prediction_within'] else 'no'} |",
            flush=True,
        )


def main() -> None:
    """See the module."""
    python, target, draft, prompts = sys.argv[1:5]
    folder = Path(tempfile.mkdtemp(prefix="specprobe-bench-"))
    drafters = {"ngram": "ngram:min=2,max=4", "draft": f"draft:{draft}"}
    configs = {"ngram": NGRAM, "draft": {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}}
    is_right = True
    with ExitStack() as stack:
        plain = start(stack, python, target, None, folder, "plain")
        servers = {name: start(stack, python, target, config, folder, name) for name, config in configs.items()}

        def bench(name: str, *more: str) -> tuple[int, dict[str, Any]]:
            rules = ("--drafter", drafters[name], "--depth", "3", "--engine", "vllm-v1@0.32", "--max-new-tokens", "48")
            return specprobe("bench", prompts, "--server", plain, "--speculative", servers[name], *rules, *more)

        if "--timing" in sys.argv:
            print("| drafter | C | without | with | speed-up | spread | predicted | error | within |")
            for name in configs:
                point, cost = folder / f"{name}-c4.json", folder / f"{name}-cost.json"
                bench(name, "--concurrency", "4", "--repeats", "3", "--out", str(point))
                model = ("--model", "SmolLM2-135M", "--gpu", "cpu", "--dtype", "float32", "--depth", "3")
                specprobe("calibrate", str(point), *model, "--out", str(cost))
                options = ("--concurrency", CONCURRENCIES, "--repeats", "3", "--cost", str(cost))
                _, document = bench(name, *options, "--out", str(folder / f"{name}.json"))
                timing_table(name, document)
        else:
            for name in configs:
                _, document = bench(name, "--concurrency", CONCURRENCIES, "--repeats", "1")
                is_right &= check_counters(document, name)
            status, document = bench("ngram", "--concurrency", "4", "--repeats", "1", "--temperature", "0.8")
            print(f"ngram at temperature 0.8: exit {status}; {'; '.join(document['broken']) or 'sound'}")
            is_sound = (
                subprocess.run([python, "-c", TRITON_FOR_CPU], stderr=subprocess.DEVNULL, check=False).returncode == 0
            )
            is_right &= (status == 1) != is_sound
    print(f"logs and documents: {folder}", file=sys.stderr)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
