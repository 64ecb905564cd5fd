"""Greedy packing: the largest payload first, into the lightest bucket."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from igrad.interfaces import Item


@dataclass(frozen=True)
class Greedy:
    """Longest processing time first (Graham 1969): the largest bucket is at most 4/3 - 1/(3m) of the optimum."""

    num_buckets: int  # m, at least 1; more = earlier start of the first exchange, more per-message overhead

    def __post_init__(self) -> None:
        if self.num_buckets < 1:
            raise ValueError(f"num_buckets must be at least 1, got {self.num_buckets}")

    def pack(self, items: list[Item]) -> list[list[int]]:
        buckets: list[list[int]] = [[] for _ in range(self.num_buckets)]
        loads = [(0.0, number) for number in range(self.num_buckets)]
        # Ties go by name and range, so that the plan does not depend on the order of `items`.
        for i in sorted(range(len(items)), key=lambda i: (-items[i].cost_mean, items[i].view, items[i].start)):
            load, number = heapq.heappop(loads)
            buckets[number].append(i)
            heapq.heappush(loads, (load + items[i].cost_mean, number))
        return buckets
