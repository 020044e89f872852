"""Runs inside vLLM's Python: `vllm_parser.py FOLDER VERDICTS < cases.json`.

FOLDER holds the checkpoints' config.json; of each case the `text`, a whole `vllm serve` line, is read by the server's
argument parser and made into a VllmConfig. Imports nothing of specprobe.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from importlib import import_module
from importlib.util import find_spec

import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

# Where the server's parser lies: in 0.32, and before.
PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
# No tokenizer is there to look at.
SERVER = ("--skip-tokenizer-init", "--max-model-len", "2048", "--enforce-eager", "--dtype", "float32")


def verdict(parser: FlexibleArgumentParser, case: dict[str, str]) -> dict[str, object]:
    """The method, depth and runner that vLLM made of it; raises what vLLM raises."""
    command, verb, model, *arguments = shlex.split(case["text"])
    if (command, verb, model) != ("vllm", "serve", "MODEL"):
        raise ValueError(f"no `vllm serve MODEL`: {case['text']}")
    parsed = parser.parse_args(["--model", case["target"], *SERVER, *arguments])
    made = AsyncEngineArgs.from_cli_args(parsed).create_engine_config()
    spec = made.speculative_config
    if spec.num_speculative_tokens_per_batch_size is not None:
        build_dynamic_sd_schedule_lookup(spec.num_speculative_tokens_per_batch_size, 64, spec.num_speculative_tokens)
    return {"method": spec.method, "depth": spec.num_speculative_tokens}


def main() -> None:
    os.chdir(sys.argv[1])
    if find_spec("arctic_inference") is None:
        vllm.config.speculative.has_arctic_inference = lambda: True
    where = next(name for name in PARSERS if find_spec(name))
    parser = import_module(where).make_arg_parser(FlexibleArgumentParser())
    verdicts = []
    for case in json.load(sys.stdin):
        try:
            verdicts.append({"name": case["name"], **verdict(parser, case)})
        # Whatever vLLM raises, or an exit of its parser, is its refusal of this case.
        except (Exception, SystemExit) as error:
            verdicts.append({"name": case["name"], "error": f"{type(error).__name__}: {error}"})
    # vLLM logs to stdout.
    with open(sys.argv[2], "w") as file:  # noqa: PTH123
        json.dump({"vllm": vllm.__version__, "verdicts": verdicts}, file)


if __name__ == "__main__":
    main()
