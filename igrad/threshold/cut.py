"""What the policies that look at the scores alone share: a cut through the ascending scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def cut(scores: np.ndarray, first: Callable[[np.ndarray], int]) -> tuple[float, np.ndarray]:
    """(tau, scores >= tau), tau being the score at position `first(curve)` of ascending order.

    The curve is the ascending scores scaled to [0, 1], so that no policy sees their order, offset or scale: estimators
    sum in the order of their input, draw starting points by position and have absolute tolerances.
    Equal scores (or a single one) cannot be told apart: all are important, and `first` is not asked.
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    position = 0
    if ordered[-1] > ordered[0]:
        position = first((ordered - ordered[0]) / (ordered[-1] - ordered[0]))
    tau = float(ordered[position])
    return tau, np.asarray(scores) >= tau
