"""Periodic release: all low-importance components together, every R steps."""

from __future__ import annotations

from dataclasses import dataclass

from igrad.interfaces import View


def check_period(period: int) -> None:
    if period < 1:
        raise ValueError(f"release_period must be at least 1, got {period}")


@dataclass(frozen=True)
class Periodic:
    """Due at steps R-1, 2R-1, … (0-based optimizer steps)."""

    period: int  # R, at least 1; higher = less traffic, staler updates; 1 = every step

    def __post_init__(self) -> None:
        check_period(self.period)

    @property
    def max_age_steps(self) -> int:
        return self.period

    def prepare(self, costs_bytes: dict[str, int]) -> None:
        pass

    def due(self, view: View, step: int) -> slice | None:
        return slice(0, view.numel) if step % self.period == self.period - 1 else None
