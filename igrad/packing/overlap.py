"""Overlap packing: runs of neighbours in backward order, so that a bucket leaves while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from igrad.interfaces import Item
from igrad.packing.greedy import check_num_buckets


def fill(costs: Sequence[float], capacity: float) -> list[list[int]]:
    """Positions in runs of at most `capacity` each, as few as possible; no cost is above the capacity."""
    runs: list[list[int]] = [[]]
    load = 0.0
    for i, cost in enumerate(costs):
        if runs[-1] and load + cost > capacity:
            runs.append([])
            load = 0.0
        runs[-1].append(i)
        load += cost
    return runs


def contiguous(costs: Sequence[float], num_runs: int) -> list[list[int]]:
    """At most `num_runs` runs of neighbours, the largest as small as possible to one part in 10^9: bisection of it.

    What there is to spare is the last run's.
    """
    low, high = max(costs, default=0.0), sum(costs) * (1 + 1e-9)
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if len(fill(costs, middle)) <= num_runs:
            high = middle
        else:
            low = middle
    return fill(costs, high)


@dataclass(frozen=True)
class Overlap:
    """Buckets 0, 1, … hold the model's last views, those before them, …: gradients arrive in about that order.

    The largest bucket is the smallest that runs of neighbours allow: at most the mean plus the largest payload. What
    arrives last is least. The plan goes by sizes seen before, since nothing is selected yet when it is made. In case
    that a gradient which comes later is not finite, memory is copied once per step; such a step is exchanged twice.
    """

    num_buckets: int  # m, at least 1; more = earlier start of the first exchange, more per-message overhead
    overlaps = True

    def __post_init__(self) -> None:
        check_num_buckets(self.num_buckets)

    def prepare(self, items: list[Item]) -> None:
        pass

    def pack(self, items: list[Item]) -> list[list[int]]:
        last = len(items) - 1
        runs = contiguous([item.cost_mean for item in reversed(items)], self.num_buckets)
        buckets = [[last - i for i in run] for run in runs]
        return buckets + [[] for _ in range(self.num_buckets - len(buckets))]
