"""No communication at all: the upper bound on speed, and no method to train by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from igrad.interfaces import SyncStats, Timed, View, untimed
from igrad.synchronizer.stateless import Stateless


@dataclass
class Noop(Stateless):
    """Baseline for time only. WARNING: THE REPLICAS DRIFT APART, from the first step on and for good.

    Gradients stay each rank's own, so a run is N models that each saw 1/N of the data and never meet. Its loss is the
    mean of those of ranks alone, and the model that it saves is rank 0's: compare its times, not its loss.
    """

    timed: Timed = field(default_factory=lambda: untimed, init=False)

    def prepare(
        self,
        parameters: Mapping[View, Tensor],
        important: frozenset[str | None],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        pass

    def synchronize(self, gradients: dict[View, Tensor], step: int) -> SyncStats:
        return SyncStats()
