"""Timing, windows over whole release periods, and the files of a run directory."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from igrad.collective.wire import Message
from igrad.files import write_whole
from igrad.interfaces import Payload, SyncStats, View

PHASES = ("compute", "select", "pack", "exchange", "unpack")

COLUMNS = (
    "step", "seconds", "train_loss", "val_loss", "val_ppl", "val_accuracy", "learning_rate", "tokens_per_s", "step_ms",
    *(f"{phase}_ms" for phase in PHASES), "payload_bytes", "wire_bytes", "total_wire_bytes", "bucket_imbalance",
    "bucket_cv", "num_overflows", "predicted_exchange_ms", "num_released", "residual_norm", "num_dropped_steps",
)  # fmt: skip
# exchange_ms includes waiting for slower ranks.
# predicted_exchange_ms is 0 where a collective predicts nothing; num_overflows counts buckets over a tenth above an
# even share; residual_norm is rank 0's when the window ends.

# Means over whole release periods; the rest of COLUMNS are states or totals.
RATES = ("tokens_per_s", "step_ms", *(f"{p}_ms" for p in PHASES), "payload_bytes", "wire_bytes", "bucket_imbalance",
         "bucket_cv", "num_overflows", "predicted_exchange_ms", "num_released")  # fmt: skip


def whole_periods(steps: int, period: int) -> int:
    """`steps` rounded up to a multiple of the release period."""
    return math.ceil(steps / period) * period


class Timer:
    """Milliseconds per phase: `with timer("pack"): …`. A phase within another stops the outer one's clock.

    On CUDA by events, so that nothing waits until `drain`.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.total_ms: defaultdict[str, float] = defaultdict(float)
        self.events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self.open: list[str] = []  # phases entered and not left, the innermost last
        self.since: Any = None  # when the innermost one's clock was started

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.turn()
        self.open.append(phase)
        try:
            yield
        finally:
            self.turn()
            self.open.pop()

    def turn(self) -> None:
        """What ran until now belongs to the innermost open phase."""
        if self.cuda:
            now: Any = torch.cuda.Event(enable_timing=True)
            now.record()
            if self.open:
                self.events.append((self.open[-1], self.since, now))
        else:
            now = time.perf_counter()
            if self.open:
                self.total_ms[self.open[-1]] += (now - self.since) * 1e3
        self.since = now

    def drain(self) -> dict[str, float]:
        """Total per phase since the last call."""
        if self.events:
            torch.cuda.synchronize()
        for phase, first, last in self.events:
            self.total_ms[phase] += first.elapsed_time(last)
        total = {phase: self.total_ms[phase] for phase in PHASES}
        self.total_ms.clear()
        self.events.clear()
        return total


@dataclass
class Window:
    """The steps since the last row; tensors stay on their device until the row is written."""

    losses: list[Tensor] = field(default_factory=list)
    stats: list[SyncStats] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def add(self, loss: Tensor, stats: SyncStats) -> None:
        """One step; its payloads' tensors are not needed any more."""
        self.losses.append(loss)
        self.stats.append(replace(stats, payloads=()))

    def rates(self, seconds: float, phases_ms: dict[str, float], tokens_per_step: int) -> dict[str, float]:
        """Means per step of a window that took `seconds`."""
        n = len(self.stats)
        counted = ("payload_bytes", "wire_bytes", "bucket_imbalance", "bucket_cv", "num_overflows",
                   "predicted_exchange_ms", "num_released")  # fmt: skip
        return {
            "tokens_per_s": tokens_per_step * n / seconds,
            "step_ms": seconds * 1e3 / n,
            **{f"{phase}_ms": total / n for phase, total in phases_ms.items()},
            **{name: sum(getattr(stats, name) for stats in self.stats) / n for name in counted},
        }


