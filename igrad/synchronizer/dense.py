"""Dense all-reduce of every gradient in buckets: what torch DistributedDataParallel does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from igrad.collective.dense import Dense as DenseCollective
from igrad.interfaces import Payload, SyncStats, Timed, View, untimed


@dataclass
class Dense:
    """Baseline: nothing is dropped, nothing waits. One all-reduce per bucket of views of one dtype."""

    bucket_bytes: int = 25 * 2**20  # least size of a bucket before the next one opens; larger = fewer messages
    timed: Timed = field(default_factory=lambda: untimed, init=False)
    uses_importance = False
    overlaps = False

    def __post_init__(self) -> None:
        if self.bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be at least 1, got {self.bucket_bytes}")

    def prepare(self, views: Iterable[View], important: frozenset[str], group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    def ready(self, view: View, gradient: Tensor, step: int) -> None:
        """Nothing leaves before all is there."""

    def synchronize(self, gradients: dict[View, Tensor], step: int) -> SyncStats:
        with self.timed("pack"):
            payloads = [Payload(v.name, 0, v.numel, g.reshape(-1), None) for v, g in gradients.items()]
            buckets: list[list[Payload]] = [[]]
            for payload in payloads:
                full = sum(p.bytes for p in buckets[-1]) >= self.bucket_bytes
                if full or (buckets[-1] and buckets[-1][0].values.dtype != payload.values.dtype):
                    buckets.append([])
                buckets[-1].append(payload)
            handles = DenseCollective().start(buckets, self.group)
        with self.timed("exchange"):
            for handle in handles:
                handle.wait()
        with self.timed("unpack"):
            results = [handle.decode() for handle in handles]
            means = [mean for result in results for mean in result.means]
            for gradient, mean in zip(gradients.values(), means, strict=True):
                gradient.copy_(mean.view(gradient.shape))
        return SyncStats(
            payload_bytes=sum(payload.bytes for payload in payloads),
            wire_bytes=sum(result.wire_bytes for result in results),
            payloads=tuple(payloads),
        )

    def reconcile(self, parameters: dict[View, Tensor], step: int) -> SyncStats:
        return SyncStats()

    def flush(self, gradients: dict[View, Tensor], parameters: dict[View, Tensor]) -> SyncStats | None:
        return None

    def pending(self, view: View) -> Tensor | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
