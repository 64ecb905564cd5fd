"""W&B offline: what is logged can be read back from the run's own file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from igrad.tracking.wandb import Wandb, has_api_key, tags

CONFIG = {"seed": 42, "density": 0.01, "release_period": 4,
          "sparsifier": {"_target_": "igrad.sparsifier.topk.TopK", "density": 0.01}}  # fmt: skip


def records(path: Path) -> Iterator[Any]:
    """The protobuf records of a .wandb file: a 7-byte header, then LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, whole = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:  # no header is split over two blocks
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        whole += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # full, last
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> dict[str, list[Any]]:
    directory = tmp_path_factory.mktemp("run")
    tracker = Wandb(mode="offline", project="igrad", study="rq3")
    tracker.start(CONFIG, directory)
    for step, loss in ((0, None), (10, 2.5), (20, 2.25)):
        tracker.log({"step": step, "train_loss": loss, "val_loss": 3.0, "wire_bytes": 100 + step, "residual_norm": 0.5})
    tracker.finish({"status": "finished", "final": {"val_loss": 3.0}})
    [path] = (directory / "wandb").glob("offline-run-*/*.wandb")
    found: dict[str, list[Any]] = {}
    for record in records(path):
        found.setdefault(record.WhichOneof("record_type"), []).append(record)
    return found


def items(entries: Any) -> dict[str, Any]:
    return {entry.key or "/".join(entry.nested_key): json.loads(entry.value_json) for entry in entries}


def test_rows_come_back_under_their_sections(logged):
    rows = [items(record.history.item) for record in logged["history"]]
    rows = [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]
    assert rows == [
        {"step": 0, "eval/val_loss": 3.0, "comm/wire_bytes": 100, "importance/residual_norm": 0.5},
        *(
            {"step": step, "train/train_loss": loss, "eval/val_loss": 3.0, "comm/wire_bytes": 100 + step,
             "importance/residual_norm": 0.5}
            for step, loss in ((10, 2.5), (20, 2.25))
        ),
    ]  # fmt: skip


def test_the_run_is_grouped_and_tagged_and_keeps_its_config(logged):
    run = logged["run"][0].run
    assert (run.project, run.run_group) == ("igrad", "rq3")
    assert {"rq3", "sparsifier:topk", "release_period:4"} <= set(run.tags)
    config = items(run.config.update)
    assert config["seed"] == 42
    assert config["sparsifier"] == CONFIG["sparsifier"]


def test_every_section_is_drawn_against_the_step(logged):
    metrics = {record.metric.glob_name: record.metric.step_metric for record in logged["metric"]}
    for section in ("train", "eval", "comm", "importance"):
        assert metrics[f"{section}/*"] == "step"


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
    assert all(len(tag) <= 64 for tag in tags(CONFIG | {"density": 10.0**-70}, "s" * 80))
