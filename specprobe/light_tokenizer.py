"""The embedded target's tokenizer without transformers, from `tokenizers` and jinja2."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NoReturn

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer


class LightTokenizer:
    """The part of a transformers tokenizer that specprobe.tokens uses; the same texts and ids come out of it."""

    def __init__(self, folder: Path) -> None:
        """`folder`: a checkpoint's, with its chat template in a file of its own."""
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self._special_tokens: dict[str, str] = {key: value for key, value in config.items() if key.endswith("_token")}
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.chat_template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        self._template = _environment().from_string(self.chat_template)
        self.eos_token = self._special_tokens["eos_token"]
        self.eos_token_id = self.convert_tokens_to_ids(self.eos_token)
        self.bos_token_id = self.convert_tokens_to_ids(self._special_tokens["bos_token"])

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def unk_token_id(self) -> int | None:
        """The id that stands for what no token covers."""
        token = self._special_tokens.get("unk_token")
        return None if token is None else self.convert_tokens_to_ids(token)

    def get_vocab(self) -> dict[str, int]:
        """The id of every entry of the vocabulary, added tokens included."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens that are found in a text before anything else, by id."""
        return self._tokenizer.get_added_tokens_decoder()

    def __call__(self, text: str, *, add_special_tokens: bool, **_kwargs: Any) -> dict[str, list[int]]:
        """The ids of a text."""
        return {"input_ids": self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool, **_kwargs: Any) -> str:
        """The text of some ids."""
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        """The entries of the vocabulary."""
        return [self._tokenizer.id_to_token(i) for i in ids]

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """The id of an entry of the vocabulary."""
        return self._tokenizer.token_to_id(token)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tokenize: Literal[False],  # noqa: ARG002 - transformers' default would give ids
        **variables: Any,
    ) -> str:
        """The text of a conversation; `variables` are for the template."""
        return self._template.render(messages=messages, **self._special_tokens | variables)


def _environment() -> ImmutableSandboxedEnvironment:
    """What a chat template finds in transformers, as far as the embedded target's could need it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """jinja2's own filter escapes what HTML reserves."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
