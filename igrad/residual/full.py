"""Error feedback: everything that was not sent is kept and competes again."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from igrad.interfaces import Payload, Select, View
from igrad.residual.memory import Memory, take, wide


@dataclass(frozen=True)
class Full:
    """r += g; a view that may be sent sends S(r), r -= sent (Karimireddy et al. 2019, arXiv:1901.09847).

    A deferred view costs one addition and no selection.
    """

    conserves = "everything"
    memory: Memory = field(default_factory=Memory, init=False)

    def offer(
        self, view: View, gradient: Tensor, select: Select, due: slice | None, share: float, release: bool
    ) -> Payload | None:
        gradient = wide(gradient, view)
        held = self.memory.of(view, gradient).add_(gradient)
        return None if due is None else take(view, held, select, due, share, release)
