"""Rotating release: every R steps, one of m ranges of each low-importance view, in turn."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from igrad.interfaces import View
from igrad.release.periodic import check_period


def ranges(view: View, num_groups: int) -> list[slice]:
    """A view's elements as min(num_groups, rows) ranges of whole rows (elements of a vector) that differ by one row."""
    rows = view.shape[0]
    width, number = view.numel // rows, min(num_groups, rows)
    cuts = [rows * group // number * width for group in range(number + 1)]
    return [slice(start, stop) for start, stop in pairwise(cuts)]


@dataclass(frozen=True)
class Rotating:
    """At release n (step n·R + R - 1, 0-based) range n mod m of every view is due.

    A range is sent exactly once in m·R steps; those of a view with fewer than m rows once in rows·R. Which range is
    due depends on the step and the view's own shape, never on which views are low or on what was sent before. Ranges
    are whole rows, so that a row-wise sparsifier keeps its count per row.

    Bytes: a range of 1/m of a view has 1/m of the sparsifier's count (at least one entry, so that small vectors cost
    up to m times their part), times release_fraction · R as in any schedule. With the default release_fraction = 1/R
    a release is 1/m of periodic's, and a low component costs 1/(m·R) of an important one. In general it costs
    release_fraction / m of it: release_fraction = m/R makes the bytes periodic's again (possible for m <= R), 1 sends
    as many entries of a range as R steps would.

    A view of which one range is due counts as sent: under `deferral: skip` the rest of it has a zero gradient.
    """

    period: int  # R, at least 1; higher = less traffic, staler updates; 1 = a range in every step
    num_groups: int  # m, at least 1; higher = smaller releases, a range waits longer; 1 = periodic

    def __post_init__(self) -> None:
        check_period(self.period)
        if self.num_groups < 1:
            raise ValueError(f"num_groups must be at least 1, got {self.num_groups}")

    @property
    def max_age_steps(self) -> int:
        return self.num_groups * self.period

    def prepare(self, costs_bytes: dict[str, int]) -> None:
        pass

    def due(self, view: View, step: int) -> slice | None:
        release, into = divmod(step, self.period)
        if into != self.period - 1:
            return None
        parts = ranges(view, self.num_groups)
        return parts[release % len(parts)]
