"""Every configuration exported for vLLM, given to vLLM's own parser: see README.md beside this file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.engines.cases import GOLDEN, cases, checkpoints

VARIABLE = "SPECPROBE_VLLM"


def main() -> int:
    python = os.environ.get(VARIABLE)
    if not python:
        print(f"set {VARIABLE} to the python of an environment with vLLM", file=sys.stderr)
        return 2
    every = list(cases())
    exported = [case for case in every if "text" in case]
    with TemporaryDirectory() as folder:
        for name, config in checkpoints().items():
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "config.json").write_text(json.dumps(config))
        answer = Path(folder) / "verdicts.json"
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        command = [python, str(Path(__file__).parent / "vllm_parser.py"), folder, str(answer)]
        subprocess.run(
            command, input=json.dumps(exported), text=True, env=environment, stdout=subprocess.DEVNULL, check=True
        )
        found = json.loads(answer.read_text())
    refused = [verdict for verdict in found["verdicts"] if "error" in verdict]
    for verdict in refused:
        print(f"{verdict['name']}: {verdict['error']}")
    print(
        f"vLLM {found['vllm']}: {len(exported) - len(refused)} of {len(exported)} exported configurations accepted; "
        f"{len(every) - len(exported)} refused by specprobe"
    )
    if refused:
        return 1
    lines = ",\n".join(json.dumps(case) for case in every)
    GOLDEN.write_text(f'{{"vllm": {json.dumps(found["vllm"])}, "cases": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
