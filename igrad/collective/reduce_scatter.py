"""Sparse reduce-scatter: every rank adds up a part of the elements, keeps the largest sums and tells the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.collective.dense import Dense, DenseHandle
from igrad.collective.wire import Space, all_to_all, gather, most_entries
from igrad.interfaces import Exchanged, Handle, Payload, Timed, untimed


def largest_per_segment(magnitudes: Tensor, segments: Tensor, quotas: Tensor) -> tuple[Tensor, Tensor]:
    """Which of [k] entries are among the `quotas[s]` largest of their segment s, and their slots in [0, sum of quotas).

    Segments are int64 [k], quotas int64 [num_segments]. Among equals the first go first.
    """
    order = magnitudes.argsort(descending=True, stable=True)
    order = order[segments[order].argsort(stable=True)]
    segments = segments[order]
    sizes = segments.bincount(minlength=quotas.numel())
    rank = torch.arange(order.numel(), device=order.device) - (sizes.cumsum(0) - sizes)[segments]
    slots = rank + (quotas.cumsum(0) - quotas)[segments]
    kept = rank < quotas[segments]
    return order[kept], slots[kept]


def to_records(values: Tensor, positions: Tensor) -> Tensor:
    """Entries as rows of int32: the words of the value, then the position, whose upper half wraps around."""
    return torch.cat([values.unsqueeze(1).view(torch.int32), positions.to(torch.int32).unsqueeze(1)], dim=1)


def from_records(records: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(values [k], positions int64 [k])."""
    return records[:, :-1].reshape(-1).view(dtype), records[:, -1].long() & 0xFFFFFFFF


