"""The root schema, and the checks that turn a mistake into one clear line before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import importlib
import inspect
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

CONF = Path(__file__).resolve().parents[1] / "conf"

GROUPS = (
    "model", "workload", "sparsifier", "importance", "threshold", "residual", "release", "packing",
    "collective", "value_codec", "index_codec", "deferral", "synchronizer", "optimizer", "tracking", "cluster",
)  # fmt: skip

DELTAS = ("rq", "scale", "method")  # groups that start empty: `+rq=...`
LEAST_BLOCK = 1024  # elements; a model has a few hundred blocks then, or planning takes longer than training
SEE_HELP = "; see python run.py --help"

# Keys that change neither a number of the result nor what may be compared with it.
NOT_IDENTITY = ("tracking", "rerun", "study", "cluster", "checkpoint_every", "method")


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
    value_codec: Any = MISSING
    index_codec: Any = MISSING
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
    split: str = MISSING
    learning_rate: float = MISSING
    learning_rate_factor: float = MISSING
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
    block_numel: int | None = MISSING
    components: Components = field(default_factory=Components)

    method: str | None = MISSING
    study: str = MISSING
    profile: str = MISSING
    profile_window: list[int] = MISSING
    rerun: bool = MISSING


ConfigStore.instance().store(name="schema", node=Config)


KNOBS = tuple(f.name for f in dataclasses.fields(Config))


def did_you_mean(word: str, known: typing.Iterable[str], otherwise: str = "", parent: str = "") -> str:
    """`; did you mean 'parent.x'?` where a known word is close; else `otherwise`, by default the known words."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean '{parent and parent + '.'}{close[0]}'?"
    return otherwise or f"; known: {', '.join(known)}"


def check(cfg: DictConfig) -> None:
    """Everything that can be said of a config without touching a model or a dataset. ValueError in one line."""
    for key in cfg:  # `+key=value` on the command line goes past the schema
        if key not in KNOBS:
            raise ValueError(f"unknown key '{key}'{did_you_mean(str(key), (*KNOBS, *DELTAS), SEE_HELP)}")
    plain(cfg)
    if cfg.steps < 0:
        raise ValueError(f"steps must be at least 0 (profile and evaluate only), got {cfg.steps}")
    at_least_one = ("batch_size", "micro_batches", "num_processes", "release_period", "num_buckets",
                    "eval_every", "eval_windows", "log_every", "checkpoint_every")  # fmt: skip
    for key in at_least_one:
        if cfg[key] is not None and cfg[key] < 1:
            raise ValueError(f"{key} must be at least 1, got {cfg[key]}")
    if cfg.block_numel is not None and cfg.block_numel < LEAST_BLOCK:
        raise ValueError(
            f"block_numel must be at least {LEAST_BLOCK} or null, got {cfg.block_numel}: planning costs more"
        )
    if cfg.sequence_length < 2:
        raise ValueError(f"sequence_length must be at least 2, got {cfg.sequence_length}")
    if cfg.seed < 0:
        raise ValueError(f"seed must be at least 0, got {cfg.seed}")
    for key in ("density", "release_fraction"):
        if cfg[key] is not None and not 0 < cfg[key] <= 1:
            raise ValueError(f"{key} must be in (0, 1], got {cfg[key]}")
    if not 0 <= cfg.warmup_fraction < 1:
        raise ValueError(f"warmup_fraction must be in [0, 1), got {cfg.warmup_fraction}")
    for key in ("learning_rate", "learning_rate_factor", "max_grad_norm"):
        if cfg[key] is not None and not 0 < cfg[key] < float("inf"):
            raise ValueError(f"{key} must be above 0 and finite, got {cfg[key]}")
    words = {"split": ("shuffled", "by_rank"), "precision": ("fp32", "bf16"), "clip": ("global", "local")}
    for key, options in words.items():
        if cfg[key] not in options:
            raise ValueError(f"{key} must be one of {', '.join(options)}, got '{cfg[key]}'")
    fields = [each.name for each in dataclasses.fields(Components)]
    for name in cfg.components:
        if name not in fields:
            raise ValueError(f"unknown key 'components.{name}'{did_you_mean(str(name), fields)}")
    window = cfg.profile_window
    if len(window) != 2 or not 0 <= window[0] < window[1]:
        raise ValueError(f"profile_window must be [first, last) with 0 <= first < last, got {list(window)}")
    if not cfg.study or set(cfg.study) & set("/\\") or cfg.study.startswith("."):
        raise ValueError(f"study must be a plain folder name, got '{cfg.study}'")
    if cfg.profile != "auto" and not Path(cfg.profile).is_file():
        raise ValueError(f"profile must be 'auto' or a .parquet file, found no file '{cfg.profile}'")
    for group in GROUPS:
        if not OmegaConf.is_dict(cfg[group]):
            raise ValueError(f"{group} must be an option of the group, got {cfg[group]!r}{SEE_HELP}")
        check_node(group, cfg[group])
    check_optimizer(cfg.optimizer)
    if cfg.clip == "local" and build(cfg.synchronizer).overlaps:
        raise ValueError(
            "clip must be global where packing overlaps the backward pass, got local: that needs every gradient first"
        )


