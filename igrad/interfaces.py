"""The architecture on one screen: what each part of the framework must carry.

A strategy is a frozen dataclass whose fields are the keys of its yaml. Shapes are written next to the
tensors; `k` is the number of entries one view sends in one step, `N` the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

if TYPE_CHECKING:
    from igrad.residual.dgc import MomentumMemory
    from igrad.residual.memory import Memory

# ---------------------------------------------------------------------------------------------- values


def whole(tensor: Tensor) -> Tensor:
    """The part of a parameter that an ordinary view covers: all of it."""
    return tensor


@dataclass(frozen=True)
class View:
    """A named part of a parameter (and of its gradient): usually all of it, a third for a fused QKV weight."""

    name: str  # stable identity: everything downstream (residual, selection, payload) is keyed by it
    component: str | None  # "3.q"; None = always sent (norms, biases of no component, embeddings, heads)
    parameter: str  # name in model.named_parameters()
    shape: tuple[int, ...]  # (out, in) for matrices, (n,) for vectors
    part: Callable[[Tensor], Tensor] = field(default=whole, compare=False, repr=False)
    # parameter-shaped tensor -> strided tensor over the same memory whose row-major order is `shape`'s

    def __hash__(self) -> int:
        return hash(self.name)  # that of all fields, and views are looked up hundreds of times per step, takes longer

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def unit(self) -> str:
        """What is released together: the component; a view of none goes by itself."""
        return self.component or self.name


@dataclass(frozen=True)
class Payload:
    """What one view sends in one step: entries of its elements [start, start + numel)."""

    view: str
    start: int
    numel: int
    values: Tensor  # [k] float32 or float64
    indices: Tensor | None  # [k] int64, unique, relative to start; None = every entry, then k = numel
    source: Tensor | None = None  # [numel] what the entries were chosen from, read only; None = known at indices only

    @property
    def bytes(self) -> int:
        """Selected entries in bytes before any wire format: value and int32 index."""
        index_bytes = 0 if self.indices is None else 4
        return self.values.numel() * (self.values.element_size() + index_bytes)

    @property
    def elements(self) -> Tensor:
        """[numel], for a collective that chooses other entries: the source, or zero wherever nothing is known."""
        if self.source is not None:
            return self.source
        if self.indices is None:
            return self.values
        return self.values.new_zeros(self.numel).index_put_((self.indices,), self.values)


class Exchanged(NamedTuple):
    """A bucket after its collective; the lists are in the bucket's order."""

    means: list[Tensor]  # [numel] each: (1/N) sum over ranks of `sent`, zero where no rank sent
    sent: list[Payload]  # what this rank really contributed; the rest of its payload returns to the residual
    wire_bytes: int  # sent by this rank
    counts: list[int] | None = None  # entries of each payload on the rank that had most; None where nobody can tell


class Item(NamedTuple):
    """What a packing strategy sees of a payload."""

    view: str
    start: int
    numel: int
    cost_mean: float  # bytes, expected
    cost_sd: float  # bytes, 0 when the size is certain


@dataclass
class SyncStats:
    """What one call of a synchronizer did on this rank."""

    payload_bytes: int = 0
    wire_bytes: int = 0
    num_released: int = 0  # low-importance components released in this step
    bucket_imbalance: float = 1.0  # largest bucket over mean bucket, in bytes
    bucket_cv: float = 0.0  # sd over mean of bucket bytes
    num_overflows: int = 0  # buckets over a tenth above an even share of the step's bytes
    predicted_exchange_ms: float = 0.0  # of a collective that goes by a model of the link
    dropped: Tensor | None = None
    # 0-dim bool: some rank had a non-finite gradient, so no rank's counted; where all is local, this rank had
    deferred: frozenset[str] = frozenset()  # names of the views that sent nothing, or that a flush has set
    local: frozenset[str] = frozenset()  # names of the views whose gradient is the rank's own
    payloads: tuple[Payload, ...] = ()

    def __add__(self, other: SyncStats) -> SyncStats:
        """Of one step: what went before and what after the optimizer. Balance is that of the one with more bytes."""
        most = max(self, other, key=lambda stats: stats.wire_bytes)
        return SyncStats(
            payload_bytes=self.payload_bytes + other.payload_bytes,
            wire_bytes=self.wire_bytes + other.wire_bytes,
            num_released=self.num_released + other.num_released,
            bucket_imbalance=most.bucket_imbalance,
            bucket_cv=most.bucket_cv,
            num_overflows=self.num_overflows + other.num_overflows,
            predicted_exchange_ms=self.predicted_exchange_ms + other.predicted_exchange_ms,
            dropped=self.dropped,
            deferred=self.deferred,
            local=self.local,
            payloads=self.payloads + other.payloads,
        )


class Document(NamedTuple):
    """One training text. The loss counts on `text` only; a `prompt` is context."""

    text: str
    prompt: str = ""
    group: str | None = None  # documents of one group fall on the same side of the train/eval split
    held_out: bool | None = None  # which side the source puts it on; None = the split is igrad's


