"""A deferred gradient is zero: moments decay, weight decay acts (the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from igrad.interfaces import View


@dataclass(frozen=True)
class Zeros:
    local = False

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: dict[View, torch.nn.Parameter],
        deferred: frozenset[str],
    ) -> None:
        optimizer.step()
