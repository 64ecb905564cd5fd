"""RQ5's tables: methods by their names and what was changed of them, compared at equal seeds, bytes and settings."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import printed
from igrad import results
from igrad.metrics import PHASES
from rq import rq2, rq5, times
from tests.analysis import synthetic


def loaded(factory, name: str) -> results.Study:
    return results.load(name, synthetic.complete(factory, name, synthetic.rq5))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return loaded(tmp_path_factory, "rq5")


@pytest.fixture(scope="module")
def frontier(tmp_path_factory):
    return loaded(tmp_path_factory, "rq5_frontier")


@pytest.fixture(scope="module")
def rates(tmp_path_factory):
    return loaded(tmp_path_factory, "rq5_lr")


@pytest.fixture(scope="module")
def scale(tmp_path_factory):
    return loaded(tmp_path_factory, "rq5_scale")


def changed(study, method: str, column: str, change):
    """The study with one column of one method's runs changed."""
    runs = study.runs.copy()
    mine = runs["method"] == method
    runs.loc[mine, column] = change(runs.loc[mine, column])
    return dataclasses.replace(study, runs=runs)


def without(study, *methods: str):
    return study.of(study.runs[~study.runs["method"].isin(methods)])


@pytest.fixture(scope="module")
def said_of(study, frontier):
    """Conclusions."""
    return {"rq5": rq5.conclusion(study), "rq5_frontier": rq5.conclusion(frontier)}


def lines(told, claim: str) -> list[str]:
    """The sentences of a conclusion, or of a study's, that answer a claim."""
    text = told if isinstance(told, str) else rq5.conclusion(told)
    return [line for line in text.splitlines() if line.startswith(f"- **{claim}")]


# ------------------------------------------------------------------------------------------------- what a run is


def test_every_method_is_a_row_in_the_group_that_it_is_made_to_be(study):
    table = rq5.tables(study)["rq5"]
    assert table["method"].tolist() == [family for group in rq5.FAMILIES.values() for family in group]
    named = rq5.named(study)
    for group, families in rq5.FAMILIES.items():
        assert set(named.loc[named["group"] == group, "family"]) == set(families)


def test_whose_replicas_differ_is_said(study):
    told = rq5.tables(study)["rq5"].set_index("method")["replicas"]
    local = [*rq5.FAMILIES["local"]]
    assert told["noop"] == rq5.APART and told["alone"] == "one" and told["never"] == "apart until the end"
    assert set(told[local]) == {"apart between releases"}
    assert set(told.drop([*local, "noop", "alone", "never"])) == {"equal"}


def test_a_name_tells_what_varies_and_what_was_changed(frontier):
    names = set(rq5.named(frontier)["method"])
    assert {"dense", "adtopk_sync", "topk_sync (density=0.001)", "powersgd (rank=4)", "local_sgd (R=32)"} <= names
    assert "ig_local (random, R=16)" in names
    fixed = frontier.only(method="topk_sync", density=0.005)
    assert set(rq5.named(fixed)["method"]) == {"topk_sync (density=0.005)"}, "its file says 0.01"
    as_told = frontier.only(method="topk_sync", density=0.01)
    assert set(rq5.named(as_told)["method"]) == {"topk_sync"}
    assert set(rq5.named(frontier, ignore=("density",))["method"]) > {"topk_sync"}


def test_a_knob_that_a_method_leaves_open_is_told_when_it_was_set(study):
    runs = study.runs.assign(release_fraction=0.5)
    names = set(rq5.named(dataclasses.replace(study, runs=runs))["method"])
    assert "ig_adtopk (release_fraction=0.5)" in names and "local_sgd" in names


def test_a_run_that_was_started_without_a_method_keeps_its_own_name(study):
    run = study.runs["run"].iloc[0]
    assert run in set(rq5.named(changed(study, study.runs["method"].iloc[0], "method", lambda m: None))["method"])


def test_two_runs_of_one_method_and_seed_are_not_averaged(study):
    twice = dataclasses.replace(study, runs=pd.concat([study.runs, study.runs[:1]]))
    with pytest.raises(ValueError, match="two rows have method"):
        rq5.tables(twice)


# ------------------------------------------------------------------------------------------------------- tables


