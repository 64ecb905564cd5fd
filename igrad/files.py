"""Files that others may read while they are written: whole or not at all. What a run's summary says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """`write(temporary path)`, then renamed: a process that is killed leaves what was there before."""
    temporary = path.with_suffix(".tmp")
    write(temporary)
    temporary.rename(path)


def read_summary(directory: Path) -> dict[str, Any]:
    """summary.json; empty where there is none, or none that can be read: the run is not finished then."""
    try:
        return json.loads((directory / "summary.json").read_text())
    except (OSError, ValueError):
        return {}
