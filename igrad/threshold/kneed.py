"""Kneed: the knee that the kneed library finds, which wants more of a knee than the farthest point from a chord."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from igrad.threshold.cut import cut


def first_important(curve: np.ndarray, sensitivity: float) -> int:
    """Position of the knee in an ascending curve; 0 where the library finds none."""
    from kneed import KneeLocator, find_shape  # with scipy, takes a second

    x, descending = np.arange(len(curve)), curve[::-1]
    _, shape = find_shape(x, descending)  # convex: few components stand out; concave: few fall off
    knee = KneeLocator(x, descending, S=sensitivity, curve=shape, direction="decreasing").knee
    return 0 if knee is None else len(curve) - 1 - int(knee)


@dataclass(frozen=True)
class Kneed:
    """tau is the score at the knee (Satopaa et al. 2011, "Kneedle", the first knee in offline mode).

    Where the library finds no knee (a straight line, or too few components for the sensitivity), everything is
    important.
    """

    sensitivity: float  # S of the paper, at least 0; higher = only a flat stretch behind the bend makes it a knee
    needs_scores = True

    def __post_init__(self) -> None:
        if not 0 <= self.sensitivity < np.inf:
            raise ValueError(f"sensitivity must be at least 0 and finite, got {self.sensitivity}")

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        return cut(scores, lambda curve: first_important(curve, self.sensitivity))
