"""FixedRatio: a fixed share of the components is important."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FixedRatio:
    """tau is the score of the round(ratio * n)-th highest of n, of the highest at least.

    Scores that tie with tau are important too: the share may be larger, but nothing hangs on the components' order.
    """

    ratio: float  # share of components, in (0, 1]; 1 = everything is important; lower = less traffic
    needs_scores = True

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must be in (0, 1], got {self.ratio}")

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        num_important = max(1, round(self.ratio * len(scores)))
        tau = float(np.sort(scores)[-num_important])
        return tau, scores >= tau
