"""Levelling loads: buckets of a step, phases of a release period."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any


def largest_first(costs: Sequence[float], names: Sequence[Any], num_bins: int) -> list[list[int]]:
    """Positions per bin: the largest cost first, into the lightest bin; longest processing time first (Graham 1969).

    The largest of m bins is at most 4/3 - 1/(3m) of the optimum, and at most the mean plus (1 - 1/m) of the largest
    cost. Equal costs go by name and equal bins by number, so that the plan does not depend on the order given.
    """
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    loads = [(0.0, number) for number in range(num_bins)]
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], names[i])):
        load, number = heapq.heappop(loads)
        bins[number].append(i)
        heapq.heappush(loads, (load + costs[i], number))
    return bins
