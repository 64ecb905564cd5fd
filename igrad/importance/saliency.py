"""Saliency: to first order, how much the loss would move if a weight were removed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Saliency:
    """Mean over the window and the entries of |weight * gradient| (Molchanov et al. 2017, arXiv:1611.06440)."""

    def __call__(self, trace: dict[str, np.ndarray]) -> np.ndarray:
        return trace["saliency"].mean(axis=0)
