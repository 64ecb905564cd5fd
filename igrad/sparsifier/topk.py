"""Top-k: the entries of largest magnitude, over the whole tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from igrad.interfaces import View

SMALL = 1 << 14  # entries; of fewer, a CPU's plain topk is as fast
CACHED = 1 << 17  # entries that a core's cache holds, with what is made of them


def largest(tensor: Tensor, k: int) -> Tensor:
    """Flat indices int64 [k] of the k entries of largest magnitude, in no particular order; NaN is largest of all.

    On a CPU only entries above an estimated threshold compete, if they are at least k.
    """
    flat = tensor.reshape(-1)
    if flat.is_cpu and flat.numel() >= SMALL and 4 * k <= flat.numel():
        stride = max(16, flat.numel() >> 16)
        passed = above(flat, sampled_threshold(flat, k, stride, num_errors=4))
        if passed.numel() >= k:
            return passed[flat[passed].abs().topk(k, sorted=False).indices]
    return flat.abs().topk(k, sorted=False).indices


def sampled_threshold(flat: Tensor, k: int, stride: int, num_errors: float = 0) -> Tensor:
    """Magnitude, 0-dim, that about k entries exceed, from about every `stride`-th of them.

    `num_errors`: by how many standard errors of the sample it is lowered, so that k surely do.
    """
    sample = flat[:: stride | 1].abs()  # odd: walks through all columns of a width that is a power of two
    expected = k * sample.numel() / flat.numel()
    rank = math.ceil(expected + num_errors * math.sqrt(expected))
    return sample.topk(min(rank, sample.numel()), sorted=False).values.min()


def above(flat: Tensor, threshold: Tensor) -> Tensor:
    """Flat indices int64, rising, of the entries whose magnitude is above a 0-dim threshold, or NaN.

    How many there are is read from the device.
    """
    if not flat.is_cpu or flat.dtype not in (torch.float32, torch.float64):
        return (flat.abs() <= threshold).logical_not_().nonzero().view(-1)
    # NumPy, a piece at a time: about five times faster than torch's comparison and nonzero.
    values, bound = flat.numpy(), threshold.numpy()
    starts = range(0, values.size, CACHED)
    found = [np.flatnonzero(~(np.abs(values[start : start + CACHED]) <= bound)) + start for start in starts]
    return torch.from_numpy(np.concatenate(found))


def count(numel: int, density: float, share: float = 1.0) -> int:
    """Entries kept of `numel`: `density` of them and at least one, times `share`, never more than there are."""
    return min(numel, max(1, round(share * max(1, round(numel * density)))))


def check_density(density: float) -> None:
    if not 0 < density <= 1:
        raise ValueError(f"density must be in (0, 1], got {density}")


@dataclass(frozen=True)
class TopK:
    """Global Top-k per tensor (Aji and Heafield 2017, arXiv:1704.05021)."""

    density: float  # fraction kept, in (0, 1]; lower = less traffic, more left to the residual
    varies = False

    def __post_init__(self) -> None:
        check_density(self.density)

    def select(self, gradient: Tensor, view: View, turn: int, share: float = 1.0) -> Tensor | None:
        k = count(gradient.numel(), self.density, share)
        return None if k == gradient.numel() else largest(gradient, k)
