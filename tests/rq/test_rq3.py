"""RQ3's table: paired by seed, within a residual, from whole periods."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from igrad import results
from rq import rq3
from tests.analysis import synthetic


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return results.load("rq3", synthetic.complete(tmp_path_factory))


def test_one_row_per_run_compared_with_every_step_of_the_same_seed_and_residual(study):
    each = rq3.per_run(study)
    assert sorted(each["run"]) == sorted(study.runs["run"])
    for row in each.itertuples():
        loss = synthetic.loss(row.release_period, row.residual, row.seed)
        assert row.val_loss_difference == pytest.approx(loss - synthetic.loss(1, row.residual, row.seed))
        per_step = synthetic.IMPORTANT_BYTES + synthetic.LOW_BYTES / row.release_period
        assert row.wire_bytes == pytest.approx(per_step)
        assert row.wire_ratio == pytest.approx(per_step / (synthetic.IMPORTANT_BYTES + synthetic.LOW_BYTES))
        assert row.flush_wire_bytes == (0 if row.residual == "none" else synthetic.FLUSH_BYTES)
        assert row.staleness_steps == pytest.approx((row.release_period - 1) / 2)
        assert row.max_staleness_steps == row.release_period - 1
    assert (each.loc[each["release_period"] == 1, "step_ratio"] == 1).all()


def test_one_row_per_period_and_residual(study):
    each, table = rq3.per_run(study), rq3.table(study)
    assert len(table) == 10 and not table.duplicated(["residual", "release_period"]).any()
    for row in table.itertuples():
        own = each[(each["residual"] == row.residual) & (each["release_period"] == row.release_period)]
        assert row.num_seeds == len(own) == 2
        assert row.val_loss == pytest.approx(own["val_loss"].mean())
        assert row.val_loss_difference_sd == pytest.approx(own["val_loss_difference"].std(ddof=1))


def test_what_nothing_measures_is_left_out(study):
    without = study.of(study.runs[study.runs["release_period"] > 1])
    table = rq3.table(without)
    assert not {"val_loss_difference", "wire_ratio", "step_ratio"} & set(table) and "wire_bytes" in table
    assert "no run with R = 1" in rq3.conclusion(without)
    bare = pd.DataFrame({"run": []})
    assert "staleness_steps" not in rq3.table(results.dataclasses.replace(study, components=bare))


def test_a_seed_without_a_partner_is_not_compared(study):
    runs = study.runs
    each = rq3.per_run(study.of(runs[(runs["release_period"] > 1) | (runs["seed"] == 42)]))
    assert each.loc[each["seed"] == 43, "val_loss_difference"].isna().all()
    assert each.loc[each["seed"] == 42, "val_loss_difference"].notna().all()


def test_staleness_weighs_steps_not_windows(study):
    """A first window of 24 steps and a last one of 8: the ages count 3 to 1."""
    run = study.runs["run"].iloc[0]
    trace = study.components[(study.components["run"] == run) & study.components["step"].isin([16, 32])].copy()
    trace["step"] = trace["step"].replace(16, 24)
    trace["staleness_steps"] = np.where(trace["step"] == 24, 1.0, 5.0)
    told = rq3.staleness(results.dataclasses.replace(study, components=trace))
    assert told["staleness_steps"].tolist() == [2.0]


def test_the_conclusion_reads_its_numbers_from_the_table(study):
    table = rq3.table(study)
    cost = table[(table["residual"] == "full") & (table["release_period"] == 4)].iloc[0]["val_loss_difference"]
    generous, strict = (rq3.conclusion(study, tolerance) for tolerance in (cost + 1e-6, cost - 1e-6))
    assert "**full**: R = 4 is the rarest" in generous and f"{cost:+.3f}" in generous and "50% of the bytes" in generous
    assert "**full**: R = 2 is the rarest" in strict
    assert "**full**: every R above 1 costs more than 0 nats per token. R = 16: +" in rq3.conclusion(study, 0)
