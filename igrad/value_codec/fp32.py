"""Values as they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FP32:
    """Four bytes per value, without loss; a bucket of float64 keeps its eight."""

    def bytes(self, count: float) -> float:
        return 4.0 * count

    def encode(self, values: Tensor, counts: list[int]) -> Tensor:
        return values.view(torch.uint8)

    def decode(self, data: Tensor, counts: list[int], dtype: torch.dtype) -> Tensor:
        return data[: sum(counts) * dtype.itemsize].clone().view(dtype)  # a copy begins on a word
