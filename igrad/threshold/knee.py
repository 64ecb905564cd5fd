"""Knee: the point of the sorted score curve farthest from its chord."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def knee(scores: np.ndarray) -> int:
    """Position in descending order of the knee of the curve, both axes scaled to [0, 1].

    The distance to the chord from (0, 1) to (1, 0) is |x + y - 1| / sqrt(2) (Satopaa et al. 2011, "Kneedle").
    """
    ordered = np.sort(scores)[::-1]
    x = np.linspace(0, 1, len(ordered))
    y = (ordered - ordered[-1]) / (ordered[0] - ordered[-1])
    return int(np.argmax(np.abs(x + y - 1)))


@dataclass(frozen=True)
class Knee:
    """tau is the score at the knee. Equal scores (or a single one) cannot be told apart: all are important."""

    needs_scores = True

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        tau = float(np.min(scores))
        if np.max(scores) > tau:
            tau = float(np.sort(scores)[::-1][knee(scores)])
        return tau, scores >= tau
