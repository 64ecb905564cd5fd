"""The paper's score: how large a component's retained gradient is, and how steadily."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from igrad.interfaces import Payload, View


def magnitude(trace: np.ndarray) -> np.ndarray:
    """Min-max of the mean activity over the window; [steps, components] -> [components] in [0, 1]."""
    mean = trace.mean(axis=0)
    spread = mean.max() - mean.min()
    return (mean - mean.min()) / spread if spread > 0 else np.zeros_like(mean)


def persistence(trace: np.ndarray) -> np.ndarray:
    """Share of steps in which a component is above that step's median; [steps, components] -> [components]."""
    return (trace > np.median(trace, axis=1, keepdims=True)).mean(axis=0)


@dataclass(frozen=True)
class MagnitudePersistence:
    """alpha * magnitude + (1 - alpha) * persistence of the activity a = ||retained||_2 / sqrt(numel)."""

    alpha: float = 0.7  # in [0, 1]; 1 = magnitude alone, 0 = persistence alone
    trace: list[Tensor] = field(default_factory=list, init=False, repr=False)  # [components] per step
    names: list[str] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], got {self.alpha}")

    def update(self, seen: dict[View, tuple[Tensor, Tensor, Payload]], step: int) -> None:
        mine = {view: payload for view, (_, _, payload) in seen.items() if view.component is not None}
        if not self.names:
            self.names.extend(dict.fromkeys(str(view.component) for view in mine))
        position = torch.tensor([self.names.index(str(view.component)) for view in mine])
        numel = torch.zeros(len(self.names), dtype=torch.float64)
        numel.index_add_(0, position, torch.tensor([view.numel for view in mine], dtype=torch.float64))
        norms = torch.stack(torch._foreach_norm([payload.values for payload in mine.values()])).double()
        energy = norms.new_zeros(len(self.names)).index_add_(0, position.to(norms.device), norms**2)
        self.trace.append((energy / numel.to(norms.device)).sqrt())

    def compute(self, group: dist.ProcessGroup | None = None) -> dict[str, float]:
        if not self.trace:
            raise ValueError("no step fell into profile_window; lower its first step or raise its last")
        trace = torch.stack(self.trace)  # [steps, components]
        dist.all_reduce(trace, group=group)
        a = (trace / dist.get_world_size(group)).cpu().numpy()
        score = self.alpha * magnitude(a) + (1 - self.alpha) * persistence(a)
        return dict(zip(self.names, score.tolist(), strict=True))
