"""The cheapest of dense, all-gather and shared mask for each bucket, by a model of the link."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.collective.allgather import AllGather
from igrad.collective.dense import Dense
from igrad.collective.shared_mask import SharedMask
from igrad.collective.wire import Space, all_reduce, allreduce_bytes, most_entries
from igrad.interfaces import Collective, Exchanged, Handle, IndexCodec, Payload, Timed, ValueCodec, untimed
from igrad.link import Link, fit_link, operation_us

PROBE_BYTES = (1 << 10, 1 << 20)  # latency shows in the small one, bandwidth in the large one
NUM_PROBES = 3  # of each, after one that does not count


def measure(group: dist.ProcessGroup | None, device: torch.device) -> tuple[Tensor, int]:
    """(latency in microseconds, bytes per microsecond) of the slowest rank, float64 [2], and the bytes it took."""
    num_ranks = dist.get_world_size(group)
    medians, sent_bytes = [], 0
    for num_bytes in PROBE_BYTES:
        buffer, times = torch.zeros(num_bytes // 4, device=device), []
        for _ in range(1 + NUM_PROBES):
            start = time.perf_counter()
            all_reduce(buffer, group=group)
            buffer[0].item()  # waits for any device
            times.append(1e6 * (time.perf_counter() - start))
            sent_bytes += allreduce_bytes(num_bytes, num_ranks)
        medians.append(statistics.median(times[1:]))
    slowest = torch.tensor(medians, dtype=torch.float64, device=device)
    all_reduce(slowest, dist.ReduceOp.MAX, group)
    sent_bytes += allreduce_bytes(slowest.numel() * slowest.element_size(), num_ranks)
    times_us = slowest.tolist()
    found = fit_link([("all_reduce", n, num_ranks, us) for n, us in zip(PROBE_BYTES, times_us, strict=True)])
    return torch.tensor([found.latency("all_reduce"), found.bytes_per_us], dtype=torch.float64), sent_bytes


@dataclass
class AutoHandle:
    handle: Handle
    predicted_ms: float
    counts: list[int]  # entries per payload on the rank that had most
    control_bytes: int

    def wait(self) -> None:
        self.handle.wait()

    def decode(self) -> Exchanged:
        exchanged = self.handle.decode()
        return exchanged._replace(wire_bytes=exchanged.wire_bytes + self.control_bytes, counts=self.counts)


@dataclass(frozen=True)
class Auto:
    """Per bucket the least predicted time, which is the same on every rank: sizes and the link are agreed first.

    Sizes count as in float32, and a bucket as if it were alone. Buckets of a kind start together, kind by kind.
    """

    value_codec: ValueCodec  # how an all-gather writes values; fewer bytes make it win more often and lose more
    index_codec: IndexCodec  # how indices are written
    latency_us: float | None = None  # of one message, at least 0; higher = fewer rounds matter more. None: measured
    bytes_per_us: float | None = None  # of a link, above 0; higher = size matters less. None: measured
    state: dict[str, Tensor] = field(default_factory=dict, init=False)  # the measured link; an all-gather's sizes

    def __post_init__(self) -> None:
        if self.latency_us is not None and self.latency_us < 0:
            raise ValueError(f"latency_us must be at least 0, got {self.latency_us}; null measures it")
        if self.bytes_per_us is not None and self.bytes_per_us <= 0:
            raise ValueError(f"bytes_per_us must be above 0, got {self.bytes_per_us}; null measures it")

    @cached_property
    def kinds(self) -> dict[str, Collective]:
        """In the order in which they start; among equals the first is taken."""
        gather = AllGather(self.value_codec, self.index_codec)
        object.__setattr__(gather, "state", self.state)  # what it remembers is saved with the run, too
        return {"dense": Dense(), "allgather": gather, "shared_mask": SharedMask(self.index_codec)}

    def cost_bytes(self, numel: int, count: float) -> float:
        return min(kind.cost_bytes(numel, count) for kind in self.kinds.values())

    def prices_us(self, space: Space, counts: list[int], num_ranks: int, link: tuple[float, float]) -> dict[str, float]:
        """Predicted time of a bucket in microseconds by kind; `counts` are those of the sparse payloads."""
        price = partial(operation_us, num_ranks=num_ranks, link=Link(*link))
        numels = [payload.numel for payload in space.bucket]
        sizes = list(zip(numels, space.in_order([p.numel for p in space.whole], counts), strict=True))
        gathered = self.kinds["allgather"].cost_bytes
        indices = [self.index_codec.bytes(k, p.numel) for p, k in zip(space.sparse, counts, strict=True)]
        return {
            "dense": price("all_reduce", 4 * sum(numels)),
            "allgather": price("all_gather", sum(gathered(numel, count) for numel, count in sizes)),
            "shared_mask": price("broadcast", sum(indices)) + price("all_reduce", 4 * sum(k for _, k in sizes)),
        }

    def link(self, group: dist.ProcessGroup | None, device: torch.device) -> tuple[tuple[float, float], int]:
        """(latency in microseconds, bytes per microsecond), as given or measured, and the bytes sent to find out."""
        given, sent_bytes = (self.latency_us, self.bytes_per_us), 0
        if None not in given:
            return given, 0
        if "link" not in self.state:
            self.state["link"], sent_bytes = measure(group, device)
        measured = self.state["link"].tolist()
        return tuple(m if g is None else g for g, m in zip(given, measured, strict=True)), sent_bytes

    def start(
        self,
        buckets: list[list[Payload]],
        group: dist.ProcessGroup | None,
        step: int = 0,
        sizes_vary: bool = False,
        timed: Timed = untimed,
    ) -> list[AutoHandle]:
        spaces = [Space(bucket) for bucket in buckets]
        with timed("exchange"):
            link, control_bytes = self.link(group, spaces[0].device)
        counts = [space.own_counts for space in spaces]
        if sizes_vary:
            with timed("exchange"):
                counts, num_bytes = most_entries(spaces, group)
            control_bytes += num_bytes
        num_ranks = dist.get_world_size(group)
        prices = [self.prices_us(space, most, num_ranks, link) for space, most in zip(spaces, counts, strict=True)]
        chosen = [min(price, key=price.get) for price in prices]
        started = {}
        for name, kind in self.kinds.items():
            mine = [b for b, choice in enumerate(chosen) if choice == name]
            if mine:
                begun = kind.start([buckets[b] for b in mine], group, step, sizes_vary, timed)
                started.update(zip(mine, begun, strict=True))
        handles = []
        for b, (space, most) in enumerate(zip(spaces, counts, strict=True)):
            every = space.in_order([payload.numel for payload in space.whole], most)
            handles.append(AutoHandle(started[b], prices[b][chosen[b]] / 1e3, every, control_bytes if b == 0 else 0))
        return handles
