"""Seconds of an engine's step, as the load simulation takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StepCost:
    """Placeholder until the simulation lands."""

    batches: Floats
    query_tokens: Floats
    contexts: Floats
    seconds: Floats
    drafting_seconds: Floats
    prefill_token_seconds: float
    prefill_pair_seconds: float
    prefill_step_seconds: float
