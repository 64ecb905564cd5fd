"""All-gather of coded (value, index) pairs: every rank receives every rank's payloads, adds them up in rank order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.collective.wire import Space, gather
from igrad.interfaces import Exchanged, IndexCodec, Payload, Timed, ValueCodec, untimed


@dataclass
class GatherHandle:
    space: Space
    value_codec: ValueCodec
    index_codec: IndexCodec
    received: Tensor  # uint8 [N, bytes]: per rank its positions, then its values
    num_positions: list[int]  # per rank
    positions: Tensor  # this rank's, in the order in which they were sent
    index_bytes: int  # of their code
    sizes_vary: bool
    header_bytes: int
    rank: int
    work: dist.Work
    predicted_ms = 0.0

    def wait(self) -> None:
        self.work.wait()

    def decode(self) -> Exchanged:
        """Sums are taken in rank order entry by entry, so no packing changes a bit of them."""
        space, num_ranks = self.space, len(self.received)
        numels = [payload.numel for payload in space.whole]
        counts = [payload.values.numel() for payload in space.sparse]
        most = counts
        dense = torch.zeros(space.num_whole + space.num_sparse, dtype=space.dtype, device=space.device)
        for rank, message in enumerate(self.received):
            positions, used = self.positions, self.index_bytes
            if rank != self.rank:
                positions, used = self.index_codec.decode(message, self.num_positions[rank], space.num_sparse)
            theirs = space.counts(positions) if self.sizes_vary else counts
            most = [max(pair) for pair in zip(most, theirs, strict=True)]
            values = self.value_codec.decode(message[used:], [*numels, *theirs], space.dtype)
            dense[: space.num_whole].add_(values[: space.num_whole])
            dense[space.num_whole :].index_add_(0, positions, values[space.num_whole :])
            if rank == self.rank:
                sent = space.sent(values, counts, positions if self.index_codec.sorts else None)
        wire_bytes = (num_ranks - 1) * self.received.shape[1] + self.header_bytes
        return Exchanged(space.means(dense.div_(num_ranks)), sent, wire_bytes, space.in_order(numels, most))


@dataclass(frozen=True)
class AllGather:
    """(N - 1) times the coded entries sent by each rank.

    With fp32 values and int32 indices it is lossless and cheaper than a dense all-reduce below density
    2 · b_dense / (N · (b_value + b_index)). Where sizes differ between ranks they are exchanged first, once for all
    buckets, and messages are filled up to the longest.
    """

    value_codec: ValueCodec  # how values are written; fewer bytes lose more to the residual
    index_codec: IndexCodec  # how indices are written

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
        num_ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        spaces = [Space(bucket) for bucket in buckets]
        coded = [self.encode(space) for space in spaces]
        sizes = [(positions.numel(), message.numel()) for message, positions, _ in coded]
        header_bytes, every = 0, [sizes] * num_ranks
        if sizes_vary or self.index_codec.varies:
            mine = torch.tensor(sizes, device=spaces[0].device).reshape(-1)
            header_bytes = (num_ranks - 1) * mine.numel() * mine.element_size()
            received = mine.new_empty(num_ranks * mine.numel())
            with timed("exchange"):
                gather(received, mine, group=group)
                every = received.view(num_ranks, -1, 2).tolist()
        handles = []
        for b, (message, positions, index_bytes) in enumerate(coded):
            longest = max(1, *(theirs[b][1] for theirs in every))  # gloo sends no empty tensor
            message = torch.nn.functional.pad(message, (0, longest - message.numel()))
            received = message.new_empty(num_ranks * longest)
            work = gather(received, message, group=group, async_op=True)
            num_positions = [theirs[b][0] for theirs in every]
            header = header_bytes if b == 0 else 0
            handles.append(GatherHandle(spaces[b], self.value_codec, self.index_codec, received.view(num_ranks, -1),
                                        num_positions, positions, index_bytes, sizes_vary, header, rank,
                                        work))  # fmt: skip
        return handles

    def encode(self, space: Space) -> tuple[Tensor, Tensor, int]:
        """(uint8 positions and values, the positions in their order, the bytes that they take)."""
        positions, values = space.positions(), space.values(space.sparse)
        if self.index_codec.sorts:
            positions, order = positions.sort()
            values = values[order]
        values = torch.cat([space.values(space.whole), values])
        counts = [payload.values.numel() for payload in (*space.whole, *space.sparse)]
        indices = self.index_codec.encode(positions, space.num_sparse)
        return torch.cat([indices, self.value_codec.encode(values, counts)]), positions, indices.numel()
