"""Weights & Biases: the numbers of metrics.jsonl under train/ eval/ comm/ importance/, heatmaps, profile and files.

Saved workspaces, reports, tables and fetching runs back are in igrad/track.py.
"""

from __future__ import annotations

import netrc
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from igrad.tracking.heatmap import picture
from igrad.tracking.names import SECTIONS, heatmap_name, metric, options

ONLINE_WAIT_S = 30  # for a connection at the start and for the rest of the upload at the end
AGAINST = {"eval_by_bytes/val_loss": metric("total_wire_bytes"), "eval_by_seconds/val_loss": metric("seconds")}
TABLES = "tables"  # job type of what is no run of training
TAGGED = ("model", "workload", "sparsifier", "threshold", "residual", "release", "packing", "collective",
          "value_codec", "index_codec", "deferral", "synchronizer")  # fmt: skip


@dataclass(frozen=True)
class Wandb:
    """One W&B run per run, grouped by study; its job type is the method. Rank 0 alone may use it."""

    mode: str  # offline = files in <run directory>/wandb, for `wandb sync`; online = uploaded while training
    project: str
    study: str
    live: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mode not in ("offline", "online"):
            raise ValueError(f"mode must be offline or online, got '{self.mode}'")
        if self.mode == "online" and not has_api_key():
            raise ValueError(
                "W&B online needs an API key and found none: run `wandb login`, set WANDB_API_KEY, "
                "or use tracking=wandb_offline"
            )

    def start(self, config: dict[str, Any], directory: Path, first: int = 0) -> None:
        """Open the run. Without a network an online run goes on offline, and says so.

        A run that goes on is the same one in W&B if both parts are online, and shows what was logged between its
        checkpoint and its end twice; parts that were offline are runs of their own.
        """
        import wandb  # takes a second

        chosen = options(config)
        earlier = earlier_id(directory) if first else None

        def init(mode: str) -> Any:
            same = {"id": earlier, "resume": "allow"} if earlier and mode == "online" else {}
            return wandb.init(
                mode=mode, project=self.project, group=self.study, name=directory.name, dir=directory,
                job_type=config.get("method") or chosen["synchronizer"], config={**config, "options": chosen},
                tags=tags(config, chosen, self.study), settings=settings(), **same,
            )  # fmt: skip

        (directory / "wandb").mkdir(parents=True, exist_ok=True)  # else wandb falls back to a temporary folder
        try:
            run = init(self.mode)
        except (wandb.errors.CommError, wandb.errors.AuthenticationError) as error:
            if self.mode == "offline":
                raise
            reason = str(error).splitlines()[0]
            print(f"W&B cannot be reached ({reason}); this run is tracked offline in {directory / 'wandb'}", flush=True)
            run = init("offline")
        run.define_metric("step", hidden=True)
        for section in ("train", *SECTIONS):
            run.define_metric(f"{section}/*", step_metric="step")
        for name, axis in AGAINST.items():
            run.define_metric(name, step_metric=axis)
        self.live.update(run=run, directory=directory)

    def profile(self, path: Path) -> None:
        """An artifact named by the profile's key, of which this run is told to be a user."""
        from igrad.tracking.artifacts import profile_artifact  # imports pyarrow, which checking a config does not need

        artifact = profile_artifact(path)
        # What `use_artifact` does with a new artifact; that refuses offline, and online waits for the upload.
        self.live["run"]._log_artifact(artifact, is_user_created=True, use_after_commit=True)

    def heatmap(self, name: str, values: dict[str, float], step: int) -> None:
        """An image in the row that comes next."""
        import wandb

        image = wandb.Image(picture(values, name), caption=f"step {step}")
        self.live["run"].log({"step": step, heatmap_name(name): image}, commit=False)

    def log(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl."""
        values = {metric(name): value for name, value in row.items() if name != "step"}
        if "val_loss" in row:
            values.update(dict.fromkeys(AGAINST, row["val_loss"]))
        self.live["run"].log({"step": row["step"], **values})

    def finish(self, summary: dict[str, Any]) -> None:
        """Close the run with its summary and its files; waits a bounded time for what is not yet uploaded."""
        from igrad.tracking.artifacts import run_artifact

        run = self.live["run"]
        run.summary.update(summary)
        try:
            run.log_artifact(run_artifact(self.live["directory"], f"run-{run.id}"))
        finally:  # online, an artifact needs the server at once; what else was logged is waited for
            run.finish(exit_code=0 if summary.get("status") == "finished" else 1)
            self.live.clear()


def settings() -> Any:
    """Of every run: nothing on the terminal, no machine statistics, bounded waits."""
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")  # for what is printed before the settings count
    return wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,  # the revision is in the summary
        x_disable_stats=True,
        init_timeout=ONLINE_WAIT_S,
        finish_timeout=ONLINE_WAIT_S,
        finish_timeout_raises=False,
    )


def tags(config: dict[str, Any], chosen: dict[str, str], study: str) -> list[str]:
    """The study and the point's main options, each in W&B's 64 characters."""
    knobs = ("method", "density", "release_period", "seed")
    told = {**{group: chosen[group] for group in TAGGED if group in chosen}, **{key: config.get(key) for key in knobs}}
    return [study[:64], *(f"{name}:{value}"[:64] for name, value in told.items() if value is not None)]


def earlier_id(directory: Path) -> str | None:
    """The id of the online run that a run directory has had last."""
    started = sorted((directory / "wandb").glob("run-*-*"))
    return started[-1].name.rpartition("-")[2] if started else None


def has_api_key() -> bool:
    """Whether wandb would find a key in the environment or in a netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    import wandb

    own = urlsplit(os.environ.get("WANDB_BASE_URL") or wandb.Settings().base_url).netloc
    try:
        hosts = netrc.netrc(Path(os.environ.get("NETRC", "~/.netrc")).expanduser()).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return own in hosts or "api.wandb.ai" in hosts  # the first is the default of this release, the second of all before
