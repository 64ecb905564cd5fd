"""All-gather of coded (value, index) pairs: every rank receives every rank's payloads, adds them up in rank order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.collective.wire import Space, gather, rising_order
from igrad.interfaces import Exchanged, IndexCodec, Payload, Timed, ValueCodec, untimed

HEADER_BYTES = 8  # a message's own length, int64, where its size is guessed


class Coded(NamedTuple):
    """A bucket as this rank sends it."""

    message: Tensor  # uint8: a header where the size is guessed, the positions' code, the values'
    positions: Tensor  # int64 [k], in the order in which they go
    order: Tensor | None  # which permutation of the selected ones that is; None = it is theirs
    index_bytes: int  # of the positions' code


@dataclass
class GatherHandle:
    space: Space
    value_codec: ValueCodec
    index_codec: IndexCodec
    own: Coded
    received: Tensor  # uint8 [N, bytes]: every rank's message, cut or filled up to one length
    guessed: bool  # that length, so that messages have headers
    num_positions: tuple[int, ...]  # per rank
    sizes_vary: bool
    control_bytes: int
    group: dist.ProcessGroup | None
    work: dist.Work
    most_index_bytes: dict[str, Tensor]  # by key, for the next time
    predicted_ms = 0.0

    def wait(self) -> None:
        """Where a message was longer than guessed, all send what is left: every rank reads all headers."""
        self.work.wait()
        if not self.guessed:
            return
        longest = int(self.received[:, :HEADER_BYTES].reshape(-1).view(torch.int64).max())
        missing = longest - self.received.shape[1]
        if missing > 0:
            more = self.received.new_empty(len(self.received) * missing)
            gather(more, pad(self.own.message[self.received.shape[1] :], missing), group=self.group)
            self.received = torch.cat([self.received, more.view(-1, missing)], dim=1)

    def decode(self) -> Exchanged:
        """Shares are added up in rank order entry by entry, so no packing changes a bit of them."""
        space, num_ranks, own_rank = self.space, len(self.received), dist.get_rank(self.group)
        numels = [payload.numel for payload in space.whole]
        most = counts = space.own_counts
        dense = torch.zeros(space.num_whole + space.num_sparse, dtype=space.dtype, device=space.device)
        whole, sparse = dense.split([space.num_whole, space.num_sparse])
        index_bytes = []
        for rank, message in enumerate(self.received):
            message = message[HEADER_BYTES * self.guessed :]
            positions, used = self.own.positions, self.own.index_bytes
            if rank != own_rank:
                positions, used = self.index_codec.decode(message, self.num_positions[rank], space.num_sparse)
            index_bytes.append(used)
            theirs = counts
            if self.sizes_vary:
                theirs = space.counts(positions)
                most = [max(pair) for pair in zip(most, theirs, strict=True)]
            values = self.value_codec.decode(message[used:], [*numels, *theirs], space.dtype)
            share = values / num_ranks
            whole.add_(share[: space.num_whole])
            sparse.index_add_(0, positions, share[space.num_whole :])
            if rank == own_rank:
                sent = space.sent(self.as_selected(values), counts)
        if self.index_codec.varies and not self.sizes_vary:
            self.most_index_bytes[key(space)] = torch.tensor(max(index_bytes))
        wire_bytes = (num_ranks - 1) * self.received.shape[1] + self.control_bytes
        return Exchanged(space.means(dense), sent, wire_bytes, space.in_order(numels, most))

    def as_selected(self, values: Tensor) -> Tensor:
        """This rank's values [num_whole + k], in the order of its payloads' indices."""
        if self.own.order is None:
            return values
        whole, sparse = values.split([self.space.num_whole, self.own.order.numel()])
        return torch.cat([whole, torch.empty_like(sparse).index_copy_(0, self.own.order, sparse)])


def key(space: Space) -> str:
    """Buckets that are alike in this have codes of about the same length; no two of a step are."""
    first = space.bucket[0]
    return f"{first.view}[{first.start}:]/{space.num_sparse}/{sum(space.own_counts)}"


def pad(message: Tensor, length: int) -> Tensor:
    """Cut, or filled up, to `length`."""
    return torch.nn.functional.pad(message[:length], (0, max(0, length - message.numel())))


def exchange_sizes(
    sizes: list[tuple[int, int]], group: dist.ProcessGroup | None, device: torch.device
) -> tuple[list[list[list[int]]], int]:
    """Every rank's `sizes`, by rank, and the bytes sent to find out. Waits for the device."""
    num_ranks = dist.get_world_size(group)
    mine = torch.tensor(sizes, device=device)
    received = mine.new_empty(num_ranks * len(sizes), 2)
    gather(received, mine, group=group)
    return received.view(num_ranks, -1, 2).tolist(), (num_ranks - 1) * mine.numel() * mine.element_size()


