"""The paper's delay: the retained part of a low-importance gradient waits, the rest is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from igrad.interfaces import Payload, Select, View
from igrad.residual.memory import Memory, payload_at, rows_of, take, wide


@dataclass(frozen=True)
class Delayed:
    """s = S(g), r += s; a view sent every step sends r where s is, a release sends P(r); r -= sent.

    P is the sparsifier once more, over what has gathered: the union of R supports is nearly R times one of them, so
    without it a delay would save almost nothing.
    """

    conserves = "selected"
    memory: Memory = field(default_factory=Memory, init=False)

    def offer(
        self, view: View, gradient: Tensor, select: Select, due: slice | None, share: float, release: bool
    ) -> Payload | None:
        gradient = wide(gradient, view).contiguous()
        held = self.memory.of(view, gradient)
        everything = slice(0, view.numel)
        indices = select(rows_of(gradient.view(-1), view, everything), 1.0, False)
        if indices is None:
            held.add_(gradient)
        else:
            held.view(-1).index_add_(0, indices, gradient.view(-1)[indices])
        if due is None:
            return None
        if release:
            return take(view, held, select, due, share, release)
        return payload_at(view, held, everything, indices)
