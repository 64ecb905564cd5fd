"""Profiles: kept with how they came about, refused where they do not fit, made once."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from igrad import profile
from igrad.data import Inputs
from igrad.importance.magnitude_persistence import MagnitudePersistence
from igrad.importance.saliency import Saliency
from igrad.threshold.all import All
from igrad.threshold.knee import Knee
from igrad.threshold.none import NoneImportant
from igrad.trace import MEASURES, Trace
from tests.strategies import CODECS, read

NUMEL = {"1.q": 41, "0.q": 40, "0.fc1": 80, "1.fc1": 80}
SALIENCY = {"1.q": 0.1, "0.q": 1 / 3, "0.fc1": 1.0, "1.fc1": 0.05}
TRACED = {
    "retained": np.array([[0.1, 0.5, 2, 1], [0.3, 0.7, 2, 2], [0.2, 0.6, 2, 3]]),
    "gradient": np.ones((3, 4)),
    "saliency": np.tile(list(SALIENCY.values()), (3, 1)),
}
GROUPS = {"model": "glass_0.9m", "workload": "pubmed", "sparsifier": "topk", "importance": "magnitude_persistence",
          "threshold": "knee", "residual": "full", "release": "periodic", "packing": "greedy",
          "collective": "allgather", **CODECS, "deferral": "zeros", "synchronizer": "importance", "optimizer": "adamw",
          "tracking": "none"}  # fmt: skip


def config(groups=None, **knobs):
    chosen = {group: read(f"{group}/{option}") for group, option in (GROUPS | (groups or {})).items()}
    return OmegaConf.merge({name: value for name, value in read("config").items() if name != "defaults"}, chosen, knobs)


def save(path, provenance):
    profile.save(path, Trace(steps=[7, 8, 9], numel=NUMEL), TRACED, provenance)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "p.parquet"
    save(path, {"seed": 42, "sparsifier": {"density": 0.01}})
    return path


def test_measures_and_provenance_come_back_as_they_were(saved):
    trace, numel, provenance = profile.load(saved)
    assert set(trace) == set(MEASURES)
    assert all((trace[measure] == TRACED[measure]).all() for measure in MEASURES)
    assert list(numel.items()) == list(NUMEL.items())
    assert provenance == {"seed": 42, "sparsifier": {"density": 0.01}}
    assert list(saved.parent.iterdir()) == [saved], "no temporary file stays"


def test_one_file_serves_every_score_and_policy(saved):
    in_another_order = dict(sorted(NUMEL.items()))
    scores = profile.scores(saved, Saliency(), in_another_order)
    assert scores == pytest.approx(SALIENCY)
    assert profile.scores(saved, MagnitudePersistence(1.0), NUMEL)["0.fc1"] == 1.0
    tau, important = profile.important_set(scores, Knee())
    expected_tau, is_important = Knee()(np.array(list(scores.values())))
    assert tau == expected_tau
    others = {None}  # what is of no component
    assert important == others | {name for name, yes in zip(scores, is_important, strict=True) if yes}
    assert profile.important_set(scores, All())[1] == others | set(NUMEL)
    assert profile.important_set(scores, NoneImportant())[1] == set()


@pytest.mark.parametrize("bad", (np.nan, np.inf))
def test_scores_must_be_finite(saved, bad):
    with pytest.raises(ValueError, match=rf"p\.parquet': scores must be finite, got {bad} for 0\.q; profile again"):
        profile.scores(saved, lambda trace: np.array([0.1, bad, 0.2, 0.3]), NUMEL)


@pytest.mark.parametrize(
    ("numel", "message"),
    (
        (NUMEL | {"2.q": 7}, r"1 components differ, first '2\.q' \(no elements in the profile, 7 in the model\)"),
        ({"0.q": 40, "0.fc1": 80}, r"2 components differ, first '1\.fc1' \(80 elements in the profile, no in the"),
        (NUMEL | {"1.q": 40}, r"1 components differ, first '1\.q' \(41 elements in the profile, 40 in the model\)"),
    ),
)
def test_a_profile_of_another_model_is_refused(saved, numel, message):
    with pytest.raises(ValueError, match=rf"profile '.*p\.parquet' does not match the model: {message}"):
        profile.scores(saved, Saliency(), numel)


def test_a_file_that_is_missing_or_something_else_is_refused(tmp_path):
    path = tmp_path / "x.parquet"
    for missing in (path, tmp_path):
        with pytest.raises(ValueError, match=f"profile '{missing}' does not exist; profile=auto makes one"):
            profile.load(missing)
    for text in ("", "component,score\n0.q,1\n" * 9):
        path.write_text(text)
        with pytest.raises(ValueError, match="is not a parquet file; profile=auto makes one"):
            profile.load(path)
    pd.DataFrame({"component": ["0.q"], "step": [1], "numel": [1], "gradient": [1.0]}).to_parquet(path)
    with pytest.raises(ValueError, match="lacks the column retained; profile=auto makes one"):
        profile.load(path)


def test_a_profile_made_by_other_means_has_no_provenance(saved):
    pd.read_parquet(saved).to_parquet(saved)
    assert profile.load(saved)[2] == {}


# ------------------------------------------------------------------------------------------- on demand


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """`resolve` in an empty folder; the profiling runs that it started."""
    monkeypatch.setattr(profile, "PROFILES", tmp_path / "profiles")
    runs = []

    def run_ranks(cfg, directory, inputs):
        runs.append((cfg, directory))
        save(Path(inputs.trace_to), profile.provenance(cfg))

    def resolve(**changes):
        cfg = config(**changes)
        inputs = Inputs(**{f.name: "" for f in dataclasses.fields(Inputs) if f.default is dataclasses.MISSING})
        return profile.resolve(cfg, inputs, run_ranks)

    return resolve, runs


def test_a_profile_is_made_once_and_shared_by_runs_that_differ_only_in_the_method(launched):
    resolve, runs = launched
    path = resolve()
    same = (dict(release_period=16), dict(steps=7), dict(groups={"residual": "delayed"}), dict(num_buckets=9),
            dict(block_numel=64), dict(groups={"deferral": "skip"}),
            dict(groups={"importance": "snr"}), dict(release_fraction=1.0), dict(study="other"))  # fmt: skip
    assert {resolve(**changes) for changes in same} == {path}
    assert len(runs) == 1
    other = (dict(seed=1), dict(density=0.5), dict(groups={"workload": "wiki"}), dict(learning_rate=1e-4),
             dict(groups={"sparsifier": "adtopk"}), dict(profile_window=[1, 2]), dict(split="by_rank"))  # fmt: skip
    assert len({path, *(resolve(**changes) for changes in other)}) == len(runs) == 1 + len(other)
    assert profile.load(path)[2]["seed"] == 42


def test_a_damaged_profile_is_made_again(launched):
    resolve, runs = launched
    path = Path(resolve())
    path.write_bytes(path.read_bytes()[:200])
    assert resolve() == str(path)
    assert len(runs) == 2 and profile.load(path)[2]["seed"] == 42


def test_no_profile_where_none_is_looked_at(launched):
    resolve, runs = launched
    assert resolve(groups={"threshold": "all"}) is None
    assert resolve(groups={"synchronizer": "dense"}) is None
    assert resolve(profile="mine.parquet") == "mine.parquet"
    assert not runs


def test_a_profiling_run_delays_nothing_and_stops_where_its_window_ends():
    cfg = config(profile_window=[3, 30], checkpoint_every=5, release_period=8, block_numel=64)
    run = profile.profiling(cfg)
    assert (run.release_period, run.steps, run.checkpoint_every, run.block_numel) == (1, 30, None, None)
    assert not profile.wanted(run), "it needs no profile itself"
    assert cfg.release_period == 8 and profile.wanted(cfg), "the run's own config stays as it is"
    assert profile.provenance(run) == profile.provenance(cfg)
