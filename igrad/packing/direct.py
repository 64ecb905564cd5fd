"""Direct packing: every payload stays in the bucket that its whole tensor would have had."""

from __future__ import annotations

from dataclasses import dataclass, field

from igrad.balance import largest_first
from igrad.interfaces import Item
from igrad.packing.greedy import check_num_buckets


@dataclass(frozen=True)
class Direct:
    """The baseline that plans once: a layout of the whole model, never of what a step really sends.

    The layout is greedy's, over the elements of every view, so that against `greedy` it shows what knowing the
    payloads is worth and nothing else. Where views are deferred, or sent whole beside sparse ones, buckets are as
    uneven as it happens; no bound holds.
    """

    num_buckets: int  # m, at least 1; more = earlier start of the first exchange, more per-message overhead
    bucket_of: dict[str, int] = field(default_factory=dict, init=False)  # view -> bucket
    overlaps = False

    def __post_init__(self) -> None:
        check_num_buckets(self.num_buckets)

    def prepare(self, items: list[Item]) -> None:
        sizes, names = [item.numel for item in items], [item.view for item in items]
        self.bucket_of.clear()
        for number, bucket in enumerate(largest_first(sizes, names, self.num_buckets)):
            self.bucket_of.update({items[i].view: number for i in bucket})

    def pack(self, items: list[Item]) -> list[list[int]]:
        """Every view of `items` must have been prepared."""
        buckets: list[list[int]] = [[] for _ in range(self.num_buckets)]
        for i, item in enumerate(items):
            buckets[self.bucket_of[item.view]].append(i)
        return buckets
