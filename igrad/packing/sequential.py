"""Sequential packing: payloads in the order given, cut into runs of near-equal bytes."""

from __future__ import annotations

from dataclasses import dataclass

from igrad.interfaces import Item
from igrad.packing.greedy import check_num_buckets


@dataclass(frozen=True)
class Sequential:
    """A payload goes where its middle byte falls when the step's bytes are cut into m equal runs.

    The largest bucket is at most the mean plus the largest payload, so at most twice what any packing reaches. What
    stands together in the model travels together, as in DistributedDataParallel's buckets.
    """

    num_buckets: int  # m, at least 1; more = earlier start of the first exchange, more per-message overhead
    overlaps = False

    def __post_init__(self) -> None:
        check_num_buckets(self.num_buckets)

    def prepare(self, items: list[Item]) -> None:
        pass

    def pack(self, items: list[Item]) -> list[list[int]]:
        buckets: list[list[int]] = [[] for _ in range(self.num_buckets)]
        total, before = sum(item.cost_mean for item in items), 0.0
        for i, item in enumerate(items):
            middle = before + item.cost_mean / 2
            number = int(self.num_buckets * middle / total) if total else 0
            buckets[min(number, self.num_buckets - 1)].append(i)
            before += item.cost_mean
        return buckets
