"""The root schema, and the checks that turn a mistake into one clear line before anything starts."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import MISSING, DictConfig, OmegaConf

GROUPS = (
    "model", "workload", "sparsifier", "importance", "threshold", "residual", "release", "packing",
    "collective", "deferral", "synchronizer", "optimizer", "tracking", "cluster",
)  # fmt: skip

# Keys that change neither a number of the result nor what may be compared with it.
NOT_IDENTITY = ("tracking", "rerun", "study", "cluster", "checkpoint_every")


@dataclass
class Components:
    embeddings: bool = MISSING


@dataclass
class Config:
    """Types of conf/config.yaml; the values and what they mean stand there."""

    model: Any = MISSING
    workload: Any = MISSING
    sparsifier: Any = MISSING
    importance: Any = MISSING
    threshold: Any = MISSING
    residual: Any = MISSING
    release: Any = MISSING
    packing: Any = MISSING
    collective: Any = MISSING
    deferral: Any = MISSING
    synchronizer: Any = MISSING
    optimizer: Any = MISSING
    tracking: Any = MISSING
    cluster: Any = MISSING

    seed: int = MISSING
    steps: int = MISSING
    batch_size: int = MISSING
    micro_batches: int = MISSING
    sequence_length: int = MISSING
    learning_rate: float = MISSING
    warmup_fraction: float = MISSING
    max_grad_norm: float | None = MISSING
    clip: str = MISSING
    precision: str = MISSING
    eval_every: int = MISSING
    eval_windows: int = MISSING
    log_every: int = MISSING
    checkpoint_every: int | None = MISSING
    num_processes: int = MISSING

    density: float = MISSING
    release_period: int = MISSING
    release_fraction: float | None = MISSING
    num_buckets: int = MISSING
    components: Components = field(default_factory=Components)

    study: str = MISSING
    profile: str = MISSING
    profile_window: list[int] = MISSING
    rerun: bool = MISSING


ConfigStore.instance().store(name="schema", node=Config)


def did_you_mean(word: str, known: list[str] | tuple[str, ...]) -> str:
    """`; did you mean 'x'?` where a known word is close, the known words otherwise."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(sorted(known))}"


def check(cfg: DictConfig) -> None:
    """Everything that can be said of a config without touching a model or a dataset. ValueError in one line."""
    at_least_one = ("steps", "batch_size", "micro_batches", "num_processes", "release_period", "num_buckets",
                    "eval_every", "eval_windows", "log_every", "checkpoint_every")  # fmt: skip
    for key in at_least_one:
        if cfg[key] is not None and cfg[key] < 1:
            raise ValueError(f"{key} must be at least 1, got {cfg[key]}")
    if cfg.sequence_length < 2:
        raise ValueError(f"sequence_length must be at least 2, got {cfg.sequence_length}")
    for key in ("density", "release_fraction"):
        if cfg[key] is not None and not 0 < cfg[key] <= 1:
            raise ValueError(f"{key} must be in (0, 1], got {cfg[key]}")
    if not 0 <= cfg.warmup_fraction < 1:
        raise ValueError(f"warmup_fraction must be in [0, 1), got {cfg.warmup_fraction}")
    for key in ("learning_rate", "max_grad_norm"):
        if cfg[key] is not None and not cfg[key] > 0:
            raise ValueError(f"{key} must be above 0, got {cfg[key]}")
    for key, options in (("precision", ("fp32", "bf16")), ("clip", ("global", "local"))):
        if cfg[key] not in options:
            raise ValueError(f"{key} must be one of {', '.join(options)}, got '{cfg[key]}'")
    window = cfg.profile_window
    if len(window) != 2 or not 0 <= window[0] < window[1]:
        raise ValueError(f"profile_window must be [first, last) with 0 <= first < last, got {list(window)}")
    for group in GROUPS:
        check_node(group, cfg[group])


def check_node(key: str, node: Any) -> None:
    """A `_target_` node has no key that its class lacks, and the class accepts the values."""
    if not OmegaConf.is_dict(node):
        return
    if "_target_" in node:
        known = list(inspect.signature(get_object(node._target_)).parameters)
        for name in node:
            if not str(name).startswith("_") and name not in known:
                raise ValueError(f"unknown key '{key}.{name}'{did_you_mean(str(name), known)}")
        build(node, key)
    for name in node:
        check_node(f"{key}.{name}", node[name])


def build(node: DictConfig, key: str = "") -> Any:
    """Instantiate a node; the ValueError or TypeError of its class comes through as it was raised."""
    try:
        return instantiate(node, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, (ValueError, TypeError)):
            raise ValueError(f"{key}: {cause}" if key else str(cause)) from error
        raise


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Resolved, as plain containers; a missing value is an error."""
    container = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def digest(value: Any) -> str:
    """Eight hex digits of a JSON-able value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]


def config_hash(cfg: DictConfig) -> str:
    """Identity of a run: equal hashes mean equal numbers, up to the machine."""
    return digest({key: value for key, value in plain(cfg).items() if key not in NOT_IDENTITY})