@dataclass(frozen=True)
class AllGather:
    """(N - 1) times the coded entries sent by each rank.

    With fp32 values and int32 indices it is lossless and cheaper than a dense all-reduce below density
    2 · b_dense / (N · (b_value + b_index)). Messages are filled up to one length. Where only the indices' code varies,
    that is the longest of the last time with some room, and what finds none follows in a second message; where ranks
    may have different numbers of entries, and at first, sizes are exchanged before, once for all buckets.
    """

    value_codec: ValueCodec  # how values are written; fewer bytes lose more to the residual
    index_codec: IndexCodec  # how indices are written
    state: dict[str, Tensor] = field(default_factory=dict, init=False)  # bytes of the longest code of indices, by key

    def cost_bytes(self, numel: int, count: float) -> float:
        indices = self.index_codec.bytes(count, numel) if count < numel else 0.0
        return self.value_codec.bytes(count) + indices

    def start(
        self,
        buckets: list[list[Payload]],
        group: dist.ProcessGroup | None,
        step: int = 0,
        sizes_vary: bool = False,
        timed: Timed = untimed,
    ) -> list[GatherHandle]:
        num_ranks = dist.get_world_size(group)
        spaces = [Space(bucket) for bucket in buckets]
        guessed = self.index_codec.varies and not sizes_vary and all(key(space) in self.state for space in spaces)
        coded = [self.encode(space, guessed) for space in spaces]
        sizes = [(own.positions.numel(), own.message.numel()) for own in coded]
        every, control_bytes = [sizes] * num_ranks, 0
        if sizes_vary or (self.index_codec.varies and not guessed):
            with timed("exchange"):
                every, control_bytes = exchange_sizes(sizes, group, spaces[0].device)
        handles = []
        for b, (space, own) in enumerate(zip(spaces, coded, strict=True)):
            num_positions, lengths = zip(*(theirs[b] for theirs in every), strict=True)
            length = self.room(space, own) if guessed else max(1, *lengths)  # gloo sends no empty tensor
            message = pad(own.message, length)
            received = message.new_empty(num_ranks * length)
            with timed("exchange"):
                work = gather(received, message, group=group, async_op=True)
            handles.append(GatherHandle(space, self.value_codec, self.index_codec, own, received.view(num_ranks, -1),
                                        guessed, num_positions, sizes_vary, control_bytes if b == 0 else 0, group, work,
                                        self.state))  # fmt: skip
        return handles

    def encode(self, space: Space, with_header: bool) -> Coded:
        positions, values, order = space.positions(), space.values(space.sparse), None
        if self.index_codec.sorts:
            order = rising_order(positions)
            positions, values = positions[order], values[order]
        values = torch.cat([space.values(space.whole), values])
        counts = [payload.values.numel() for payload in (*space.whole, *space.sparse)]
        indices = self.index_codec.encode(positions, space.num_sparse)
        body = [indices, self.value_codec.encode(values, counts)]
        if with_header:
            length = HEADER_BYTES + sum(part.numel() for part in body)
            body.insert(0, torch.tensor([length], device=indices.device).view(torch.uint8))
        return Coded(torch.cat(body), positions, order, indices.numel())

    def room(self, space: Space, own: Coded) -> int:
        """Bytes for a message of which only the indices' code varies: the longest of the last time and a bit.

        The code of k positions spread evenly varies by about the square root of its length, and with what is learnt.
        """
        last = int(self.state[key(space)])
        return own.message.numel() - own.index_bytes + last + max(last // 64, round(2 * math.sqrt(last)))
