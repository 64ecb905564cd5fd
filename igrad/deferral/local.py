"""Between releases every rank updates with its own gradient; what is released are the changes of its weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from igrad.interfaces import Payload, Select, View
from igrad.residual.memory import rows_of


@dataclass(frozen=True)
class Local:
    """theta += mean - sent: changes since the last release are averaged, what was not sent stays a rank's own.

    The change is what theta has moved away from a reference that all ranks share, which follows the means. A view that
    is sent whole exchanges theta itself: with threshold `none` that is local SGD with period R (Stich 2019,
    arXiv:1805.09767), under `staggered` streaming DiLoCo (Douillard et al. 2025, arXiv:2501.18512). The outer step is
    SGD with Nesterov momentum on the mean change, as in DiLoCo (Douillard et al. 2023, arXiv:2311.08105); a rate of 1
    without momentum takes the mean as it is. Moments of the optimizer stay each rank's own.
    """

    outer_learning_rate: float = 1.0  # above 0; DiLoCo: 0.7; lower = ranks are pulled back towards the reference
    outer_momentum: float = 0.0  # in [0, 1); DiLoCo: 0.9; higher = releases go on in the direction of earlier ones
    state: dict[str, dict[str, Tensor]] = field(default_factory=dict, init=False)  # "reference", "velocity": by view
    local = True

    def __post_init__(self) -> None:
        if not 0 < self.outer_learning_rate < float("inf"):
            raise ValueError(f"outer_learning_rate must be above 0 and finite, got {self.outer_learning_rate}")
        if not 0 <= self.outer_momentum < 1:
            raise ValueError(f"outer_momentum must be in [0, 1), got {self.outer_momentum}")

    def step(
        self, optimizer: torch.optim.Optimizer, parameters: dict[View, torch.nn.Parameter], deferred: frozenset[str]
    ) -> None:
        optimizer.step()

    # ------------------------------------------------------------------------------------------- changes

    def begin(self, view: View, parameter: Tensor) -> None:
        """Remember where all ranks start."""
        self.state.setdefault("reference", {})[view.name] = parameter.reshape(-1).clone()
        if self.outer_momentum:
            self.state.setdefault("velocity", {})[view.name] = torch.zeros_like(self.state["reference"][view.name])

    def change(self, view: View, parameter: Tensor) -> Tensor:
        """[numel]: what this rank moved by and has not sent."""
        return parameter.reshape(-1) - self.state["reference"][view.name]

    def offer(self, view: View, parameter: Tensor, select: Select, due: slice, share: float) -> Payload:
        """The selected changes among elements `due`; theta itself where that is all of them."""
        change = self.change(view, parameter)
        indices = select(rows_of(change, view, due), share, True)
        source = change[due] if indices is not None else parameter.reshape(-1)[due].clone()
        values = source if indices is None else source[indices]
        return Payload(view.name, due.start, source.numel(), values, indices, source)

    def apply(self, view: View, parameter: Tensor, sent: Payload, mean: Tensor) -> None:
        """A release, in place; `mean` [numel of the payload] is of changes, of theta where it was sent whole."""
        part = slice(sent.start, sent.start + sent.numel)
        reference = self.state["reference"][view.name][part]
        theta = parameter.reshape(-1)  # a copy where the part of a fused weight is strided
        if sent.indices is None:
            kept = theta[part] - sent.values  # zero unless the exchange rounds
            reference.copy_(mean) if self.is_plain else reference.add_(self.outer(view, part, mean - reference))
            theta[part] = reference + kept
        else:
            moved = mean if self.is_plain else self.outer(view, part, mean)
            reference.add_(moved)
            theta[part] += moved.index_add(0, sent.indices, sent.values.to(moved.dtype), alpha=-1)
        if not parameter.is_contiguous():
            parameter.copy_(theta.view(parameter.shape))

    def settle(self, view: View, parameter: Tensor, mean: Tensor) -> None:
        """theta becomes the ranks' mean [numel], without an outer step: nothing comes after."""
        parameter.copy_(mean.view(parameter.shape))
        self.state["reference"][view.name].copy_(mean)

    @property
    def is_plain(self) -> bool:
        return self.outer_learning_rate == 1 and not self.outer_momentum

    def outer(self, view: View, part: slice, mean: Tensor) -> Tensor:
        """The outer optimizer's step along a mean change."""
        if not self.outer_momentum:
            return self.outer_learning_rate * mean
        velocity = self.state["velocity"][view.name][part].mul_(self.outer_momentum).add_(mean)
        return self.outer_learning_rate * (mean + self.outer_momentum * velocity)
