"""A step's payloads on their way: planned into buckets, sent in order, received."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.blocks import cuts, split
from igrad.collective.wire import gather
from igrad.costs import Costs
from igrad.interfaces import Collective, Exchanged, Handle, Item, PackingStrategy, Payload, SyncStats, Timed, View


@dataclass
class Plan:
    """What is to be sent in one step, in which bucket, and how far it got."""

    step: int
    due: dict[View, slice | None]
    blocks: list[tuple[str, int]]  # what may be sent, in the order that packing sees: view, number of the block in it
    buckets: list[list[int]]  # positions in `blocks`
    offered: dict[str, list[Payload]] = field(default_factory=dict)  # by view, one payload per block
    before: dict[str, Tensor | None] = field(default_factory=dict)  # by view, memory as it was, for a late vote
    handles: list[Handle | None] = field(default_factory=list)  # by bucket that left; None where it is empty
    exchanged: list[Exchanged | None] = field(default_factory=list)  # by bucket, once received
    control_bytes: int = 0

    def __str__(self) -> str:
        parts = ", ".join(f"{view.name}[{part.start}:{part.stop}]" for view, part in self.due.items() if part)
        return f"step {self.step}: {parts} in buckets {self.buckets}"

    @property
    def payloads(self) -> tuple[Payload, ...]:
        return tuple(payload for view in self.due for payload in self.offered.get(view.name, ()))

    def stats(self, **more: Any) -> SyncStats:
        loads = [each.wire_bytes if each else 0 for each in self.exchanged]
        return SyncStats(
            payload_bytes=sum(payload.bytes for payload in self.payloads),
            wire_bytes=self.control_bytes + sum(loads),
            predicted_exchange_ms=sum(handle.predicted_ms for handle in self.handles if handle),
            payloads=self.payloads,
            **balance(loads),
            **more,
        )


@dataclass
class Exchange:
    """Packing and collective, and what all ranks know of sizes."""

    packing: PackingStrategy
    collective: Collective
    block_numel: int | None
    sizes_vary: bool
    checked_steps: int  # so long plans are compared even where that makes the step wait for the device
    group: dist.ProcessGroup | None
    timed: Timed
    costs: Costs = field(default_factory=Costs)

    def prepare(self, views: Iterable[View]) -> None:
        self.packing.prepare([self.item(view, slice(0, view.numel), view.numel, 0.0) for view in views])

    def plan(self, step: int, due: dict[View, slice | None]) -> Plan:
        """From what is expected of each block: nothing need be selected yet."""
        blocks, items = [], []
        for view, part in due.items():
            for number, block in enumerate(cuts(part, self.block_numel) if part else ()):
                blocks.append((view.name, number))
                items.append(self.item(view, block, *self.costs.expected((view.name, block.start, block.stop))))
        return Plan(step, due, blocks, self.packing.pack(items))

    def item(self, view: View, block: slice, count: float, sd: float) -> Item:
        numel = block.stop - block.start
        cost = self.collective.cost_bytes(numel, count)
        more = self.collective.cost_bytes(numel, min(numel, count + sd)) if sd else cost
        return Item(view.name, block.start, numel, cost, more - cost)

    def offer(self, plan: Plan, view: View, payload: Payload | None) -> None:
        """What a view has to send; None = nothing."""
        plan.offered[view.name] = split(payload, cuts(plan.due[view], self.block_numel)) if payload else []

    def send(self, plan: Plan) -> None:
        """Buckets leave in their order, those together of which nothing is missing."""
        leaving = []
        for bucket in plan.buckets[len(plan.handles) :]:
            blocks = [plan.blocks[i] for i in bucket]
            if any(view not in plan.offered for view, _ in blocks):
                break
            leaving.append([plan.offered[view][number] for view, number in blocks])
        full = [bucket for bucket in leaving if bucket]
        # How many leave together is local timing where packing overlaps: there each is a start of its own.
        calls = [[bucket] for bucket in full] if self.packing.overlaps else [full] if full else []
        start = self.collective.start
        started = (h for call in calls for h in start(call, self.group, plan.step, self.sizes_vary, self.timed))
        plan.handles += [next(started) if bucket else None for bucket in leaving]

    def receive(self, plan: Plan) -> None:
        """Wait for every bucket, unpack, and learn from the sizes."""
        with self.timed("exchange"):
            for handle in filter(None, plan.handles):
                handle.wait()
        with self.timed("unpack"):
            plan.exchanged = [handle and handle.decode() for handle in plan.handles]
        for bucket, result in zip(plan.buckets, plan.exchanged, strict=True):
            payloads = [plan.offered[view][number] for view, number in (plan.blocks[i] for i in bucket)]
            counts = [p.values.numel() for p in payloads] if not self.sizes_vary else result and result.counts
            if counts is not None:
                self.costs.observe([(p.view, p.start, p.start + p.numel) for p in payloads], counts)

    def agree(self, plan: Plan, finite: Tensor) -> Tensor:
        """The least `finite` (0-dim float64) of all ranks; raise ValueError where their plans differ."""
        mark = float(zlib.crc32(str(plan).encode()))
        num_ranks = dist.get_world_size(self.group)
        ballot = torch.stack([finite, finite.new_tensor(mark)])
        ballots = ballot.new_empty(num_ranks * ballot.numel())
        with self.timed("exchange"):
            gather(ballots, ballot, group=self.group)  # half as many rounds as an all-reduce
        plan.control_bytes += (num_ranks - 1) * ballot.numel() * ballot.element_size()
        finite, marks = ballots.view(num_ranks, -1).unbind(1)
        if self.is_checked(plan, ballot.device) and (marks != mark).any():
            compare("plans", str(plan), self.group)
        return finite.min()

    def is_checked(self, plan: Plan, device: torch.device) -> bool:
        """Reading a ballot is free on a CPU and where a step waits for sizes anyway; else first uses are read."""
        return device.type == "cpu" or self.sizes_vary or plan.step < self.checked_steps


def balance(loads: list[int]) -> dict[str, Any]:
    """The buckets' bytes: largest over mean, sd over mean, how many are over a tenth above the mean; of none 1, 0, 0.

    What a collective exchanges once for all buckets is the first one's.
    """
    mean = sum(loads) / len(loads) if any(loads) else math.inf
    variance = sum((load - mean) ** 2 for load in loads) / len(loads) if mean < math.inf else 0.0
    return {
        "bucket_imbalance": max(loads) / mean if mean < math.inf else 1.0,
        "bucket_cv": math.sqrt(variance) / mean,
        "num_overflows": sum(load > 1.1 * mean for load in loads),
    }


def compare(what: str, mine: str, group: dist.ProcessGroup | None) -> None:
    """Raise on every rank where two ranks differ, naming the first difference of each; called by all of them."""
    theirs: list[str] = [""] * dist.get_world_size(group)
    dist.all_gather_object(theirs, mine, group=group)
    for rank, other in enumerate(theirs):
        if other != theirs[0]:
            pairs = zip([*theirs[0].splitlines(), "(end)"], [*other.splitlines(), "(end)"], strict=False)
            first, second = next((a, b) for a, b in pairs if a != b)
            raise ValueError(f"the ranks' {what} differ: rank 0 has '{first}', rank {rank} has '{second}'")
