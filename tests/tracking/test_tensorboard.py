"""What is logged can be read back from the event files."""

from __future__ import annotations

import pytest

from igrad import compose
from igrad.config import plain
from igrad.tracking.names import heatmap_name, metric
from tests.strategies import make

pytest.importorskip("tensorboard", reason="needs igrad[tensorboard]")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

HELD = {f"{layer}.{kind}": float(layer) for layer in range(3) for kind in ("q", "fc1")}
SUMMARY = {"final": {"step": 20, "val_loss": 3.0}, "totals": {"wire_bytes": 2000}}


@pytest.fixture(scope="module")
def config():
    [point] = compose.points(["+method=ig_adtopk", "tracking=none"])
    return plain(point.cfg)


def read(directory):
    events = EventAccumulator(str(directory / "tensorboard"))
    return events.Reload()


def row(step: int, loss: float) -> dict:
    return {"step": step, "train_loss": loss, "wire_bytes": 100}


def test_rows_pictures_and_knobs_come_back(tmp_path, config):
    tracker = make("tracking", "tensorboard")
    tracker.start(config, tmp_path)
    tracker.profile(tmp_path / "0123abcd.parquet")
    for step in (0, 10, 20):
        tracker.heatmap("residual_norm", HELD, step)
        tracker.log(row(step, 3 - step / 20))
    on_disk = read(tmp_path)  # before it is finished: a run that is killed keeps what it had
    assert [(e.step, e.value) for e in on_disk.Scalars(metric("train_loss"))] == [(0, 3.0), (10, 2.5), (20, 2.0)]
    tracker.finish(SUMMARY)
    events = read(tmp_path)
    assert {metric("train_loss"), metric("wire_bytes"), "final/val_loss"} <= set(events.Tags()["scalars"])
    assert [image.step for image in events.Images(heatmap_name("residual_norm"))] == [0, 10, 20]
    [told] = events.Tensors("config/text_summary")
    assert b"adtopk" in told.tensor_proto.string_val[0]


def test_a_run_that_goes_on_has_one_curve(tmp_path, config):
    for first, steps in ((0, (0, 10, 20)), (10, (20, 30))):
        tracker = make("tracking", "tensorboard")
        tracker.start(config, tmp_path, first)
        for step in steps:
            tracker.log(row(step, float(first)))
        tracker.live["writer"].close()
    curve = read(tmp_path).Scalars(metric("train_loss"))
    assert [(event.step, event.value) for event in curve] == [(0, 0), (10, 0), (20, 10), (30, 10)]
