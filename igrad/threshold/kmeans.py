"""KMeans: the upper of two clusters is important."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from igrad.threshold.cut import cut


def first_important(curve: np.ndarray, num_starts: int) -> int:
    """Position in an ascending curve of the first score in the cluster of the largest."""
    from sklearn.cluster import KMeans as Estimator  # takes seconds

    labels = Estimator(2, n_init=num_starts, tol=0, random_state=0).fit(curve[:, None]).labels_
    return int(np.argmax(labels == labels[-1]))


@dataclass(frozen=True)
class KMeans:
    """tau is the lowest score of the upper cluster. The random state is fixed: equal scores give equal sets.

    On one axis this is Otsu's criterion, minimised from random starts instead of exactly.
    """

    num_starts: int  # of which the best is kept, at least 1; more = rarely a local optimum
    needs_scores = True

    def __post_init__(self) -> None:
        if self.num_starts < 1:
            raise ValueError(f"num_starts must be at least 1, got {self.num_starts}")

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        return cut(scores, lambda curve: first_important(curve, self.num_starts))
