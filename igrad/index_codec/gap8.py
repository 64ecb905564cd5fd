"""Positions as 1-byte gaps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from igrad.index_codec.rising import check_rising

NARROW, WIDE = 2**8 - 1, 2**16 - 1  # what stands for a gap that is in the next section


@dataclass(frozen=True)
class Gap8:
    """How many elements lie between a position and the one before: a byte, three from 255 on, eleven from 65535 on.

    Gaps of positions spread evenly are geometric (Sattler et al. 2018, arXiv:1805.08768): 1.15 bytes per index at a
    density of 1 %. Pays between densities of 0.27 % (row16 below) and 12.5 % (bitmap above); row-wise selections have
    more even gaps, and so fewer bytes. The size is the data's, so encoding and decoding wait for the device.
    """

    sorts = True
    varies = True

    def bytes(self, count: float, space: float) -> float:
        skipped = 1 - count / max(space, 1)  # share of the elements between
        return count * (1 + 2 * skipped**NARROW + 8 * skipped**WIDE)

    def encode(self, positions: Tensor, space: int) -> Tensor:
        """A section of bytes, one of 2-byte gaps where a byte is 255, one of 8-byte gaps where those are 65535."""
        check_rising(positions, space)
        gaps = positions.diff(prepend=positions.new_full((1,), -1)) - 1
        wide = gaps[gaps >= NARROW]
        sections = gaps.clamp(max=NARROW).to(torch.uint8), wide.clamp(max=WIDE).to(torch.int16), wide[wide >= WIDE]
        return torch.cat([section.view(torch.uint8) for section in sections])

    def decode(self, data: Tensor, count: int, space: int) -> tuple[Tensor, int]:
        gaps = data[:count].long()
        is_wide = gaps == NARROW
        used = count + 2 * int(is_wide.sum())
        wide = data[count:used].clone().view(torch.int16).long() & WIDE  # copies begin on a word
        is_wider = wide == WIDE
        first, used = used, used + 8 * int(is_wider.sum())
        wide[is_wider] = data[first:used].clone().view(torch.int64)
        gaps[is_wide] = wide
        return (gaps + 1).cumsum(0) - 1, used
