"""Random-k: the control that any magnitude-based sparsifier has to beat."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from igrad.interfaces import View
from igrad.sparsifier.topk import check_density, count


@dataclass(frozen=True)
class RandomK:
    """k nonzero entries at random, unscaled (Stich et al. 2018, arXiv:1809.07599).

    The draw depends on seed, view and turn alone, so the ranks agree on it wherever they agree on which entries are
    zero. Zeros are taken last: a delayed release draws among the entries it holds.
    """

    density: float  # fraction kept, in (0, 1]; lower = less traffic, more left to the residual
    seed: int = 0  # any integer; another seed draws other entries
    varies = False

    def __post_init__(self) -> None:
        check_density(self.density)

    def select(self, gradient: Tensor, view: View, turn: int, share: float = 1.0) -> Tensor | None:
        k = count(gradient.numel(), self.density, share)
        if k == gradient.numel():
            return None
        seed = zlib.crc32(f"{self.seed}/{view.name}/{turn}".encode())
        generator = torch.Generator(gradient.device).manual_seed(seed)
        keys = torch.rand(gradient.numel(), generator=generator, device=gradient.device)
        keys += gradient.reshape(-1) != 0
        return keys.topk(k, sorted=False).indices
