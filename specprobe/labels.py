"""What reports call drafters: in full, and where there is no room without the model, where that tells them apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from specprobe.blocks import Cell
from specprobe.notices import inert

LONGEST = 60


def label_cells(labels: Iterable[str]) -> Mapping[str, Cell]:
    """By label (see `drafter_label`): a cell that shows it, shorter where no other has the same method."""
    distinct = list(dict.fromkeys(labels))
    short = [_without_model(label) for label in distinct]
    return {
        label: Cell(
            inert(label, LONGEST), inert(label, LONGEST), inert(shorter, LONGEST) if short.count(shorter) == 1 else ""
        )
        for label, shorter in zip(distinct, short, strict=True)
    }


def _without_model(label: str) -> str:
    method, _, model = label.partition(":")
    return method + (" sampled" if model.endswith(" sampled") else "")
