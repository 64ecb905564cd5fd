"""ImportanceGradient: important components every step, the others every R steps, packed into balanced buckets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from igrad.collective.dense import Dense as DenseCollective
from igrad.collective.wire import all_reduce, allreduce_bytes
from igrad.exchange import Exchange, Plan, compare
from igrad.interfaces import (
    Collective,
    Deferral,
    Exchanged,
    LocalDeferral,
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
from igrad.synchronizer.finite import all_finite


@dataclass
class Importance:
    """Compensate, decide, select, pack, exchange, apply."""

    sparsifier: Sparsifier
    residual: Residual
    release: ReleaseSchedule
    packing: PackingStrategy
    collective: Collective
    deferral: Deferral | LocalDeferral
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

    def prepare(
        self,
        parameters: Mapping[View, Tensor],
        important: frozenset[str | None],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Fix the layout; raise ValueError where the ranks do not agree on it."""
        self.parameters = parameters
        self.group = group
        self.low = frozenset(view.unit for view in parameters if view.component not in important)
        costs: dict[str, int] = {}
        for view in parameters:
            if view.unit in self.low:
                costs[view.unit] = costs.get(view.unit, 0) + view.numel
        self.release.prepare(costs)
        # A release stands for R steps; its budget is that share of what the sparsifier keeps in one.
        self.share = 1.0 if self.release_fraction is None else self.release_fraction * self.release.period
        self.local = [view for view in parameters if view.unit in self.low] if self.deferral.local else []
        for view in self.local:
            self.deferral.begin(view, parameters[view])
        # How many entries fall into a block of a payload is the data's choice.
        vary = self.sparsifier.varies or self.block_numel is not None
        first_uses = 2 * self.release.max_age_steps
        self.exchange = Exchange(
            self.packing, self.collective, self.block_numel, vary, first_uses, group, lambda phase: self.timed(phase)
        )
        self.exchange.prepare(parameters)
        self.plan: Plan | None = None  # of the step whose backward pass goes on
        layout = [f"{v.name} {v.shape} {'low' if v.unit in self.low else 'every step'}" for v in parameters]
        compare("layouts", "\n".join(layout), group)

    # --------------------------------------------------------------------------------- before the optimizer

    def ready(self, view: View, gradient: Tensor, step: int) -> None:
        """Compensate and select; what is complete leaves. Only called where packing overlaps."""
        if self.plan is None:
            self.plan = self.begin(step, gradient.device)
        if view in self.plan.due:
            with self.timed("select"):
                self.offer(view, gradient, self.plan)
            with self.timed("pack"):
                self.exchange.send(self.plan)

    def synchronize(self, gradients: dict[View, Tensor], step: int) -> SyncStats:
        plan, self.plan = self.plan or self.begin(step, next(iter(gradients.values())).device), None
        if not self.overlaps:
            dropped = self.vote(gradients, plan)
        with self.timed("select"):
            self.offer_rest(gradients, plan)
        with self.timed("pack"):
            self.exchange.send(plan)
        if self.overlaps:
            dropped = self.vote(gradients, plan)
        self.exchange.receive(plan)
        if self.overlaps and dropped:
            plan = self.again(gradients, plan)
        with self.timed("unpack"):
            self.apply(plan.exchanged, gradients, plan.due)
        return plan.stats(
            num_released=self.num_released(plan),
            dropped=dropped,
            deferred=frozenset(view.name for view, part in plan.due.items() if part is None),
            local=frozenset(view.name for view in self.local),
        )

    def begin(self, step: int, device: torch.device) -> Plan:
        """Decide and plan. What is updated locally has no part in it."""
        local = set(self.local)
        with self.timed("pack"):
            plan = self.exchange.plan(
                step, {view: self.due(view, step) for view in self.parameters if view not in local}
            )
        if self.overlaps and step < self.exchange.checked_steps:  # otherwise the vote tells in time
            self.exchange.agree(plan, torch.ones((), dtype=torch.float64, device=device))
        return plan

    def due(self, view: View, step: int) -> slice | None:
        """Decide: low-importance components wait for their release, everything else is sent."""
        return self.release.due(view, step) if view.unit in self.low else slice(0, view.numel)

    def offer_rest(self, gradients: dict[View, Tensor], plan: Plan) -> None:
        for view in plan.due:
            if view.name not in plan.offered:
                self.offer(view, gradients[view], plan)

    def again(self, gradients: dict[View, Tensor], plan: Plan) -> Plan:
        """The vote came after all had left, and the step is dropped: once more, with gradients that count as zero."""
        self.residual.memory.restore(plan.before)
        second = self.exchange.plan(plan.step, plan.due)
        second.control_bytes = plan.stats().wire_bytes  # in vain
        with self.timed("select"):
            self.offer_rest(gradients, second)
        with self.timed("pack"):
            self.exchange.send(second)
        self.exchange.receive(second)
        return second

    def offer(self, view: View, gradient: Tensor, plan: Plan) -> None:
        if self.overlaps:
            plan.before[view.name] = self.residual.memory.copy(view)
        release = view.unit in self.low
        select = partial(self.select, view, plan.step)
        share = self.share if release else 1.0
        self.exchange.offer(plan, view, self.residual.offer(view, gradient, select, plan.due[view], share, release))

    def select(self, view: View, step: int, candidate: Tensor, share: float, release: bool) -> Tensor | None:
        # Releases take turns of their own: drawn from the step, one would pick what this very step retained.
        turn = -1 - step // self.release.period if release else step
        return self.sparsifier.select(candidate, view, turn, share)

    def apply(
        self, exchanged: Iterable[Exchanged | None], gradients: dict[View, Tensor], views: Iterable[View]
    ) -> None:
        """What went leaves memory, means become gradients; of what was not sent they are zero."""
        means: dict[str, list[tuple[int, Tensor]]] = {}
        for bucket in filter(None, exchanged):
            for sent, mean in zip(bucket.sent, bucket.means, strict=True):
                self.residual.memory.subtract(sent)
                means.setdefault(sent.view, []).append((sent.start, mean))
        for view in views:
            gradients[view] = assembled(means.get(view.name, []), gradients[view])

    def num_released(self, plan: Plan) -> int:
        return len({view.unit for view, part in plan.due.items() if part and view.unit in self.low})

    def vote(self, gradients: dict[View, Tensor], plan: Plan) -> Tensor:
        """One small all-gather: are all gradients finite, and do the ranks have the same plan?

        A step in which any rank's gradient is not finite counts as zero on all of them: stored, it would surface
        R steps later. Where all is local nobody else is asked.
        """
        finite = all_finite(gradients.values())
        dropped = (self.exchange.agree(plan, finite) if plan.due else finite) < 1
        if dropped.device.type != "cpu" or dropped:
            for gradient in gradients.values():
                gradient.masked_fill_(dropped, 0)
        return dropped

    # ---------------------------------------------------------------------------------- after the optimizer

    def reconcile(self, parameters: dict[View, Tensor], step: int) -> SyncStats:
        """The changes of what is updated locally, when they are due; gradients have carried everything else."""
        due = {view: part for view in self.local if (part := self.due(view, step)) is not None}
        if not due:
            return SyncStats()
        with self.timed("pack"):
            plan = self.exchange.plan(step, due)
        device = parameters[self.local[0]].device
        if self.exchange.is_checked(plan, device):
            self.exchange.agree(plan, torch.ones((), dtype=torch.float64, device=device))
        with self.timed("select"):
            for view, part in due.items():
                select = partial(self.select, view, step)
                self.exchange.offer(plan, view, self.deferral.offer(view, parameters[view], select, part, self.share))
        with self.timed("pack"):
            self.exchange.send(plan)
        self.exchange.receive(plan)
        with self.timed("unpack"):
            by_name = {view.name: view for view in due}
            for bucket in filter(None, plan.exchanged):
                for sent, mean in zip(bucket.sent, bucket.means, strict=True):
                    view = by_name[sent.view]
                    self.deferral.apply(view, parameters[view], sent, mean)
        return plan.stats(num_released=self.num_released(plan))

    # -------------------------------------------------------------------------------------------- at the end

    def flush(self, gradients: dict[View, Tensor], parameters: dict[View, Tensor]) -> SyncStats | None:
        """Gradients become the mean of what every rank holds back, parameters that were updated locally their mean.

        Dense; afterwards memory is empty and all replicas are equal.
        """
        held = {view: r for view in gradients if (r := self.residual.memory.pending(view)) is not None}
        changes = [self.deferral.change(view, parameters[view]) for view in self.local]
        anything = next(iter(gradients.values())).new_zeros(())
        for r in (*held.values(), *changes):
            anything = torch.maximum(anything, r.any())
        all_reduce(anything, dist.ReduceOp.MAX, self.group)
        if not anything:
            self.apply([], gradients, list(gradients))
            return None
        payloads = [Payload(view.name, 0, view.numel, r.clone(), None) for view, r in held.items()]
        weights = [Payload(view.name, 0, view.numel, parameters[view].reshape(-1), None) for view in self.local]
        [handle] = DenseCollective().start([[*payloads, *weights]], self.group)  # all entries: nothing sparse pays
        handle.wait()
        means, sent, wire_bytes, _ = handle.decode()
        self.apply([Exchanged(means[: len(held)], sent[: len(held)], 0)], gradients, list(gradients))
        for view, mean in zip(self.local, means[len(held) :], strict=True):
            self.deferral.settle(view, parameters[view], mean)
        return SyncStats(
            payload_bytes=sum(payload.bytes for payload in sent),
            wire_bytes=wire_bytes + allreduce_bytes(anything.element_size(), dist.get_world_size(self.group)),
            deferred=frozenset(view.name for view in self.local),
            payloads=tuple(sent),
        )

    def pending(self, view: View) -> Tensor | None:
        if view in self.local:
            return self.deferral.change(view, self.parameters[view])
        return self.residual.memory.pending(view)

    def state_dict(self) -> dict[str, Any]:
        states = {name: dict(part.state) for name, part in self.stateful().items()}
        return {"residual": self.residual.memory.state_dict(), "costs": dict(self.exchange.costs.seen), **states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.residual.memory.load_state_dict(state["residual"])
        self.exchange.costs.seen = dict(state["costs"])
        for name, part in self.stateful().items():
            part.state.clear()
            part.state.update(state.get(name, {}))

    def stateful(self) -> dict[str, Any]:
        parts = {"sparsifier": self.sparsifier, "collective": self.collective, "deferral": self.deferral}
        return {name: part for name, part in parts.items() if hasattr(part, "state")}


def assembled(means: list[tuple[int, Tensor]], gradient: Tensor) -> Tensor:
    """Means over the elements from their starts on, zero elsewhere, in the shape and dtype of `gradient`."""
    if not means:
        return gradient.zero_()
    _, whole = means[0]
    if whole.numel() != gradient.numel():
        whole = whole.new_zeros(gradient.numel())
        for start, mean in means:
            whole[start : start + mean.numel()] = mean
    whole = whole.view_as(gradient)
    return whole if whole.dtype == gradient.dtype else whole.to(gradient.dtype)
