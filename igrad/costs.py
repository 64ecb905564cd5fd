"""How many entries a block is expected to have, from what all ranks saw of it before."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

Block = tuple[str, int, int]  # view, start, stop

NEWEST_WEIGHT = 0.2  # of the moving means; higher = follows changes faster, sees less of the spread


@dataclass
class Costs:
    """Moving mean and variance of the number of entries by block; counts are the same on every rank, and so is this."""

    seen: dict[Block, tuple[float, float]] = field(default_factory=dict)

    def observe(self, blocks: Iterable[Block], counts: Iterable[int]) -> None:
        for block, count in zip(blocks, counts, strict=True):
            mean, variance = self.seen.get(block, (float(count), 0.0))
            away = count - mean
            self.seen[block] = mean + NEWEST_WEIGHT * away, (1 - NEWEST_WEIGHT) * (variance + NEWEST_WEIGHT * away**2)

    def expected(self, block: Block) -> tuple[float, float]:
        """(mean, sd) of its entries. A block that was never sent is as dense as those that were, all together."""
        if block in self.seen:
            mean, variance = self.seen[block]
            return mean, math.sqrt(variance)
        known = sum(stop - start for _, start, stop in self.seen)
        density = sum(mean for mean, _ in self.seen.values()) / known if known else 1.0
        _, start, stop = block
        return density * (stop - start), 0.0
