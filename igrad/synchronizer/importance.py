"""ImportanceGradient: important components every step, the others every R steps, packed into balanced buckets."""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.collective.dense import Dense as DenseCollective
from igrad.collective.wire import allreduce_bytes
from igrad.interfaces import (
    Collective,
    Exchanged,
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
class Importance:
    """Compensate, decide, select, pack, exchange, apply."""

    sparsifier: Sparsifier
    residual: Residual
    release: ReleaseSchedule
    packing: PackingStrategy
    collective: Collective
    release_fraction: float | None = None  # of R steps' entries, in (0, 1]; None = 1/R: a release costs one step
    timed: Timed = field(default_factory=lambda: untimed, init=False)
    uses_importance = True

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
        self.packing.prepare([Item(view.name, 0, view.numel, 4.0 * view.numel, 0.0) for view in self.views])
        # A release stands for R steps; its budget is that share of what the sparsifier keeps in one.
        self.share = 1.0 if self.release_fraction is None else self.release_fraction * self.release.period
        layout = [f"{v.name} {v.shape} {'low' if v.component in self.low else 'every step'}" for v in self.views]
        compare("layouts", "\n".join(layout), group)

    def synchronize(self, gradients: dict[View, Tensor], step: int) -> SyncStats:
        due = {view: self.due(view, step) for view in gradients}
        dropped, vote_bytes = self.vote(gradients, due, step)
        with self.timed("select"):
            offers = (self.offer(view, gradient, due[view], step) for view, gradient in gradients.items())
            payloads = [payload for payload in offers if payload is not None]
        with self.timed("pack"):
            items = [Item(p.view, p.start, p.numel, p.bytes, 0.0) for p in payloads]
            buckets = [[payloads[i] for i in bucket] for bucket in self.packing.pack(items)]
            handles = [self.collective.start(bucket, self.group) for bucket in buckets if bucket]
        with self.timed("exchange"):
            for handle in handles:
                handle.wait()
        with self.timed("unpack"):
            for view, gradient in gradients.items():
                if due[view] != slice(0, view.numel):
                    gradient.zero_()
            wire_bytes = vote_bytes
            for bucket, handle in zip(filter(None, buckets), handles, strict=True):
                wire_bytes += self.apply(bucket, handle.decode(), gradients)
        imbalance, cv = balance([sum(payload.bytes for payload in bucket) for bucket in buckets])
        return SyncStats(
            payload_bytes=sum(payload.bytes for payload in payloads),
            wire_bytes=wire_bytes,
            num_released=len({v.component for v in due if v.component in self.low and due[v] is not None}),
            bucket_imbalance=imbalance,
            bucket_cv=cv,
            dropped=dropped,
            deferred=frozenset(view.name for view in due if due[view] is None),
            payloads=tuple(payloads),
        )

    def due(self, view: View, step: int) -> slice | None:
        """Decide: low-importance components wait for their release, everything else is sent."""
        return self.release.due(view, step) if view.component in self.low else slice(0, view.numel)

    def offer(self, view: View, gradient: Tensor, due: slice | None, step: int) -> Payload | None:
        select = partial(self.select, view, step)
        release = view.component in self.low
        return self.residual.offer(view, gradient, select, due, self.share if release else 1.0, release)

    def select(self, view: View, step: int, candidate: Tensor, share: float, release: bool) -> Tensor | None:
        # Releases take turns of their own: drawn from the step, one would pick what this very step retained.
        turn = -1 - step // self.release.period if release else step
        return self.sparsifier.select(candidate, view, turn, share)

    def apply(self, bucket: list[Payload], exchanged: Exchanged, gradients: dict[View, Tensor]) -> int:
        """What went leaves memory, means become gradients; the bytes that this rank sent."""
        by_name = {view.name: gradient for view, gradient in gradients.items()}
        for payload, mean, went in zip(bucket, exchanged.means, exchanged.sent, strict=True):
            self.residual.memory.subtract(payload, went)
            place(by_name[payload.view], payload.start, mean)
        return exchanged.wire_bytes

    def vote(self, gradients: dict[View, Tensor], due: dict[View, slice | None], step: int) -> tuple[Tensor, int]:
        """One small all-reduce: are all gradients finite, and do the ranks have the same plan?

        A step in which any rank's gradient is not finite counts as zero on all of them: stored, it would surface
        R steps later.
        """
        plan = f"step {step}: " + ", ".join(f"{v.name}[{d.start}:{d.stop}]" for v, d in due.items() if d is not None)
        mark = float(zlib.crc32(plan.encode()))
        norms = torch._foreach_norm(list(gradients.values()))
        finite = torch.stack([norm.float() for norm in norms]).isfinite().all().double()
        ballot = torch.stack([finite, finite.new_tensor(mark), finite.new_tensor(-mark)])
        with self.timed("exchange"):
            dist.all_reduce(ballot, dist.ReduceOp.MIN, group=self.group)
        # Reading the ballot is free on a CPU; elsewhere it would stall the step, so only a plan's first use is checked.
        first_use = step < 2 * self.release.max_age_steps
        if (ballot.device.type == "cpu" or first_use) and ballot[1] != -ballot[2]:
            compare("plans", plan, self.group)
        dropped = ballot[0] < 1
        if dropped.device.type != "cpu" or dropped:
            for gradient in gradients.values():
                gradient.masked_fill_(dropped, 0)
        return dropped, allreduce_bytes(ballot.numel() * ballot.element_size(), self.num_ranks)

    def reconcile(self, parameters: dict[View, Tensor], step: int) -> SyncStats:
        """Gradients carry everything: parameters already agree."""
        return SyncStats()

    def flush(self, gradients: dict[View, Tensor], parameters: dict[View, Tensor]) -> SyncStats | None:
        """Gradients become the mean of what every rank holds back, dense; memory is empty afterwards."""
        held = {view: r for view in gradients if (r := self.residual.memory.pending(view)) is not None}
        for gradient in gradients.values():
            gradient.zero_()
        anything = next(iter(gradients.values())).new_zeros(())
        for r in held.values():
            anything = torch.maximum(anything, r.any())
        dist.all_reduce(anything, dist.ReduceOp.MAX, group=self.group)
        if not anything:
            return None
        payloads = [Payload(view.name, 0, view.numel, r.clone(), None) for view, r in held.items()]
        handle = DenseCollective().start(payloads, self.group)  # one use, all entries: nothing sparse pays
        handle.wait()
        wire_bytes = self.apply(payloads, handle.decode(), gradients)
        wire_bytes += allreduce_bytes(anything.element_size(), self.num_ranks)
        return SyncStats(payload_bytes=sum(p.bytes for p in payloads), wire_bytes=wire_bytes, payloads=tuple(payloads))

    def pending(self, view: View) -> Tensor | None:
        return self.residual.memory.pending(view)

    def state_dict(self) -> dict[str, Any]:
        return {"residual": self.residual.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.residual.memory.load_state_dict(state["residual"])


def balance(loads: list[int]) -> tuple[float, float]:
    """(largest over mean, sd over mean) of the buckets' bytes; (1, 0) where there are none."""
    if not any(loads):
        return 1.0, 0.0
    mean = statistics.mean(loads)
    return max(loads) / mean, statistics.pstdev(loads) / mean


def place(gradient: Tensor, start: int, mean: Tensor) -> None:
    """Write a mean over elements [start, start + len(mean)) of a zeroed gradient, whatever its strides."""
    if mean.numel() == gradient.numel():
        gradient.copy_(mean.view(gradient.shape))
    else:
        whole = mean.new_zeros(gradient.numel())
        whole[start : start + mean.numel()] = mean
        gradient.add_(whole.view(gradient.shape))


def compare(what: str, mine: str, group: dist.ProcessGroup | None) -> None:
    """Raise on every rank where two ranks differ, naming the first difference of each; called by all of them."""
    theirs: list[str] = [""] * dist.get_world_size(group)
    dist.all_gather_object(theirs, mine, group=group)
    for rank, other in enumerate(theirs):
        if other != theirs[0]:
            pairs = zip([*theirs[0].splitlines(), "(end)"], [*other.splitlines(), "(end)"], strict=False)
            first, second = next((a, b) for a, b in pairs if a != b)
            raise ValueError(f"the ranks' {what} differ: rank 0 has '{first}', rank {rank} has '{second}'")
