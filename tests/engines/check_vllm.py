"""Every configuration exported for vLLM, given to vLLM's own parser: see README.md beside this file."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from specprobe.export import command_line
from tests.engines.cases import GOLDEN, cases, checkpoints

VARIABLE = "SPECPROBE_VLLM"
# What vLLM must refuse: else its acceptance of the others says nothing.
SPOILT = {
    "no such key": {"prompt_lookup_most": 4},
    "no such method": {"method": "eagle4"},
    "too few rates": {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5]},
    "rates that rise": {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.6]},
    "rates without synthetic": {"synthetic_acceptance_rates": [0.5, 0.4]},
    "a schedule that starts late": {"num_speculative_tokens_per_batch_size": [[2, 4, 2]]},
}


def main() -> int:
    python = os.environ.get(VARIABLE)
    if not python:
        print(f"set {VARIABLE} to the python of an environment with vLLM", file=sys.stderr)
        return 2
    every = list(cases())
    exported = [case for case in every if "text" in case]
    ngram = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    spoilt = [
        {"name": name, "target": "target", "text": command_line("vllm", ngram | change)}
        for name, change in SPOILT.items()
    ]
    with TemporaryDirectory() as folder:
        for name, config in checkpoints().items():
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "config.json").write_text(json.dumps(config))
        answer = Path(folder) / "verdicts.json"
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        command = [python, str(Path(__file__).parent / "vllm_parser.py"), folder, str(answer)]
        subprocess.run(
            command,
            input=json.dumps([*exported, *spoilt]),
            text=True,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        found = json.loads(answer.read_text())
    verdicts, controls = found["verdicts"][: len(exported)], found["verdicts"][len(exported) :]
    wrong = [
        f"{case['name']}: {verdict.get('error', verdict)}"
        for case, verdict in zip(exported, verdicts, strict=True)
        if not _is_as_exported(case["text"], verdict)
    ]
    wrong += [f"{verdict['name']}: accepted, and should not be" for verdict in controls if "error" not in verdict]
    for line in wrong:
        print(line)
    print(
        f"vLLM {found['vllm']}: {len(exported)} exported configurations and {len(spoilt)} spoilt ones, "
        f"{len(wrong)} not as they should be; {len(every) - len(exported)} refused by specprobe"
    )
    if wrong:
        return 1
    lines = ",\n".join(json.dumps(case) for case in every)
    GOLDEN.write_text(f'{{"vllm": {json.dumps(found["vllm"])}, "cases": [\n{lines}\n]}}\n')
    return 0


def _is_as_exported(text: str, verdict: dict[str, Any]) -> bool:
    """Whether vLLM made of a text the method and depth that it names."""
    settings = json.loads(shlex.split(text)[-1])
    wanted = (settings["method"], settings["num_speculative_tokens"])
    return (verdict.get("method"), verdict.get("depth")) == wanted


if __name__ == "__main__":
    sys.exit(main())
