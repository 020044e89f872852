"""How each engine's server is asked for the tokens of a prompt and for a response to it, token by token.

vLLM and llama.cpp render and cut a conversation themselves; SGLang and servers of an unknown kind leave that to the
tokenizer named by the user. vLLM, SGLang and llama.cpp take ids and give ids; an unknown server gives text, whose
tokens are those of the tokenizer as far as it gives the text back and the server counted as many.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from specprobe.chat_body import conversation
from specprobe.completion_server import (
    Answer,
    Engine,
    ServedModel,
    checked_ids,
    is_log_prob,
    stream_completion,
)
from specprobe.errors import SpecprobeError
from specprobe.processors import PLAIN
from specprobe.prompt import Prompt
from specprobe.server import NotFoundError, RefusedFieldError, Server, TransientError, post_json
from specprobe.store import Response
from specprobe.tokens import Tokenizer, UnrenderableError
from specprobe.trajectory import TokenIds, token_ids
from specprobe.writing import Request, Sampling

# How servers say why a response ended.
STOPPED = ("stop", "eos", "word", "tool_calls", "function_call")
FILTERED = "content_filter"


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """A server that speaks the completions protocol and nothing else. Subclasses are engines.

    `tokenizer`: the one that the user named. `template_kwargs`: further words for the chat template.
    """

    server: Server
    model: ServedModel
    tokenizer: Tokenizer | None
    template_kwargs: Mapping[str, Any]

    @property
    def tells_ids(self) -> bool:
        """Whether the ids of prompts and responses come from the server."""
        return False

    def encode(self, prompt: Prompt) -> TokenIds:
        """The ids of a prompt, as the model is given it; raises UnrenderableError where its template refuses it."""
        if prompt.token_ids is not None:
            return token_ids(prompt.token_ids)
        with contextlib.suppress(NotFoundError):
            if (told := self._ask_tokens(prompt)) is not None:
                return told
        if self.tokenizer is None:
            raise SpecprobeError(
                f"{self.server.name}: tells no tokens of a prompt; name the served model's tokenizer with --tokenizer"
            )
        return self.tokenizer.encode_prompt(prompt)

    def _ask_tokens(self, prompt: Prompt) -> TokenIds | None:  # noqa: ARG002
        """The ids from the server; None, or NotFoundError of an older version, where it does not tell them."""
        return None

    def complete(self, request: Request, limit: int, sampling: Sampling, is_stopped: Callable[[], bool]) -> Response:
        """A response of at most `limit` tokens; raises TransientError where another attempt may do better."""
        settings = {**request.processors.changed, **seed_of(request, sampling)}
        prompt = request.prompt
        if prompt is not None and prompt.messages:
            body = conversation(prompt, self.template_kwargs)
            path = "chat/completions"
        else:
            has_text = prompt is not None and prompt.text is not None
            body = {"prompt": prompt.text if prompt and has_text else request.prompt_ids.tolist()}
            path = "completions"
        answer = self._stream({**body, **settings}, limit, sampling, is_stopped, path)
        return self._retokenized(answer, request)

    def _stream(
        self,
        body: Mapping[str, Any],
        limit: int,
        sampling: Sampling,
        is_stopped: Callable[[], bool],
        path: str = "completions",
    ) -> Answer:
        asked = {
            "model": self.model.name,
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return stream_completion(self.server, {**asked, **body}, is_stopped, path)

    def _retokenized(self, answer: Answer, request: Request) -> Response:
        """A response out of text alone, or with the reason why its tokens cannot be told from it."""
        if self.tokenizer is None:
            raise SpecprobeError(
                f"{self.server.name}: its answers hold no token ids; name the served model's tokenizer with --tokenizer"
            )
        if answer.finish_reason == FILTERED:
            return _lost(FILTERED)
        ends = self._end(answer.finish_reason)
        if not answer.is_all_text:
            return _lost("reasoning_apart")
        if answer.prompt_tokens and answer.prompt_tokens != len(request.prompt_ids):
            return _lost("prompt_tokens_differ")
        ids = self.tokenizer.encode_continuation(answer.text)
        # Servers count the end token or leave it out.
        counts = (0, answer.completion_tokens, answer.completion_tokens - (ends == "stop"))
        if ids is None or (answer.completion_tokens and len(ids) not in counts):
            return _lost("not_round_trip")
        last = [self.tokenizer.end_id] if ends == "stop" and self.tokenizer.end_id is not None else []
        return _response([*ids.tolist(), *last], None, ends)

    def _end(self, reason: Any) -> Literal["stop", "length"]:
        if reason in STOPPED:
            return "stop"
        if reason in ("length", "limit"):
            return "length"
        told = self.server.quote(str(reason), 40)
        raise TransientError(f"{self.server.name}: an answer that did not end ({told}); look into the server's log")


class VllmDialect(Dialect):
    """vLLM: /tokenize renders, completions take ids and give them back (return_token_ids)."""

    __slots__ = ()

    @property
    def tells_ids(self) -> bool:
        """From /tokenize and return_token_ids."""
        return True

    def _ask_tokens(self, prompt: Prompt) -> TokenIds:
        """From /tokenize, which renders as chat completions do."""
        asked = conversation(prompt, self.template_kwargs) if prompt.messages else {"prompt": prompt.text or ""}
        return _tokens_told(self.server, "tokenize", {"model": self.model.name, **asked})

    def complete(self, request: Request, limit: int, sampling: Sampling, is_stopped: Callable[[], bool]) -> Response:
        """From /completions. All settings are named: what is left out, vLLM takes from the model's own defaults."""
        body = {
            "prompt": request.prompt_ids.tolist(),
            "return_token_ids": True,
            "logprobs": 0,
            **asdict(request.processors),
            **seed_of(request, sampling),
        }
        answer = self._stream(body, limit, sampling, is_stopped)
        if answer.token_ids is None:
            # Before 0.10.2 it does not know the field.
            return self._retokenized(answer, request)
        log_probs = answer.log_probs if is_plain(request, sampling) else None
        return _response(answer.token_ids, log_probs, self._end(answer.finish_reason))


