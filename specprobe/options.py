"""What the user asks of `analyze`, checked before any work is done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from specprobe import defaults
from specprobe.causal_lm import LoadOptions
from specprobe.errors import SpecprobeError
from specprobe.notices import inert
from specprobe.option_values import RAY_ADDRESS
from specprobe.processors import PLAIN, Processors
from specprobe.profiles import DraftSampling
from specprobe.scan import ReadOptions
from specprobe.server import check_timeout, is_address

MAX_DEPTH = 64
# More tell nothing new: what prompts differ by among themselves stays.
MOST_SAMPLES = 1000
# Longer than the context of any model.
MOST_NEW_TOKENS = 2**24
ONE_TEMPERATURE = (
    "--temperature: logged answers were sampled at one temperature; give that one, or --responses generate"
)
Responses = Literal["auto", "generate", "logged"]
Backend = Literal["transformers", "vllm"]
FromLog = Literal["log"]
FROM_LOG: FromLog = "log"


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """Everything that decides what `analyze` does; refused where it makes no sense, before any work is done.

    `target`: a Hub id or folder, or the address of a server; None for the embedded one. `backend`: who writes
    responses where it is no server. `server_model`, `timeout_seconds`: of a server. `hidden_states`: the folder that
    it writes those of its model into, as seen from here, and `target_checkpoint` that model's Hub id or folder. `ray`:
    the cluster over which the target's work is shared out, "local" for one that is started here; None for this process
    alone.

    `temperatures`: None for 0 where responses are generated, and for what the log says where they are logged;
    FROM_LOG for each row's own, with its other sampling settings. `processors`: what else requests ask for, where
    the log is not asked or does not say. `samples`: responses to each prompt above temperature 0. `draft_sampling`:
    None for what the engine offers. `tokenizer`: for logged text, None for the target's. `in_flight`: requests that
    write side by side, for what they share. `include_text`: prompts and responses themselves go into the run.
    `precision`: how well tokens per round is to be known, as a share; None for all prompts.
    `logged_cut_at`: the token limit that logged responses were asked for with, where it is known.
    """

    prompts: tuple[str, ...]
    target: str | None = None
    tokenizer: str | None = None
    drafters: tuple[str, ...] = ()
    depth: int = defaults.DEPTH
    temperatures: tuple[float, ...] | FromLog | None = None
    processors: Processors = PLAIN
    samples: int = 1
    responses: Responses = "auto"
    engine: str = defaults.ENGINE
    draft_sampling: Literal["greedy", "sampled", "both"] | None = None
    load: LoadOptions = field(default_factory=LoadOptions)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int = defaults.MAX_NEW_TOKENS
    max_model_len: int | None = None
    batch_size: int = defaults.BATCH_SIZE
    seed: int = 0
    in_flight: int = 1
    precision: float | None = None
    include_text: bool = False
    backend: Backend = "transformers"
    server_model: str | None = None
    timeout_seconds: float = defaults.TIMEOUT_SECONDS
    ray: str | None = None
    read: ReadOptions = field(default_factory=ReadOptions)
    logged_cut_at: int | None = None
    hidden_states: Path | None = None
    target_checkpoint: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= MAX_DEPTH:
            raise SpecprobeError(f"--depth {self.depth}: must be from 1 to {MAX_DEPTH}")
        self._check_temperatures()
        for name, value in (
            ("max-new-tokens", self.max_new_tokens),
            ("batch-size", self.batch_size),
            ("samples", self.samples),
            ("in-flight", self.in_flight),
        ):
            if value < 1:
                raise SpecprobeError(f"--{name} {value}: must be at least 1")
        if self.samples > MOST_SAMPLES:
            raise SpecprobeError(f"--samples {self.samples}: must be at most {MOST_SAMPLES}")
        for name, value, most in (
            ("max-new-tokens", self.max_new_tokens, MOST_NEW_TOKENS),
            ("batch-size", self.batch_size, defaults.LARGEST_CONCURRENCY),
            ("in-flight", self.in_flight, defaults.LARGEST_CONCURRENCY),
        ):
            if value > most:
                raise SpecprobeError(f"--{name} {value}: must be at most {most}")
        check_timeout(self.timeout_seconds)
        if self.precision is not None and not 0 < self.precision < 1:
            raise SpecprobeError(f"--precision {self.precision:g}: must be between 0 and 1, such as 0.05 for 5 %")
        if self.seed < 0:
            raise SpecprobeError(f"--seed {self.seed}: must not be negative")
        if self.max_model_len is not None and self.max_model_len > 2**31:
            raise SpecprobeError(f"--max-model-len {self.max_model_len}: must be at most {2**31}")
        for name, text in (
            ("target", self.target),
            ("tokenizer", self.tokenizer),
            ("target-checkpoint", self.target_checkpoint),
        ):
            if text == "":
                raise SpecprobeError(f"--{name}: is empty; give a folder or a Hub id, or leave it out")
        self._check_server()
        self._check_ray()
        if self.tokenizer is not None and self.responses == "generate" and not self.is_served:
            raise SpecprobeError("--tokenizer: is for logged text; what is generated is cut by the target's own")
        if self.max_model_len is not None:
            check_depth_fits(self.depth, self.max_model_len)
        if self.target is not None and self.tokenizer is not None and not self.is_served:
            raise SpecprobeError("--tokenizer: the target brings its own; leave --tokenizer or --target out")

    @property
    def is_served(self) -> bool:
        """Whether the target is a server."""
        return is_address(self.target)

    @property
    def asks_log(self) -> bool:
        """Whether each row's own settings apply."""
        return self.temperatures == FROM_LOG

    @property
    def draft_samplings(self) -> tuple[DraftSampling, ...] | None:
        """The ways of drafting asked for; None: those that the engine offers."""
        if self.draft_sampling is None:
            return None
        return ("greedy", "sampled") if self.draft_sampling == "both" else (self.draft_sampling,)

    def _check_server(self) -> None:
        if not self.is_served and self.server_model is not None:
            raise SpecprobeError("--server-model: is for a server; name its address with --target http://HOST:PORT/v1")
        if (self.hidden_states is None) != (self.target_checkpoint is None):
            raise SpecprobeError(
                "--hidden-states FOLDER and --target-checkpoint CHECKPOINT go together: where a server writes the "
                "states of its model, and that model's config, embeddings and head"
            )
        if not self.is_served:
            if self.hidden_states is not None:
                raise SpecprobeError(
                    "--hidden-states: come from a server; name its address with --target http://HOST:PORT/v1"
                )
            return
        if self.hidden_states is not None and not self.hidden_states.is_dir():
            raise SpecprobeError(
                f"--hidden-states {self.hidden_states}: no such folder here; name the server's shared_storage_path as "
                "it is seen from here"
            )
        if self.responses == "logged":
            raise SpecprobeError(
                "--responses logged: a server does not judge a log; leave --target out, or use --responses generate"
            )
        if self.backend != "transformers":
            raise SpecprobeError("--backend: --target is a server, which writes itself; leave --backend out")

    def _check_ray(self) -> None:
        if self.ray is None:
            return
        if self.is_served:
            raise SpecprobeError(
                "--ray: --target is a server, which scales by itself; leave --ray out, and raise --batch-size to keep "
                "it busy"
            )
        if self.backend != "transformers":
            raise SpecprobeError("--ray: vLLM shares its work out by itself; leave --ray or --backend out")
        if not RAY_ADDRESS.fullmatch(self.ray):
            raise SpecprobeError(
                f"--ray {inert(self.ray, 80)}: no address; write auto, HOST:PORT or ray://HOST:PORT, or --ray alone "
                "for this machine"
            )
        if find_spec("ray") is None:
            raise SpecprobeError("--ray: Ray is not here; pip install 'specprobe[ray]', on every node of the cluster")

    def _check_temperatures(self) -> None:
        if self.temperatures is None or self.temperatures == FROM_LOG:
            return
        if not self.temperatures:
            raise SpecprobeError("--temperature: name at least one")
        for temperature in self.temperatures:
            smallest = defaults.SMALLEST_TEMPERATURE
            if temperature != 0 and not smallest <= temperature <= 10:
                raise SpecprobeError(f"--temperature {temperature:g}: must be 0, or from {smallest:g} to 10")
        if len(set(self.temperatures)) < len(self.temperatures):
            raise SpecprobeError("--temperature: a value occurs twice")
        if self.responses == "logged" and len(self.temperatures) > 1:
            raise SpecprobeError(ONE_TEMPERATURE)


def read_ladder(path: Path) -> tuple[str, ...]:
    """The drafters of a file, one a line; what follows a # is a comment."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SpecprobeError(f"--ladder {path}: {str(reason).lower()}; name a text file, one drafter a line") from None
    # Within a word # is part of a name.
    lines = (re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip() for line in text.splitlines())
    specs = tuple(filter(None, lines))
    if not specs:
        raise SpecprobeError(f"--ladder {path}: names no drafter; write one a line, such as ngram")
    return specs


def check_depth_fits(depth: int, max_model_len: int) -> None:
    """Refuse a depth that no round could draft."""
    # A round needs a prompt token, the sampled one, the drafts and the bonus token.
    if depth + 3 > max_model_len:
        raise SpecprobeError(
            f"--depth {depth}: does not fit a context of {max_model_len} tokens; lower it or raise --max-model-len"
        )
