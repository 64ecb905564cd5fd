"""A tracker that keeps nothing."""

from igrad.tracking.none import NoTracking


def test_nothing_is_written(tmp_path):
    tracker = NoTracking()
    tracker.start({"seed": 1}, tmp_path)
    tracker.profile(tmp_path / "0123abcd.parquet")
    tracker.heatmap("residual_norm", {"0.q": 1.0}, 0)
    tracker.log({"step": 0, "train_loss": 1.0})
    tracker.finish({"status": "finished"})
    assert list(tmp_path.iterdir()) == []