def test_differences_and_reductions_are_of_the_same_seed(study):
    each = rq5.per_run(study)
    assert sorted(each["run"]) == sorted(study.runs["run"])
    by_key = study.runs.set_index(["method", "seed"])
    for row in each.to_dict("records"):
        for name, method in (("adtopk", "adtopk_sync"), ("dense", "dense")):
            own, other = by_key.loc[(row["family"], row["seed"])], by_key.loc[(method, row["seed"])]
            assert row[f"loss_over_{name}"] == own["val_loss"] - other["val_loss"]
            assert row[f"saved_over_{name}"] == 1 - own["wire_bytes"] / other["wire_bytes"]
        assert row["total_bytes"] == own["total_wire_bytes"] + own["flush_wire_bytes"]


def test_one_row_per_method_mean_and_sd_over_seeds(study):
    each, tables = rq5.per_run(study), rq5.tables(study)
    for name, columns in (("rq5", rq5.QUALITY), ("rq5_bytes", rq5.BYTES), ("rq5_times", rq5.TIMES)):
        for row in tables[name].to_dict("records"):
            own = each[each["method"] == row["method"]]
            assert row["num_seeds"] == len(own) == 2
            for column in columns:
                assert row[column] == pytest.approx(own[column].mean())
                assert row[f"{column}_sd"] == pytest.approx(own[column].std(ddof=1))
    assert times.PHASES == PHASES and "indicative" in printed.booktabs(tables["rq5_times"])
    tex = printed.booktabs(tables["rq5_bytes"])
    assert tex.isascii() and r"90.1" in tex and "(MB)" in tex


def test_what_nothing_measures_is_left_out(study):
    each = rq5.per_run(without(study, "dense", "adtopk_sync"))
    assert not {"loss_over_dense", "saved_over_adtopk", "reached", "to_dense_steps"} & set(each)
    assert "val_loss" in rq5.tables(without(study, "dense", "adtopk_sync"))["rq5"]


def curve(*rows: tuple[int, float], steps: int = 30) -> pd.DataFrame:
    """An evaluation curve at (step, loss) that sends 10 bytes and takes 2 s a step."""
    frame = pd.DataFrame(rows, columns=["step", "val_loss"]).assign(steps=steps)
    return frame.assign(total_wire_bytes=frame["step"] * 10.0, seconds=frame["step"] * 2.0)


def test_a_loss_is_passed_on_the_line_between_two_evaluations():
    falling = curve((0, 5.0), (10, 4.0), (20, 3.0), (30, 3.2))
    assert rq5.crossing(falling, 3.5) == pytest.approx((15, 150, 30))
    assert rq5.crossing(falling, 3.2) == pytest.approx((18, 180, 36)), "the first time, not the last"
    assert rq5.crossing(falling, 5.0) == (0, 0, 0)
    assert np.isnan(rq5.crossing(falling, 2.9)).all()


def test_what_only_the_flush_reaches_is_reached_after_it():
    flushed = curve((0, 5.0), (30, 4.0), (31, 3.0))
    assert rq5.crossing(flushed, 3.5) == (31, 310, 62)
    assert rq5.crossing(flushed, 4.5) == pytest.approx((15, 150, 30))


def test_dense_reaches_its_own_loss_at_its_end_and_a_gap_is_who_does_not(study):
    table = rq5.tables(study)["rq5_to_dense"].set_index("method")
    assert table.loc["dense", ["reached", "to_dense_steps"]].tolist() == [1, synthetic.STEPS]
    assert table.loc["dense", "to_dense_bytes"] == synthetic.METHODS["dense"][1] * synthetic.STEPS
    assert table.loc["diloco", "to_dense_steps"] < synthetic.STEPS
    losses = rq5.tables(study)["rq5"].set_index("method")["val_loss"]
    never = losses.index[losses > losses["dense"]]
    assert (table.loc[never, "reached"] == 0).all() and table.loc[never, list(rq5.TO_DENSE)].isna().all(axis=None)


def test_a_mean_over_the_seeds_that_happen_to_reach_it_is_none(study):
    each = rq5.per_run(study)
    each.loc[(each["method"] == "diloco") & (each["seed"] == 43), ["reached", *rq5.TO_DENSE]] = [0, *[np.nan] * 3]
    row = rq5.to_dense(each).set_index("method").loc["diloco"]
    assert row["reached"] == 0.5 and np.isnan(row["to_dense_steps"])


POINTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12)


@given(POINTS)
def test_a_point_is_on_the_frontier_unless_another_is_as_good_in_both_and_better_in_one(points):
    cost, loss = (pd.Series(values) for values in zip(*points, strict=True))
    kept = rq5.non_dominated(cost, loss)
    assert kept.any()
    for mine, is_kept in zip(points, kept, strict=True):
        assert is_kept == (not any(o != mine and o[0] <= mine[0] and o[1] <= mine[1] for o in points))


def test_who_is_no_method_takes_no_place_on_the_frontier(study):
    cheaper = changed(study, "noop", "val_loss", lambda loss: 0 * loss + 1)
    better = changed(study, "alone", "val_loss", lambda loss: 0 * loss + 1)
    for one in (study, cheaper, better):
        best = rq5.tables(one)["rq5_bytes"].set_index("method")[["best_per_step", "best_per_run"]]
        assert not best.loc[["noop", "alone"]].any(axis=None) and best.loc[["diloco", "never"]].all(axis=None)
    assert not rq5.tables(study)["rq5_bytes"].set_index("method").loc["local_sgd", "best_per_step"]


# ---------------------------------------------------------------------------------------- rates and settings


def test_each_method_is_compared_at_the_best_of_its_rates(rates):
    told = rq5.tables(rates)
    expected = {family: 3e-3 if flush == 0 else 6e-3 for family, (_, _, flush) in synthetic.METHODS.items()}
    assert told["rq5_rates"].set_index("method")["peak_rate"].to_dict() == expected
    assert told["rq5"]["method"].tolist() == told["rq5_rates"]["method"].tolist()
    assert len(told["rq5_runs"]) == 3 * len(told["rq5"])
    best = told["rq5_rates"].set_index("method").filter(like="lr=").min(axis=1)
    assert told["rq5"].set_index("method")["val_loss"].tolist() == best.tolist()
    assert "`topk_sync` 0.006" in lines(rates, "learning rates")[0] and "chosen on these seeds" in rq5.conclusion(rates)


def test_a_rate_of_its_own_is_no_other_method(study):
    """Each at its own rate is how methods are compared; only where a family has several are they told."""
    runs = study.runs.assign(learning_rate_factor=study.runs["method"].map(lambda name: 2.0 if "topk" in name else 1.0))
    own = dataclasses.replace(study, runs=runs)
    table = rq5.tables(own)["rq5"].set_index("method")
    assert set(table.index) == set(study.runs["method"]) and "loss_over_adtopk" in table
    assert (table["peak_rate"] == [6e-3 if "topk" in name else 3e-3 for name in table.index]).all()


def test_a_study_of_one_rate_is_as_it_is(study, said_of):
    assert rq5.at_best_rates(study) is study and "rq5_rates" not in rq5.tables(study)
    assert not lines(said_of["rq5"], "learning rates")


def test_only_runs_of_one_setting_are_compared(scale):
    assert rq5.setting(scale) == ["num_processes", "split"]
    each = rq5.per_run(scale)
    by_key = each.set_index(["method", "num_processes", "split"])["val_loss"]
    for row in each.itertuples():
        assert row.loss_over_dense == row.val_loss - by_key["dense", row.num_processes, row.split]
    best = rq5.tables(scale)["rq5_bytes"].groupby(["num_processes", "split"])["best_per_run"]
    assert (best.sum() > 0).all()
    assert len(lines(scale, "(b) per step")) == 6 and len(lines(scale, "(a) ig_adtopk**")) == 1


def test_a_rank_alone_makes_no_setting(study):
    assert set(study.runs["num_processes"]) == {1, 2} and rq5.setting(study) == []


def test_methods_are_one_setting_and_other_scales_are_others(study):
    assert list(study.settings(rq5.AXES)) == [""]
    longer = study.runs.assign(steps=2 * study.runs["steps"], run=study.runs["run"] + "x")
    assert len(dataclasses.replace(study, runs=pd.concat([study.runs, longer])).settings(rq5.AXES)) == 2


# ---------------------------------------------------------------------------------------------------- conclusion


