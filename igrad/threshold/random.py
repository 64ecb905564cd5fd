"""Random: the control that asks whether it matters which components are important, at equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from igrad.interfaces import ThresholdPolicy
from igrad.threshold.kinds import check_policy, rearranged


@dataclass(frozen=True)
class Random:
    """A policy on scores that are permuted at random within each kind; tau is a bound on the permuted scores."""

    policy: ThresholdPolicy  # says how many components of each kind are important
    seed: int  # of the permutation, at least 0
    needs_scores = True

    def __post_init__(self) -> None:
        check_policy(self.policy)
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        return self.policy(rearranged(scores, components, np.random.default_rng(self.seed).permutation), components)
