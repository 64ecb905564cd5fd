"""Whether gradients are numbers: asked before anything is remembered of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def all_finite(gradients: Iterable[Tensor]) -> Tensor:
    """0-dim float64: one where every gradient's norm is finite in float32, else zero. Waits for no device."""
    norms = torch._foreach_norm(list(gradients))
    if len({norm.dtype for norm in norms}) > 1 or norms[0].dtype != torch.float32:
        norms = [norm.float() for norm in norms]
    return torch.stack(norms).isfinite().all().double()
