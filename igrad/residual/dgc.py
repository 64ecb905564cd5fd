"""Deep Gradient Compression: error feedback over each rank's momentum, which stops where something was sent."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from igrad.interfaces import Payload, Select, View
from igrad.residual.memory import Memory, take, wide


@dataclass(frozen=True)
class MomentumMemory:
    """What was not sent yet, v, with the velocity u beside it: where something was sent, u is set to zero."""

    unsent: Memory = field(default_factory=Memory)
    velocity: Memory = field(default_factory=Memory)

    def pending(self, view: View) -> Tensor | None:
        return self.unsent.pending(view)

    def copy(self, view: View) -> Tensor | None:
        """v and u of the view as they are now, [2, *view.shape]; None when nothing was ever held."""
        held = self.unsent.copy(view)
        return None if held is None else torch.stack([held, self.velocity.copy(view)])

    def restore(self, copies: dict[str, Tensor | None]) -> None:
        for i, memory in enumerate((self.unsent, self.velocity)):
            memory.restore({name: None if both is None else both[i] for name, both in copies.items()})

    def subtract(self, sent: Payload) -> None:
        """Take out what really went; what an inexact exchange left of an entry stays in v, its velocity does not."""
        self.unsent.subtract(sent)
        velocity = self.velocity.tensors[sent.view].view(-1)[sent.start : sent.start + sent.numel]
        velocity[... if sent.indices is None else sent.indices] = 0

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        return {"unsent": self.unsent.state_dict(), "velocity": self.velocity.state_dict()}

    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        self.unsent.load_state_dict(state["unsent"])
        self.velocity.load_state_dict(state["velocity"])


@dataclass(frozen=True)
class DGC:
    """u = m u + g, v += u; a view that may be sent sends S(v); v -= sent, u = 0 where sent.

    Momentum correction and momentum factor masking (Lin et al. 2018, arXiv:1712.01887): what waits gathers the moves
    that momentum SGD would have made of it, and what was sent starts anew, so that no stale momentum pushes it on; what
    is sent every step has none.
    The velocity is conserved: every u that was added to v was sent or is in v. With m = 0 this is `full`, bit for bit.

    Made for `optimizer: sgd`, whose momentum it is. Under an optimizer with one of its own (AdamW) momentum acts twice.
    """

    momentum: float  # m, in [0, 1); higher = a gradient counts up to 1 / (1 - m) times while it waits; 0 = once
    memory: MomentumMemory = field(default_factory=MomentumMemory, init=False)
    conserves = "nothing"  # of gradients: momentum multiplies them, masking cuts them short

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    def offer(
        self, view: View, gradient: Tensor, select: Select, due: slice | None, share: float, release: bool
    ) -> Payload | None:
        gradient = wide(gradient, view)
        velocity = self.memory.velocity.of(view, gradient).mul_(self.momentum).add_(gradient)
        held = self.memory.unsent.of(view, gradient).add_(velocity)
        return None if due is None else take(view, held, select, due, share, release)
