"""A deferred parameter is not updated at all: no moment decays, no weight decay."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from igrad.interfaces import View


@dataclass(frozen=True)
class Skip:
    """The optimizer passes over parameters without a gradient; deferred parts of a fused one are put back."""

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: dict[View, torch.nn.Parameter],
        deferred: frozenset[str],
    ) -> None:
        sent = {view.parameter for view in parameters if view.name not in deferred}
        undo = []
        for view, parameter in parameters.items():
            if view.name not in deferred:
                continue
            if view.parameter not in sent:
                parameter.grad = None
                continue
            moments = [
                t for t in optimizer.state[parameter].values() if torch.is_tensor(t) and t.shape == parameter.shape
            ]
            undo += [(part, part.clone()) for part in (view.part(tensor.detach()) for tensor in (parameter, *moments))]
        optimizer.step()
        for part, before in undo:
            part.copy_(before)
