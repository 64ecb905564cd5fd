"""Otsu: the threshold with the largest variance between the two groups (Otsu 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from igrad.threshold.cut import cut


def first_important(curve: np.ndarray) -> int:
    """Position in an ascending curve of the first score above Otsu's threshold.

    Every distinct score is a bin of its own: the library's threshold is the centre of one of its 256 equal bins, and
    the scores of that bin would fall on both sides of it.
    """
    from skimage.filters import threshold_otsu  # takes a second

    values, counts = np.unique(curve, return_counts=True)
    threshold = threshold_otsu(hist=(counts, values))
    return int(np.searchsorted(curve, threshold, side="right"))


@dataclass(frozen=True)
class Otsu:
    """tau is the lowest score of the upper group. Exact, so it is also the best split that 2-means can find."""

    needs_scores = True

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        return cut(scores, first_important)
