"""Positions as 4-byte integers, in any order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LIMIT = 2**32


@dataclass(frozen=True)
class Int32:
    """Four bytes per index; a bucket holds at most 2**32 elements."""

    sorts = False
    varies = False

    def bytes(self, count: float, space: float) -> float:
        return 4.0 * count

    def encode(self, positions: Tensor, space: int) -> Tensor:
        if space > LIMIT:
            raise ValueError(f"index_codec int32 reaches 2**32 elements, a bucket has {space}; raise num_buckets")
        return positions.to(torch.int32).view(torch.uint8)  # the upper half wraps around

    def decode(self, data: Tensor, count: int, space: int) -> tuple[Tensor, int]:
        used = 4 * count
        positions = data[:used].clone().view(torch.int32).long()
        return positions & 0xFFFFFFFF if space > 2**31 else positions, used
