"""Values rounded to bfloat16."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BF16:
    """Two bytes per value, to the nearest and ties to even (Kalamkar et al. 2019, arXiv:1905.12322).

    The exponent is float32's, so nothing small is lost; of a value at most 2**-8 of its size returns to the residual.
    A float64 is rounded to float32 first.
    """

    def bytes(self, count: float) -> float:
        return 2.0 * count

    def encode(self, values: Tensor, counts: list[int]) -> Tensor:
        return values.to(torch.bfloat16).view(torch.uint8)

    def decode(self, data: Tensor, counts: list[int], dtype: torch.dtype) -> Tensor:
        return data[: 2 * sum(counts)].clone().view(torch.bfloat16).to(dtype)  # a copy begins on a word