@dataclass
class ScatterHandle:
    bucket: Space  # of all payloads
    whole: DenseHandle | None  # of the payloads sent whole
    space: Space  # of the others
    most: list[int]  # entries per payload on the rank that had most
    arrived: Tensor  # records of this rank's parts, rank by rank
    arriving: list[int]  # how many of each rank
    scatter: dist.Work
    wire_bytes: int  # of control messages, and of entries that went to their owners
    group: dist.ProcessGroup | None
    together: list[ScatterHandle]  # of one start
    result: Tensor | None = None  # records [N * slots]: what the owners chose
    gathering: dist.Work | None = None
    predicted_ms = 0.0

    def wait(self) -> None:
        for handle in self.together:  # all results are on their way before the first is waited for
            if handle.gathering is None:
                handle.reduce()
        self.gathering.wait()
        if self.whole:
            self.whole.wait()

    def reduce(self) -> None:
        """As owner: add up in rank order, keep an N-th of each payload's entries, pass them on."""
        self.scatter.wait()
        num_ranks, space = len(self.arriving), self.space
        values, positions = from_records(self.arrived, space.dtype)
        support, places = positions.unique(return_inverse=True)
        sums = values.new_zeros(support.numel())
        for theirs, where in zip(values.split(self.arriving), places.split(self.arriving), strict=True):
            sums.index_add_(0, where, theirs)
        quotas = [-(-count // num_ranks) for count in self.most]
        kept, slots = largest_per_segment(sums.abs(), space.owner(support), positions.new_tensor(quotas))
        num_slots = max(1, sum(quotas))  # gloo sends no empty tensor
        chosen = to_records(sums.new_zeros(num_slots), positions.new_full((num_slots,), space.num_sparse))
        chosen[slots] = to_records(sums[kept], support[kept])
        self.result = chosen.new_empty(num_ranks * num_slots, chosen.shape[1])
        self.gathering = gather(self.result, chosen, group=self.group, async_op=True)
        self.wire_bytes += (num_ranks - 1) * chosen.numel() * chosen.element_size()

    def decode(self) -> Exchanged:
        """An entry of this rank was sent where it is among the chosen. An empty slot names an element past the end."""
        space = self.space
        sums, positions = from_records(self.result, space.dtype)
        dense = sums.new_zeros(space.num_sparse + 1).index_copy_(0, positions, sums)
        chosen = torch.zeros_like(dense, dtype=torch.bool).index_fill_(0, positions, True)
        offered = space.positions()
        went = chosen[offered]
        sent = space.sent(space.values(space.bucket)[went], space.counts(offered[went]), offered[went])
        means = space.means(dense[:-1].div_(len(self.arriving)))
        whole = self.whole.decode() if self.whole else Exchanged([], [], 0)
        merge = self.bucket.in_order
        counts = merge([payload.numel for payload in self.bucket.whole], self.most)
        return Exchanged(merge(whole.means, means), merge(whole.sent, sent), whole.wire_bytes + self.wire_bytes, counts)


@dataclass(frozen=True)
class ReduceScatter:
    """Top-k of sums by owners, in the manner of Ok-Topk (Li and Hoefler 2022, arXiv:2201.07598).

    Elements are cut into N equal parts per payload. Each rank sends its k entries to the parts' owners; an owner adds
    up what it got, keeps the ceil(k / N) sums of largest magnitude and gathers them to all. What was not kept returns
    to the residuals, so no part starves and nothing grows with N: 2 (N - 1) / N times k entries per rank, of a value
    and four bytes each, where they fall evenly on the parts (the paper moves the cuts, here they stay). Entries that
    cancel between ranks wait longest. Payloads sent whole are all-reduced. Waits for the device: who gets how much is
    the data's choice, and is exchanged first.
    """

    def cost_bytes(self, numel: int, count: float) -> float:
        return (8.0 if count < numel else 4.0) * count  # as between two ranks

    def start(
        self,
        buckets: list[list[Payload]],
        group: dist.ProcessGroup | None,
        step: int = 0,
        sizes_vary: bool = False,
        timed: Timed = untimed,
    ) -> list[Handle]:
        num_ranks = dist.get_world_size(group)
        every = [Space(bucket) for bucket in buckets]
        whole = [Dense().start_bucket(space.whole, group, timed) if space.whole else None for space in every]
        spaces = [Space(space.sparse) for space in every if space.sparse]
        if not spaces:
            return whole
        outgoing = [by_owner(space, num_ranks) for space in spaces]
        sizes = torch.stack([counts for _, counts in outgoing], dim=1)  # [N, buckets], of who gets them
        arriving = torch.empty_like(sizes)  # of whom they are from
        with timed("exchange"):
            all_to_all(arriving, sizes, group=group)
        control_bytes = (num_ranks - 1) * len(spaces) * sizes.element_size()
        most = [space.own_counts for space in spaces]
        if sizes_vary:
            with timed("exchange"):
                most, num_bytes = most_entries(spaces, group)
            control_bytes += num_bytes
        together: list[ScatterHandle] = []
        theirs = iter(zip(spaces, outgoing, sizes.T.tolist(), arriving.T.tolist(), most, strict=True))
        for bucket, dense in zip(every, whole, strict=True):
            if not bucket.sparse:
                continue
            space, (records, _), leaves, comes, counts = next(theirs)
            arrived = records.new_empty(sum(comes), records.shape[1])
            with timed("exchange"):
                work = all_to_all(arrived, records, comes, leaves, group, async_op=True)
            num_bytes = (len(records) - leaves[dist.get_rank(group)]) * records.shape[1] * records.element_size()
            together.append(ScatterHandle(bucket, dense, space, counts, arrived, comes, work,
                                          num_bytes + control_bytes, group, together))  # fmt: skip
            control_bytes = 0  # the first bucket bears it
        handles = iter(together)
        return [next(handles) if bucket.sparse else dense for bucket, dense in zip(every, whole, strict=True)]


def by_owner(space: Space, num_ranks: int) -> tuple[Tensor, Tensor]:
    """(records in the order of the ranks that own their elements, how many each gets, int64 [N])."""
    if space.num_sparse >= 2**32:
        raise ValueError(
            f"collective reduce_scatter reaches 2**32 - 1 elements, a bucket has {space.num_sparse}; raise num_buckets"
        )
    owner = torch.cat([payload.indices * num_ranks // payload.numel for payload in space.bucket])
    order = owner.argsort(stable=True)
    records = to_records(space.values(space.bucket)[order], space.positions()[order])
    return records, owner.bincount(minlength=num_ranks)
