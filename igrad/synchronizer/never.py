"""The ranks train alone; their parameters are averaged once, at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch.distributed as dist
from torch import Tensor

from igrad.interfaces import SyncStats, Timed, View, untimed
from igrad.synchronizer.dense import Dense
from igrad.synchronizer.stateless import Stateless


@dataclass
class Never(Stateless):
    """Baseline: one-shot averaging (Zinkevich et al. 2010, "Parallelized Stochastic Gradient Descent").

    Gradients stay each rank's own, so replicas differ and evaluations during the run are means over models that
    differ; after `flush` they are equal.
    """

    timed: Timed = field(default_factory=lambda: untimed, init=False)

    def prepare(
        self,
        parameters: Mapping[View, Tensor],
        important: frozenset[str | None],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.average = Dense()
        self.average.prepare(parameters, important, group)

    def synchronize(self, gradients: dict[View, Tensor], step: int) -> SyncStats:
        return SyncStats()

    def flush(self, gradients: dict[View, Tensor], parameters: dict[View, Tensor]) -> SyncStats | None:
        """Parameters become their mean over the ranks, in place; the optimizer has nothing left to step."""
        self.average.timed = self.timed
        means = dict(parameters)
        stats = self.average.synchronize(means, step=0)
        for view, mean in means.items():
            parameters[view].copy_(mean)
        return replace(stats, deferred=frozenset(view.name for view in parameters))
