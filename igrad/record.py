"""What a run leaves behind: metrics.jsonl, components.parquet, summary.json, the tracker, and the terminal."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from tqdm import tqdm

from igrad.config import build, config_hash, plain
from igrad.interfaces import SyncStats
from igrad.metrics import ComponentTrace, MetricsFile, Window, means

if TYPE_CHECKING:
    from igrad.train import Run


class Recorder:
    """Called by every rank alike (it averages over them); rank 0 writes and shows."""

    def __init__(self, run: Run, first: int = 0, totals: dict[str, float] | None = None) -> None:
        """`first`: optimizer steps already done by a run that goes on, with its totals up to there."""
        cfg = run.cfg
        self.run, self.leads = run, run.rank == 0
        self.tokens_per_step = cfg.batch_size * cfg.micro_batches * cfg.sequence_length * run.num_ranks
        none_yet = {"seconds": 0.0, "wire_bytes": 0, "payload_bytes": 0, "num_dropped_steps": 0, "tokens": 0}
        self.totals = dict(totals or none_yet)
        self.startup_s = time.time() - run.started
        self.achieved_density = 0.0
        path = run.directory / "components.parquet" if self.leads else None
        self.components = ComponentTrace(run.components.views, path, first)
        if not self.leads:
            return
        self.file = MetricsFile(run.directory / "metrics.jsonl", keep_until_step=first or -1)
        self.tracker = build(cfg.tracking)
        self.tracker.start(plain(cfg), run.directory)
        self.bar = tqdm(total=cfg.steps, initial=first, unit="step", desc=run.directory.name[:40], dynamic_ncols=True,
                        leave=True, disable=not sys.stderr.isatty())  # fmt: skip

    def write(self, **row: Any) -> None:
        """One row of metrics.jsonl, the tracker and the terminal."""
        if not self.leads:
            return
        row = self.file.write({"seconds": self.totals["seconds"], "total_wire_bytes": self.totals["wire_bytes"], **row})
        self.tracker.log({name: value for name, value in row.items() if value is not None})
        shown = {
            "loss": row["train_loss"] and f"{row['train_loss']:.3f}",
            "val": row["val_loss"] and f"{row['val_loss']:.3f}",
            "kB/step": row["wire_bytes"] and f"{row['wire_bytes'] / 1e3:.1f}",
        }
        shown = {name: value for name, value in shown.items() if value}
        if self.bar.disable:
            words = " ".join(f"{name} {value}" for name, value in shown.items())
            print(f"  step {row['step']}/{self.run.cfg.steps} {words}", flush=True)
        else:
            self.bar.set_postfix(shown, refresh=False)
            self.bar.update(min(row["step"], self.run.cfg.steps) - self.bar.n)

    def close(self, window: Window, stats: SyncStats, step: int, evaluate: Callable[[], dict[str, float]]) -> None:
        """End a window whose last step was `stats`; `evaluate` runs off the clock."""
        phases_ms = self.run.timer.drain()
        seconds = time.perf_counter() - window.started
        whole = len(window.stats) % self.run.cfg.release_period == 0
        rates = window.rates(seconds, phases_ms, self.tokens_per_step) if whole else {}
        self.totals["seconds"] += seconds
        self.totals["tokens"] += self.tokens_per_step * len(window.stats)
        self.totals["wire_bytes"] += sum(s.wire_bytes for s in window.stats)
        self.totals["payload_bytes"] += sum(s.payload_bytes for s in window.stats)
        self.totals["num_dropped_steps"] += sum(int(s.dropped) for s in window.stats if s.dropped is not None)
        if not stats.deferred:
            entries = sum(payload.values.numel() for payload in stats.payloads)
            self.achieved_density = entries / sum(view.numel for view in self.run.parameters)
        loss = torch.stack(window.losses).mean()
        dist.all_reduce(loss)
        pending = {view: self.run.synchronizer.pending(view) for view in self.run.parameters}
        norms = {view: float(held.norm()) for view, held in pending.items() if held is not None}
        self.components.close(step, stats.payloads, norms)
        evaluation = evaluate()
        if evaluation:
            self.components.write()
        self.write(
            step=step,
            train_loss=loss.item() / self.run.num_ranks,
            learning_rate=self.run.optimizer.param_groups[0]["lr"],
            residual_norm=sum(norm**2 for norm in norms.values()) ** 0.5,
            num_dropped_steps=self.totals["num_dropped_steps"],
            **rates,
            **evaluation,
        )

    def finish(self, flushed: SyncStats | None, evaluation: dict[str, float]) -> None:
        """The last row, after the flush, and the summary."""
        totals = {**self.totals, "flush_wire_bytes": flushed.wire_bytes if flushed else 0}
        self.totals["wire_bytes"] += totals["flush_wire_bytes"]
        self.write(step=self.run.cfg.steps + (flushed is not None), **evaluation)
        if not self.leads:
            return
        self.bar.close()
        self.components.write()
        cfg, rows = self.run.cfg, self.file.rows
        evaluated = [row for row in rows if row["val_loss"] is not None]
        quality = ("step", "val_loss", "val_ppl", "val_accuracy")
        pick = {
            "initial": evaluated[0],
            "final": evaluated[-1],
            "best": min(evaluated, key=lambda row: row["val_loss"]),
        }
        summary = {
            "status": "finished",
            "error": None,
            **{when: {name: row[name] for name in quality} for when, row in pick.items()},
            "means": means(rows),
            "totals": totals,
            "tau": self.run.tau,
            "important": [name for name in self.run.components.components if name in self.run.important],
            "low": [name for name in self.run.components.components if name not in self.run.important],
            "profile": self.run.inputs.profile,
            "scores": self.run.scores,
            "mapped_share": self.run.components.share,
            "achieved_density": self.achieved_density,
            "config_hash": config_hash(cfg),
            "startup_s": self.startup_s,
            **provenance(self.run.device),
        }
        path = self.run.directory / "summary.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(summary, indent=1))
        temporary.rename(path)
        self.tracker.finish(summary)


def provenance(device: torch.device) -> dict[str, Any]:
    """Versions, git revision and hardware."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    packages = ("igrad", "torch", "transformers", "numpy", "hydra-core")
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "git": git.stdout.strip() or None,
        "hardware": {
            "machine": platform.machine(),
            "num_cpus": os.cpu_count(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        },
    }
