"""Weights & Biases: the numbers of metrics.jsonl, under train/ eval/ comm/ importance/."""

from __future__ import annotations

import netrc
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ONLINE_WAIT_S = 30  # for a connection at the start and for the rest of the upload at the end
SECTIONS = {
    "eval": ("val_loss", "val_ppl", "val_accuracy"),
    "comm": ("select_ms", "pack_ms", "exchange_ms", "unpack_ms", "payload_bytes", "wire_bytes", "total_wire_bytes",
             "bucket_imbalance", "bucket_cv", "num_overflows", "predicted_exchange_ms", "num_dropped_steps"),
    "importance": ("num_released", "residual_norm", "tau", "num_important", "achieved_density"),
}  # fmt: skip
SECTION_OF = {name: section for section, names in SECTIONS.items() for name in names}
OPTIONS = ("model", "workload", "sparsifier", "threshold", "residual", "release", "packing", "collective",
           "value_codec", "index_codec", "deferral", "synchronizer")  # fmt: skip


@dataclass(frozen=True)
class Wandb:
    """One W&B run per run, grouped by study, tagged by its main options. Rank 0 alone may use it."""

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

    def start(self, config: dict[str, Any], directory: Path) -> None:
        """Open the run. Without a network an online run goes on offline, and says so."""
        import wandb  # takes a second

        def init(mode: str) -> Any:
            settings = wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,  # the revision is in the summary
                x_disable_stats=True,
                init_timeout=ONLINE_WAIT_S,
                finish_timeout=ONLINE_WAIT_S,
                finish_timeout_raises=False,
            )
            return wandb.init(
                mode=mode, project=self.project, group=self.study, name=directory.name, dir=directory, config=config,
                tags=tags(config, self.study), settings=settings,
            )  # fmt: skip

        (directory / "wandb").mkdir(parents=True, exist_ok=True)  # else wandb falls back to a temporary folder
        os.environ.setdefault("WANDB_SILENT", "true")
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
        self.live["run"] = run

    def log(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl; values that are None are left out."""
        values = {f"{SECTION_OF.get(name, 'train')}/{name}": value for name, value in row.items() if name != "step"}
        self.live["run"].log({"step": row["step"], **{name: v for name, v in values.items() if v is not None}})

    def finish(self, summary: dict[str, Any]) -> None:
        """Close the run with its summary; waits a bounded time for what is not yet uploaded."""
        run = self.live.pop("run")
        run.summary.update(summary)
        run.finish(exit_code=0 if summary.get("status") == "finished" else 1)


def tags(config: dict[str, Any], study: str) -> list[str]:
    """The study and the point's main options, each in W&B's 64 characters."""
    chosen = [study[:64]]
    for group in OPTIONS:
        target = (config.get(group) or {}).get("_target_", "")
        if target:
            chosen.append(f"{group}:{target.split('.')[-2]}"[:64])
    knobs = ("method", "density", "release_period", "seed")
    chosen += [f"{key}:{config[key]}"[:64] for key in knobs if config.get(key) is not None]
    return chosen


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
