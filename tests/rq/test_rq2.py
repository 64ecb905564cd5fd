"""RQ2's tables: policies over seeds, controls paired by seed, a planted answer found."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from igrad import results
from rq import rq2
from tests.analysis import planted, synthetic
from tests.analysis.synthetic import LOW_BYTES


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Controls that are worse."""
    return results.load("rq2", synthetic.complete(tmp_path_factory, "rq2", planted.worse_controls))


@pytest.fixture
def equal(study):
    """A random set that is as good, an inverse one of other bytes."""
    runs = study.runs.copy()
    runs.loc[runs["threshold"] == "random", "val_loss"] -= planted.COST["random"]
    runs.loc[runs["threshold"] == "inverse", "wire_bytes"] *= 1.1
    return dataclasses.replace(study, runs=runs)


@pytest.fixture
def sweeps(tmp_path, monkeypatch):
    """One study of several sweeps: a function that adds one."""
    monkeypatch.chdir(tmp_path)

    def add(**knobs):
        synthetic.write_sweep(synthetic.points("rq2", **knobs), truth=planted.worse_controls)
        return results.load("rq2").complete().setting(rq2.AXES)

    return add


def truth(study, run):
    """What a run was made to say."""
    option, seed = run.policy.split(" ")[0], run.seed
    jitter = planted.JITTER.get(option, (0, 0, 0))[seed % 3]
    return 3.5 + planted.COST.get(option, 0) + 0.01 * (seed - 42) + jitter, len(planted.SETS.get(option, "0.q").split())


def test_one_row_per_run_beside_all_of_the_same_seed(study):
    each = rq2.per_run(study)
    assert sorted(each["run"]) == sorted(study.runs["run"])
    for run in each.itertuples():
        loss, num_important = truth(study, run)
        assert run.val_loss == pytest.approx(loss)
        assert run.loss_over_all == pytest.approx(loss - (3.4 + 0.01 * (run.seed - 42)))
        assert (run.num_important, run.num_low) == (num_important, 4 - num_important)
        assert run.wire_bytes == pytest.approx(15_000 * num_important + LOW_BYTES / 4)
        assert run.control == (run.policy in ("random", "inverse"))
        assert math.isnan(run.tau) == (run.policy == "all")
    assert (each.loc[each["policy"] == "all", "time_over_all"] == 1).all()


def test_one_row_per_policy_all_first_controls_last(study):
    each, table = rq2.per_run(study), rq2.table(study)
    assert table["policy"].tolist() == ["all", "kmeans", "knee", "otsu", "inverse", "random"]
    for row in table.itertuples():
        own = each[each["policy"] == row.policy]
        assert row.num_seeds == len(own) == 3
        assert row.val_loss == pytest.approx(own["val_loss"].mean())
        assert row.val_loss_sd == pytest.approx(own["val_loss"].std(ddof=1))
        assert row.val_ppl == pytest.approx(own["val_ppl"].mean())


def test_controls_are_paired_by_seed(study):
    table = rq2.paired(study).set_index("control")
    runs = study.runs.set_index(["threshold", "seed"])
    assert (table["policy"] == "knee").all() and set(table.index) == {"inverse", "random"}
    for control, overlap in (("random", 0.0), ("inverse", 1 / 3)):
        knee, other = runs.loc["knee"].sort_index(), runs.loc[control].sort_index()
        difference, row = knee["val_loss"] - other["val_loss"], table.loc[control]
        test = stats.ttest_rel(knee["val_loss"], other["val_loss"])
        assert row["difference"] == pytest.approx(difference.mean())
        assert row["difference_sd"] == pytest.approx(difference.std(ddof=1))
        assert row["difference_in_sd"] == pytest.approx(difference.mean() / difference.std(ddof=1))
        assert (row["t"], row["p"]) == pytest.approx((test.statistic, test.pvalue))
        assert row["num_seeds"] == 3 and row["wire_bytes_ratio"] == 1
        assert row["overlap"] == pytest.approx(overlap)


def lines(study) -> dict[str, str]:
    told = [line.removeprefix("- **knee against ").split("**: ") for line in rq2.conclusion(study).splitlines()]
    return {control: text for control, text in told}


