"""The paper's score: how large a component's retained gradient is, and how steadily."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def magnitude(activity: np.ndarray) -> np.ndarray:
    """Min-max of the mean over the window; [steps, components] -> [components] in [0, 1]."""
    mean = activity.mean(axis=0)
    spread = mean.max() - mean.min()
    return (mean - mean.min()) / spread if spread > 0 else np.zeros_like(mean)


def persistence(activity: np.ndarray) -> np.ndarray:
    """Share of steps in which a component is above that step's median; [steps, components] -> [components]."""
    return (activity > np.median(activity, axis=1, keepdims=True)).mean(axis=0)


@dataclass(frozen=True)
class MagnitudePersistence:
    """alpha * magnitude + (1 - alpha) * persistence of the activity a = ||retained||_2 / sqrt(numel)."""

    alpha: float = 0.7  # in [0, 1]; 1 = magnitude alone, 0 = persistence alone

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], got {self.alpha}")

    def __call__(self, trace: dict[str, np.ndarray]) -> np.ndarray:
        activity = trace["retained"]
        return self.alpha * magnitude(activity) + (1 - self.alpha) * persistence(activity)
