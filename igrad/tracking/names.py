"""What trackers call things: columns of metrics.jsonl in sections, options of a config by their word."""

from __future__ import annotations

import importlib.util
from typing import Any

from igrad.config import GROUPS

SECTIONS = {
    "eval": ("val_loss", "val_ppl", "val_accuracy"),
    "comm": ("select_ms", "pack_ms", "exchange_ms", "unpack_ms", "payload_bytes", "wire_bytes", "total_wire_bytes",
             "bucket_imbalance", "bucket_cv", "num_overflows", "predicted_exchange_ms", "num_dropped_steps"),
    "importance": ("num_released", "residual_norm"),
}  # fmt: skip
SECTION_OF = {name: section for section, names in SECTIONS.items() for name in names}


def metric(name: str) -> str:
    """A column of metrics.jsonl, in its section."""
    return f"{SECTION_OF.get(name, 'train')}/{name}"


def heatmap_name(name: str) -> str:
    """A picture of a number per component."""
    return f"importance/{name}_by_component"


def finals(summary: dict[str, Any]) -> dict[str, float]:
    """What runs are compared by, of a summary."""
    quality = {f"final/{name}": value for name, value in summary["final"].items() if name != "step"}
    return {**quality, "final/total_wire_bytes": summary["totals"]["wire_bytes"]}


def options(config: dict[str, Any]) -> dict[str, str]:
    """Which option of each group a config has: a column that runs can be filtered and grouped by."""
    from igrad.results import option  # imports pandas, which checking a config does not need

    return {group: option(group, config[group], config)[0] for group in GROUPS if group in config}


def require(package: str, name: str) -> None:
    """ValueError where the package of tracking=<name> is not installed; costs no import of it."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"tracking={name} needs {package}: pip install 'igrad[{name}]'")
