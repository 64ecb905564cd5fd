"""No sparsifier: every entry is retained."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from igrad.interfaces import View


@dataclass(frozen=True)
class NoSparsifier:
    varies = False

    def select(self, gradient: Tensor, view: View, turn: int, share: float = 1.0) -> Tensor | None:
        return None