def test_a_control_that_is_worse_and_one_that_is_not_are_told_apart(study, equal):
    row = rq2.paired(study).set_index("control").loc["random"]
    for text in lines(study).values():
        assert text.startswith("importance beats the control (−0.") and "Equal bytes" in text
    assert f"({row['difference']:.4f}".replace("-", "−") in lines(study)["random"]
    assert f"{-row['difference_in_sd']:.1f} sd, p = {row['p']:.2g}, 3 seeds" in lines(study)["random"]
    assert lines(equal)["random"].startswith("no difference that these seeds can tell")
    assert "the ranking is not shown to matter. Equal bytes" in lines(equal)["random"]
    assert "Not at equal bytes: the policy sends 0.909 times" in lines(equal)["inverse"]


def test_a_control_that_wins_is_said_to(study):
    runs = study.runs.copy()
    runs.loc[runs["threshold"] == "random", "val_loss"] -= 0.2
    assert lines(dataclasses.replace(study, runs=runs))["random"].startswith("the control beats importance (+0.")


def test_equal_losses_are_no_difference_and_one_seed_no_test(study):
    runs = study.runs.copy()
    runs["val_loss"] = 3.5
    same = dataclasses.replace(study, runs=runs)
    assert rq2.paired(same)[["difference_in_sd", "t", "p"]].to_numpy().tolist() == [[0, 0, 1]] * 2
    assert "no difference" in lines(same)["random"]
    one = rq2.paired(study.only(seed=43))
    assert one[["difference_sd", "t", "p"]].isna().all(axis=None) and (one["num_seeds"] == 1).all()
    assert "one seed, so the spread is not known" in lines(study.only(seed=43))["random"]


def test_without_controls_or_all_the_rest_still_stands(study):
    bare = study.of(study.runs[study.runs["threshold"].isin(["knee", "otsu"])])
    table = rq2.table(bare)
    assert not {"loss_over_all", "time_over_all"} & set(table) and len(table) == 2
    assert rq2.tables(bare)["rq2_paired"].empty and "cannot be said" in rq2.conclusion(bare)


def test_a_sweep_of_more_seeds_for_the_controls_adds_to_the_full_one(sweeps):
    sweeps(threshold=["all", "knee", "random"], seed=[42])
    study = sweeps(threshold=["knee", "random"], seed=[42, 43])
    table = rq2.table(study).set_index("policy")
    assert table["num_seeds"].to_dict() == {"all": 1, "knee": 2, "random": 2}
    assert rq2.paired(study)["num_seeds"].tolist() == [2]
    each = rq2.per_run(study)
    assert set(rq2.same_seeds(study).runs["seed"]) == {42}
    assert len(rq2.same_seeds(study.of(study.runs[study.runs["threshold"] != "all"])).runs) == 4
    assert each.set_index("seed")["loss_over_all"].notna().to_dict() == {42: True, 43: False}


def test_variants_of_a_policy_are_policies_and_controls_keep_to_theirs(sweeps):
    sweeps(threshold=["knee", "otsu", "random"], seed=[42])
    points = synthetic.points("rq2", threshold=["percentile", "random"], seed=[42])
    points[0].cfg.threshold.percentile = 90
    points[1].cfg.threshold.policy._target_ = "igrad.threshold.otsu.Otsu"
    synthetic.write_sweep([*points, *synthetic.points("rq2", threshold=["percentile"], seed=[42])],
                          truth=planted.worse_controls)  # fmt: skip
    study = results.load("rq2").complete().setting(rq2.AXES)
    names = {"knee", "otsu", "percentile (percentile=75)", "percentile (percentile=90)"}
    controls = {"random (policy=knee)", "random (policy=otsu)"}
    assert set(rq2.table(study)["policy"]) == names | controls
    pairs = rq2.paired(study)
    assert set(zip(pairs["policy"], pairs["control"], strict=True)) == {
        ("knee", "random (policy=knee)"), ("otsu", "random (policy=otsu)"),
    }  # fmt: skip
    assert np.isfinite(pairs["difference"]).all()
