"""Run directories without training: the recorder itself writes them, so that their formats cannot drift apart."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from igrad import compose, launch, record
from igrad.compose import CONF, Point
from igrad.config import GROUPS, config_hash, plain
from igrad.interfaces import Payload, SyncStats, View
from igrad.metrics import PHASES, Window, whole_periods

STEPS, EVERY = 32, 16
VIEWS = [View(f"{layer}.{kind}", f"{layer}.{kind}", f"{layer}.{kind}", (8,)) for layer in "01" for kind in "qk"]
IMPORTANT = {"0.q", "0.k", "1.q"}
IMPORTANT_BYTES, LOW_BYTES, FLUSH_BYTES = 30_000, 60_000, 200_000


def loss(release_period: int, residual: str, seed: int, progress: float = 1.0) -> float:
    """Falls from 5.5; a longer period, no residual and a later seed cost a little."""
    cost = 0.02 * math.log2(release_period) * (seed - 41) ** 0.5 + 0.05 * (residual == "none") + 0.01 * (seed - 42)
    return 5.5 - progress * (2 - cost)


@dataclass(frozen=True)
class Truth:
    """What a run is made to say."""

    val_loss: float  # at the end
    important: frozenset[str] = frozenset(IMPORTANT)
    important_bytes: int = IMPORTANT_BYTES  # sent by every step
    views: tuple[View, ...] = tuple(VIEWS)
    tau: float = 0.5
    scores: dict[str, float] = field(default_factory=lambda: {"0.q": 1.0})
    profile: str | None = None
    balance: dict[str, Any] = field(default_factory=dict)  # of every step's buckets
    phases_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 1.0))  # per step
    step_ms: float = 6.0
    low_bytes: int = LOW_BYTES  # sent by a release
    flush_bytes: int = FLUSH_BYTES  # 0 = nothing is held back
    flush_gain: float = 0.0  # loss before the flush less the loss after it


def rq3(cfg: DictConfig) -> Truth:
    return Truth(loss(cfg.release_period, residual_of(cfg), cfg.seed))


def residual_of(cfg: DictConfig) -> str:
    return cfg.residual._target_.split(".")[-2]


CERTAIN = {"direct": 1.4, "sequential": 1.25, "greedy": 1.02, "risk_aware": 1.02, "overlap": 1.15}
VARYING = {"direct": 1.6, "sequential": 1.3, "greedy": 1.12, "risk_aware": 1.08, "overlap": 1.2}


def rq4(cfg: DictConfig) -> Truth:
    """Exchange time goes with the imbalance, overlap hides most of it, and nothing changes the loss."""
    sparsifier, packing = (cfg[group]._target_.split(".")[-2] for group in ("sparsifier", "packing"))
    imbalance = (CERTAIN if sparsifier == "topk" else VARYING)[packing] + 0.01 * (cfg.seed - 42)
    phases_ms = {"compute": 20.0, "select": 4.0, "pack": 1.0, "exchange": 8 * imbalance, "unpack": 2.0}
    if packing == "overlap":
        phases_ms |= {"exchange": 2 * imbalance, "pack": 2.0}
    buckets = {"bucket_imbalance": imbalance, "bucket_cv": (imbalance - 1) / 2,
               "num_overflows": (imbalance > 1.1) + (imbalance > 1.35)}  # fmt: skip
    return Truth(3.5 + 0.01 * (cfg.seed - 42) + 0.1 * (sparsifier == "topk"), balance=buckets, phases_ms=phases_ms,
                 step_ms=sum(phases_ms.values()) + 0.5)  # fmt: skip


# Loss, bytes per step, bytes of the flush.
METHODS = {
    "dense": (3.05, 1_700_000, 0), "bf16": (3.055, 850_000, 0), "powersgd": (3.3, 168_000, 0), "noop": (3.45, 0, 0),
    "never": (3.21, 0, 3_400_000), "alone": (3.46, 0, 0), "topk_sync": (3.37, 28_000, 3_400_000),
    "adtopk_sync": (3.75, 23_000, 0), "adtopk_sync_ef": (3.45, 23_000, 3_400_000),
    "iad_adtopk": (3.81, 20_000, 3_400_000), "ig_adtopk": (3.83, 13_000, 3_400_000),
    "ig_adtopk_ef": (3.5, 13_000, 3_400_000), "local_sgd": (3.15, 216_000, 0),
    "streaming_local": (3.16, 216_000, 3_400_000), "diloco": (3.02, 216_000, 0),
    "local_topk": (3.19, 3_400, 3_400_000), "ig_local": (3.3, 9_000, 3_400_000),
}  # fmt: skip
SETS = {"all": "0.q 0.k 1.q 1.k", "none": "", "knee": "0.q 0.k", "random": "0.q 1.q", "inverse": "1.q 1.k"}
SET_COST = {"knee": 0.0, "fixed_ratio": 0.01, "random": 0.02, "inverse": 0.03}


def rq5(cfg: DictConfig) -> Truth:
    """Half the bytes cost 0.02, half or twice the best rate 0.05, twice the steps gain 0.2; other important sets cost
    loss and save nothing.
    """
    loss, num_bytes, flush_bytes = METHODS[cfg.method]
    threshold = cfg.threshold._target_.split(".")[-2]
    usual = 4 if "ig_adtopk" in cfg.method else 8
    less = cfg.release_period / usual if "local" in cfg.method or "ig_" in cfg.method else 0.01 / cfg.density
    less *= 4 / cfg.synchronizer.get("rank", 4)
    rate = cfg.learning_rate * cfg.learning_rate_factor
    rate_cost = 0.05 * abs(math.log2(rate / (3e-3 if flush_bytes == 0 else 6e-3)))
    loss += 0.02 * math.log2(less) + SET_COST.get(threshold, 0) + rate_cost + 0.01 * (cfg.seed - 42)
    loss += 0.002 * (cfg.seed - 42) * (cfg.method == "adtopk_sync") - 0.05 * math.log2(cfg.num_processes)
    loss -= 0.2 * math.log2(cfg.steps / STEPS)
    loss += 0.003 * (cfg.seed - 42) * (threshold in ("random", "inverse"))
    phases_ms = {"compute": 20.0, "select": 4.0 * (flush_bytes > 0), "pack": 1.0, "exchange": 1 + num_bytes / 2e5}
    phases_ms |= {"unpack": 1.0}
    return Truth(loss, frozenset(SETS.get(threshold, "0.q").split()), important_bytes=round(num_bytes / less),
                 phases_ms=phases_ms, step_ms=sum(phases_ms.values()) + 0.5, low_bytes=0, flush_bytes=flush_bytes,
                 flush_gain=0.2 * (cfg.method == "never"))  # fmt: skip


AXES: dict[str, dict[str, list]] = {
    "rq1": {"steps": [0], "workload": ["pubmed", "wiki", "instruct"], "seed": [42, 43]},
    "rq2": {"threshold": ["all", "knee", "otsu", "kmeans", "random", "inverse"], "seed": [42, 43, 44]},
    "rq3": {"release_period": [1, 2, 4, 8, 16], "residual": ["full", "none"], "seed": [42, 43]},
    "rq4": {"packing": list(CERTAIN), "sparsifier": ["topk", "threshold"], "seed": [42, 43]},
    "rq5": {"method": list(METHODS), "seed": [42, 43]},
    "rq5_lr": {"method": list(METHODS), "learning_rate": [1e-3, 3e-3, 6e-3], "seed": [7]},
    "rq5_frontier": {"seed": [42, 43]},
    "rq5_scale": {"method": ["dense", "never", "topk_sync", "ig_adtopk_ef", "local_sgd"], "num_processes": [2, 4, 8],
                  "split": ["shuffled", "by_rank"], "seed": [42]},
    "rq5_target": {"method": ["dense", "never", "topk_sync", "ig_adtopk_ef", "local_sgd"], "steps": [32, 48, 64],
                   "seed": [42, 43]},
}  # fmt: skip

# Studies of several sweeps.
SWEEPS: dict[str, list[dict[str, list]]] = {
    "rq5_frontier": [
        {"method": ["dense", "bf16", "never", "adtopk_sync", "adtopk_sync_ef"]},
        {"method": ["topk_sync"], "density": [0.001, 0.0025, 0.005, 0.01, 0.02]},
        {"method": ["powersgd"], "synchronizer.rank": [1, 2, 4, 8]},
        {"method": ["local_sgd", "local_topk"], "release_period": [4, 8, 16, 32]},
        {"method": ["ig_adtopk_ef", "ig_local"], "threshold": ["knee", "random", "inverse"],
         "release_period": [4, 8, 16]},
        {"method": ["ig_adtopk", "ig_adtopk_ef"], "threshold": ["fixed_ratio"], "threshold.ratio": [0.05, 0.2],
         "components.embeddings": [True], "release_period": [8, 16]},
    ]
}  # fmt: skip

FIXED = ("study=rq3", f"steps={STEPS}", f"eval_every={EVERY}", f"log_every={EVERY}", "tracking=none")


@functools.cache
def base() -> DictConfig:
    """The config that every point varies."""
    [point] = compose.points(list(FIXED))
    return point.cfg


@functools.cache
def methods() -> dict[str, DictConfig]:
    """The same of each method, at the usual learning rate."""
    argv = [*FIXED, f"+method={','.join(METHODS)}", "learning_rate_factor=1", "-m"]
    return {point.cfg.method: point.cfg for point in compose.points(argv)}


def points(study: str = "rq3", **knobs: list) -> list[Point]:
    """A sweep's points, as `python run.py study=rq3 … -m` composes them."""
    axes = {**AXES[study], **knobs}
    combinations: list[dict] = [{}]
    for name, values in axes.items():
        combinations = [{**each, name: value} for each in combinations for value in values]
    sweep = []
    for chosen in combinations:
        cfg = (methods()[chosen["method"]] if "method" in chosen else base()).copy()
        cfg.study = study
        for name, value in chosen.items():
            told = OmegaConf.load(CONF / name / f"{value}.yaml") if name in GROUPS else value
            OmegaConf.update(cfg, name, told, merge=False)
        OmegaConf.resolve(cfg)  # once: every hash would do so anew
        sweep.append(Point([*FIXED, *(f"{name}={value}" for name, value in chosen.items())], cfg))
    return sweep


