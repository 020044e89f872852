"""Options that several commands have in common, and the words that options may take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specprobe import completion


class DraftSamplingChoice(StrEnum):
    """How drafts are chosen from the drafter's distribution."""

    greedy = "greedy"
    sampled = "sampled"
    both = "both"


class PreferChoice(StrEnum):
    """What to weigh a gain against."""

    simple = "simple"
    fast = "fast"


class BackendChoice(StrEnum):
    """Who writes responses on this machine."""

    transformers = "transformers"
    vllm = "vllm"


class ResponsesChoice(StrEnum):
    """Where responses come from."""

    auto = "auto"
    generate = "generate"
    logged = "logged"


PromptsArgument = Annotated[
    list[str],
    typer.Argument(help="File, folder, glob, - for stdin, or hf:NAME[:CONFIG][:SPLIT].", show_default=False),
]
RunArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run that analyze wrote. Default: the last one.",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="Force a row format instead of detecting it.", autocompletion=completion.formats),
]
FieldOption = Annotated[str | None, typer.Option("--prompt-field", help="The column that holds the prompt.")]
FirstTurnOption = Annotated[
    bool, typer.Option("--first-turn/--no-first-turn", help="First user turn only, as most benchmarks read chat logs.")
]
DedupeOption = Annotated[bool, typer.Option("--dedupe/--no-dedupe", help="Keep only the first of equal prompts.")]
MaxPromptsOption = Annotated[int | None, typer.Option("--max-prompts", help="Use only the first N prompts.")]
RunOutOption = Annotated[Path | None, typer.Option("--out", help="Also write the run to this file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]
PlainOption = Annotated[
    bool,
    typer.Option(
        "--plain",
        envvar="SPECPROBE_PLAIN",
        help="One fact a line, ASCII, no tables, bars or colours: for screen readers and logs.",
    ),
]
DetailsOption = Annotated[bool, typer.Option("--details", help="Everything behind the one screen.")]
DtypeOption = Annotated[
    str | None,
    typer.Option("--dtype", help="float32, bfloat16 or float16. Default: float32 on the CPU, else the checkpoint's."),
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cuda, mps or cpu. Default: the best there is.")]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Share the target's work out over a Ray cluster: auto, HOST:PORT or ray://HOST:PORT. Without an address: "
        "over the GPUs or processors of this machine.",
        show_default=False,
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, for how long and in how much memory; do nothing.")
]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with a model. Default: never.")
]
