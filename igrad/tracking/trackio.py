"""Trackio: the numbers of metrics.jsonl and heatmaps, in a dashboard on this machine: `trackio show`."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from igrad.tracking.heatmap import picture
from igrad.tracking.names import finals, heatmap_name, metric, options, require


@dataclass(frozen=True)
class Trackio:
    """One Trackio run per run, grouped by study, in Trackio's own folder (TRACKIO_DIR)."""

    project: str
    study: str
    live: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require("trackio", "trackio")

    def start(self, config: dict[str, Any], directory: Path, first: int = 0) -> None:
        """Open the run. One that goes on is the same one, and shows what followed its last checkpoint twice."""
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):  # it explains itself at length
            run = trackio.init(
                project=self.project, group=self.study, name=directory.name, resume="allow" if first else "never",
                config={**config, "options": options(config)}, embed=False, auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
        self.live.update(run=run, images={}, step=first)

    def profile(self, path: Path) -> None: ...

    def heatmap(self, name: str, values: dict[str, float], step: int) -> None:
        """An image in the row that comes next."""
        import trackio

        self.live["images"][heatmap_name(name)] = trackio.Image(picture(values, name), caption=f"step {step}")

    def log(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl."""
        values = {metric(name): value for name, value in row.items() if name != "step"}
        self.live["run"].log({**values, **self.live["images"]}, step=row["step"])
        self.live["images"].clear()
        self.live["step"] = row["step"]

    def finish(self, summary: dict[str, Any]) -> None:
        """Final numbers go with the last row: Trackio keeps no summary."""
        import trackio

        self.live["run"].log(finals(summary), step=self.live["step"])
        with contextlib.redirect_stdout(io.StringIO()):
            trackio.finish()
        self.live.clear()
