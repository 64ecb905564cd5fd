"""Risk-aware packing: payloads of uncertain size are spread so that few buckets overflow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from igrad.interfaces import Item
from igrad.packing.greedy import check_num_buckets

NORMAL = NormalDist()


def expected_overflow(mean: float, sd: float, capacity: float) -> float:
    """E[max(0, X - capacity)] of a normal X; max(0, mean - capacity) where sd is 0."""
    if sd == 0:
        return max(0.0, mean - capacity)
    z = (mean - capacity) / sd
    return sd * (NORMAL.pdf(z) + z * NORMAL.cdf(z))


@dataclass(frozen=True)
class RiskAware:
    """Greedy on mean + risk · sd plus a penalty on the bytes expected above an even share of the step.

    Payloads go by mean + risk · sd, the largest first, each into the bucket whose
    M + risk · sqrt(V) + overflow_penalty · E[max(0, X - capacity)] is least with it: M and V are the sums of means and
    variances (sizes are independent), X is normal with them, the capacity is the step's expected bytes / m. On
    certain costs the last is max(0, M - capacity): rising with M, so that the plan is greedy's.
    """

    num_buckets: int  # m, at least 1; more = earlier start of the first exchange, more per-message overhead
    risk: float = 0.5  # sds added to a mean, at least 0; higher = spreads uncertain payloads at the cost of even means
    overflow_penalty: float = 1.0  # per byte above an even share, at least 0; higher = a large `risk` harms less
    overlaps = False

    def __post_init__(self) -> None:
        check_num_buckets(self.num_buckets)
        for name in ("risk", "overflow_penalty"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")

    def prepare(self, items: list[Item]) -> None:
        pass

    def pack(self, items: list[Item]) -> list[list[int]]:
        capacity = sum(item.cost_mean for item in items) / self.num_buckets
        buckets: list[list[int]] = [[] for _ in range(self.num_buckets)]
        means, variances = [0.0] * self.num_buckets, [0.0] * self.num_buckets

        def score(number: int, item: Item) -> float:
            mean, sd = means[number] + item.cost_mean, math.sqrt(variances[number] + item.cost_sd**2)
            return mean + self.risk * sd + self.overflow_penalty * expected_overflow(mean, sd, capacity)

        def order(i: int) -> tuple[float, str, int]:
            return -(items[i].cost_mean + self.risk * items[i].cost_sd), items[i].view, items[i].start

        for i in sorted(range(len(items)), key=order):
            best = min(range(self.num_buckets), key=lambda number: (score(number, items[i]), number))
            buckets[best].append(i)
            means[best] += items[i].cost_mean
            variances[best] += items[i].cost_sd ** 2
        return buckets
