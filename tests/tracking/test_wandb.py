"""W&B offline: what is logged can be read back from the run's own file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from igrad import compose, profile
from igrad.config import GROUPS, KNOBS, plain
from igrad.trace import Trace
from igrad.tracking.names import SECTIONS, metric, options
from igrad.tracking.wandb import Wandb, earlier_id, has_api_key, tags
from tests.strategies import options as options_of
from tests.tracking import records

[POINT] = compose.points(["+method=ig_adtopk", "study=rq3", "release_period=8", "tracking=none"])
CONFIG = plain(POINT.cfg)
HELD = {f"{layer}.{kind}": float(layer) for layer in range(3) for kind in ("q", "fc1")}
RUN = "release_period=8"
ROWS = [
    {"step": 0, "seconds": 0.0, "val_loss": 3.5, "total_wire_bytes": 0},
    {"step": 10, "seconds": 1.0, "train_loss": 2.5, "total_wire_bytes": 9000, "wire_bytes": 900, "residual_norm": 0.5},
    {"step": 20, "seconds": 2.0, "train_loss": 2.25, "val_loss": 3.0, "total_wire_bytes": 18000, "wire_bytes": 900},
]  # fmt: skip
MANIFESTS = {"of_this": [RUN, "release_period=4"], "of_another": ["release_period=4"]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A run directory of rq3, as it is when a run of 20 steps has finished."""
    root = tmp_path_factory.mktemp("outputs")
    measures = {name: np.ones((2, len(HELD))) for name in ("retained", "gradient", "saliency")}
    profile.save(root / "0123abcd.parquet", Trace(steps=[1, 2], numel=dict.fromkeys(HELD, 8)), measures, {"seed": 42})
    for name, runs in MANIFESTS.items():
        (root / "rq3/sweeps").mkdir(parents=True, exist_ok=True)
        (root / f"rq3/sweeps/{name}.json").write_text(json.dumps({"points": [{"name": run} for run in runs]}))
    directory = root / "rq3" / RUN
    tracker = Wandb(mode="offline", project="igrad", study="rq3")
    tracker.start(CONFIG, directory)
    tracker.profile(root / "0123abcd.parquet")
    for row in ROWS:
        tracker.heatmap("residual_norm", HELD, row["step"])
        tracker.log(row)
    for name in ("config.yaml", "metrics.jsonl", "summary.json"):
        (directory / name).write_text(name)
    tracker.finish({"status": "finished", "final": {"val_loss": 3.0}})
    return directory


@pytest.fixture(scope="module")
def logged(directory) -> dict[str, list[Any]]:
    """The records of its .wandb file, by type."""
    return records.by_type(directory)


def history(logged: dict[str, list[Any]]) -> list[dict[str, Any]]:
    rows = [records.items(record.history.item) for record in logged["history"]]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


IMAGE = "importance/residual_norm_by_component"


def test_rows_come_back_under_their_sections(logged):
    rows = [{name: value for name, value in row.items() if not name.startswith(IMAGE)} for row in history(logged)]
    for row, logged_row in zip(ROWS, rows, strict=True):
        named = {metric(name): value for name, value in row.items() if name != "step"}
        if "val_loss" in row:
            named |= {"eval_by_bytes/val_loss": row["val_loss"], "eval_by_seconds/val_loss": row["val_loss"]}
        assert logged_row == {"step": row["step"], **named}
    assert {name.split("/")[0] for name in rows[1]} == {"step", "train", "comm", "importance"}


def test_heatmaps_are_in_the_run_folder(directory, logged):
    [folder] = (directory / "wandb").glob("offline-run-*/files")
    for row in history(logged):
        assert row[f"{IMAGE}._type"] == "image-file"
        assert (folder / row[f"{IMAGE}.path"]).read_bytes().startswith(b"\x89PNG")


