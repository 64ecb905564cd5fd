"""No tracking: metrics.jsonl and summary.json are written all the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class NoTracking:
    """A tracker that keeps nothing."""

    def start(self, config: dict[str, Any], directory: Path, first: int = 0) -> None: ...

    def profile(self, path: Path) -> None: ...

    def heatmap(self, name: str, values: dict[str, float], step: int) -> None: ...

    def log(self, row: dict[str, Any]) -> None: ...

    def finish(self, summary: dict[str, Any]) -> None: ...
