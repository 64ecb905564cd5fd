"""RQ4's table: what is exact apart from what is indicative, compared with greedy of the same sparsifier and seed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from analysis import printed
from igrad import results
from igrad.metrics import PHASES
from rq import rq4, times
from tests.analysis import synthetic


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return results.load("rq4", synthetic.complete(tmp_path_factory, "rq4", synthetic.rq4))


def changed(study, packing: str, column: str, change, sparsifier: str = "threshold", seeds: tuple = (42, 43)):
    """The study with one column of one packing's runs changed."""
    runs = study.runs.copy()
    mine = (runs["packing"] == packing) & (runs["sparsifier"] == sparsifier) & runs["seed"].isin(seeds)
    runs.loc[mine, column] = change(runs.loc[mine, column])
    return dataclasses.replace(study, runs=runs)


def without(study, **knobs):
    """The study without the runs that have all these values."""
    return study.of(study.runs[~np.logical_and.reduce([study.runs[name] == value for name, value in knobs.items()])])


def sentence(study, sparsifier: str) -> str:
    [line] = [line for line in rq4.conclusion(study).splitlines() if line.startswith(f"- **{sparsifier}**")]
    return line


def test_one_row_per_run_compared_with_greedy_of_the_same_sparsifier_and_seed(study):
    each = rq4.per_run(study)
    assert sorted(each["run"]) == sorted(study.runs["run"])
    by_key = study.runs.set_index(["sparsifier", "seed", "packing"])
    for row in each.itertuples():
        own, greedy = (by_key.loc[(row.sparsifier, row.seed, packing)] for packing in (row.packing, "greedy"))
        expected = synthetic.CERTAIN if row.sparsifier == "topk" else synthetic.VARYING
        assert row.bucket_imbalance == pytest.approx(expected[row.packing] + 0.01 * (row.seed - 42))
        assert row.exchange_over_greedy == own["exchange_ms"] / greedy["exchange_ms"]
        assert row.step_over_greedy == own["step_ms"] / greedy["step_ms"]
        assert row.equal_loss == 1


def test_one_row_per_sparsifier_and_packing_the_baseline_first(study):
    each = rq4.per_run(study)
    for table, columns in ((rq4.table(study), rq4.EXACT), (rq4.times(study), rq4.TIMES)):
        assert table["sparsifier"].tolist() == ["threshold"] * 5 + ["topk"] * 5
        assert table["packing"].tolist() == ["direct", "greedy", "overlap", "risk_aware", "sequential"] * 2
        for row in table.to_dict("records"):
            own = each[(each["sparsifier"] == row["sparsifier"]) & (each["packing"] == row["packing"])]
            assert row["num_seeds"] == len(own) == 2
            for name in columns:
                assert row[name] == pytest.approx(own[name].mean())
                assert row[f"{name}_sd"] == pytest.approx(own[name].std(ddof=1))


def test_what_a_busy_machine_changes_stands_apart_and_says_so(study):
    tables = rq4.tables(study)
    assert set(rq4.EXACT) <= set(tables["rq4"]) and not set(rq4.TIMES) & set(tables["rq4"])
    assert "indicative" in printed.booktabs(tables["rq4_times"])
    assert "indicative" in rq4.conclusion(study)


def test_the_last_digit_of_a_loss_is_compared(study):
    assert (rq4.table(study)["equal_loss"] == 1).all()
    assert rq4.conclusion(study).count("the same to the last digit under every packing") == 2
    moved = changed(study, "overlap", "val_loss", lambda loss: np.nextafter(loss, 9), "topk", seeds=(43,))
    table = rq4.table(moved).set_index(["sparsifier", "packing"])["equal_loss"]
    assert table["topk", "overlap"] == 0.5 and (table.drop([("topk", "overlap")]) == 1).all()
    assert "same to the last digit" in sentence(moved, "threshold")
    assert "not that of `greedy` under `overlap` (up to 4.4e-16" in sentence(moved, "topk")


