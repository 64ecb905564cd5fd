"""What a run leaves behind: metrics.jsonl, components.parquet, summary.json, the tracker, and the terminal."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from tqdm import tqdm

from igrad.collective.wire import take_messages
from igrad.config import build, config_hash, one_line, plain
from igrad.files import write_whole
from igrad.interfaces import SyncStats, Tracker
from igrad.metrics import ComponentTrace, MessageTrace, MetricsFile, Window, finite, means
from igrad.progress import counted

if TYPE_CHECKING:
    from igrad.train import Run

# Without a loss until a run counts as diverged; a batch may have none, where none of its tokens counts.
PATIENCE_STEPS = 8


class Recorder:
    """Called by every rank alike (it averages over them); rank 0 writes and shows."""

    def __init__(self, run: Run, first: int = 0, state: dict[str, Any] | None = None) -> None:
        """`first`: optimizer steps already done by a run that goes on, `state`: what `state()` said then."""
        cfg = run.cfg
        self.run, self.leads = run, run.rank == 0
        self.tokens_per_step = cfg.batch_size * cfg.micro_batches * cfg.sequence_length * run.num_ranks
        self.steps_without_loss = 0
        self.totals = {"seconds": 0.0, "wire_bytes": 0, "payload_bytes": 0, "num_dropped_steps": 0, "tokens": 0,
                       "kept_entries": 0, "of_entries": 0}  # fmt: skip
        self.flush_wire_bytes = 0
        self.low = frozenset({*run.components.components, None}) - run.important
        self.startup_s = time.time() - run.started
        self.provenance = provenance(run.device)
        path = run.directory / "components.parquet" if self.leads else None
        self.components = ComponentTrace(run.components.views, path, first)
        self.messages = MessageTrace(run.directory / "messages.parquet" if self.leads else None, first)
        take_messages()  # operations before the first step do not count
        if state:
            self.totals, self.components.last_sent = state["totals"], state["last_sent"]
        if not self.leads:
            return
        self.file = MetricsFile(run.directory / "metrics.jsonl", keep_until_step=first or -1)
        self.tracker: Tracker | None = build(cfg.tracking)
        self.track(lambda tracker: tracker.start(plain(cfg), run.directory, first))
        if run.inputs.profile:
            self.track(lambda tracker: tracker.profile(Path(run.inputs.profile)))
        if run.scores and not first:
            self.track(lambda tracker: tracker.heatmap("importance_score", run.scores, step=0))
        self.doing = "profiling: " if run.inputs.trace_to else ""
        ranks = counted(run.num_ranks, "rank")
        print(f"  {self.doing}{ranks} on {run.device.type}; {run.components.describe()}", flush=True)
        if first:
            print(f"  goes on after step {first}", flush=True)
        self.shown: dict[str, str] = {}
        desc = f"  {self.doing or 'training'}".removesuffix(": ")
        self.bar = tqdm(total=cfg.steps, initial=first, unit="step", desc=desc, dynamic_ncols=True, leave=True,
                        disable=not sys.stderr.isatty())  # fmt: skip

    def track(self, act: Callable[[Tracker], None]) -> None:
        """Show something, unless the tracker has broken down: that is told once, and training goes on without it."""
        if self.tracker is None:
            return
        try:
            act(self.tracker)
        except Exception as error:  # other people's code: a lost service, a full disk, a changed library
            self.tracker = None
            print(f"tracking broke down ({one_line(error)}); the run goes on without it", flush=True)

    def state(self) -> dict[str, Any]:
        """What a run that goes on needs; nothing is open between two rows, and what was traced is on disk."""
        self.components.write()
        self.messages.write()
        return {"totals": self.totals, "last_sent": self.components.last_sent}

    def step(self, stats: SyncStats, step: int) -> None:
        """After every optimizer step; counts alone, no device is waited for."""
        self.components.add(stats.payloads, step)
        self.messages.add(take_messages(), step)
        for payload in stats.payloads:
            if self.components.component_of.get(payload.view) not in self.low:
                self.totals["kept_entries"] += payload.values.numel()
                self.totals["of_entries"] += payload.numel

    def write(self, **row: Any) -> None:
        """One row of metrics.jsonl, the tracker and the terminal."""
        if not self.leads:
            return
        loss = row.get("train_loss")
        row = self.file.write({"seconds": self.totals["seconds"], "total_wire_bytes": self.totals["wire_bytes"], **row})
        self.track(lambda tracker: tracker.log({name: value for name, value in row.items() if value is not None}))
        shown = {
            "loss": loss is not None and f"{loss:.3f}",  # nan too, which the file has as null
            "val": row["val_loss"] and f"{row['val_loss']:.3f}",
            "kB/step": row["wire_bytes"] and f"{row['wire_bytes'] / 1e3:.1f}",
        }
        shown = {name: value for name, value in shown.items() if value}
        if self.bar.disable:
            words = " ".join(f"{name} {value}" for name, value in shown.items())
            steps = self.run.cfg.steps
            when = f"step {row['step']}/{steps}" if row["step"] <= steps else "after the flush"
            print(f"  {self.doing}{when} {words}", flush=True)
        else:
            self.shown.update(shown)  # a row after the flush has no training loss
            self.bar.set_postfix(self.shown, refresh=False)
            self.bar.update(min(row["step"], self.run.cfg.steps) - self.bar.n)

    def close(self, window: Window, step: int, evaluate: Callable[[], dict[str, float]]) -> None:
        """End a window; `evaluate` runs off the clock. ValueError, on all ranks alike, once a run has diverged."""
        phases_ms = self.run.timer.drain()
        seconds = time.perf_counter() - window.started
        whole = len(window.stats) % self.run.cfg.release_period == 0
        rates = window.rates(seconds, phases_ms, self.tokens_per_step) if whole else {}
        self.totals["seconds"] += seconds
        self.totals["tokens"] += self.tokens_per_step * len(window.stats)
        for name in ("wire_bytes", "payload_bytes"):
            self.totals[name] += sum(getattr(stats, name) for stats in window.stats)
        self.totals["num_dropped_steps"] += sum(int(s.dropped) for s in window.stats if s.dropped is not None)
        losses = torch.stack(window.losses)
        loss = losses.masked_fill(~losses.isfinite(), math.nan).nanmean()  # a step that was dropped has none
        dist.all_reduce(loss)
        train_loss = loss.item() / self.run.num_ranks
        self.steps_without_loss = 0 if math.isfinite(train_loss) else self.steps_without_loss + len(window.stats)
        diverged = self.steps_without_loss >= PATIENCE_STEPS
        pending = {view: self.run.synchronizer.pending(view) for view in self.run.parameters} if self.leads else {}
        norms = {view: float(held.norm()) for view, held in pending.items() if held is not None}
        self.components.close(step, norms)
        evaluation = {} if diverged else evaluate()
        if evaluation:
            self.components.write()
            self.messages.write()
            if norms and self.components.numel:
                latest = self.components.rows[-len(self.components.numel) :]
                held = {row["component"]: row["residual_norm"] for row in latest}
                self.track(lambda tracker: tracker.heatmap("residual_norm", held, step))
        self.write(
            step=step,
            train_loss=train_loss,
            learning_rate=self.run.learning_rate,
            residual_norm=sum(norm**2 for norm in norms.values()) ** 0.5,
            num_dropped_steps=self.totals["num_dropped_steps"],
            **rates,
            **evaluation,
        )
        if diverged:
            self.close_bar()
            dist.barrier()  # the first rank that raises ends all, and the row is rank 0's to write
            raise ValueError(
                f"the training loss is {train_loss} at step {step}: training diverged; "
                "lower learning_rate or max_grad_norm"
            )

    def flushed(self, stats: SyncStats, evaluation: dict[str, float]) -> None:
        """The row after the flush, which is one more optimizer step."""
        self.flush_wire_bytes = stats.wire_bytes
        self.totals["wire_bytes"] += stats.wire_bytes
        self.write(step=self.run.cfg.steps + 1, **evaluation)

    def close_bar(self) -> None:
        """The bar stays; the last numbers are said again below it: a narrow terminal cuts it."""
        if not self.leads or self.bar.disable:
            return
        self.bar.close()
        print(f"  {self.doing}{' '.join(f'{name} {value}' for name, value in self.shown.items())}", flush=True)

    def finish(self) -> None:
        """The summary, once all else is on disk."""
        if not self.leads:
            return
        self.close_bar()
        self.components.write()
        self.messages.write()
        cfg, rows = self.run.cfg, self.file.rows
        evaluated = [row for row in rows if row["val_loss"] is not None]
        quality = ("step", "val_loss", "val_ppl", "val_accuracy")
        pick = {
            "initial": evaluated[0],
            "before_flush": evaluated[-2] if self.flush_wire_bytes else evaluated[-1],
            "final": evaluated[-1],
            "best": min(evaluated, key=lambda row: row["val_loss"]),
        }
        totals = dict(self.totals)
        kept, of = totals.pop("kept_entries"), totals.pop("of_entries")
        totals["wire_bytes"] -= self.flush_wire_bytes
        summary = {
            "status": "finished",
            "error": None,
            **{when: {name: row[name] for name in quality} for when, row in pick.items()},
            "means": means(rows),
            "totals": {**totals, "flush_wire_bytes": self.flush_wire_bytes},
            "tau": finite(self.run.tau),
            "important": [name for name in self.run.components.components if name in self.run.important],
            "low": [name for name in self.run.components.components if name in self.low],
            "profile": self.run.inputs.profile,
            "scores": self.run.scores,
            "mapped_share": self.run.components.share,
            "achieved_density": kept / of if of else None,  # of what is sent every step
            "config_hash": config_hash(cfg),
            "startup_s": self.startup_s,
            **self.provenance,
        }
        path = self.run.directory / "summary.json"
        write_whole(path, lambda file: file.write_text(json.dumps(summary, indent=1, allow_nan=False)))
        self.track(lambda tracker: tracker.finish(summary))


def provenance(device: torch.device) -> dict[str, Any]:
    """Versions, git revision of igrad and hardware; None for what cannot be told."""
    try:
        git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, text=True,
                             capture_output=True, check=True).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        git = None
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("igrad", "torch", "transformers", "numpy", "hydra-core"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {
        "versions": versions,
        "git": git,
        "hardware": {
            "machine": platform.machine(),
            "num_cpus": os.cpu_count(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        },
    }
