"""Inverse: the control that sends the least important components of each kind, at equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from igrad.interfaces import ThresholdPolicy
from igrad.threshold.kinds import check_policy, rearranged


def reversed_ranks(scores: np.ndarray) -> np.ndarray:
    """The same scores, the highest where the lowest was and so on; ties in their order."""
    result = np.empty_like(scores)
    result[np.argsort(scores, kind="stable")] = np.sort(scores)[::-1]
    return result


@dataclass(frozen=True)
class Inverse:
    """A policy on scores whose ranks are reversed within each kind; tau is a bound on the reversed scores."""

    policy: ThresholdPolicy  # says how many components of each kind are important
    needs_scores = True

    def __post_init__(self) -> None:
        check_policy(self.policy)

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        return self.policy(rearranged(scores, components, reversed_ranks), components)