def test_claim_a_names_the_way_to_a_quarter_and_what_it_costs(frontier, said_of):
    each = rq5.per_run(frontier)
    for family, reference in (("ig_adtopk", "adtopk_sync"), ("ig_adtopk_ef", "adtopk_sync_ef")):
        [said] = lines(said_of["rq5_frontier"], f"(a) {family}**")
        base = each[each["method"] == reference].set_index("seed")
        mine = each[(each["family"] == family) & ~each["control"]]
        ratio = mine["wire_bytes"] / mine["seed"].map(base["wire_bytes"])
        cost = (mine["val_loss"] - mine["seed"].map(base["val_loss"]))[ratio <= rq5.BUDGET].groupby(mine["method"])
        best = cost.mean().idxmin()
        assert f"`{best}`, R = 16" in said and f"least loss of {cost.ngroups} that send" in said
        assert f"{cost.mean()[best]:+.3f} ± {cost.std()[best]:.3f} nats per token (2 seeds)" in said


def test_claim_a_says_what_is_not_reached_and_what_is_missing(study, said_of):
    [said] = lines(said_of["rq5"], "(a) ig_adtopk**")
    assert "0.25 is not reached here. The nearest of 1" in said and "sends 0.565 of the wire bytes" in said
    [said] = lines(without(study, "adtopk_sync"), "(a) ig_adtopk**")
    assert said.endswith("cannot be said: no run of `adtopk_sync` here.")


def test_claim_b_holds_the_best_composition_against_each_rival_at_its_bytes(frontier, said_of):
    table = rq5.tables(frontier)["rq5_bytes"].set_index("method")
    for claim, column in (("(b) per step", "wire_bytes"), ("(b) whole run", "total_bytes")):
        [said] = lines(said_of["rq5_frontier"], claim)
        best = table.loc["local_topk (R=4)"]
        assert f"`{best.name}` (" in said and "ends below 3 of 4 rivals" in said
        for rival in rq5.RIVALS:
            rows = table[table.index.str.match(rf"{rival}( |$)")]
            affordable = rows[rows[column] <= best[column] * (1 + rq2.EQUAL_BYTES)]
            own = affordable["val_loss"].idxmin() if len(affordable) else rows[column].idxmin()
            gap = f"{best['val_loss'] - rows['val_loss'][own]:+.3f}".replace("-", "−")
            assert f"`{own}`{'' if len(affordable) else ', which sends more'} {gap}" in said


def test_claim_b_says_which_rival_is_missing_and_takes_no_control_for_a_method(frontier):
    assert "Missing here: `powersgd`, `never`." in lines(without(frontier, "powersgd", "never"), "(b) per step")[0]
    only = without(frontier, *set(synthetic.METHODS) - {"ig_local", "topk_sync"})
    lucky = only.runs["val_loss"].where(only.runs["threshold"] != "random", 1.0)
    assert "random" not in lines(dataclasses.replace(only, runs=only.runs.assign(val_loss=lucky)), "(b) per step")[0]
    assert "cannot be said" in lines(without(frontier, *rq5.RIVALS), "(b) per step")[0]


def test_claim_c_pairs_each_set_with_its_controls_all_else_equal(frontier, study, said_of):
    said = lines(said_of["rq5_frontier"], "(c)")
    assert len(said) == 2 * 3 * 2  # methods, periods, controls
    [one] = [line for line in said if "ig_local (R=8), knee against random" in line]
    assert "importance beats the control (−0.0215 ± 0.0021 nats per token" in one and "Equal bytes" in one
    assert "cannot be said" in lines(said_of["rq5"], "(c)")[0]


def test_who_loses_to_silence_is_named(study, frontier, said_of):
    losses = rq5.tables(study)["rq5"].set_index("method")["val_loss"].drop(["noop", "alone", "never"])
    [said] = lines(said_of["rq5"], "not communicating")
    _, after = said.split("`alone` ends at 3.465; worse than that: ")
    assert {name for name in losses.index if f"`{name}`" in after} == set(losses.index[losses > 3.465])
    assert "`powersgd` (4 of 4)" in lines(said_of["rq5_frontier"], "not communicating")[0]
    assert "neither `never` nor `alone`" in lines(without(study, "never", "alone"), "not communicating")[0]


def test_times_are_said_to_be_indicative(study, said_of):
    assert times.INDICATIVE in said_of["rq5"]
