"""Greedy packing: the largest payload first, into the lightest bucket."""

from __future__ import annotations

from dataclasses import dataclass

from igrad.balance import largest_first
from igrad.interfaces import Item


def check_num_buckets(num_buckets: int) -> None:
    if num_buckets < 1:
        raise ValueError(f"num_buckets must be at least 1, got {num_buckets}")


@dataclass(frozen=True)
class Greedy:
    """Longest processing time first (Graham 1969): the largest bucket is at most 4/3 - 1/(3m) of the optimum."""

    num_buckets: int  # m, at least 1; more = earlier start of the first exchange, more per-message overhead
    overlaps = False

    def __post_init__(self) -> None:
        check_num_buckets(self.num_buckets)

    def prepare(self, items: list[Item]) -> None:
        pass

    def pack(self, items: list[Item]) -> list[list[int]]:
        costs = [item.cost_mean for item in items]
        return largest_first(costs, [(item.view, item.start) for item in items], self.num_buckets)
