"""A profile as one table: every score and policy from one file."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from igrad import profile, profile_table
from igrad.importance.energy import Energy
from igrad.profile_file import MEASURES, load
from igrad.threshold.otsu import Otsu
from igrad.trace import Trace
from tests.strategies import options

NUMEL = {f"{layer}.{kind}": 10 + layer for layer in range(4) for kind in ("q", "v", "fc1")}


@pytest.fixture
def saved(tmp_path):
    random = np.random.default_rng(0)
    measures = {measure: random.random((5, len(NUMEL))) for measure in MEASURES}
    path = tmp_path / "p.parquet"
    profile.save(path, Trace(steps=list(range(5)), numel=NUMEL), measures, {"seed": 7, "versions": {"torch": "x"}})
    return path


def test_every_score_and_policy_has_its_columns(saved, capsys):
    assert profile_table.main([str(saved), "--importance", "energy"]) == 0
    path = saved.with_suffix(".table.parquet")
    assert str(path) in capsys.readouterr().out
    rows = pd.read_parquet(path)
    assert set(rows["component"]) == set(NUMEL)
    for name in options("importance"):
        best = rows.loc[rows[f"rank_{name}"] == 1, f"score_{name}"]
        assert (best == rows[f"score_{name}"].max()).all() and len(best)
    scores = dict(zip(NUMEL, Energy()(load(saved)[0]), strict=True))
    assert dict(zip(rows["component"], rows["score_energy"], strict=True)) == pytest.approx(scores)
    assert rows["score_energy"].is_monotonic_decreasing
    tau, important = Otsu()(rows["score_energy"].to_numpy(), list(rows["component"]))
    assert (rows["tau_otsu"] == tau).all() and (rows["important_otsu"] == important).all()
    assert {name for name in rows if name.startswith("important_")} == {f"important_{p}" for p in options("threshold")}
    assert b'"importance": "energy"' in pq.read_schema(path).metadata[b"igrad"]
    assert b'"versions"' in pq.read_schema(path).metadata[b"igrad"]


def test_a_mistake_is_one_line(saved, tmp_path, capsys):
    assert profile_table.main([str(tmp_path / "no.parquet")]) == 2
    assert profile_table.main([str(saved), "--importance", "enrgy"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: profile '") and "does not exist" in first
    assert second.startswith("error: unknown importance 'enrgy'; options: energy, magnitude_persistence")
