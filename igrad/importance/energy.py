"""Energy: the mean squared activity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Energy:
    """Mean over the window of ||retained||_2^2 / numel."""

    def __call__(self, trace: dict[str, np.ndarray]) -> np.ndarray:
        return (trace["retained"] ** 2).mean(axis=0)
