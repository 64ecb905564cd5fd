"""What the collectives share: operations that are written down, buckets as one space of elements, bytes on the wire."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from igrad.interfaces import Payload

SUM = dist.ReduceOp.SUM
# torch 2.13 renamed it; the old name warns.
_all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor


class Message(NamedTuple):
    """One cross-rank operation of a step, as this rank took part in it."""

    kind: str  # all_reduce, all_gather, broadcast or all_to_all
    num_bytes: int  # of the buffer that is reduced or broadcast, of this rank's share of a gather, of what others get


_messages: deque[Message] = deque(maxlen=1 << 16)


def note(kind: str, num_bytes: int) -> None:
    """Write down what somebody else's code sends."""
    _messages.append(Message(kind, num_bytes))


def take_messages() -> list[Message]:
    """What was sent since the last call, in order."""
    taken = list(_messages)
    _messages.clear()
    return taken


def all_reduce(
    buffer: Tensor, op: dist.ReduceOp = SUM, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> dist.Work | None:
    """dist.all_reduce, written down."""
    note("all_reduce", buffer.numel() * buffer.element_size())
    return dist.all_reduce(buffer, op, group=group, async_op=async_op)


def gather(
    received: Tensor, mine: Tensor, group: dist.ProcessGroup | None = None, async_op: bool = False
) -> dist.Work | None:
    """Every rank's `mine`, of one size, side by side in `received`; written down."""
    note("all_gather", mine.numel() * mine.element_size())
    return _all_gather(received, mine, group=group, async_op=async_op)


def broadcast(buffer: Tensor, first: int, group: dist.ProcessGroup | None = None) -> None:
    """dist.broadcast from the group's rank `first`, written down."""
    note("broadcast", buffer.numel() * buffer.element_size())
    dist.broadcast(buffer, group=group, group_src=first)


def all_to_all(
    arriving: Tensor,
    leaving: Tensor,
    comes: list[int] | None = None,
    leaves: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """dist.all_to_all_single, `comes` and `leaves` in rows per rank (None = equal parts); written down."""
    num_ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    kept = leaves[rank] if leaves else len(leaving) // num_ranks
    row_bytes = leaving[:1].numel() * leaving.element_size()
    note("all_to_all", (len(leaving) - kept) * row_bytes)
    return dist.all_to_all_single(arriving, leaving, comes, leaves, group=group, async_op=async_op)


def allreduce_bytes(num_bytes: int, num_ranks: int) -> int:
    """Sent by each rank in a ring all-reduce: 2 (N - 1) / N of the buffer."""
    return round(2 * (num_ranks - 1) / num_ranks * num_bytes)


def broadcast_bytes(num_bytes: int, num_ranks: int) -> int:
    """Sent by each rank in a broadcast, on average over who leads: N - 1 copies travel, whatever the tree."""
    return round((num_ranks - 1) / num_ranks * num_bytes)


def value_dtype(bucket: Sequence[Payload]) -> torch.dtype:
    """The widest value type of a bucket, so that mixed payloads share a buffer without loss."""
    dtype = bucket[0].values.dtype
    for payload in bucket[1:]:
        dtype = torch.promote_types(dtype, payload.values.dtype)
    return dtype


def split(flat: Tensor, bucket: Sequence[Payload]) -> list[Tensor]:
    """Cut a dense bucket [sum of numel] into its payloads' ranges."""
    return list(flat.split([payload.numel for payload in bucket]))


def rising_order(positions: Tensor) -> Tensor:
    """The permutation int64 [k] that sorts positions of which none comes twice."""
    if positions.is_cpu:
        return torch.from_numpy(np.argsort(positions.numpy()))  # four times as fast as torch's on a CPU with AVX-512
    return positions.argsort()


@dataclass(frozen=True)
class Space:
    """A bucket's payloads side by side: those sent whole first, then the elements of the sparse ones."""

    bucket: list[Payload]

    @cached_property
    def whole(self) -> list[Payload]:
        return [payload for payload in self.bucket if payload.indices is None]

    @cached_property
    def sparse(self) -> list[Payload]:
        return [payload for payload in self.bucket if payload.indices is not None]

    @cached_property
    def num_whole(self) -> int:
        return sum(payload.numel for payload in self.whole)

    @cached_property
    def num_sparse(self) -> int:
        """Elements of the sparse payloads, sent or not: positions are in [0, num_sparse)."""
        return sum(payload.numel for payload in self.sparse)

    @cached_property
    def starts(self) -> list[int]:
        """Where each sparse payload begins."""
        return list(itertools.accumulate((payload.numel for payload in self.sparse), initial=0))[:-1]

    @cached_property
    def own_counts(self) -> list[int]:
        """Entries of each sparse payload on this rank."""
        return [payload.values.numel() for payload in self.sparse]

    @cached_property
    def dtype(self) -> torch.dtype:
        return value_dtype(self.bucket)

    @property
    def device(self) -> torch.device:
        return self.bucket[0].values.device

    def positions(self) -> Tensor:
        """Of the sparse payloads' entries, int64 [sum of their k], in the order given."""
        if not self.sparse:
            return torch.zeros(0, dtype=torch.int64, device=self.device)
        indices = torch.cat([payload.indices for payload in self.sparse])
        starts, counts = torch.tensor([self.starts, self.own_counts], device=self.device)
        return indices.add_(starts.repeat_interleave(counts, output_size=indices.numel()))

    def values(self, payloads: Sequence[Payload]) -> Tensor:
        if not payloads:
            return torch.zeros(0, dtype=self.dtype, device=self.device)
        return torch.cat([payload.values for payload in payloads]).to(self.dtype)

    def owner(self, positions: Tensor) -> Tensor:
        """Which sparse payload each position falls into: its number among them, int64."""
        starts = torch.tensor(self.starts, dtype=torch.int64, device=positions.device)
        return torch.searchsorted(starts, positions, right=True) - 1

    def counts(self, positions: Tensor) -> list[int]:
        """Entries of each sparse payload among `positions`. Waits for the device."""
        return torch.bincount(self.owner(positions), minlength=len(self.sparse)).tolist()

    def in_order(self, whole: Sequence, sparse: Sequence) -> list:
        """One thing per payload, in the bucket's order."""
        firsts, seconds = iter(whole), iter(sparse)
        return [next(firsts if payload.indices is None else seconds) for payload in self.bucket]

    def means(self, dense: Tensor) -> list[Tensor]:
        """Cut [num_whole + num_sparse] into ranges, in the bucket's order."""
        whole, sparse = dense.split([self.num_whole, self.num_sparse])
        return self.in_order(split(whole, self.whole), split(sparse, self.sparse))

    def sent(self, values: Tensor, counts: list[int], positions: Tensor | None = None) -> list[Payload]:
        """What went, from values [num_whole + sum of counts]; at other positions than asked where they are given.

        `positions` must go payload by payload, with `counts` entries each.
        """
        whole, sparse = values.split([self.num_whole, sum(counts)])
        pairs = zip(self.whole, split(whole, self.whole), strict=True)
        went_whole = [Payload(p.view, p.start, p.numel, part, None, p.source) for p, part in pairs]
        if positions is None:
            indices = [payload.indices for payload in self.sparse]
        else:
            parts = positions.split(counts) if counts else ()
            indices = [part - start for part, start in zip(parts, self.starts, strict=True)]
        parts = zip(self.sparse, sparse.split(counts) if counts else (), indices, strict=True)
        return self.in_order(went_whole, [Payload(p.view, p.start, p.numel, v, i, p.source) for p, v, i in parts])


def most_entries(spaces: Sequence[Space], group: dist.ProcessGroup | None) -> tuple[list[list[int]], int]:
    """Entries of each sparse payload on the rank that had most, by bucket, and the bytes sent to find out.

    One small all-reduce for all buckets. Waits for the device.
    """
    lengths = [len(space.sparse) for space in spaces]
    own = [count for space in spaces for count in space.own_counts]
    counts = torch.tensor(own, dtype=torch.int64, device=spaces[0].device)
    all_reduce(counts, dist.ReduceOp.MAX, group)
    num_bytes = allreduce_bytes(counts.numel() * counts.element_size(), dist.get_world_size(group))
    every = iter(counts.tolist())
    return [list(itertools.islice(every, length)) for length in lengths], num_bytes
