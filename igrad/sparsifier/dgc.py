"""Top-k whose density falls to its final value over the first selections."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from igrad.interfaces import View
from igrad.sparsifier.topk import TopK, check_density


@dataclass(frozen=True)
class DGC:
    """Top-k with the exponential warm-up of Deep Gradient Compression (Lin et al. 2018, arXiv:1712.01887).

    Selection n (0-based) of W warm-up turns keeps initial_density^(1 - n/W) · density^(n/W), from n = W on `density`;
    never less than `density`, so that an initial_density below it means no warm-up. Releases count on their own: the
    first of a view is as dense as its first step would be. The warm-up sends as many entries as about
    W · (initial_density / density - 1) / ln(initial_density / density) later turns.
    """

    density: float  # fraction kept after the warm-up, in (0, 1]; lower = less traffic, more left to the residual
    warmup_turns: int  # W, at least 0; higher = a gentler start that costs more; 0 = none
    initial_density: float = 0.25  # fraction kept by the first selection, in (0, 1]; higher = a denser start
    varies = False

    def __post_init__(self) -> None:
        check_density(self.density)
        if not 0 < self.initial_density <= 1:
            raise ValueError(f"initial_density must be in (0, 1], got {self.initial_density}")
        if self.warmup_turns < 0:
            raise ValueError(f"warmup_turns must be at least 0, got {self.warmup_turns}")

    def select(self, gradient: Tensor, view: View, turn: int, share: float = 1.0) -> Tensor | None:
        return TopK(self.density_at(turn if turn >= 0 else -1 - turn)).select(gradient, view, turn, share)

    def density_at(self, number: int) -> float:
        """Fraction kept by a view's selection `number`, 0-based."""
        if number >= self.warmup_turns:
            return self.density
        done = number / self.warmup_turns
        return max(self.density, self.initial_density ** (1 - done) * self.density**done)
