"""Dense all-reduce: the bucket's full ranges, zero where nothing was selected."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.collective.wire import all_reduce, allreduce_bytes, split, value_dtype
from igrad.interfaces import Exchanged, Payload, Timed, untimed


@dataclass
class DenseHandle:
    bucket: list[Payload]
    buffer: Tensor  # [sum of numel]
    work: dist.Work
    num_ranks: int
    predicted_ms = 0.0

    def wait(self) -> None:
        self.work.wait()

    def decode(self) -> Exchanged:
        means = split(self.buffer.div_(self.num_ranks), self.bucket)
        num_bytes = self.buffer.numel() * self.buffer.element_size()
        return Exchanged(means, self.bucket, allreduce_bytes(num_bytes, self.num_ranks))


def spread(payload: Payload) -> Tensor:
    """[numel], zero where nothing was selected."""
    if payload.indices is None:
        return payload.values
    return payload.values.new_zeros(payload.numel).index_put_((payload.indices,), payload.values)


@dataclass(frozen=True)
class Dense:
    """Sum all-reduce, then division by N. Every element is charged, zeros included."""

    def cost_bytes(self, numel: int, count: float) -> float:
        return 4.0 * numel

    def start(
        self,
        buckets: list[list[Payload]],
        group: dist.ProcessGroup | None,
        step: int = 0,
        sizes_vary: bool = False,
        timed: Timed = untimed,
    ) -> list[DenseHandle]:
        return [self.start_bucket(bucket, group, timed) for bucket in buckets]

    def start_bucket(
        self, bucket: list[Payload], group: dist.ProcessGroup | None, timed: Timed = untimed
    ) -> DenseHandle:
        dtype = value_dtype(bucket)
        buffer = torch.cat([spread(payload).to(dtype) for payload in bucket])
        with timed("exchange"):
            work = all_reduce(buffer, group=group, async_op=True)
        return DenseHandle(bucket, buffer, work, dist.get_world_size(group))