def write_sweep(sweep: list[Point], but: int = 0, truth: Callable[[DictConfig], Truth] = rq3) -> None:
    """The manifest, and the runs but the last few, under ./outputs."""
    launch.write_manifests(sweep, f"python run.py +rq={sweep[0].cfg.study} -m", [])
    told = functools.cache(record.provenance)  # asks git each time
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record, "provenance", told)
            for point in sweep[: len(sweep) - but]:
                directory = point.directory
                if not directory.exists():  # of another sweep, finished
                    write_run(point.cfg, directory, truth(point.cfg))
    finally:
        dist.destroy_process_group()


def write_run(cfg: DictConfig, directory: Path, truth: Truth) -> None:
    directory.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(plain(cfg)), directory / "config.yaml")
    residual, log_every = residual_of(cfg), whole_periods(EVERY, cfg.release_period)

    def evaluation(step: int, gain: float = 0.0) -> dict[str, float]:
        value = 5.5 - min(1.0, step / max(1, cfg.steps)) ** 0.5 * (5.5 - truth.val_loss - truth.flush_gain) - gain
        return {"val_loss": value, "val_ppl": math.exp(value), "val_accuracy": 1 / value}

    def held(view: View) -> Tensor | None:
        return None if residual == "none" else torch.ones(view.numel)

    run = SimpleNamespace(
        cfg=cfg, directory=directory, rank=0, num_ranks=1, device=torch.device("cpu"), started=time.time(),
        tau=truth.tau, scores=truth.scores, inputs=SimpleNamespace(profile=truth.profile, trace_to=None),
        components=SimpleNamespace(
            views=truth.views, components=[view.name for view in truth.views], share=1.0, describe=lambda: "all mapped"
        ),
        important=truth.important, parameters=dict.fromkeys(truth.views), synchronizer=SimpleNamespace(pending=held),
        timer=SimpleNamespace(drain=lambda: {phase: ms * log_every for phase, ms in truth.phases_ms.items()}),
        learning_rate=cfg.learning_rate,
    )  # fmt: skip
    recorder = record.Recorder(run, 0)
    recorder.write(step=0, **evaluation(0))
    window = Window()
    for step in range(cfg.steps):
        releases = (step + 1) % cfg.release_period == 0
        sent = [view for view in truth.views if releases or view.name in truth.important]
        payloads = tuple(Payload(v.name, 0, v.numel, torch.ones(2), torch.arange(2)) for v in sent)
        stats = SyncStats(
            payload_bytes=sum(payload.bytes for payload in payloads),
            wire_bytes=truth.important_bytes + truth.low_bytes * releases,
            num_released=int(releases),
            deferred=frozenset(view.name for view in truth.views) - {view.name for view in sent},
            payloads=payloads,
            **truth.balance,
        )
        window.add(torch.tensor(4.0), stats)
        recorder.step(stats, step)
        if (step + 1) % log_every == 0:
            window.started = time.perf_counter() - log_every * truth.step_ms / 1e3
            recorder.close(window, step + 1, lambda done=step + 1: evaluation(done))
            window = Window()
    if residual != "none" and cfg.steps and truth.flush_bytes:
        recorder.flushed(SyncStats(wire_bytes=truth.flush_bytes), evaluation(cfg.steps, truth.flush_gain))
    recorder.finish()


def fail(point: Point, error: str) -> None:
    """What the launcher leaves of a run that failed."""
    launch.failed(point.directory, config_hash(point.cfg), error)


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def complete(factory: pytest.TempPathFactory, study: str = "rq3", truth: Callable[[DictConfig], Truth] = rq3) -> Path:
    """outputs/ with one complete sweep, written once per session, study and truth: not to be changed."""
    folder = factory.getbasetemp() / f"complete-{study}-{truth.__name__}"
    if folder.exists():
        return folder / "outputs"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for knobs in SWEEPS.get(study, [{}]):
            write_sweep(points(study, **knobs), truth=truth)
    return folder / "outputs"