class SglangDialect(Dialect):
    """SGLang: /generate takes ids and gives them beside their log-probabilities."""

    __slots__ = ()

    def complete(self, request: Request, limit: int, sampling: Sampling, is_stopped: Callable[[], bool]) -> Response:  # noqa: ARG002
        """From /generate, in one piece: how its streams add up differs between versions. It takes no seed."""
        processors = asdict(request.processors)
        body = {
            "input_ids": request.prompt_ids.tolist(),
            "sampling_params": {
                **processors,
                "top_k": processors["top_k"] or -1,
                "temperature": sampling.temperature,
                "max_new_tokens": limit,
            },
            "return_logprob": True,
        }
        answer = post_json(self.server, f"{self.server.root}/generate", body)
        told = answer.get("meta_info") if isinstance(answer, dict) else None
        chosen = told.get("output_token_logprobs") if isinstance(told, dict) else None
        reason = told.get("finish_reason") if isinstance(told, dict) else None
        if not isinstance(chosen, list) or not all(isinstance(one, list) and len(one) >= 2 for one in chosen):
            raise TransientError(f"{self.server.name}: an answer without its tokens; look into the server's log")
        ids = checked_ids(self.server, [one[1] for one in chosen])
        log_probs = [one[0] for one in chosen] if is_plain(request, sampling) else None
        return _response(ids, log_probs, self._end(reason.get("type") if isinstance(reason, dict) else reason))


