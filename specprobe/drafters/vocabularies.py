"""Whether a draft model's token ids are the target's, and how they map where they are not. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from specprobe.drafters.scores import DraftVocabulary
from specprobe.errors import SpecprobeError
from specprobe.tokens import Tokenizer

# Below a quarter of the smaller vocabulary, or below as many tokens as vLLM 0.33 warns of, most of a text has no
# counterpart: such a pair is a mistake, not a configuration.
USEFUL_OVERLAP = 0.25
USEFUL_TOKENS = 100


@dataclass(frozen=True, slots=True, eq=False)
class VocabularyMatch:
    """How two tokenizers relate. `mapping` is None where ids agree.

    `shared`: tokens that both have. `unknown_id`: the draft model's id for a token that it does not have.
    `equal_sizes`: whether the models' matrices have as many rows.
    """

    shared: int
    target_size: int
    draft_size: int
    mapping: DraftVocabulary | None = None
    unknown_id: int = 0
    equal_sizes: bool = False

    @property
    def record(self) -> dict[str, Any]:
        """For the result."""
        return {
            "vocabulary": "same" if self.mapping is None else "mapped",
            "shared_tokens": self.shared,
            "target_tokens": self.target_size,
            "draft_tokens": self.draft_size,
            "equal_sizes": self.equal_sizes,
        }

    def draft_ids(self, ids: torch.Tensor, rows: int) -> torch.Tensor:
        """The target's ids as the draft model's; what its `rows` do not hold becomes its unknown token (vLLM 0.33)."""
        mapped = torch.where(ids < rows, ids, -1) if self.mapping is None else self.mapping.wanted(ids)
        return torch.where(mapped < 0, self.unknown_id, mapped)


def match_vocabularies(
    target: Tokenizer, draft: Tokenizer, target_rows: int, draft_rows: int, drafter: str
) -> VocabularyMatch:
    """Compare two tokenizers; raises SpecprobeError where they share too little to draft with.

    Ids agree where every token that both have has the same id and neither lacks more than padding and special
    tokens of the other. Else tokens are matched by their text (vLLM 0.33 v1/spec_decode/vocab_mapping.py, token-level
    intersection): the mark of a leading space becomes a space, and of tokens that then are equal the first counts.
    `target_rows`, `draft_rows`: sizes of the models' matrices, which bound the ids that count.
    """
    target_ids, draft_ids = target.vocabulary, draft.vocabulary
    common = len(target_ids.keys() & draft_ids.keys())
    smaller = min(len(target_ids), len(draft_ids))
    same = len(target_ids.items() & draft_ids.items())
    if same == common and common >= 0.99 * smaller:
        return VocabularyMatch(
            common,
            len(target_ids),
            len(draft_ids),
            unknown_id=draft.unknown_id or 0,
            equal_sizes=target_rows == draft_rows,
        )
    by_text = (
        _by_text(target_ids, target_rows, target.space_marks),
        _by_text(draft_ids, draft_rows, draft.space_marks),
    )
    shared = [(by_text[0][text], by_text[1][text]) for text in by_text[0].keys() & by_text[1].keys()]
    if len(shared) < max(USEFUL_TOKENS, USEFUL_OVERLAP * smaller):
        raise SpecprobeError(
            f"--drafter {drafter}: its tokenizer shares {len(shared)} tokens with the target's (of {len(draft_ids)} "
            f"and {len(target_ids)}): too few to draft with; use a draft model of the target's family"
        )
    to_target = torch.full((draft_rows,), -1, dtype=torch.long)
    for target_id, draft_id in shared:
        to_target[draft_id] = target_id
    unknown = draft.unknown_id
    if unknown is None:
        raise SpecprobeError(
            f"--drafter {drafter}: its tokenizer has neither an unknown nor an end token to stand for what it lacks"
        )
    return VocabularyMatch(
        len(shared), len(target_ids), len(draft_ids), DraftVocabulary.from_target_ids(to_target, target_rows), unknown
    )


def _by_text(ids: Mapping[str, int], rows: int, space_marks: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    # By id, since a tokenizer lists its vocabulary in another order in every process.
    for token, token_id in sorted(ids.items(), key=lambda item: item[1]):
        mark = next((mark for mark in space_marks if token.startswith(mark)), "")
        text = " " + token.removeprefix(mark) if mark else token
        if token_id < rows:
            found.setdefault(text, token_id)
    return found
