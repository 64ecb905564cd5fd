"""ImportanceGradient: important components every step, the others every R steps, packed into balanced buckets."""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.blocks import cuts, split
from igrad.collective.dense import Dense as DenseCollective
from igrad.collective.wire import allreduce_bytes
from igrad.costs import Costs
from igrad.interfaces import (
    Collective,
    Exchanged,
    Handle,
    Item,
    PackingStrategy,
    Payload,
    ReleaseSchedule,
    Residual,
    Sparsifier,
    SyncStats,
    Timed,
    View,
    untimed,
)


@dataclass
class Step:
    """One step under way: what is to be sent in which bucket, and how far it got."""

    number: int
    due: dict[View, slice | None]
    blocks: list[tuple[str, int]]  # what may be sent, in the order that packing sees: view, number of the block in it
    buckets: list[list[int]]  # positions in `blocks`
    offered: dict[str, list[Payload]] = field(default_factory=dict)  # by view, one payload per block
    before: dict[str, Tensor | None] = field(default_factory=dict)  # by view, its memory before the step
    handles: list[Handle | None] = field(default_factory=list)  # by bucket that left; None where it is empty
    control_bytes: int = 0


@dataclass
class Importance:
    """Compensate, decide, select, pack, exchange, apply."""

    sparsifier: Sparsifier
    residual: Residual
    release: ReleaseSchedule
    packing: PackingStrategy
    collective: Collective
    release_fraction: float | None = None  # of R steps' entries, in (0, 1]; None = 1/R: a release costs one step
    block_numel: int | None = None  # elements; payloads are cut into blocks before packing; None = they stay whole
    timed: Timed = field(default_factory=lambda: untimed, init=False)
    uses_importance = True

    def __post_init__(self) -> None:
        if self.block_numel is not None and self.block_numel < 1:
            raise ValueError(f"block_numel must be at least 1, got {self.block_numel}")

    @property
    def overlaps(self) -> bool:
        return self.packing.overlaps

    def prepare(self, views: Iterable[View], important: frozenset[str], group: dist.ProcessGroup | None = None) -> None:
        """Fix the layout; raise ValueError where the ranks do not agree on it."""
        self.views = list(views)
        self.group = group
        self.num_ranks = dist.get_world_size(group)
        self.low = frozenset(v.component for v in self.views if v.component is not None) - important
        costs: dict[str, int] = {}
        for view in self.views:
            if view.component in self.low:
                costs[view.component] = costs.get(view.component, 0) + view.numel
        self.release.prepare(costs)
        whole = [(view, part) for view in self.views for part in cuts(slice(0, view.numel), self.block_numel)]
        self.packing.prepare([self.item(view, part, part.stop - part.start, 0.0) for view, part in whole])
        # A release stands for R steps; its budget is that share of what the sparsifier keeps in one.
        self.share = 1.0 if self.release_fraction is None else self.release_fraction * self.release.period
        # How many entries fall into a block of a payload is the data's choice.
        self.sizes_vary = self.sparsifier.varies or self.block_numel is not None
        self.costs = Costs()
        self.step: Step | None = None
        layout = [f"{v.name} {v.shape} {'low' if v.component in self.low else 'every step'}" for v in self.views]
        compare("layouts", "\n".join(layout), group)

    def ready(self, view: View, gradient: Tensor, step: int) -> None:
        """Compensate and select; what is complete leaves. Only called where packing overlaps."""
        if self.step is None:
            self.step = self.begin(step, gradient.device)
        with self.timed("select"):
            self.offer(view, gradient, self.step)
        with self.timed("pack"):
            self.send(self.step)

    def synchronize(self, gradients: dict[View, Tensor], step: int) -> SyncStats:
        device = next(iter(gradients.values())).device
        now, self.step = self.step or self.begin(step, device), None
        if not self.overlaps:
            dropped = self.vote(gradients, now)
        with self.timed("select"):
            for view, gradient in gradients.items():
                if view.name not in now.offered:
                    self.offer(view, gradient, now)
        with self.timed("pack"):
            self.send(now)
        if self.overlaps:
            dropped = self.vote(gradients, now)
        with self.timed("exchange"):
            for handle in filter(None, now.handles):
                handle.wait()
        with self.timed("unpack"):
            exchanged = [handle and handle.decode() for handle in now.handles]
            loads = [each.wire_bytes if each else 0 for each in exchanged]
            if self.overlaps and dropped:  # the vote came after all was offered
                self.residual.memory.restore(now.before)
                exchanged = [None] * len(exchanged)
            self.apply(exchanged, gradients)
            self.learn(now, exchanged)
        payloads = tuple(payload for view in gradients for payload in now.offered[view.name])
        return SyncStats(
            payload_bytes=sum(payload.bytes for payload in payloads),
            wire_bytes=now.control_bytes + sum(loads),
            num_released=len({v.component for v, part in now.due.items() if v.component in self.low and part}),
            **balance(loads),
            predicted_exchange_ms=sum(handle.predicted_ms for handle in now.handles if handle),
            dropped=dropped,
            deferred=frozenset(view.name for view, part in now.due.items() if part is None),
            payloads=payloads,
        )

    def begin(self, step: int, device: torch.device) -> Step:
        """Decide and plan, from what is expected of each block: no gradient need be there."""
        with self.timed("pack"):
            due = {view: self.due(view, step) for view in self.views}
            blocks, items = [], []
            for view, part in due.items():
                for number, block in enumerate(cuts(part, self.block_numel) if part else ()):
                    blocks.append((view.name, number))
                    items.append(self.item(view, block, *self.costs.expected((view.name, block.start, block.stop))))
            now = Step(step, due, blocks, self.packing.pack(items))
        first_use = step < 2 * self.release.max_age_steps
        if self.overlaps and first_use:  # otherwise the vote tells in time
            self.agree(now, torch.ones((), dtype=torch.float64, device=device))
        return now

    def item(self, view: View, block: slice, count: float, sd: float) -> Item:
        numel = block.stop - block.start
        cost = self.collective.cost_bytes(numel, count)
        more = self.collective.cost_bytes(numel, min(numel, count + sd))
        return Item(view.name, block.start, numel, cost, more - cost)

    def offer(self, view: View, gradient: Tensor, now: Step) -> None:
        if self.overlaps:  # the ranks have not voted yet: in case that the step is dropped
            now.before[view.name] = self.residual.memory.copy(view)
        release, part = view.component in self.low, now.due[view]
        select = partial(self.select, view, now.number)
        payload = self.residual.offer(view, gradient, select, part, self.share if release else 1.0, release)
        now.offered[view.name] = split(payload, cuts(part, self.block_numel)) if payload else []

    def send(self, now: Step) -> None:
        """Buckets leave in their order, those together of which nothing is missing."""
        leaving = []
        for bucket in now.buckets[len(now.handles) :]:
            blocks = [now.blocks[i] for i in bucket]
            if any(view not in now.offered for view, _ in blocks):
                break
            leaving.append([now.offered[view][number] for view, number in blocks])
        full = [bucket for bucket in leaving if bucket]
        started = iter(self.collective.start(full, self.group, now.number, self.sizes_vary) if full else ())
        now.handles += [next(started) if bucket else None for bucket in leaving]

    def due(self, view: View, step: int) -> slice | None:
        """Decide: low-importance components wait for their release, everything else is sent."""
        return self.release.due(view, step) if view.component in self.low else slice(0, view.numel)

    def select(self, view: View, step: int, candidate: Tensor, share: float, release: bool) -> Tensor | None:
        # Releases take turns of their own: drawn from the step, one would pick what this very step retained.
        turn = -1 - step // self.release.period if release else step
        return self.sparsifier.select(candidate, view, turn, share)

    def apply(self, exchanged: list[Exchanged | None], gradients: dict[View, Tensor]) -> None:
        """What went leaves memory, means become gradients; of what was not sent they are zero."""
        means: dict[str, list[tuple[int, Tensor]]] = {}
        for bucket in filter(None, exchanged):
            for sent, mean in zip(bucket.sent, bucket.means, strict=True):
                self.residual.memory.subtract(sent)
                means.setdefault(sent.view, []).append((sent.start, mean))
        for view, gradient in gradients.items():
            place(gradient, means.get(view.name, []))

    def learn(self, now: Step, exchanged: list[Exchanged | None]) -> None:
        """How many entries blocks have: of one's own where all ranks have as many, else of the rank that had most."""
        for bucket, result in zip(now.buckets, exchanged, strict=True):
            payloads = [now.offered[view][number] for view, number in (now.blocks[i] for i in bucket)]
            counts = [p.values.numel() for p in payloads] if not self.sizes_vary else result and result.counts
            if result and counts is not None:
                self.costs.observe([(p.view, p.start, p.start + p.numel) for p in payloads], counts)

    def vote(self, gradients: dict[View, Tensor], now: Step) -> Tensor:
        """One small all-reduce: are all gradients finite, and do the ranks have the same plan?

        A step in which any rank's gradient is not finite counts as zero on all of them: stored, it would surface
        R steps later.
        """
        norms = torch._foreach_norm(list(gradients.values()))
        finite = torch.stack([norm.float() for norm in norms]).isfinite().all().double()
        dropped = self.agree(now, finite) < 1
        if dropped.device.type != "cpu" or dropped:
            for gradient in gradients.values():
                gradient.masked_fill_(dropped, 0)
        return dropped

    def agree(self, now: Step, finite: Tensor) -> Tensor:
        """The least `finite` (0-dim float64) of all ranks; raise ValueError where their plans differ."""
        plan = f"step {now.number}: " + ", ".join(f"{v.name}[{d.start}:{d.stop}]" for v, d in now.due.items() if d)
        plan += f" in buckets {now.buckets}"
        mark = float(zlib.crc32(plan.encode()))
        ballot = torch.stack([finite, finite.new_tensor(mark), finite.new_tensor(-mark)])
        with self.timed("exchange"):
            dist.all_reduce(ballot, dist.ReduceOp.MIN, group=self.group)
        now.control_bytes += allreduce_bytes(ballot.numel() * ballot.element_size(), self.num_ranks)
        # Reading the ballot is free on a CPU; elsewhere it would stall the step, so only a plan's first use is checked.
        first_use = now.number < 2 * self.release.max_age_steps
        if (ballot.device.type == "cpu" or first_use) and ballot[1] != -ballot[2]:
            compare("plans", plan, self.group)
        return ballot[0]

    def reconcile(self, parameters: dict[View, Tensor], step: int) -> SyncStats:
        """Gradients carry everything: parameters already agree."""
        return SyncStats()

    def flush(self, gradients: dict[View, Tensor], parameters: dict[View, Tensor]) -> SyncStats | None:
        """Gradients become the mean of what every rank holds back, dense; memory is empty afterwards."""
        held = {view: r for view in gradients if (r := self.residual.memory.pending(view)) is not None}
        anything = next(iter(gradients.values())).new_zeros(())
        for r in held.values():
            anything = torch.maximum(anything, r.any())
        dist.all_reduce(anything, dist.ReduceOp.MAX, group=self.group)
        if not anything:
            self.apply([], gradients)
            return None
        payloads = [Payload(view.name, 0, view.numel, r.clone(), None) for view, r in held.items()]
        [handle] = DenseCollective().start([payloads], self.group)  # one use, all entries: nothing sparse pays
        handle.wait()
        exchanged = handle.decode()
        self.apply([exchanged], gradients)
        wire_bytes = exchanged.wire_bytes + allreduce_bytes(anything.element_size(), self.num_ranks)
        return SyncStats(payload_bytes=sum(p.bytes for p in payloads), wire_bytes=wire_bytes, payloads=tuple(payloads))

    def pending(self, view: View) -> Tensor | None:
        return self.residual.memory.pending(view)

    def state_dict(self) -> dict[str, Any]:
        parts = {"sparsifier": self.sparsifier, "collective": self.collective}
        states = {name: dict(part.state) for name, part in parts.items() if hasattr(part, "state")}
        return {"residual": self.residual.memory.state_dict(), "costs": dict(self.costs.seen), **states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.residual.memory.load_state_dict(state["residual"])
        self.costs.seen = dict(state["costs"])
        for part, name in ((self.sparsifier, "sparsifier"), (self.collective, "collective")):
            if name in state:
                part.state.clear()
                part.state.update(state[name])


def balance(loads: list[int]) -> dict[str, Any]:
    """The buckets' bytes: largest over mean, sd over mean, how many are a tenth above the mean; of none 1, 0, 0."""
    mean = statistics.mean(loads) if any(loads) else math.inf
    return {
        "bucket_imbalance": max(loads) / mean if mean < math.inf else 1.0,
        "bucket_cv": statistics.pstdev(loads) / mean,
        "num_overflows": sum(load > 1.1 * mean for load in loads),
    }


def place(gradient: Tensor, means: list[tuple[int, Tensor]]) -> None:
    """Means over the elements from their starts on become the gradient, zero elsewhere, whatever its strides."""
    if not means:
        gradient.zero_()
        return
    _, whole = means[0]
    if whole.numel() != gradient.numel():
        whole = whole.new_zeros(gradient.numel())
        for start, mean in means:
            whole[start : start + mean.numel()] = mean
    gradient.copy_(whole.view(gradient.shape))


def compare(what: str, mine: str, group: dist.ProcessGroup | None) -> None:
    """Raise on every rank where two ranks differ, naming the first difference of each; called by all of them."""
    theirs: list[str] = [""] * dist.get_world_size(group)
    dist.all_gather_object(theirs, mine, group=group)
    for rank, other in enumerate(theirs):
        if other != theirs[0]:
            pairs = zip([*theirs[0].splitlines(), "(end)"], [*other.splitlines(), "(end)"], strict=False)
            first, second = next((a, b) for a, b in pairs if a != b)
            raise ValueError(f"the ranks' {what} differ: rank 0 has '{first}', rank {rank} has '{second}'")
