"""Random: the control that any score has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Random:
    """Uniform in [0, 1), drawn from the seed alone."""

    seed: int = 0  # any integer; another seed ranks the components anew

    def __call__(self, trace: dict[str, np.ndarray]) -> np.ndarray:
        num_components = trace["retained"].shape[1]
        return np.random.default_rng([self.seed % 2**64, num_components]).random(num_components)
