"""Values as 8-bit integers with one scale per block."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 127


def block_sizes(counts: list[int], block: int) -> Tensor:
    """int64 [blocks]: values per block, payload by payload; the last block of each holds what is left."""
    count = torch.tensor([count for count in counts if count], dtype=torch.int64)
    num_blocks = (count + block - 1) // block
    sizes = torch.full((int(num_blocks.sum()),), block)
    sizes[num_blocks.cumsum(0) - 1] = (count - 1) % block + 1
    return sizes


def quantise(values: Tensor, owner: Tensor, num_blocks: int) -> tuple[Tensor, Tensor]:
    """(int8 [k], scales float32 [blocks]) of float32 values [k]: value = scale of its block (`owner`) * integer."""
    scales = values.new_zeros(num_blocks).scatter_reduce_(0, owner, values.abs(), "amax") / LARGEST
    divisors = scales.where(scales > 0, 1.0)  # a block of zeros, or of what is too small for a scale
    steps = (values / divisors[owner]).round()
    return steps.clamp(-LARGEST, LARGEST).to(torch.int8), scales  # the scale of a subnormal block is a coarse one


@dataclass(frozen=True)
class Int8:
    """One byte per value and four per block, whose absmax / 127 is a step (Dettmers et al. 2022, arXiv:2110.02861).

    Rounding moves a value by at most half a step, which returns to the residual. No block holds values of two payloads.
    Everything is computed in float32, whatever the bucket's type, so that no packing changes a bit.
    """

    block: int = 256  # values that share a scale, at least 1; larger = fewer scales, coarser steps beside a large value

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"block must be at least 1, got {self.block}")

    def bytes(self, count: float) -> float:
        return count + 4.0 * math.ceil(count / self.block)

    def encode(self, values: Tensor, counts: list[int]) -> Tensor:
        sizes = block_sizes(counts, self.block).to(values.device)
        owner = torch.repeat_interleave(sizes, output_size=values.numel())
        steps, scales = quantise(values.float(), owner, len(sizes))
        return torch.cat([scales.view(torch.uint8), steps.view(torch.uint8)])

    def decode(self, data: Tensor, counts: list[int], dtype: torch.dtype) -> Tensor:
        sizes = block_sizes(counts, self.block).to(data.device)
        scale_bytes, count = 4 * len(sizes), sum(counts)
        scales = data[:scale_bytes].clone().view(torch.float32)  # a copy begins on a word
        steps = data[scale_bytes : scale_bytes + count].view(torch.int8)
        return (steps * torch.repeat_interleave(scales, sizes, output_size=count)).to(dtype)
