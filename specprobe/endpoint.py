"""A target that is served elsewhere: its prompts' tokens and its responses come from a server, many at once.

Finished responses are kept one by one, so that a server that dies, a full disk or Ctrl-C lose none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from specprobe.completion_server import find_model
from specprobe.dialects import DIALECTS
from specprobe.errors import SpecprobeError
from specprobe.notices import Notice, inert
from specprobe.prompt import Prompt
from specprobe.server import ANALYZE, Patience, parse_server
from specprobe.side_by_side import side_by_side
from specprobe.store import Response, TrajectoryStore
from specprobe.tokens import Tokenizer, UnrenderableError
from specprobe.trajectory import TokenIds
from specprobe.writing import Gathering, Generated, Progress, Request, Sampling, output_limit

if TYPE_CHECKING:
    from specprobe.served_states import ServedStates
    from specprobe.target import Target

PATIENCE = Patience()


class Endpoint:
    """A served model as a writer of responses."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        tokenizer: Tokenizer | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        timeout_seconds: float = 300.0,
        requests_at_once: int = 16,
        patience: Patience = PATIENCE,
    ) -> None:
        """Ask the server at `url` what it serves; raises SpecprobeError where it is none, or serves no such model.

        `tokenizer`: the served model's, for what the server does not tell. The API key comes from the environment.
        """
        self._server = parse_server(url, timeout_seconds=timeout_seconds, words=ANALYZE)
        self._model = find_model(self._server, model)
        self._kwargs = dict(template_kwargs or {})
        self._dialect = DIALECTS[self._model.engine](self._server, self._model, tokenizer, self._kwargs)
        self._at_once = requests_at_once
        self._patience = patience
        self._encoded: dict[int, tuple[Prompt, TokenIds | UnrenderableError]] = {}
        self._differing = 0
        self.tokenizer = tokenizer
        self.engine: str = self._model.engine
        self.engine_version = self._model.version

    @property
    def name(self) -> str:
        """What the server calls the model."""
        return self._model.name

    @property
    def max_positions(self) -> int | None:
        """The server's context limit in tokens, where it tells it."""
        return self._model.max_model_len

    @property
    def record(self) -> dict[str, Any]:
        """What a run keeps of the target."""
        return {
            "kind": "endpoint",
            "name": self._model.name,
            "url": self._server.name,
            "model": self._model.name,
            "engine": self._model.engine,
            "version": self._model.version,
            "max_position_embeddings": self._model.max_model_len,
        }

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Whether the tokenizer that was named is not the served model's."""
        if not self._differing:
            return ()
        return (
            Notice(
                "tokenizer_differs",
                f"--tokenizer {inert(self.tokenizer.name if self.tokenizer else '', 80)}: cuts {self._differing} of "
                f"{len(self._encoded)} prompts otherwise than the server does, so it, its template or "
                "--chat-template-kwargs are not the served model's; the server's tokens were used",
            ),
        )

    def hidden_states(self, folder: Path, frame: Target) -> ServedStates:
        """Where the server's hidden states are read; `frame`: the served model without its layers.

        Raises SpecprobeError where the server is of an engine that gives none.
        """
        if self.engine != "vllm":
            raise SpecprobeError(
                f"--hidden-states: {self._server.name} is {self.engine}, and only vLLM writes its hidden states; serve "
                "the model with vLLM, or name its checkpoint with --target where it fits"
            )
        from specprobe.served_states import ServedStates

        return ServedStates(self._server, self._model.name, folder, frame, self._at_once, self._patience)

    def close(self) -> None:
        """Nothing is held: each request has a connection of its own."""

    def encode_all(self, prompts: Sequence[Prompt]) -> list[TokenIds | UnrenderableError]:
        """The ids of each prompt, from the server or from the tokenizer; each is asked for once."""
        new = [prompt for prompt in prompts if id(prompt) not in self._encoded]
        for index, ids in side_by_side(self._encode, new, self._at_once):
            self._encoded[id(new[index])] = new[index], ids
            self._differing += self._differs(new[index], ids)
        return [self._encoded[id(prompt)][1] for prompt in prompts]

    def _encode(self, prompt: Prompt, stopped: Event) -> TokenIds | UnrenderableError:
        try:
            return self._patience.ask(lambda: self._dialect.encode(prompt), stopped)
        except UnrenderableError as error:
            return error

    def _differs(self, prompt: Prompt, ids: TokenIds | UnrenderableError) -> bool:
        if self.tokenizer is None or not self._dialect.tells_ids or isinstance(ids, UnrenderableError):
            return False
        try:
            return self.tokenizer.encode_prompt(prompt).tolist() != ids.tolist()
        except UnrenderableError:
            return True

    def write(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        store: TrajectoryStore | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Generated:
        """A response to each request, read from `store` or asked for now, several at once, and kept there.

        Raises SpecprobeError where the server refuses, or has failed too often; it says how many are kept.
        """
        limits = [output_limit(self.max_positions, len(r.prompt_ids), sampling, r.max_new_tokens) for r in requests]
        kept = store.open(self._settings(sampling)) if store else None
        gathering = Gathering(requests, limits, kept, on_progress)
        missing = gathering.missing

        def ask(index: int, stopped: Event) -> Response:
            request, limit = requests[index], limits[index]
            return self._patience.ask(lambda: self._dialect.complete(request, limit, sampling, stopped.is_set), stopped)

        try:
            for number, response in side_by_side(ask, missing, self._at_once):
                gathering.take(missing[number], response)
        except SpecprobeError as error:
            if not kept:
                raise
            raise SpecprobeError(
                f"{error} ({gathering.num_finished} of {len(requests)} responses are kept, the same command goes on "
                "from there)"
            ) from None
        return gathering.generated()

    def _settings(self, sampling: Sampling) -> dict[str, Any]:
        """Everything besides the requests that changes what is written; no key and nothing of it."""
        return {
            **{key: self.record[key] for key in ("url", "model", "engine", "version")},
            "template_kwargs": self._kwargs,
            "tokenizer": self.tokenizer.name if self.tokenizer and not self._dialect.tells_ids else None,
            "temperature": sampling.temperature,
            "seed": sampling.seed if sampling.temperature else None,
            "max_new_tokens": sampling.max_new_tokens,
            "max_model_len": sampling.max_model_len,
            "max_position_embeddings": self.max_positions,
        }
