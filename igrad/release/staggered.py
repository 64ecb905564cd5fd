"""Staggered release: every low-importance component once in R steps, a part of them in each step."""

from __future__ import annotations

from dataclasses import dataclass, field

from igrad.balance import largest_first
from igrad.interfaces import View
from igrad.release.periodic import check_period


def phases(costs: dict[str, int], period: int) -> dict[str, int]:
    """Component -> phase in [0, period), so that the phases cost about the same; a function of names and costs only.

    Longest processing time first: the dearest phase is at most 4/3 - 1/(3R) of the best possible, and at most the
    mean plus the largest component. A component is never split: the dearest phase costs at least as much as the
    largest component, so phases cannot be level where one costs more than the mean (few components, or a large R).
    """
    names = sorted(costs)
    groups = largest_first([costs[name] for name in names], names, period)
    return {names[i]: phase for phase, group in enumerate(groups) for i in group}


@dataclass(frozen=True)
class Staggered:
    """A component of phase p is due, whole, at steps p, p + R, … (0-based): bytes per step are level.

    All views of a component have its phase. What leaves in R steps is what `periodic` sends at once.
    """

    period: int  # R, at least 1; higher = less traffic, staler updates; 1 = every step
    phase: dict[str, int] = field(default_factory=dict, init=False)  # View.unit -> steps into a period

    def __post_init__(self) -> None:
        check_period(self.period)

    @property
    def max_age_steps(self) -> int:
        return self.period

    def prepare(self, costs_bytes: dict[str, int]) -> None:
        self.phase.clear()
        self.phase.update(phases(costs_bytes, self.period))

    def due(self, view: View, step: int) -> slice | None:
        """The view's unit must have been prepared."""
        return slice(0, view.numel) if step % self.period == self.phase[view.unit] else None
