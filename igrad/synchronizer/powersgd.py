"""PowerSGD: matrices as low-rank factors, with error feedback (Vogels et al. 2019, arXiv:1905.13727)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from igrad.collective.wire import all_reduce, allreduce_bytes, note
from igrad.interfaces import Payload, SyncStats, Timed, View, untimed
from igrad.residual.memory import wide
from igrad.synchronizer.finite import all_finite

# Added to the norms that Gram-Schmidt divides by, since an unused matrix has none. Lost in the rounding of any other,
# but not so small that what underflows when squared would blow up.
EPSILON = 1e-20


@dataclass(frozen=True)
class Bucket:
    """All gradients of a step as one dist.GradBucket: as much of it as torch's hook asks for.

    One bucket, since the hook waits for collectives within callbacks, which hangs gloo as soon as two are under way.
    """

    flat: Tensor  # [sum of numel]; the hook puts the result in its place
    shapes: list[tuple[int, ...]]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> Tensor:
        return self.flat

    def gradients(self) -> list[Tensor]:
        parts = self.flat.split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass
class PowerSGD:
    """Baseline: torch's powerSGD_hook. A matrix [n, m] is sent as P [n, rank] and Q [m, rank], what is small dense.

    At ranks 1 and 2 a matrix whose gradient is zero on all ranks in a compressed step is not sent any more: torch's
    Gram-Schmidt finds no direction to go on with. From rank 3 on it uses QR, which does.
    """

    rank: int = 4  # of the factors, at most min(n, m); higher = closer to the mean, more traffic and compute
    start_iter: int = 2  # dense steps before the first compressed one, at least 2; more = a safer start, more traffic
    min_compression_rate: float = 2.0  # factors must be smaller than the matrix by this; higher = more is sent dense
    timed: Timed = field(default_factory=lambda: untimed, init=False)
    uses_importance = False
    overlaps = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        if self.start_iter < 2:
            raise ValueError(f"start_iter must be at least 2, got {self.start_iter}")
        if not self.min_compression_rate > 0:
            raise ValueError(f"min_compression_rate must be above 0, got {self.min_compression_rate}")

    def prepare(
        self,
        parameters: Mapping[View, Tensor],
        important: frozenset[str | None],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.views = list(parameters)
        self.group = group
        self.num_ranks = dist.get_world_size(group)
        ends = itertools.accumulate(view.numel for view in self.views)
        self.parts = {view: slice(end - view.numel, end) for view, end in zip(self.views, ends, strict=True)}
        self.state = PowerSGDState(
            group, self.rank, self.start_iter, self.min_compression_rate, orthogonalization_epsilon=EPSILON
        )

    def ready(self, view: View, gradient: Tensor, step: int) -> None:
        """Nothing leaves before all is there."""

    def synchronize(self, gradients: dict[View, Tensor], step: int) -> SyncStats:
        """The phase exchange includes the factorisation, which goes on between its collectives.

        A step in which any rank's gradient is not finite counts as zero on all of them and leaves the state as it
        was. To know it, this waits for the device; so does torch's hook.
        """
        with self.timed("pack"):
            finite = all_finite(gradients.values())
        with self.timed("exchange"):
            all_reduce(finite, dist.ReduceOp.MIN, self.group)
        dropped, control_bytes = finite < 1, allreduce_bytes(finite.element_size(), self.num_ranks)
        if dropped:
            for gradient in gradients.values():
                gradient.zero_()
            return SyncStats(wire_bytes=control_bytes, dropped=dropped)
        with self.timed("pack"):
            flat = torch.cat([wide(gradients[view], view).reshape(-1) for view in self.views])
        num_sent = self.state.total_numel_after_compression
        # The hook synchronises its tensors' device wherever CUDA is available, and fails where they are on the CPU.
        with self.timed("exchange"), mock.patch("torch.cuda.is_available", lambda: flat.is_cuda):
            powerSGD_hook(self.state, Bucket(flat, [view.shape for view in self.views])).wait()
        with self.timed("unpack"):
            for view, part in self.parts.items():
                # A copy: gradients are clipped in place, and payloads are read after that.
                gradients[view] = flat[part].view(gradients[view].shape).to(gradients[view].dtype, copy=True)
        # The hook counts P, Q and what is sent dense, but not the dense steps.
        num_sent = self.state.total_numel_after_compression - num_sent or flat.numel()
        num_bytes = num_sent * flat.element_size()
        factors = [memory.get(0) for memory in (self.state.p_memory_dict, self.state.q_memory_dict)]
        factor_bytes = [factor.numel() * factor.element_size() for factor in factors if factor is not None]
        for each in (num_bytes - sum(factor_bytes), *factor_bytes):
            note("all_reduce", each)
        return SyncStats(
            payload_bytes=num_bytes,
            wire_bytes=control_bytes + allreduce_bytes(num_bytes, self.num_ranks),
            dropped=dropped,
            payloads=tuple(Payload(view.name, 0, view.numel, flat[part], None) for view, part in self.parts.items()),
        )

    def reconcile(self, parameters: dict[View, Tensor], step: int) -> SyncStats:
        return SyncStats()

    def flush(self, gradients: dict[View, Tensor], parameters: dict[View, Tensor]) -> SyncStats | None:
        """None: torch's method has no flush; what is pending at the end of a run is lost."""
        return None

    def pending(self, view: View) -> Tensor | None:
        """Error feedback: this rank's gradients less what all ranks applied, so its mean over ranks is what is lost."""
        error = self.state.error_dict.get(0)
        return None if error is None else error[self.parts[view]]

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self.state, name) for name in self.state.__slots__ if name != "process_group"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self.state, name, value)
