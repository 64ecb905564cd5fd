"""Signal to noise: large only where the activity is also steady."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Snr:
    """Mean over standard deviation, across the window's steps, of the activity ||retained||_2 / sqrt(numel).

    An activity that never changes counts as noise of 1e-9 of the largest mean; one that is always zero scores zero.
    """

    def __call__(self, trace: dict[str, np.ndarray]) -> np.ndarray:
        activity = trace["retained"]
        mean, sd = activity.mean(axis=0), activity.std(axis=0)
        floor = 1e-9 * mean.max()
        return np.divide(mean, np.maximum(sd, floor), out=np.zeros_like(mean), where=mean > 0)