class ComponentTrace:
    """Per component and window (components.parquet).

    `activity`: root mean square, over the window's steps, of ||payload||_2 / sqrt(numel), with the payload as it was
    offered to the collective (under `deferral: local` changes, or the weights themselves where they go whole); a step
    that sends nothing counts as zero. `sent_entries`: of these payloads, in the window. `residual_norm`: rank 0's, when
    the window ends. `staleness_steps`, `max_staleness_steps`: steps since a payload was last offered, mean and maximum
    over the window's steps.
    """

    def __init__(self, views: list[View], path: Path | None, first: int = 0) -> None:
        """`path`: None = written nowhere. `first`: steps already done by a run that goes on; its rows are kept."""
        self.component_of = {view.name: view.component for view in views if view.component is not None}
        self.numel: defaultdict[str, int] = defaultdict(int)
        for view in views:
            if view.component is not None:
                self.numel[view.component] += view.numel
        self.last_sent = dict.fromkeys(self.numel, first - 1)
        self.path = path
        earlier = pd.read_parquet(path) if path and first and path.exists() else pd.DataFrame({"step": []})
        self.rows: list[dict[str, Any]] = earlier[earlier["step"] <= first].to_dict("records")
        self.clear()

    def clear(self) -> None:
        self.num_steps = 0
        self.sent_entries = dict.fromkeys(self.numel, 0)
        self.age_sum = dict.fromkeys(self.numel, 0)
        self.age_max = dict.fromkeys(self.numel, 0)
        self.energy: list[tuple[list[str], Tensor]] = []  # components, their payloads' norms [payloads]

    def add(self, payloads: tuple[Payload, ...], step: int) -> None:
        """Ages count steps since a component last sent: 0 in a step in which it sends."""
        self.num_steps += 1
        mine = [payload for payload in payloads if self.component_of.get(payload.view) is not None]
        components = [self.component_of[payload.view] for payload in mine]
        for component, payload in zip(components, mine, strict=True):
            self.sent_entries[component] += payload.values.numel()
            self.last_sent[component] = step
        for component, last in self.last_sent.items():
            self.age_sum[component] += step - last
            self.age_max[component] = max(self.age_max[component], step - last)
        if mine:
            self.energy.append((components, torch.stack(torch._foreach_norm([payload.values for payload in mine]))))

    def close(self, step: int, residual_norms: dict[View, float]) -> None:
        """End a window after `step` optimizer steps."""
        energy, held = dict.fromkeys(self.numel, 0.0), dict.fromkeys(self.numel, 0.0)
        for components, norms in self.energy:
            for component, norm in zip(components, norms.tolist(), strict=True):
                energy[component] += norm**2
        for view, norm in residual_norms.items():
            if view.component is not None:
                held[view.component] += norm**2
        num_steps = max(1, self.num_steps)
        for component, numel in self.numel.items():
            self.rows.append({
                "step": step,
                "component": component,
                "activity": math.sqrt(energy[component] / numel / num_steps),
                "sent_entries": self.sent_entries[component],
                "residual_norm": math.sqrt(held[component]),
                "staleness_steps": self.age_sum[component] / num_steps,
                "max_staleness_steps": self.age_max[component],
            })  # fmt: skip
        self.clear()

    def write(self) -> None:
        if self.path is None:
            return
        write_whole(self.path, pd.DataFrame(self.rows).to_parquet)


class MessageTrace:
    """Every cross-rank operation of rank 0 in every optimizer step, the flush apart (messages.parquet).

    Rows `step` (1-based, as in metrics.jsonl), `kind`, `num_bytes`: see igrad.collective.wire.Message.
    """

    def __init__(self, path: Path | None, first: int = 0) -> None:
        """`path`: None = written nowhere. `first`: steps already done by a run that goes on; its rows are kept."""
        self.path = path
        earlier = pd.read_parquet(path) if path and first and path.exists() else pd.DataFrame({"step": []})
        self.rows: list[tuple[int, str, int]] = list(earlier[earlier["step"] <= first].itertuples(index=False))

    def add(self, messages: list[Message], step: int) -> None:
        if self.path is not None:
            self.rows += [(step + 1, *message) for message in messages]

    def write(self) -> None:
        if self.path is not None:
            write_whole(self.path, pd.DataFrame(self.rows, columns=["step", "kind", "num_bytes"]).to_parquet)


class MetricsFile:
    """metrics.jsonl: one object per row, every column in each, on disk as soon as written."""

    def __init__(self, path: Path, keep_until_step: int = -1) -> None:
        """Rows after `keep_until_step` (of a run that is resumed) are cut off."""
        kept = [row for row in read_rows(path) if row["step"] <= keep_until_step]
        write_whole(path, lambda file: file.write_text("".join(json.dumps(row) + "\n" for row in kept)))
        self.path = path
        self.rows = kept

    def write(self, row: dict[str, Any]) -> dict[str, Any]:
        unknown = set(row) - set(COLUMNS)
        assert not unknown, f"columns without a name in metrics.COLUMNS: {unknown}"
        full = {name: finite(row.get(name)) for name in COLUMNS}
        with self.path.open("a") as file:
            file.write(json.dumps(full, allow_nan=False) + "\n")
        self.rows.append(full)
        return full


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a metrics file; a last line that a killed run left half-written is passed over."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def finite(value: Any) -> Any:
    """A number that JSON can hold: None for what is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def means(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Rates over all whole release periods together; the first window (caches and allocators warm up) is left out.

    It is not where there is no other. Empty where no window is whole.
    """
    steps = [row["step"] for row in rows]
    lengths = [after - before for before, after in zip([0, *steps], steps, strict=False)]
    timed = [(n, row) for n, row in zip(lengths, rows, strict=True) if row["step_ms"] is not None]
    timed = timed[1:] or timed
    if not timed:
        return {}
    num_steps = sum(n for n, _ in timed)
    mean = {name: sum(n * row[name] for n, row in timed) / num_steps for name in RATES}
    tokens = sum(n * row["step_ms"] * row["tokens_per_s"] for n, row in timed)
    return {**mean, "tokens_per_s": tokens / sum(n * row["step_ms"] for n, row in timed)}