# ------------------------------------------------------------------------------------------ strategies

Timed = Callable[[str], AbstractContextManager[None]]  # a timer of named phases
Select = Callable[[Tensor, float, bool], Tensor | None]  # a sparsifier for one view: candidate, share, is it a release


def untimed(phase: str) -> AbstractContextManager[None]:
    """The timer that measures nothing."""
    return nullcontext()


class Sparsifier(Protocol):
    """Picks which entries of one gradient are retained.

    One that remembers keeps it in a dict `state` of tensors, which is saved and restored with a run.
    """

    varies: bool  # k differs between ranks and steps; False: it depends on the shape, `turn` and `share` only

    def select(self, gradient: Tensor, view: View, turn: int, share: float = 1.0) -> Tensor | None:
        """Flat indices int64 [k] of `gradient`, unique; None = every entry.

        `gradient` has shape `view.shape`, or is a part of it: whole rows (rows, in), or flat. `turn` counts the
        selections of this view, for a sparsifier that draws or alternates: the step where one is made every step,
        -1, -2, … for its releases. `share` scales the usual count: a release of R steps' worth passes
        R * release_fraction.
        """
        ...


class Residual(Protocol):
    """Decides what a step's gradient adds to memory and what is offered from it, per view and rank."""

    memory: Memory | MomentumMemory
    conserves: str  # law 1 holds for "everything" (every gradient), what the sparsifier "selected", or "nothing"

    def offer(
        self, view: View, gradient: Tensor, select: Select, due: slice | None, share: float, release: bool
    ) -> Payload | None:
        """Take one step's gradient into memory; return what the view sends now, None when deferred.

        `due` is the element range that may be sent, None when the view is deferred; `release` tells a
        low-importance view that is due from one that is sent every step. The synchronizer subtracts what
        really went from memory.
        """
        ...


class ImportanceScore(Protocol):
    """From the trace of a profiling run (igrad/trace.py): how much does each component matter?"""

    def __call__(self, trace: dict[str, np.ndarray]) -> np.ndarray:
        """Measure -> float64 [steps, components], to a score per component, float64 [components]."""
        ...


class ThresholdPolicy(Protocol):
    """Which scores are important."""

    needs_scores: bool  # False: no profile is wanted

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        """float64 [num_components] -> (tau, bool [num_components]); important where score >= tau.

        The scores are finite and at least one. `components` are their names, for a policy that goes by kind. Views
        of no component are sent every step, unless tau is infinite: then nothing is.
        """
        ...


class ReleaseSchedule(Protocol):
    """Which low-importance views are due at a step."""

    def prepare(self, costs_bytes: dict[str, int]) -> None:
        """Cost of one release of each low-importance component (`View.unit`), so that a schedule can level bytes."""
        ...

    def due(self, view: View, step: int) -> slice | None:
        """Element range that may be sent at the 0-based optimizer step, None when not due."""
        ...

    @property
    def period(self) -> int:
        """R: every low-importance component is due exactly once in R consecutive steps."""
        ...

    @property
    def max_age_steps(self) -> int:
        """Every element of a low-importance view is within a due range at least once in so many consecutive steps."""
        ...


class PackingStrategy(Protocol):
    """Puts payloads into buckets; one collective per bucket."""

    overlaps: bool  # True: a bucket leaves as soon as its gradients are there, while the backward pass goes on

    def prepare(self, items: list[Item]) -> None:
        """Every view whole, before the first step; the cost is that of sending it as it is."""
        ...

    def pack(self, items: list[Item]) -> list[list[int]]:
        """Positions in `items` per bucket, in issue order; a pure function of `items` and of what was prepared."""
        ...


class Handle(Protocol):
    """A bucket under way."""

    predicted_ms: float  # of a collective that goes by a model of the link, else 0

    def wait(self) -> None:
        """On every rank in the order in which they were started: it may take another operation."""
        ...

    def decode(self) -> Exchanged:
        """After `wait`, on every rank: what it tells of sizes may be remembered."""
        ...


class ValueCodec(Protocol):
    """Values as bytes. `counts` says how many belong to each payload: what a codec shares never crosses one."""

    def bytes(self, count: float) -> float:
        """Size of `count` values of one payload, in float32."""
        ...

    def encode(self, values: Tensor, counts: list[int]) -> Tensor:
        """[sum of counts] float32 or float64, to uint8 of a length that `counts` alone decide."""
        ...

    def decode(self, data: Tensor, counts: list[int], dtype: torch.dtype) -> Tensor:
        """uint8 that may be longer than needed, to [sum of counts] of the bucket's type: what was really sent."""
        ...


class IndexCodec(Protocol):
    """Positions among the elements of a bucket as bytes, without loss."""

    sorts: bool  # True: positions must rise
    varies: bool  # the size depends on the positions, not on their number and the space alone

    def bytes(self, count: float, space: float) -> float:
        """Expected size of `count` positions spread evenly over `space` elements."""
        ...

    def encode(self, positions: Tensor, space: int) -> Tensor:
        """int64 [k], unique, in [0, space), to uint8.

        ValueError where they do not fit; a codec that sorts also refuses what does not rise or is out of range.
        """
        ...

    def decode(self, data: Tensor, count: int, space: int) -> tuple[Tensor, int]:
        """uint8 that may be longer than needed, to (int64 [count], bytes used)."""
        ...


