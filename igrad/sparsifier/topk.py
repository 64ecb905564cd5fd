"""Top-k: the entries of largest magnitude, over the whole tensor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from igrad.interfaces import View


def largest(tensor: Tensor, k: int) -> Tensor:
    """Flat indices int64 [k] of the k entries of largest magnitude, in no particular order."""
    return tensor.reshape(-1).abs().topk(k, sorted=False).indices


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
