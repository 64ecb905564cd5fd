"""Sweeps of RQ1 and RQ2 with a known answer: an effect that is there, and one that is not."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from igrad import profile
from igrad.config import build, digest, plain
from igrad.interfaces import View
from igrad.trace import Trace
from tests.analysis import synthetic
from tests.analysis.synthetic import Truth

KINDS = ("q", "k", "v", "o", "fc1", "fc2")
COMPONENTS = [f"{layer}.{kind}" for layer in range(4) for kind in KINDS]
COMPONENT_VIEWS = tuple(View(name, name, name, (8,)) for name in COMPONENTS)
WORKLOADS = ("pubmed", "wiki", "instruct")


# ----------------------------------------------------------------------------------------------------- RQ1


def workload_effect(cfg: DictConfig) -> Truth:
    """Each workload has important components of its own; seeds add 1 % of noise."""
    return profiled(cfg, shuffled_by=WORKLOADS.index(workload_of(cfg)), noise=0.01)


def no_workload_effect(cfg: DictConfig) -> Truth:
    """One order for all workloads; the noise is as large for another seed as for another workload."""
    return profiled(cfg, shuffled_by=0, noise=0.3)


def workload_of(cfg: DictConfig) -> str:
    return cfg.workload._target_.split(".")[-2]


def profiled(cfg: DictConfig, shuffled_by: int, noise: float) -> Truth:
    """A profile in ./outputs/profiles, and what a run makes of it."""
    rng = np.random.default_rng(int(digest(plain(cfg)), 16))
    level = np.random.default_rng(shuffled_by).permutation(0.8 ** np.arange(len(COMPONENTS)))
    activity = level * np.exp(noise * rng.normal(size=len(COMPONENTS)) + 0.02 * rng.normal(size=(20, len(COMPONENTS))))
    path = Path("outputs/profiles") / f"{digest(plain(cfg))}.parquet"
    os.makedirs(path.parent, exist_ok=True)
    trace = Trace(steps=list(range(20)), numel=dict.fromkeys(COMPONENTS, 8))
    profile.save(path, trace, {"retained": activity, "gradient": 2 * activity, "saliency": activity**2}, {})
    scores = profile.scores(path, build(cfg.importance), trace.numel)
    tau, important = profile.important_set(scores, build(cfg.threshold))
    return Truth(5.5, important, views=COMPONENT_VIEWS, tau=tau, scores=scores, profile=str(path))


# ----------------------------------------------------------------------------------------------------- RQ2

SETS = {"all": "0.q 0.k 1.q 1.k", "knee": "0.q 1.k", "otsu": "0.q", "random": "1.q 0.k", "inverse": "1.q 1.k"}
COST = {"all": -0.1, "otsu": 0.02, "random": 0.05, "inverse": 0.08}
JITTER = {"knee": (0.0, 0.004, -0.002), "random": (0.001, 0.003, -0.005), "inverse": (0.002, 0.0, -0.001)}


def threshold_of(cfg: DictConfig) -> str:
    return cfg.threshold._target_.split(".")[-2]


def worse_controls(cfg: DictConfig) -> Truth:
    """Both controls cost more than knee, by much more than seeds vary."""
    option = threshold_of(cfg)
    jitter = JITTER.get(option, (0.0, 0.0, 0.0))[cfg.seed % 3]
    important = frozenset(SETS.get(option, "0.q").split())
    tau = -np.inf if option == "all" else 0.5
    loss = 3.5 + COST.get(option, 0.0) + 0.01 * (cfg.seed - 42) + jitter
    return Truth(loss, important, important_bytes=15_000 * len(important), tau=tau)


# What the sample of each study says; every study has one.
TRUTHS = {
    "rq1": workload_effect, "rq2": worse_controls, "rq3": synthetic.rq3, "rq4": synthetic.rq4,
    **dict.fromkeys(("rq5", "rq5_lr", "rq5_frontier", "rq5_scale", "rq5_target"), synthetic.rq5),
}  # fmt: skip
