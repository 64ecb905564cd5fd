"""Shared mask: one rank's indices for all, so that values are all-reduced and no union grows."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.collective.wire import Space, all_reduce, allreduce_bytes, broadcast, broadcast_bytes, rising_order
from igrad.interfaces import Exchanged, IndexCodec, Payload, Timed, untimed


def leader(step: int, num_ranks: int) -> int:
    """The rank that leads at a step: every rank once in N steps, in an order drawn anew for each such round.

    In a fixed order, what is released every R steps would meet the same leaders for ever where R and N share a factor.
    """
    turn, place = divmod(step, num_ranks)
    return random.Random(turn).sample(range(num_ranks), num_ranks)[place]


def elements_at(space: Space, positions: Tensor, counts: list[int]) -> Tensor:
    """[sum of counts] this rank's values at positions that go payload by payload, offered or not."""
    parts = positions.split(counts) if counts else ()
    triples = zip(space.sparse, parts, space.starts, strict=True)
    values = [payload.elements[part - start].to(space.dtype) for payload, part, start in triples]
    return torch.cat([space.values(space.whole), *values])


@dataclass
class SharedHandle:
    space: Space
    positions: Tensor  # [k], the leader's, payload by payload
    counts: list[int]  # of each sparse payload
    sent: Tensor  # [num_whole + k], of this rank
    total: Tensor  # [num_whole + k], over ranks
    control_bytes: int
    num_ranks: int
    work: dist.Work
    predicted_ms = 0.0

    def wait(self) -> None:
        self.work.wait()

    def decode(self) -> Exchanged:
        space = self.space
        whole, entries = self.total.div_(self.num_ranks).split([space.num_whole, self.positions.numel()])
        sparse = entries.new_zeros(space.num_sparse).index_copy_(0, self.positions, entries)
        num_bytes = self.total.numel() * self.total.element_size()
        return Exchanged(
            space.means(torch.cat([whole, sparse])),
            space.sent(self.sent, self.counts, self.positions),
            allreduce_bytes(num_bytes, self.num_ranks) + self.control_bytes,
            space.in_order([payload.numel for payload in space.whole], self.counts),
        )


@dataclass(frozen=True)
class SharedMask:
    """Cyclic local Top-k, CLT-k (ScaleCom, Chen et al. 2020, arXiv:2104.11125), without its low-pass filter.

    One rank leads the step: its indices are broadcast, once for all buckets, and every rank sends its own values
    there, whatever it would have chosen itself. 2 (N - 1) / N times the values and (N - 1) / N times the coded indices
    per rank; the latter is the mean over the leaders' turns, since who forwards how much is the broadcast's choice.
    Where the size of the indices is not known beforehand it goes first. Starting waits for the broadcast.
    """

    index_codec: IndexCodec  # how the leader's indices are written

    def cost_bytes(self, numel: int, count: float) -> float:
        indices = self.index_codec.bytes(count, numel) if count < numel else 0.0
        return 4.0 * count + indices / 2  # as between two ranks

    def start(
        self,
        buckets: list[list[Payload]],
        group: dist.ProcessGroup | None,
        step: int = 0,
        sizes_vary: bool = False,
        timed: Timed = untimed,
    ) -> list[SharedHandle]:
        num_ranks = dist.get_world_size(group)
        spaces = [Space(bucket) for bucket in buckets]
        codes = [self.encode(space) for space in spaces]  # of the others too: it tells the size
        sizes = [(sum(space.own_counts), code.numel()) for space, code in zip(spaces, codes, strict=True)]
        message, first, header_bytes = torch.cat(codes), leader(step, num_ranks), 0
        if sizes_vary or self.index_codec.varies:
            header = torch.tensor(sizes, device=message.device)
            with timed("exchange"):
                broadcast(header, first, group)
                sizes = header.tolist()
            header_bytes = broadcast_bytes(header.numel() * header.element_size(), num_ranks)
            if dist.get_rank(group) != first:
                message = message.new_empty(sum(num_bytes for _, num_bytes in sizes))
        with timed("exchange"):
            broadcast(message, first, group)
        handles = []
        codes = message.split([num_bytes for _, num_bytes in sizes])
        for space, code, (count, num_bytes) in zip(spaces, codes, sizes, strict=True):
            positions, _ = self.index_codec.decode(code, count, space.num_sparse)
            counts = space.counts(positions) if sizes_vary else space.own_counts
            sent = elements_at(space, positions, counts)
            total = sent.clone()
            with timed("exchange"):
                work = all_reduce(total, group=group, async_op=True)
            control_bytes = broadcast_bytes(num_bytes, num_ranks) + header_bytes
            handles.append(SharedHandle(space, positions, counts, sent, total, control_bytes, num_ranks, work))
            header_bytes = 0  # the first bucket bears it
        return handles

    def encode(self, space: Space) -> Tensor:
        positions = space.positions()
        if self.index_codec.sorts:
            positions = positions[rising_order(positions)]
        return self.index_codec.encode(positions, space.num_sparse)
