"""Positions as 2-byte indices within rows of 65536 elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from igrad.index_codec.rising import check_rising

ROW = 2**16


@dataclass(frozen=True)
class Row16:
    """Two bytes per index and four per row of the bucket: how many of its elements are there.

    Pays between densities of 0.003 % (int32 below) and 0.27 % (gap8 above), and wherever ranks shall not tell each
    other sizes first.
    """

    sorts = True
    varies = False

    def bytes(self, count: float, space: float) -> float:
        return 2.0 * count + 4.0 * math.ceil(space / ROW)

    def encode(self, positions: Tensor, space: int) -> Tensor:
        """Per row its count, then the indices row by row."""
        check_rising(positions, space)
        ends = torch.arange(1, math.ceil(space / ROW) + 1, device=positions.device) * ROW
        counts = torch.searchsorted(positions, ends).diff(prepend=ends.new_zeros(1))
        within = positions.to(torch.int16)  # modulo the row; its upper half wraps around
        return torch.cat([counts.to(torch.int32).view(torch.uint8), within.view(torch.uint8)])

    def decode(self, data: Tensor, count: int, space: int) -> tuple[Tensor, int]:
        counts_bytes = 4 * math.ceil(space / ROW)
        used = counts_bytes + 2 * count
        counts = data[:counts_bytes].clone().view(torch.int32).long()  # copies begin on a word
        within = data[counts_bytes:used].clone().view(torch.int16).long() & ROW - 1
        return torch.repeat_interleave(counts, output_size=count) * ROW + within, used
