"""The target study's table: the length of training that a planted law of loss over steps asks for."""

from __future__ import annotations

import numpy as np
import pytest

from igrad import results
from rq import rq5_target
from tests.analysis import synthetic


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return results.load("rq5_target", synthetic.complete(tmp_path_factory, "rq5_target", synthetic.rq5))


@pytest.fixture(scope="module")
def table(study):
    return rq5_target.tables(study)["rq5_target"].set_index("method")


def test_dense_is_there_at_its_fewest_steps_and_who_never_is_has_a_gap(table):
    assert table.loc["dense", ["reached", "to_target_steps"]].tolist() == [1, 32]
    assert table.loc["topk_sync", "reached"] == 0 and np.isnan(table.loc["topk_sync", "to_target_steps"])


def test_what_a_method_needs_lies_on_the_line_between_two_lengths(study, table):
    runs = study.runs[(study.runs["method"] == "local_sgd") & (study.runs["seed"] == 42)].set_index("steps")
    loss = runs["val_loss"]
    target = synthetic.METHODS["dense"][0] - 0.05
    expected = 32 + 16 * (loss[32] - target) / (loss[32] - loss[48])
    assert 32 < expected < 48
    assert table.loc["local_sgd", "to_target_steps"] == pytest.approx(expected)
    share = (expected - 32) / 16
    sent = runs["total_wire_bytes"] + runs["flush_wire_bytes"]
    assert table.loc["local_sgd", "to_target_bytes"] == pytest.approx(sent[32] + share * (sent[48] - sent[32]))


def test_losses_stand_by_steps_and_each_run_in_a_row_of_its_own(study, table):
    each = rq5_target.tables(study)["rq5_target_runs"]
    assert sorted(each["run"]) == sorted(study.runs["run"])
    for steps in (32, 48, 64):
        mean = each[(each["method"] == "never") & (each["steps"] == steps)]["val_loss"].mean()
        assert table.loc["never", f"{steps}_steps"] == pytest.approx(mean)
    assert list(study.settings(rq5_target.AXES)) == [""]


def test_without_dense_there_is_no_target(study):
    told = rq5_target.tables(study.of(study.runs[study.runs["method"] != "dense"]))["rq5_target"]
    assert (told["reached"] == 0).all() and told["to_target_steps"].isna().all()
