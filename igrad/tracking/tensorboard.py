"""TensorBoard: the numbers of metrics.jsonl, heatmaps and hyperparameters, in <run directory>/tensorboard."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from igrad.tracking.heatmap import picture
from igrad.tracking.names import finals, heatmap_name, metric, require


@dataclass(frozen=True)
class TensorBoard:
    """Event files, each row on disk as soon as it is logged."""

    live: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require("tensorboard", "tensorboard")

    def start(self, config: dict[str, Any], directory: Path, first: int = 0) -> None:
        """Open the files. Of a run that goes on, what was logged after `first` is shown no more."""
        from torch.utils.tensorboard import SummaryWriter  # takes a second

        writer = SummaryWriter(str(directory / "tensorboard"), purge_step=first + 1 if first else None)
        writer.add_text("config", f"```yaml\n{yaml.safe_dump(config, sort_keys=False)}```")
        self.live.update(writer=writer, config=config)

    def profile(self, path: Path) -> None:
        self.live["writer"].add_text("profile", str(path))

    def heatmap(self, name: str, values: dict[str, float], step: int) -> None:
        self.live["writer"].add_image(heatmap_name(name), picture(values, name), step, dataformats="HWC")

    def log(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl."""
        writer = self.live["writer"]
        for name, value in row.items():
            if name != "step":
                writer.add_scalar(metric(name), value, row["step"])
        writer.flush()

    def finish(self, summary: dict[str, Any]) -> None:
        """The HPARAMS tab lists runs by their knobs and final numbers."""
        from igrad.results import knobs  # imports pandas, which checking a config does not need

        told = {name: value if isinstance(value, (int, float)) else str(value)
                for name, value in knobs(self.live["config"]).items()}  # fmt: skip
        self.live["writer"].add_hparams(told, finals(summary), run_name=".")
        self.live["writer"].close()
        self.live.clear()