def check_node(key: str, node: Any) -> None:
    """A `_target_` node has no key that its class lacks, and the class accepts the values."""
    if not OmegaConf.is_dict(node):
        return
    if "_target_" in node:
        target = locate(key, node._target_)
        known = list(inspect.signature(target).parameters)
        for name in node:
            if not str(name).startswith("_") and name not in known:
                raise ValueError(f"unknown key '{key}.{name}'{did_you_mean(str(name), known, parent=key)}")
        hints = typing.get_type_hints(target) if dataclasses.is_dataclass(target) else {}
        for name, value in plain(node).items():
            if name in hints and not accepts(hints[name], value):
                kind = str(getattr(hints[name], "__name__", hints[name]))
                way = f"; choose it with {name}=<option>" if name in GROUPS else ""
                raise ValueError(f"{key}.{name} must be of type {kind}, got {value!r}{way}")
    for name in node:
        check_node(f"{key}.{name}", node[name])
    if "_target_" in node:
        build(node, key)


def locate(key: str, target: str) -> Any:
    """The class or function that a `_target_` names."""
    module, _, name = str(target).rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ValueError(f"{key}._target_: cannot import '{target}': {one_line(error)}") from error


def accepts(hint: Any, value: Any) -> bool:
    """Whether a yaml value fits a field's annotation; annotations that no yaml scalar can have accept all."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(accepts(argument, value) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if hint in (None, type(None)):
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str)
    if (origin or hint) in (list, tuple):
        return isinstance(value, list)
    if getattr(hint, "_is_protocol", False):
        return isinstance(value, dict)
    return True


def check_optimizer(node: DictConfig) -> None:
    """Torch's optimizers check their values before they look at parameters, so that none are needed to ask.

    With a parameter, torch would import its compiler first, which takes seconds.
    """
    try:
        build(node, "optimizer")([])
    except (ValueError, TypeError) as error:
        if "empty parameter list" not in str(error):
            raise ValueError(f"optimizer: {one_line(error)}") from error


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
    """Resolved, as plain containers; a missing value or a dangling ${...} is a ValueError in one line."""
    try:
        container = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ValueError(f"{error.full_key or one_line(error)} has no value: set {error.full_key}=...") from error
    except InterpolationKeyError as error:
        word = str(error).split("'")[1]
        raise ValueError(f"{error.full_key}: unknown key '{word}' in ${{...}}{did_you_mean(word, KNOBS)}") from error
    except OmegaConfBaseException as error:
        raise ValueError(one_line(error)) from error
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def one_line(error: BaseException) -> str:
    """An exception's message in one line of at most 300 characters; its type where it has none."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def digest(value: Any) -> str:
    """Eight hex digits of a JSON-able value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]


def config_hash(cfg: DictConfig) -> str:
    """Identity of a run: equal hashes mean equal numbers, up to the machine."""
    return digest({key: contents(key, value) for key, value in plain(cfg).items() if key not in NOT_IDENTITY})


def contents(key: str, value: Any) -> Any:
    """A config value with the files and folders that it names replaced by what is in them."""
    if isinstance(value, dict):
        return {name: contents(name, item) for name, item in value.items()}
    if isinstance(value, str) and names_files(key, Path(value).expanduser()):
        root = Path(value).expanduser().resolve()
        files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
        stats = [path.stat() for path in files]
        return [
            [str(path.relative_to(root)), file_digest(path, stat.st_size, stat.st_mtime_ns)]
            for path, stat in zip(files, stats, strict=True)
        ]
    return value


def names_files(key: str, path: Path) -> bool:
    """Whether a string under this key means a file or folder here: a profile, a dataset, a model."""
    return {
        "profile": path.is_file,
        "path": path.exists,
        "eval_split": path.is_file,
        "name": (path / "config.json").is_file,
    }.get(key, bool)()


@functools.lru_cache(maxsize=4096)
def file_digest(path: Path, size: int, mtime_ns: int) -> str:
    """sha256 of a file; read once per size and time of change."""
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()
