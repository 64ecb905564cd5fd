"""Dense all-reduce in bfloat16: what torch's bf16_compress_hook does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.collective.wire import all_reduce, allreduce_bytes, split
from igrad.interfaces import SyncStats, Timed, View, untimed
from igrad.synchronizer.dense import in_buckets, put, whole_payloads
from igrad.synchronizer.stateless import Stateless


@dataclass
class BF16(Stateless):
    """Baseline: half the bytes of Dense in the same buckets; sums are rounded to 8 significant bits on the way.

    Cast, divide by N, all-reduce, cast back. bfloat16 has the range of float32, so nothing overflows for it.
    """

    bucket_bytes: int = 25 * 2**20  # of gradients before the cast, least size of a bucket; larger = fewer messages
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
        self.num_ranks = dist.get_world_size(group)

    def synchronize(self, gradients: dict[View, Tensor], step: int) -> SyncStats:
        with self.timed("pack"):
            payloads = whole_payloads(gradients)
            buckets = in_buckets(payloads, self.bucket_bytes)
            flat = [torch.cat([payload.values for payload in bucket]) for bucket in buckets]
            buffers = [values.to(torch.bfloat16).div_(self.num_ranks) for values in flat]
        with self.timed("exchange"):
            works = [all_reduce(buffer, group=self.group, async_op=True) for buffer in buffers]
            for work in works:
                work.wait()
        with self.timed("unpack"):
            wide = [buffer.to(values.dtype) for buffer, values in zip(buffers, flat, strict=True)]
            means = [mean for values, bucket in zip(wide, buckets, strict=True) for mean in split(values, bucket)]
            put(means, gradients)
        return SyncStats(
            payload_bytes=sum(payload.bytes for payload in payloads),
            wire_bytes=sum(allreduce_bytes(b.numel() * b.element_size(), self.num_ranks) for b in buffers),
            payloads=tuple(payloads),
        )