class LlamaCppDialect(Dialect):
    """llama.cpp: /apply-template and /tokenize render, /completion takes ids and gives them back (return_tokens)."""

    __slots__ = ()

    @property
    def tells_ids(self) -> bool:
        """From /tokenize and return_tokens."""
        return True

    def _ask_tokens(self, prompt: Prompt) -> TokenIds:
        """As its chat completions do: the template's text, with the tokens that the model adds to any."""
        text = self._rendered(prompt) if prompt.messages else prompt.text or ""
        return _tokens_told(self.server, "tokenize", {"content": text, "add_special": True, "parse_special": True})

    def _rendered(self, prompt: Prompt) -> str:
        body = conversation(prompt, self.template_kwargs)
        try:
            answer = post_json(self.server, f"{self.server.root}/apply-template", body)
        except RefusedFieldError as error:
            raise UnrenderableError(str(error)) from None
        text = answer.get("prompt") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise TransientError(f"{self.server.name}: /apply-template tells no prompt; look into the server's log")
        return text

    def complete(self, request: Request, limit: int, sampling: Sampling, is_stopped: Callable[[], bool]) -> Response:  # noqa: ARG002
        """From /completion, in one piece: its streams leave out the ids of letters cut between tokens."""
        settings = asdict(request.processors)
        repeat_penalty = settings.pop("repetition_penalty")
        body = {
            "prompt": request.prompt_ids.tolist(),
            "n_predict": limit,
            "temperature": sampling.temperature,
            "return_tokens": True,
            "n_probs": 1,
            **settings,
            "repeat_penalty": repeat_penalty,
            # Of all tokens where there is no window; builds since b11434 refuse -1 for that.
            "repeat_last_n": request.rule.penalty_window or len(request.prompt_ids) + limit,
            **seed_of(request, sampling),
        }
        answer = post_json(self.server, f"{self.server.root}/completion", body)
        if not isinstance(answer, dict):
            raise TransientError(f"{self.server.name}: an answer that is no object; look into the server's log")
        ids = checked_ids(self.server, answer.get("tokens"))
        told = answer.get("completion_probabilities")
        log_probs = None
        if is_plain(request, sampling) and isinstance(told, list):
            log_probs = [one.get("logprob") if isinstance(one, dict) else None for one in told]
        return _response(ids, log_probs, self._end(answer.get("stop_type")))


DIALECTS: dict[Engine, type[Dialect]] = {
    "vllm": VllmDialect,
    "sglang": SglangDialect,
    "llama.cpp": LlamaCppDialect,
    "unknown": Dialect,
}


def _tokens_told(server: Server, path: str, body: dict[str, Any]) -> TokenIds:
    try:
        answer = post_json(server, f"{server.root}/{path}", body)
    except RefusedFieldError as error:
        raise UnrenderableError(str(error)) from None
    return token_ids(checked_ids(server, answer.get("tokens") if isinstance(answer, dict) else None))


def seed_of(request: Request, sampling: Sampling) -> dict[str, int]:
    """A seed of its own for each request, and none where nothing is drawn."""
    if sampling.temperature == 0:
        return {}
    words = f"{sampling.seed} {request.key} {sampling.temperature!r}".encode()
    return {"seed": int.from_bytes(hashlib.sha256(words).digest()[:4], "little") // 2}


def is_plain(request: Request, sampling: Sampling) -> bool:
    """Whether the raw log-probabilities that servers give are those of what was sampled from (or of temperature 0)."""
    return request.processors == PLAIN and sampling.temperature in (0, 1)


def _response(ids: Any, log_probs: Any, ends: Literal["stop", "length"]) -> Response:
    if not ids:
        return _lost("empty_answer")
    known = None
    if log_probs is not None and len(log_probs) == len(ids) and all(is_log_prob(p) for p in log_probs):
        known = np.minimum(np.array(log_probs, dtype=np.float32), 0)
        known.flags.writeable = False
    return Response(token_ids(ids), known, None, ends)


def _lost(obstacle: str) -> Response:
    return Response(token_ids(), None, None, "stop", obstacle)