def test_phases_are_in_step_times_of_greedy(study):
    assert times.PHASES == PHASES
    each, table = rq4.times(study), rq4.phases(study)
    greedy = table[table["packing"] == "greedy"]
    assert (greedy["step_share"] == 1).all()
    for name in (*PHASES, "step"):
        scaled = table[f"{name}_share"] / table["step_share"]
        assert scaled.to_numpy() == pytest.approx((each[f"{name}_ms"] / each["step_ms"]).to_numpy(), rel=1e-3)


def test_what_nothing_measures_is_left_out(study):
    each = rq4.per_run(without(study, packing="greedy"))
    assert not {"equal_loss", "exchange_over_greedy", "step_over_greedy"} & set(each) and "exchange_ms" in each
    alone = rq4.conclusion(study.only(packing="sequential"))
    assert "`sequential` is the most even" in alone and "`direct` has" not in alone and "`greedy`" not in alone


def test_two_runs_of_one_packing_and_seed_are_not_averaged(study):
    twice = dataclasses.replace(study, runs=pd.concat([study.runs, study.runs[:1]]))
    for answer in (rq4.tables, rq4.conclusion):
        with pytest.raises(ValueError, match="two rows have sparsifier"):
            answer(twice)


def test_the_most_even_is_told_against_direct_ties_together(study):
    ratios = rq4.per_run(study).query("sparsifier == 'topk'").pivot(index="seed", columns="packing")
    exchange = (ratios["exchange_ms"]["greedy"] / ratios["exchange_ms"]["direct"]).mean()
    told = sentence(study, "topk")
    assert "`greedy` and `risk_aware` are the most even: the largest bucket is 1.025" in told
    assert f"`direct` has 1.405 and 2.00; against it `greedy` takes {exchange:.2f} of the exchange time" in told
    assert "`risk_aware` is the most even: the largest bucket is 1.085" in sentence(study, "threshold")
    best = sentence(changed(study, "direct", "bucket_imbalance", lambda even: 0 * even + 1), "threshold")
    assert "`direct` is the most even: the largest bucket is 1.000" in best and "`direct` has" not in best


@pytest.mark.parametrize(
    ("more_imbalance", "more_overflows", "said"),
    [
        (0.0, 0, "earns its keep: against `greedy`, imbalance −0.040 ± 0.000 and overflows per step −1.000"),
        (0.1, 2, "does not earn its keep: against `greedy`, imbalance +0.060 ± 0.000 and overflows per step +1.000"),
        (0.1, 0, "is not more even throughout: against `greedy`, imbalance +0.060"),
    ],
)
def test_risk_aware_earns_its_keep_where_both_fall_on_every_seed(study, more_imbalance, more_overflows, said):
    study = changed(study, "risk_aware", "bucket_imbalance", lambda even: even + more_imbalance)
    study = changed(study, "risk_aware", "num_overflows", lambda overflows: overflows + more_overflows)
    assert f"`risk_aware` {said}" in sentence(study, "threshold")
    assert "`risk_aware` is exactly as even as `greedy`" in sentence(study, "topk")


def test_one_seed_against_the_others_is_no_verdict(study):
    torn = changed(study, "risk_aware", "bucket_imbalance", lambda even: even + 0.1, seeds=(43,))
    assert "is not more even throughout" in sentence(torn, "threshold")


def test_overlap_gains_or_loses(study):
    runs = rq4.per_run(study).query("packing == 'overlap' and sparsifier == 'topk'")
    gained = 1 - runs["step_over_greedy"].mean()
    assert f"`overlap` gains {gained:.1%} of `greedy`'s step time" in sentence(study, "topk")
    slower = changed(study, "overlap", "step_ms", lambda ms: 2 * ms, "topk")
    assert f"`overlap` loses {1 - 2 * gained:.1%} of `greedy`'s" in sentence(slower, "topk")


def test_words_are_over_the_seeds_that_every_packing_has(study):
    fewer = without(study, packing="direct", sparsifier="topk", seed=43)
    assert sentence(fewer, "topk").startswith("- **topk** (1 seed): ") and "±" not in sentence(fewer, "topk")
    assert "largest bucket is 1.020" in sentence(fewer, "topk")
    assert sentence(fewer, "threshold").startswith("- **threshold** (2 seeds): ")
    none = without(fewer, packing="overlap", sparsifier="topk", seed=42)
    assert "no seed that every packing has" in sentence(none, "topk")
