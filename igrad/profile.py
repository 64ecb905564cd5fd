"""Which components matter: the trace of a short profiling run, made once and kept in a parquet file.

Scores and thresholds are worked out from the file, so one profile serves all of them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock
from omegaconf import DictConfig

from igrad.config import build, contents, digest, plain
from igrad.data import Inputs
from igrad.files import write_whole
from igrad.interfaces import ImportanceScore, ThresholdPolicy
from igrad.profile_file import load
from igrad.trace import Trace

PROFILES = Path("outputs/profiles")

# What decides a profile. Score and threshold are worked out later; residual, release, packing and deferral do not
# matter either, since a profiling run delays nothing.
KEYS = (
    "model", "workload", "sparsifier", "optimizer", "components", "seed", "batch_size", "micro_batches",
    "sequence_length", "split", "learning_rate", "learning_rate_factor", "warmup_fraction", "max_grad_norm", "clip",
    "precision", "num_processes", "profile_window",
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
    run.collective = {
        "_target_": "igrad.collective.allgather.AllGather",
        "value_codec": {"_target_": "igrad.value_codec.fp32.FP32"},
        "index_codec": {"_target_": "igrad.index_codec.int32.Int32"},
    }
    run.deferral = {"_target_": "igrad.deferral.zeros.Zeros"}
    run.block_numel = None  # the trace wants each view in one piece
    run.release_period = 1
    run.steps = cfg.profile_window[1]
    run.eval_every = run.steps
    run.checkpoint_every = None
    return run


def check(cfg: DictConfig, inputs: Inputs) -> None:
    """A profile that a run names must fit its model. ValueError, before any process is started."""
    if cfg.profile == "auto" or not wanted(cfg):
        return
    load(cfg.profile)  # before the seconds that transformers takes to import

    from igrad.components import map_components
    from igrad.model import skeleton

    found = map_components(skeleton(inputs.model), cfg.model.get("patterns"), cfg.components.embeddings)
    important_set(scores(cfg.profile, build(cfg.importance), found.numel), build(cfg.threshold))


def resolve(cfg: DictConfig, inputs: Inputs, run_ranks: Callable[[DictConfig, Path, Inputs], None]) -> str | None:
    """The profile file of a run, profiling first where there is none; None where the run looks at none.

    Two jobs started together profile once: the second waits for the first one's file.
    """
    if not wanted(cfg):
        return None
    if cfg.profile != "auto":
        return cfg.profile
    decides = {name: contents(name, value) for name, value in provenance(cfg).items()}
    key = digest([decides, Path(inputs.model).name])  # a hub's revision too
    path = PROFILES / f"{key}.parquet"
    PROFILES.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not whole(path):
            print(f"  profiling for {cfg.profile_window[1]} steps, once: {path}", flush=True)
            run_ranks(profiling(cfg), PROFILES / key, replace(inputs, trace_to=str(path)))
    return str(path)


def whole(path: Path) -> bool:
    """Whether a cached profile is there and can be read."""
    try:
        load(path)
    except ValueError:
        return False
    return True


def save(path: Path, trace: Trace, measures: dict[str, np.ndarray], provenance: dict[str, Any]) -> None:
    """One row per step and component; how it came about is kept as json in the file's metadata."""
    num_steps, names = len(trace.steps), list(trace.numel)
    table = pa.table(
        {
            "step": np.repeat(np.array(trace.steps, dtype=np.int64), len(names)),
            "component": names * num_steps,
            "numel": list(trace.numel.values()) * num_steps,
            **{measure: values.reshape(-1) for measure, values in measures.items()},
        }
    ).replace_schema_metadata({"igrad": json.dumps(provenance, default=str)})
    write_whole(path, partial(pq.write_table, table))


def scores(path: str | Path, score: ImportanceScore, numel: dict[str, int]) -> dict[str, float]:
    """Component -> score, from a profile file.

    ValueError where the profile's components are not the model's (`numel`: component -> elements) or a score is not
    finite.
    """
    trace, profiled, _ = load(path)
    if profiled != numel:
        names = sorted(set(numel) ^ set(profiled)) or sorted(n for n in numel if numel[n] != profiled[n])
        first = names[0]
        raise ValueError(
            f"profile '{path}' does not match the model: {len(names)} components differ, first '{first}' "
            f"({profiled.get(first, 'no')} elements in the profile, {numel.get(first, 'no')} in the model); "
            "profile=auto makes one that does"
        )
    found = dict(zip(profiled, score(trace).tolist(), strict=True))
    for name, value in found.items():
        if not np.isfinite(value):
            raise ValueError(f"profile '{path}': scores must be finite, got {value} for {name}; profile again")
    return found


def important_set(scores: dict[str, float], threshold: ThresholdPolicy) -> tuple[float, frozenset[str | None]]:
    """(tau, important components) of scores under a threshold policy; None stands for what is of no component."""
    tau, important = threshold(np.array(list(scores.values())), list(scores))
    others = [None] if tau < np.inf else []
    return tau, frozenset([*others, *(name for name, chosen in zip(scores, important, strict=True) if chosen)])


def provenance(cfg: DictConfig) -> dict[str, Any]:
    """What decided a profile."""
    told = plain(cfg)
    return {name: told[name] for name in KEYS}
