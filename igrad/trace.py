"""What a profiling run writes down: per step of the window and component, the measures that scores are made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from igrad.interfaces import Payload, View
from igrad.profile_file import MEASURES


@dataclass
class Trace:
    """Keeps a few numbers per step and component; the tensors they come from are not kept."""

    steps: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)  # float64 [measures, components] per step
    numel: dict[str, int] = field(default_factory=dict)  # component -> elements, in order of first sight

    def update(self, seen: dict[View, tuple[Tensor, Tensor, Payload]], step: int) -> None:
        """One step's (weight, local gradient, payload) per view; views of no component are passed over."""
        mine = {view: tensors for view, tensors in seen.items() if view.component is not None}
        if not self.numel:
            for view in mine:
                self.numel[str(view.component)] = self.numel.get(str(view.component), 0) + view.numel
        names = list(self.numel)
        weights, gradients, payloads = zip(*mine.values(), strict=True)
        per_view = torch.stack(
            [
                torch.stack(torch._foreach_norm([payload.values for payload in payloads])).double() ** 2,
                torch.stack(torch._foreach_norm(list(gradients))).double() ** 2,
                torch.stack([(w * g).abs().sum() for w, g in zip(weights, gradients, strict=True)]).double(),
            ]
        )
        device = per_view.device
        position = torch.tensor([names.index(str(view.component)) for view in mine], device=device)
        numel = torch.tensor(list(self.numel.values()), dtype=torch.float64, device=device)
        means = per_view.new_zeros(len(MEASURES), len(names)).index_add_(1, position, per_view) / numel
        means[:2].sqrt_()
        self.steps.append(step)
        self.rows.append(means)

    def gather(self, group: dist.ProcessGroup | None = None) -> dict[str, np.ndarray]:
        """Measure -> float64 [steps, components], the mean over ranks: the same on every rank."""
        if not self.rows:
            raise ValueError("no step fell into profile_window; lower its first step or raise its last")
        stacked = torch.stack(self.rows, dim=1)  # [measures, steps, components]
        dist.all_reduce(stacked, group=group)
        mean = (stacked / dist.get_world_size(group)).cpu().numpy()
        return dict(zip(MEASURES, mean, strict=True))
