"""RQ1's tables: every pair once, a workload effect told from noise, a planted answer found."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from igrad import config, results
from rq import rq1
from tests.analysis import planted, synthetic

PAPER = "magnitude_persistence"


@pytest.fixture(scope="module")
def effect(tmp_path_factory):
    return results.load("rq1", synthetic.complete(tmp_path_factory, "rq1", planted.workload_effect))


@pytest.fixture(scope="module")
def no_effect(tmp_path_factory):
    return results.load("rq1", synthetic.complete(tmp_path_factory, "rq1", planted.no_workload_effect))


def paper_score(path: str) -> pd.Series:
    """0.7 · min-max of the mean activity + 0.3 · share of steps above the median, from the file."""
    activity = pd.read_parquet(path).pivot(index="step", columns="component", values="retained")
    mean = activity.mean()
    above = activity.gt(activity.median(axis=1), axis=0).mean()
    return 0.7 * (mean - mean.min()) / (mean.max() - mean.min()) + 0.3 * above


def test_every_pair_of_the_configured_score_is_as_the_files_say(effect):
    each = rq1.tables(effect)["rq1_pairs"]
    each = each[each["score"] == PAPER]
    runs = {(run.workload, run.seed): run for run in effect.runs.itertuples()}
    assert len(each) == math.comb(len(runs), 2) == 15
    told = {frozenset([(row.workload_a, row.seed_a), (row.workload_b, row.seed_b)]) for row in each.itertuples()}
    assert told == {frozenset(pair) for pair in itertools.combinations(runs, 2)}
    for row in each.itertuples():
        a, b = runs[row.workload_a, row.seed_a], runs[row.workload_b, row.seed_b]
        assert row.pair == ("same workload, other seed" if a.workload == b.workload else "other workload")
        mine, theirs = set(a.important), set(b.important)
        assert row.jaccard == pytest.approx(len(mine & theirs) / len(mine | theirs))
        scores = [paper_score(run.profile_file) for run in (a, b)]
        assert row.spearman == pytest.approx(stats.spearmanr(*scores).statistic)
        top = [set(score.nlargest(8).index) for score in scores]
        assert row.top_k_overlap == pytest.approx(len(top[0] & top[1]) / 8)
        assert row.tau_difference == pytest.approx(abs(a.tau - b.tau))  # these scores reach from 0 to 1


def test_other_scores_come_from_the_same_traces_and_threshold(effect):
    scored = rq1.by_score(effect)
    assert list(scored) == [PAPER, "energy", "saliency", "snr", "random"]
    for profile in scored["energy"]:
        [run] = effect.runs[(effect.runs["workload"] == profile.workload) & (effect.runs["seed"] == profile.seed)].iloc
        squares = pd.read_parquet(run["profile_file"]).assign(e=lambda t: t["retained"] ** 2)
        energy = squares.groupby("component")["e"].mean()
        assert profile.values.to_numpy() == pytest.approx(energy[profile.values.index].to_numpy())
        assert profile.important == set(energy.index[energy >= profile.tau * (1 - 1e-9)])


def test_the_random_control_ranks_anew_for_each_profile(effect):
    each = rq1.tables(effect)["rq1_pairs"]
    assert (each.loc[each["score"] == "random", "spearman"].abs() < 0.9).all()
    again = rq1.tables(effect)["rq1_pairs"]
    pd.testing.assert_frame_equal(each, again)


def test_the_table_is_mean_and_sd_over_pairs_and_the_configured_score_is_first(effect):
    tables = rq1.tables(effect)
    each, table = tables["rq1_pairs"], tables["rq1"]
    assert table["score"].iloc[0] == PAPER and table["score"].iloc[-1] == "random"
    assert list(table["pair"]) == [rq1.OTHER_SEED, rq1.OTHER_WORKLOAD] * table["score"].nunique()
    for row in table.to_dict("records"):
        own = each[(each["score"] == row["score"]) & (each["pair"] == row["pair"])]
        assert row["num_pairs"] == len(own) == (3 if row["pair"] == rq1.OTHER_SEED else 12)
        for name in rq1.SIMILARITIES:
            assert row[name] == pytest.approx(own[name].mean())
            assert row[f"{name}_sd"] == pytest.approx(own[name].std(ddof=1))


def first_line(study) -> str:
    line = rq1.conclusion(study).splitlines()[0]
    assert line.startswith(f"- **{PAPER}**")
    return line


def test_a_planted_effect_is_found_and_one_that_is_not_there_is_not(effect, no_effect, monkeypatch):
    # The hash at the end of a run's name knows where the tests' files lie: from there, chance would differ every time.
    monkeypatch.setattr(rq1, "digest", lambda name: config.digest(name.rpartition("-")[0]))
    found, *_, random = rq1.conclusion(effect).splitlines()
    assert found.startswith(f"- **{PAPER}**") and found.count("more than the spread") == 3 and "not lower" not in found
    assert first_line(no_effect).count("not lower by more than the spread") == 3
    row = rq1.table(effect).iloc[1]
    assert f"Jaccard {row['jaccard']:.3f} ± {row['jaccard_sd']:.3f} against" in found
    assert random.startswith("- **random**") and random.count("not lower") == 3


def test_without_a_second_seed_or_workload_nothing_is_claimed(effect):
    one_seed = effect.only(seed=42)
    assert set(rq1.table(one_seed)["pair"]) == {rq1.OTHER_WORKLOAD}
    told = rq1.conclusion(one_seed)
    assert told.count("cannot be told from noise") == len(told.splitlines()) == 5
    assert "one workload only" in first_line(effect.only(workload="wiki"))
    alone = rq1.tables(effect.only(workload="wiki", seed=42))
    assert alone["rq1"].empty and len(alone["rq1_components"]) == len(planted.COMPONENTS)


def test_one_pair_each_has_no_spread_to_compare_with():
    row = pd.Series({"jaccard": 0.5, "jaccard_sd": math.nan})
    told = rq1.compared(pd.Series({"jaccard": 0.9, "jaccard_sd": math.nan}), row, "jaccard")
    assert told == "Jaccard 0.500 against 0.900, lower by 0.400, from one pair each, so the spread is not known"
    one_known = rq1.compared(pd.Series({"jaccard": 0.9, "jaccard_sd": 0.5}), row, "jaccard")
    assert "not lower by more than the spread (0.500)" in one_known


def test_components_have_their_mean_score_rank_and_share_of_seeds(effect):
    table = rq1.tables(effect)["rq1_components"]
    assert table["component"].tolist() == planted.COMPONENTS
    assert (table["layer"] + "." + table["kind"]).tolist() == planted.COMPONENTS
    for workload in planted.WORKLOADS:
        runs = effect.runs[effect.runs["workload"] == workload]
        scores = pd.DataFrame(list(runs["scores"]))[planted.COMPONENTS]
        assert table[f"score_{workload}"].to_numpy() == pytest.approx(scores.mean().to_numpy())
        assert table[f"score_{workload}_sd"].to_numpy() == pytest.approx(scores.std(ddof=1).to_numpy())
        best = table.loc[table[f"rank_{workload}"] == 1, f"score_{workload}"]
        assert best.tolist() == [table[f"score_{workload}"].max()]
        share = [np.mean([name in important for important in runs["important"]]) for name in planted.COMPONENTS]
        assert table[f"important_{workload}"].tolist() == share


def test_a_run_without_a_profile_is_named(effect):
    runs = effect.runs.assign(profile_file=None)
    with pytest.raises(ValueError, match=r"names no profile.*rerun=true"):
        rq1.tables(dataclasses.replace(effect, runs=runs))


def test_similarities_at_their_ends():
    assert rq1.jaccard(frozenset(), frozenset()) == 1 and rq1.jaccard(frozenset("a"), frozenset("b")) == 0
    rising, equal = pd.Series([1.0, 2.0, 3.0]), pd.Series([1.0, 1.0, 1.0])
    assert rq1.spearman(rising, rising**3) == pytest.approx(1) and rq1.spearman(rising, -rising) == pytest.approx(-1)
    assert math.isnan(rq1.spearman(rising, equal))
    assert rq1.layer("encoder.3.cross.q") == "3" and rq1.layer("embed") == ""


def test_profiles_are_found_where_outputs_went(effect, tmp_path):
    """The path in a summary is relative to the folder of outputs/, whatever that is called now."""
    told = effect.runs["profile_file"].iloc[0]
    folder = tmp_path / "fetched"
    (folder / "profiles").mkdir(parents=True)
    (folder / "profiles" / "a.parquet").write_bytes(b"")
    assert results.profile_file("outputs/profiles/a.parquet", folder) == str(folder / "profiles" / "a.parquet")
    assert results.profile_file(told, folder) == told  # absolute
    assert results.profile_file(None, folder) is None
