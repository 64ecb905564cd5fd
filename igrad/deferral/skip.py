"""A deferred parameter is not updated at all: no moment decays, no weight decay."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from igrad.interfaces import View


def tensors(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> dict[str, Tensor]:
    """A parameter and its moments: everything of its shape."""
    state = optimizer.state[parameter].items()
    moments = {name: t for name, t in state if torch.is_tensor(t) and t.shape == parameter.shape}
    return {"parameter": parameter.detach(), **moments}


@dataclass(frozen=True)
class Skip:
    """The optimizer passes over parameters without a gradient; deferred parts of a fused one are put back."""

    local = False

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: dict[View, torch.nn.Parameter],
        deferred: frozenset[str],
    ) -> None:
        sent = {view.parameter for view in parameters if view.name not in deferred}
        before = []
        for view, parameter in parameters.items():
            if view.name in deferred and view.parameter in sent:
                values = tensors(optimizer, parameter)
                before.append((view, parameter, {name: view.part(t).clone() for name, t in values.items()}))
            elif view.name in deferred:
                parameter.grad = None
        optimizer.step()
        for view, parameter, kept in before:
            for name, tensor in tensors(optimizer, parameter).items():
                part = view.part(tensor)
                # A moment born in this step may hold weight decay already.
                part.copy_(kept[name]) if name in kept else part.zero_()
