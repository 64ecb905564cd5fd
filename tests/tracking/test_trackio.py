"""What is logged can be read back from Trackio's own folder, without a server."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trackio", reason="needs igrad[trackio]")

SCRIPT = """
import sys
from pathlib import Path
from igrad import compose
from igrad.config import plain
from tests.strategies import make

[point] = compose.points(["+method=ig_adtopk", "tracking=none"])
held = {"0.q": 1.0, "0.fc1": 2.0}
for first, steps in ((0, (0, 10)), (10, (20,))):
    tracker = make("tracking", "trackio", study="rq3")
    tracker.start(plain(point.cfg), Path("outputs/rq3/seed=1,x=2"), first)
    tracker.profile(Path("0123abcd.parquet"))
    for step in steps:
        tracker.heatmap("residual_norm", held, step)
        tracker.log({"step": step, "train_loss": 3 - step / 20})
    tracker.finish({"final": {"step": 20, "val_loss": 3.0}, "totals": {"wire_bytes": 2000}})
"""


def rows(database: Path, table: str, column: str) -> list:
    with sqlite3.connect(database) as connection:
        return connection.execute(f"select run_id, step, {column} from {table} order by id").fetchall()


def test_rows_come_back_under_one_run(tmp_path):
    """In a process of its own: Trackio takes its folder from the environment when it is imported."""
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    logged = rows(tmp_path / "igrad.db", "metrics", "metrics")
    assert len({run for run, _, _ in logged}) == 1
    values = [(step, json.loads(told)) for _, step, told in logged]
    curve = [(step, told["train/train_loss"]) for step, told in values if "train/train_loss" in told]
    assert curve == [(0, 3.0), (10, 2.5), (20, 2.0)]
    pictures = [told["importance/residual_norm_by_component"] for _, told in values if "train/train_loss" in told]
    assert all((tmp_path / "media" / each["file_path"]).is_file() for each in pictures)
    assert values[-1] == (20, {"final/val_loss": 3.0, "final/total_wire_bytes": 2000})
