"""Percentile: a fixed percentile of the scores is the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Percentile:
    """tau is the lowest score at or above the percentile; the linear rule picks the same set.

    Scores that tie with tau are important too, so equal scores are all important.
    """

    percentile: float  # in [0, 100); 0 = everything is important; higher = fewer components, less traffic
    needs_scores = True

    def __post_init__(self) -> None:
        if not 0 <= self.percentile < 100:
            raise ValueError(f"percentile must be in [0, 100), got {self.percentile}")

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        tau = float(np.percentile(scores, self.percentile, method="higher"))
        return tau, scores >= tau
