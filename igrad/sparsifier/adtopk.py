"""ADTopk: Top-k along a dimension, so that every row keeps at least one entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from igrad.interfaces import View
from igrad.sparsifier.topk import CACHED, TopK, check_density, largest

WIDE = 512  # columns; of fewer, one search on a CPU is as fast as two
GROUP = 8  # columns that are searched as one at first


def largest_per_row(matrix: Tensor, k: int) -> Tensor:
    """Flat indices int64 [rows * k] of the k entries of largest magnitude in each row of (rows, columns)."""
    rows, columns = matrix.shape
    if matrix.is_cpu and columns >= WIDE and columns % GROUP == 0 and 2 * GROUP * k <= columns:
        chosen = torch.cat([largest_of_wide(part.abs(), k) for part in matrix.split(max(1, CACHED // columns))])
    else:
        chosen = matrix.abs().topk(k, dim=1, sorted=False).indices
    return (chosen + torch.arange(0, rows * columns, columns, device=matrix.device).unsqueeze(1)).reshape(-1)


def largest_of_wide(magnitudes: Tensor, k: int) -> Tensor:
    """Columns int64 [rows, k] of the k largest entries in each row, by two short searches instead of a long one.

    They lie in k groups of columns: those whose own largest entries are largest.
    """
    columns = magnitudes.shape[1]
    width = columns // GROUP  # a group is every width-th column
    peaks = magnitudes.unflatten(1, (GROUP, width)).amax(1).topk(k, dim=1, sorted=False).indices
    inside = (peaks.unsqueeze(1) + torch.arange(0, columns, width).unsqueeze(1)).flatten(1)  # [rows, GROUP * k]
    return inside.gather(1, magnitudes.gather(1, inside).topk(k, dim=1, sorted=False).indices)


@dataclass(frozen=True)
class ADTopk:
    """All-dimension Top-k (ADTopk, HPDC 2024): a (out, in) weight keeps max(1, int(in * density)) per output row.

    The floor raises the achieved density of narrow tensors: (768, 64) at 1 % keeps 1.56 %. Vectors are sent whole.
    """

    density: float  # fraction kept per row, in (0, 1]; lower = less traffic, more left to the residual
    interleaved: bool = False  # true: every other time over the whole tensor instead, the same number of entries
    varies = False

    def __post_init__(self) -> None:
        check_density(self.density)

    def select(self, gradient: Tensor, view: View, turn: int, share: float = 1.0) -> Tensor | None:
        if len(view.shape) != 2:
            return None
        if gradient.dim() != 2:  # a range that cuts through rows
            return TopK(self.density).select(gradient, view, turn, share)
        rows, columns = gradient.shape
        per_row = min(columns, max(1, round(share * max(1, int(columns * self.density)))))
        if per_row == columns:
            return None
        if self.interleaved and turn % 2 == 1:
            return largest(gradient, rows * per_row)
        return largest_per_row(gradient, per_row)
