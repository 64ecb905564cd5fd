"""Runs as tables: every finished run once, told apart by its knobs, averaged over nothing but seeds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from igrad import results
from igrad.config import GROUPS, NOT_IDENTITY, plain
from rq import rq3
from tests.analysis import synthetic


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return synthetic.complete(tmp_path_factory)


@pytest.fixture
def copy(outputs, tmp_path, monkeypatch):
    """The complete sweep in ./outputs, free to be changed."""
    shutil.copytree(outputs, tmp_path / "outputs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs" / "rq3"


def test_every_finished_run_is_one_row_with_its_knobs_and_results(outputs):
    study = results.load("rq3", outputs)
    assert sorted(study.runs["run"]) == sorted(path.parent.name for path in outputs.glob("rq3/*/summary.json"))
    assert set(zip(study.runs["release_period"], study.runs["residual"], study.runs["seed"], strict=True)) == {
        (r, residual, seed) for r in (1, 2, 4, 8, 16) for residual in ("full", "none") for seed in (42, 43)
    }
    for row in study.runs.itertuples():
        assert row.val_loss == pytest.approx(synthetic.loss(row.release_period, row.residual, row.seed))
        assert row.total_wire_bytes == pytest.approx(row.wire_bytes * synthetic.STEPS)
        assert row.initial_val_loss == 5.5 and row.best_val_loss == row.val_loss
        assert (row.num_important, row.num_low, row.low) == (3, 1, ("1.k",))
        curve = study.curves[study.curves["run"] == row.run]
        lines = (outputs / "rq3" / row.run / "metrics.jsonl").read_text().splitlines()
        assert curve["step"].tolist() == [json.loads(line)["step"] for line in lines]
        assert curve["total_wire_bytes"].iloc[-1] == row.total_wire_bytes + row.flush_wire_bytes
        assert set(curve["release_period"]) == {row.release_period}
        trace = study.components[study.components["run"] == row.run]
        assert len(trace) == len(synthetic.VIEWS) * trace["step"].nunique()
        assert set(trace["residual"]) == {row.residual}
    pd.testing.assert_frame_equal(results.sweeps("rq3", outputs), study.sweeps)


def test_a_run_from_before_a_key_was_there_has_its_default(copy):
    config = next(copy.glob("*/config.yaml"))
    told = OmegaConf.load(config)
    rate = told.pop("learning_rate_factor")
    OmegaConf.save(told, config)
    study = results.load("rq3")
    assert set(study.runs["learning_rate_factor"]) == {rate} and list(study.settings(rq3.AXES)) == [""]


def test_a_study_without_runs_is_empty(tmp_path):
    study = results.load("rq3", tmp_path)
    assert study.runs.empty and study.curves.empty and study.components.empty and study.sweeps.empty
    with pytest.raises(ValueError, match="no sweep is complete"):
        study.complete()


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in NOT_IDENTITY])
def test_every_option_is_named_as_it_is_spelt(group):
    """Also where several options share a class."""
    config = plain(synthetic.base())
    for path in sorted((results.CONF / group).glob("*.yaml")):
        node = {**results.yamls(group)[path.stem]}
        node = {key: "given" if value == "???" else results.follow(value, config) for key, value in node.items()}
        told = results.knobs({**config, group: node})
        assert told[group] == path.stem
        assert not [name for name in told if name.startswith(f"{group}.") and name.split(".", 1)[1] not in node]


def test_a_key_that_follows_a_knob_says_nothing_and_one_that_does_not_is_a_knob():
    cfg = synthetic.base().copy()
    cfg.density, cfg.importance.alpha = 0.05, 0.3
    told = results.knobs(plain(cfg))
    assert told["density"] == 0.05 and told["importance.alpha"] == 0.3
    assert not {"sparsifier.density", "release.period", "optimizer.lr"} & set(told)
    cfg.optimizer.lr = 0.5
    assert results.knobs(plain(cfg))["optimizer.lr"] == 0.5
    assert pd.Series(told).map(hash).notna().all()  # so that a table can group by any


# ---------------------------------------------------------------------------------------------- completeness


def test_a_sweep_is_complete_when_all_its_points_are_finished(copy):
    study = results.load("rq3")
    assert len(study.complete().runs) == len(study.runs) == 20
    assert study.complete().incomplete is study.partial().incomplete is None and not study.unfinished()


def test_an_unfinished_point_and_a_failed_one_are_named(copy):
    missing, failed = sorted(path.parent for path in copy.glob("*/summary.json"))[:2]
    shutil.rmtree(missing)
    synthetic.rewrite(failed / "summary.json", status="failed", error="ran out of memory")
    study = results.load("rq3")
    status = study.sweeps.set_index("name")["status"]
    assert status[missing.name] == "missing" and status[failed.name] == "failed"
    assert set(study.runs["run"]).isdisjoint({missing.name, failed.name})
    with pytest.raises(ValueError, match="2 of 20 runs are not finished") as error:
        study.complete()
    assert any(path.name in str(error.value) for path in (missing, failed)) and "run.py" in str(error.value)
    assert study.partial().incomplete == "incomplete: 18 of 20 runs"
    assert len(study.partial().runs) == len(study.partial().curves["run"].unique()) == 18


def test_a_run_of_another_config_does_not_finish_a_point(copy):
    summary = next(copy.glob("*/summary.json"))
    synthetic.rewrite(summary, config_hash="00000000")
    assert results.sweeps("rq3").set_index("name")["status"][summary.parent.name] == "missing"


def test_the_complete_sweep_is_drawn_without_the_one_under_way(copy):
    synthetic.write_sweep(synthetic.points(release_period=[32], residual=["full"]), but=1)
    study = results.load("rq3")
    assert len(study.runs) == 21 and len(study.complete().runs) == 20
    assert "1 of 2 runs" in study.unfinished()
    assert study.partial().incomplete == "incomplete: 21 of 22 runs"


@pytest.mark.parametrize("damage", ["metrics.jsonl", "config.yaml", "summary.json"])
def test_a_damaged_run_is_named(copy, damage):
    run = next(copy.glob("*/summary.json")).parent
    if damage == "metrics.jsonl":
        (run / damage).unlink()
    elif damage == "config.yaml":
        (run / damage).write_text("seed: [")
    else:
        summary = json.loads((run / damage).read_text())
        del summary["totals"]
        (run / damage).write_text(json.dumps(summary))
    with pytest.raises(ValueError, match="damaged") as error:
        results.load("rq3")
    assert run.name in str(error.value) and "\n" not in str(error.value)


def test_a_summary_cut_short_is_an_unfinished_run(copy):
    summary = next(copy.glob("*/summary.json"))
    summary.write_text(summary.read_text()[:50])
    assert summary.parent.name not in set(results.runs("rq3")["run"])


# -------------------------------------------------------------------------------------------------- settings


def test_runs_that_differ_in_another_knob_are_of_another_setting(copy):
    synthetic.write_sweep(synthetic.points(density=[0.05], release_period=[1, 2]))
    study = results.load("rq3").complete()
    settings = study.settings(rq3.AXES)
    assert {name: len(each.runs) for name, each in settings.items()} == {"density=0.01": 20, "density=0.05": 8}
    assert all(len(each.curves["density"].unique()) == 1 for each in settings.values())
    with pytest.raises(ValueError, match=r"density=0\.01; density=0\.05"):
        study.setting(rq3.AXES)
    assert len(study.only(density=0.05).setting(rq3.AXES).runs) == 8
    with pytest.raises(ValueError, match="they differ in another knob"):
        rq3.table(study)


def test_only_names_what_it_does_not_know(outputs):
    study = results.load("rq3", outputs)
    with pytest.raises(ValueError, match="no knob 'densty'"):
        study.only(densty=0.01)
    with pytest.raises(ValueError, match="seed=7"):
        study.only(seed=7)


def test_tracking_and_the_like_make_no_setting(copy):
    config = next(copy.glob("*/config.yaml"))
    cfg = OmegaConf.load(config)
    cfg.rerun, cfg.cluster.timeout_s = True, 5
    OmegaConf.save(cfg, config)
    assert list(results.load("rq3").settings(rq3.AXES)) == [""]


def test_a_long_label_is_cut_and_stays_its_own():
    long, other = ({f"knob{i}": i for i in range(40)} | {"last": last} for last in (1, 2))
    assert len(results.label(long)) <= results.MAX_LABEL
    assert results.label(long) != results.label(other)


# -------------------------------------------------------------------------------------------------- averages


def test_mean_and_sample_sd_over_seeds():
    frame = pd.DataFrame({"r": [1, 1, 1, 2], "seed": [1, 2, 3, 1], "x": [1.0, 2.0, 6.0, 5.0]}).sample(frac=1.0)
    told = results.over_seeds(frame, ["r"], ["x"])
    assert told["r"].tolist() == [1, 2] and told["num_seeds"].tolist() == [3, 1]
    assert told["x"].tolist() == [3.0, 5.0]
    assert told["x_sd"][0] == pytest.approx(np.std([1, 2, 6], ddof=1)) and np.isnan(told["x_sd"][1])


def test_what_is_no_seed_is_not_averaged_away():
    frame = pd.DataFrame({"r": [1, 1], "seed": [1, 1], "x": [1.0, 2.0]})
    with pytest.raises(ValueError, match="r=1,seed=1: they differ in another knob than r, seed"):
        results.over_seeds(frame, ["r"], ["x"])


def test_the_baseline_is_the_one_of_the_same_pair():
    frame = pd.DataFrame({"r": [2, 1, 2, 1, 2], "kind": list("aabbb"), "seed": [1, 1, 1, 1, 2], "x": [1.0, 2, 3, 4, 5]})
    told = results.baseline(frame, frame["r"] == 1, ["kind", "seed"], "x")
    assert told.tolist()[:4] == [2, 2, 4, 4] and np.isnan(told[4])


def test_reading_needs_no_torch():
    code = "import sys, analysis.make_figures, analysis.rq3; print({'torch', 'transformers'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_a_table_shows_what_varies_and_what_came_out(outputs):
    study = results.load("rq3", outputs)
    lines = study.table().splitlines()
    heads = lines[0].split()
    assert len(lines) == 1 + len(study.runs) and heads[-3:] == ["val_loss", "wire_bytes", "step_ms"]
    assert set(heads[:-3]) == {name for name in study.knobs if study.runs[name].map(repr).nunique() > 1}
