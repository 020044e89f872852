"""Results of a study as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is words, the others are figures."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(share: float) -> str:
    """With one decimal."""
    return f"{100 * share:.1f}"


def share_error(share: float, draws: int) -> float:
    """The Monte Carlo standard error of a share of so many draws."""
    return float(np.sqrt(share * (1 - share) / draws))


def bias_cell(estimates: Sequence[float], truth: float) -> str:
    """Mean relative error and its standard error, in per cent."""
    errors = np.asarray(estimates) / truth - 1
    errors = errors[np.isfinite(errors)]
    return f"{100 * errors.mean():+.1f} ± {100 * errors.std(ddof=1) / np.sqrt(len(errors)):.1f}"
