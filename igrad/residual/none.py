"""No residual: what is not sent is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from igrad.interfaces import Payload, Select, View
from igrad.residual.memory import Memory, take, wide


@dataclass(frozen=True)
class NoResidual:
    conserves = "nothing"
    memory: Memory = field(default_factory=Memory, init=False)  # stays empty

    def offer(
        self, view: View, gradient: Tensor, select: Select, due: slice | None, share: float, release: bool
    ) -> Payload | None:
        return None if due is None else take(view, wide(gradient, view).contiguous(), select, due, share, release)
