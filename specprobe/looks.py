"""Looks at a sample of prompts that grows, and intervals that hold at whichever look the growing stops.

After each look somebody may stop, for any reason; an interval made as if there had been that one look alone then
covers less than it says. Repeated confidence intervals (Jennison & Turnbull, Interim analyses: the repeated confidence
interval approach, J. R. Statist. Soc. B 51, 1989) hold at all looks together. Sums over a growing random sample have
independent increments, so the deviates Z_1, Z_2, ... of looks at n_1 < n_2 < ... prompts are jointly normal with
correlations sqrt(n_j / n_k), and the bound b with

    P(|Z_k| <= b at every look) = 0.9

follows from one integral for each look (Armitage, McPherson & Rowe, Repeated significance tests on accumulating data,
J. R. Statist. Soc. A 132, 1969). The same b at every look is Pocock's choice (Biometrika 64, 1977). Each look's
interval is made at the level P(|Z| <= b), by the bootstrap-t of `specprobe.interval`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from specprobe.interval import LEVEL, Floats

# Of a first look: fewer show too little of how prompts differ (see the measured coverage in `specprobe.interval`).
FIRST_LOOK = 64
# A look that saves less than a quarter of the prompts is not worth its share of the error.
WORTHWHILE_SHARE = 0.75
# Of an integral; with these the level is right to 1e-9 for looks that double.
NODES = 64


def look_sizes(prompts: int, step: int = 1) -> tuple[int, ...]:
    """How many prompts are in use at each look: some, twice as many, and so on; at the last one all of them.

    All but the last are multiples of `step`.
    """
    sizes = []
    size = step * -(-FIRST_LOOK // step)
    while size <= WORTHWHILE_SHARE * prompts:
        sizes.append(size)
        size *= 2
    return (*sizes, prompts)


def interval_level(sizes: tuple[int, ...]) -> float:
    """The level of each look's interval with which all of them together cover with probability LEVEL."""
    if len(sizes) == 1:
        return LEVEL
    tail = (1 - LEVEL) / 2
    # Between that of one look, and that of looks which have nothing in common (Bonferroni's).
    least, most = -float(ndtri(tail)), -float(ndtri(tail / len(sizes)))
    bound = brentq(lambda one: simultaneous(one, sizes) - LEVEL, least, most, xtol=1e-10)
    return float(2 * ndtr(bound) - 1)


def simultaneous(bound: float, sizes: tuple[int, ...]) -> float:
    """P(|Z_k| <= bound at every look), by the density of the sum S_k = Z_k sqrt(n_k) from look to look."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    ends = bound * np.sqrt(np.array(sizes, dtype=np.float64))
    sums = ends[0] * nodes
    shares = ends[0] * weights * _normal(sums, sizes[0])
    for (before, now), end in zip(pairwise(sizes), ends[1:], strict=True):
        reached = end * nodes
        shares = end * weights * (_normal(reached[:, None] - sums, now - before) @ shares)
        sums = reached
    return float(shares.sum())


def _normal(values: Floats, variance: float) -> Floats:
    """The density of a normal sum of this variance."""
    density: Floats = np.exp(-(values**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return density
