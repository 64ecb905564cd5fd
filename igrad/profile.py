"""Which components matter: scores from a short profiling run, made once and kept in a parquet file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from omegaconf import DictConfig, OmegaConf

from igrad.config import build, digest, plain
from igrad.data import Inputs

PROFILES = Path("outputs/profiles")

# What decides a profile. Residual, release, packing and deferral do not: a profiling run delays nothing.
KEYS = (
    "model", "workload", "sparsifier", "importance", "optimizer", "components", "seed", "batch_size", "micro_batches",
    "sequence_length", "learning_rate", "warmup_fraction", "max_grad_norm", "clip", "precision", "num_processes",
    "profile_window",
)  # fmt: skip


def wanted(cfg: DictConfig) -> bool:
    """Whether a run looks at importance at all."""
    return build(cfg.threshold).needs_scores and build(cfg.synchronizer).uses_importance


def profiling(cfg: DictConfig) -> DictConfig:
    """The ordinary run that a profile is made by: everything is synchronised, nothing is remembered."""
    run = copy.deepcopy(cfg)
    run.threshold = {"_target_": "igrad.threshold.all.All"}
    run.residual = {"_target_": "igrad.residual.none.NoResidual"}
    run.tracking = {"_target_": "igrad.tracking.none.NoTracking"}
    run.release_period = 1
    run.steps = cfg.profile_window[1]
    run.eval_every = run.steps
    run.checkpoint_every = None
    return run


def resolve(cfg: DictConfig, inputs: Inputs, run_ranks: Callable[[DictConfig, Path, Inputs], None]) -> str | None:
    """The profile file of a run, profiling first where there is none; None where the run looks at none.

    Two jobs started together profile once: the second waits for the first one's file.
    """
    if not wanted(cfg):
        return None
    if cfg.profile != "auto":
        return cfg.profile
    key = digest({name: plain(cfg)[name] for name in KEYS})
    path = PROFILES / f"{key}.parquet"
    PROFILES.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            run_ranks(profiling(cfg), PROFILES / key, replace(inputs, score_to=str(path)))
    return str(path)


def save(path: Path, scores: dict[str, float], numel: dict[str, int], provenance: dict[str, Any]) -> None:
    """One row per component; how it came about is kept as json in the file's metadata."""
    table = pa.table(
        {
            "component": list(scores),
            "numel": [numel[name] for name in scores],
            "score": pa.array(list(scores.values()), pa.float64()),
        }
    ).replace_schema_metadata({"igrad": json.dumps(provenance, default=str)})
    temporary = path.with_suffix(".tmp")
    pq.write_table(table, temporary)
    temporary.rename(path)


def load(path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """(rows with component, numel, score; provenance). ValueError where the file is missing or something else."""
    if not Path(path).is_file():
        raise ValueError(f"profile '{path}' does not exist; profile=auto makes one")
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid:
        raise ValueError(f"profile '{path}' is not a parquet file; profile=auto makes one") from None
    missing = {"component", "numel", "score"} - set(table.column_names)
    if missing:
        raise ValueError(f"profile '{path}' lacks the column {sorted(missing)[0]}; profile=auto makes one")
    provenance = json.loads((table.schema.metadata or {}).get(b"igrad", b"{}"))
    return table.to_pandas(), provenance


def important_set(path: str | Path, threshold: Any, numel: dict[str, int]) -> tuple[float, frozenset[str]]:
    """(tau, important components) of a profile under a threshold policy.

    ValueError where the profile's components are not the model's (`numel`: component -> elements).
    """
    rows, _ = load(path)
    profiled = dict(zip(rows["component"], rows["numel"].astype(int), strict=True))
    if profiled != numel:
        names = sorted(set(numel) ^ set(profiled)) or sorted(n for n in numel if numel[n] != profiled[n])
        first = names[0]
        raise ValueError(
            f"profile '{path}' does not match the model: {len(names)} components differ, first '{first}' "
            f"({profiled.get(first, 'no')} elements in the profile, {numel.get(first, 'no')} in the model); "
            "profile=auto makes one that does"
        )
    scores = rows["score"].to_numpy(np.float64)
    if not np.isfinite(scores).all():
        bad = rows[~np.isfinite(scores)].iloc[0]
        raise ValueError(f"profile '{path}': scores must be finite, got {bad.score} for {bad.component}; profile again")
    tau, important = threshold(scores, list(rows["component"]))
    return tau, frozenset(rows["component"][important])


def provenance(cfg: DictConfig) -> dict[str, Any]:
    container = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(container, dict)
    return {name: container[name] for name in KEYS}