def test_the_run_is_grouped_and_tagged_by_study_and_method(logged):
    run = logged["run"][0].run
    assert (run.project, run.run_group, run.job_type) == ("igrad", "rq3", "ig_adtopk")
    assert {"rq3", "sparsifier:adtopk", "release_period:8", "method:ig_adtopk"} <= set(run.tags)


def test_runs_can_be_filtered_by_every_knob_and_option(logged):
    config = records.items(logged["run"][0].run.config.update)
    assert set(KNOBS) <= set(config)
    assert {name: config[name] for name in CONFIG} == CONFIG
    assert set(config["options"]) == set(GROUPS)
    assert all(option in options_of(group) for group, option in config["options"].items())
    assert config["options"]["sparsifier"] == "adtopk"


def test_every_panel_has_its_x_axis(logged):
    metrics = {m.name or m.glob_name: m.step_metric for m in (record.metric for record in logged["metric"])}
    for section in ("train", *SECTIONS):
        assert metrics[f"{section}/*"] == "step"
    assert metrics["eval_by_bytes/val_loss"] == "comm/total_wire_bytes"
    assert metrics["eval_by_seconds/val_loss"] == "train/seconds"


def test_the_profile_is_an_input_and_the_files_are_an_output(directory, logged):
    used, made = (record.artifact for record in logged["artifact"])
    assert (used.type, used.name, used.use_after_commit) == ("profile", "profile-0123abcd", True)
    assert json.loads(used.metadata) == {"seed": 42}
    assert (made.type, made.use_after_commit) == ("run", False)
    paths = {entry.path: Path(entry.local_path) for entry in made.manifest.contents}
    own = {f"rq3/{RUN}/{name}" for name in ("config.yaml", "metrics.jsonl", "summary.json")}
    assert set(paths) == own | {"rq3/sweeps/of_this.json"}
    assert all(path.is_absolute() and path.is_file() for path in paths.values())
    assert [entry.path for entry in used.manifest.contents] == ["profiles/0123abcd.parquet"]


def test_the_curves_can_be_read_in_a_terminal(directory, logged):
    """`wandb leet inspect --json` prints every row of the history."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(directory / "wandb")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [each["history"]["item"] for each in map(json.loads, told) if each["type"] == "history"]
    for row, shown in zip(ROWS, rows, strict=True):
        assert {metric(name): value for name, value in row.items() if name != "step"}.items() <= shown.items()


def test_a_run_that_goes_on_finds_its_online_part(tmp_path):
    for name in ("run-20250101_000000-first", "run-20250102_000000-second", "offline-run-20250103_000000-third"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
    assert earlier_id(tmp_path) == "second"
    assert earlier_id(tmp_path / "elsewhere") is None


def test_the_terminal_stays_silent(tmp_path, capfd):
    tracker = Wandb(mode="offline", project="igrad", study="s")
    tracker.start(CONFIG, tmp_path)
    tracker.log({"step": 0, "train_loss": 1.0})
    tracker.finish({"status": "finished"})
    assert capfd.readouterr() == ("", "")


def test_online_without_a_key_is_a_mistake(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ValueError, match="needs an API key"):
        Wandb(mode="online", project="igrad", study="s")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert has_api_key()
    with pytest.raises(ValueError, match="mode must be offline or online, got 'onlin'"):
        Wandb(mode="onlin", project="igrad", study="s")


def test_an_unreachable_server_does_not_stop_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("igrad.tracking.wandb.ONLINE_WAIT_S", 1)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens on the discard port
    tracker = Wandb(mode="online", project="igrad", study="s")
    tracker.start(CONFIG, tmp_path)
    tracker.log({"step": 0, "train_loss": 1.0})
    tracker.finish({"status": "finished"})
    assert "tracked offline" in capsys.readouterr().out
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_tags_fit():
    assert all(len(tag) <= 64 for tag in tags({"density": 10.0**-70}, options(CONFIG), "s" * 80))
