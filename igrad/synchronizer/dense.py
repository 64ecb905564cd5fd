"""Dense all-reduce of every gradient in buckets: what torch DistributedDataParallel does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from igrad.collective.dense import Dense as DenseCollective
from igrad.interfaces import Payload, SyncStats, Timed, View, untimed
from igrad.synchronizer.stateless import Stateless


def whole_payloads(gradients: dict[View, Tensor]) -> list[Payload]:
    """Every entry of every view, in the order of the views."""
    return [Payload(view.name, 0, view.numel, gradient.reshape(-1), None) for view, gradient in gradients.items()]


def in_buckets(payloads: list[Payload], bucket_bytes: int) -> list[list[Payload]]:
    """The payloads in their order, a new bucket where the last one has `bucket_bytes` or the dtype changes."""
    buckets: list[list[Payload]] = [[]]
    num_bytes = 0
    for payload in payloads:
        if num_bytes >= bucket_bytes or (buckets[-1] and buckets[-1][0].values.dtype != payload.values.dtype):
            buckets.append([])
            num_bytes = 0
        buckets[-1].append(payload)
        num_bytes += payload.bytes
    return buckets


def put(means: list[Tensor], gradients: dict[View, Tensor]) -> None:
    """Flat means, in the order of the views, take the gradients' places."""
    for (view, gradient), mean in zip(list(gradients.items()), means, strict=True):
        gradients[view] = mean.view(gradient.shape)


@dataclass
class Dense(Stateless):
    """Baseline: nothing is dropped, nothing waits. One all-reduce per bucket of views of one dtype."""

    bucket_bytes: int = 25 * 2**20  # least size of a bucket before the next one opens; larger = fewer messages
    timed: Timed = field(default_factory=lambda: untimed, init=False)

    def __post_init__(self) -> None:
        if self.bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be at least 1, got {self.bucket_bytes}")

    def prepare(
        self,
        parameters: Mapping[View, Tensor],
        important: frozenset[str | None],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.group = group

    def synchronize(self, gradients: dict[View, Tensor], step: int) -> SyncStats:
        with self.timed("pack"):
            payloads = whole_payloads(gradients)
            handles = DenseCollective().start(in_buckets(payloads, self.bucket_bytes), self.group, timed=self.timed)
        with self.timed("exchange"):
            for handle in handles:
                handle.wait()
        with self.timed("unpack"):
            results = [handle.decode() for handle in handles]
            means = [mean for result in results for mean in result.means]
            put(means, gradients)
        return SyncStats(
            payload_bytes=sum(payload.bytes for payload in payloads),
            wire_bytes=sum(result.wire_bytes for result in results),
            payloads=tuple(payloads),
        )