class Collective(Protocol):
    """How buckets become cross-rank means, wire format included.

    One that remembers keeps it in a dict `state` of tensors, which is saved and restored with a run.
    """

    def cost_bytes(self, numel: int, count: float) -> float:
        """About what a payload of `count` entries of `numel` adds to its bucket: what packing levels."""
        ...

    def start(
        self,
        buckets: list[list[Payload]],
        group: ProcessGroup | None,
        step: int = 0,
        sizes_vary: bool = False,
        timed: Timed = untimed,
    ) -> list[Handle]:
        """Encode and send, one collective per bucket; none is empty.

        Every rank passes the same views and ranges in the same order, and the same step. `sizes_vary`: how many
        entries a payload has may differ between ranks. Operations are timed as exchange, waited for or only begun.
        """
        ...


class Deferral(Protocol):
    """What happens to a parameter between its releases."""

    local: (
        bool  # True: it is updated with the rank's own gradient, and its changes are released (igrad/deferral/local.py)
    )

    def step(
        self, optimizer: torch.optim.Optimizer, parameters: dict[View, torch.nn.Parameter], deferred: frozenset[str]
    ) -> None:
        """The optimizer step of a training step in which these views were deferred."""
        ...


class LocalDeferral(Deferral, Protocol):
    """One that lets ranks drift: it knows what they share of a view, and releases what they moved away from it by."""

    def begin(self, view: View, parameter: Tensor) -> None:
        """Where all ranks start."""
        ...

    def change(self, view: View, parameter: Tensor) -> Tensor:
        """[numel]: what this rank moved by and has not sent."""
        ...

    def offer(self, view: View, parameter: Tensor, select: Select, due: slice, share: float) -> Payload:
        """The selected changes among elements `due`, or the parameter itself where that is all of them."""
        ...

    def apply(self, view: View, parameter: Tensor, sent: Payload, mean: Tensor) -> None:
        """A release, in place; `mean` [numel of the payload] is of what was sent."""
        ...

    def settle(self, view: View, parameter: Tensor, mean: Tensor) -> None:
        """The end, in place: the parameter is the ranks' mean [numel]."""
        ...


class Synchronizer(Protocol):
    """The whole: local gradients in, cross-rank mean gradients out."""

    uses_importance: bool  # False: no profile is wanted
    timed: Timed  # wraps the phases select, pack, exchange, unpack; the caller may set it

    def prepare(
        self, parameters: Mapping[View, Tensor], important: frozenset[str | None], group: ProcessGroup | None
    ) -> None:
        """Before the first step, with what all ranks start from. `important`: components, None for views of none."""
        ...

    overlaps: bool  # True: wants to hear of gradients during the backward pass

    def ready(self, view: View, gradient: Tensor, step: int) -> None:
        """During the backward pass, in any order: this gradient is final. It stays as it is until `synchronize`."""
        ...

    def synchronize(self, gradients: dict[View, Tensor], step: int) -> SyncStats:
        """After the backward pass, every view: changed in place, or another tensor of its shape put in its place."""
        ...

    def reconcile(self, parameters: dict[View, Tensor], step: int) -> SyncStats:
        """After the optimizer: what is exchanged of the parameters themselves, in place."""
        ...

    def flush(self, gradients: dict[View, Tensor], parameters: dict[View, Tensor]) -> SyncStats | None:
        """Send all that is held back, dense; None when nothing can be held back.

        Gradients become what one more optimizer step is to apply. Parameters may be set directly: their views are
        named as deferred, and the optimizer passes over them.
        """
        ...

    def pending(self, view: View) -> Tensor | None:
        """What a view holds back on this rank, flat [numel]; None when nothing."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Model(Protocol):
    def prepare(self) -> Path:
        """A local transformers folder (config, safetensors, tokenizer), made on first use."""
        ...


class Workload(Protocol):
    def fingerprint(self) -> str:
        """Identifies the texts: two workloads with one fingerprint yield the same documents."""
        ...

    def documents(self) -> Iterator[Document]: ...


class Tracker(Protocol):
    """Shows a run elsewhere, from rank 0. The files of the run directory are whole without it."""

    def start(self, config: dict[str, Any], directory: Path, first: int = 0) -> None:
        """Before the first row. `first`: optimizer steps already done by a run that goes on."""
        ...

    def profile(self, path: Path) -> None:
        """The profile that says what is important."""
        ...

    def heatmap(self, name: str, values: dict[str, float], step: int) -> None:
        """A number per component; comes before the row of its step."""
        ...

    def log(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl, without what was not measured."""
        ...

    def finish(self, summary: dict[str, Any]) -> None:
        """Once every file of the run directory is there."""
        ...
