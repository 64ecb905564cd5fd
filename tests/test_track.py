"""Around the runs in W&B: panels show what is logged, tables come back, runs come back as they were."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from igrad import results, track
from igrad.compose import CONF
from igrad.config import GROUPS, KNOBS
from igrad.metrics import COLUMNS
from igrad.tracking.artifacts import profile_artifact, run_artifact
from igrad.tracking.names import metric
from tests.analysis import planted, synthetic
from tests.tracking import records

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")  # of wandb-workspaces
STUDIES = sorted({yaml.safe_load(path.read_text())["study"] for path in (CONF / "rq").glob("*.yaml")})

# ------------------------------------------------------------------------------------------- workspaces, reports


@pytest.fixture(scope="module")
def specs(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("specs") / "specs.json"
    assert track.main(["workspace", "--out", str(path)]) == 0
    return json.loads(path.read_text())


def found(node: object, key: str) -> list:
    """Every value of a key, anywhere in a JSON document."""
    if isinstance(node, list):
        return [value for each in node for value in found(each, key)]
    if not isinstance(node, dict):
        return []
    return [value for name, each in node.items() for value in ([each] if name == key else found(each, key))]


def test_every_study_has_both(specs):
    assert sorted(specs) == STUDIES
    assert all(set(each) == {"workspace", "report"} for each in specs.values())


@pytest.mark.parametrize("kind", ["workspace", "report"])
@pytest.mark.parametrize("study", STUDIES)
def test_panels_show_what_is_logged(specs, study, kind):
    spec = specs[study][kind]
    shown = {name for names in found(spec, "metrics") for name in names} | set(found(spec, "xAxis")) - {"_step", "step"}
    logged = {metric(column) for column in COLUMNS}
    assert {name for name in shown if not name.startswith("summary:")} <= logged
    assert {metric(name) for name in ("val_loss", "wire_bytes", "residual_norm")} <= shown
    panels = [each for each in found(spec, "config") if isinstance(each, dict)]
    axes = {panel["xAxis"] for panel in panels if panel.get("metrics") == [metric("val_loss")]}
    assert axes == {"step", metric("total_wire_bytes"), metric("seconds")}


@pytest.mark.parametrize("study", STUDIES)
def test_runs_are_those_of_the_study_grouped_by_what_it_sweeps(specs, study):
    files = [yaml.safe_load(path.read_text()) for path in (CONF / "rq").glob("*.yaml")]
    swept = {key.lstrip("+") for told in files if told["study"] == study for key in told["hydra"]["sweeper"]["params"]}
    for spec in specs[study].values():
        for runs in (each for sets in found(spec, "runSets") for each in sets):
            kept = {(rule["key"]["name"], rule["op"], rule["value"]) for rule in runs["filters"]["filters"]}
            assert kept == {("group", "=", study), ("jobType", "!=", "tables")}
            keys = {re.sub(r"\.value|options\.value\.", "", key["name"]) for key in runs["grouping"]}
            assert keys == swept - {"seed"}
            assert {key.split(".")[0] for key in keys} <= {*KNOBS, *GROUPS}


def test_a_report_says_how_its_runs_are_made(specs):
    for study in STUDIES:
        code = "\n".join(text for line in found(specs[study]["report"], "children") for text in found(line, "text"))
        assert f"python run.py +rq={study}" in code


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["workspace", "rq33"], "unknown study 'rq33'; known: rq1, "),
        (["worksapce"], "invalid choice: 'worksapce'"),
        ([], "required: workspace"),
        (["workspace", "--out", "/"], "cannot write to /"),
        (["workspace"], "W&B needs an API key"),
    ],
)
def test_a_mistake_is_one_line(argv, told, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert track.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and told in err


def test_a_missing_library_is_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    monkeypatch.delitem(sys.modules, "igrad.panels", raising=False)
    monkeypatch.delattr("igrad.panels", raising=False)
    for name in [name for name in sys.modules if name.startswith("wandb_workspaces.")]:
        monkeypatch.delitem(sys.modules, name)
    assert track.main(["workspace", "--out", str(tmp_path / "specs.json")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: workspace needs wandb_workspaces") and "pip install 'igrad[track]'" in told


class Saved:
    """What stands for a workspace or a report where no server is."""

    def __init__(self, *args) -> None:
        *_, self.entity, self.project = args

    def save(self) -> Saved:
        self.url = f"https://wandb/{self.entity}/{self.project}"
        return self


def test_without_a_file_they_are_saved_for_ones_own_entity(monkeypatch, capsys):
    monkeypatch.setattr(track, "server", lambda: SimpleNamespace(default_entity="me"))
    monkeypatch.setattr("igrad.panels.workspace", Saved)
    monkeypatch.setattr("igrad.panels.report", Saved)
    assert track.main(["workspace", "rq3", "rq4", "--project", "mine"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{rq}: https://wandb/me/mine" for rq in ("rq3", "rq3", "rq4", "rq4")
    ]


# ------------------------------------------------------------------------------------------------------- tables


def test_tables_are_a_run_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))  # where wandb keeps tables until they are uploaded
    table = pd.DataFrame({"method": ["dense", None], "val_loss": [3.0, np.nan], "low": [("0.q",), ()], "n": [1, 2]})
    told = track.log_tables("rq3", {"rq3": table}, directory=tmp_path)
    assert Path(told).parent == tmp_path / "wandb"
    logged = records.by_type(tmp_path)
    run = logged["run"][0].run
    assert (run.run_group, run.job_type, run.display_name) == ("rq3", "tables", "rq3-tables")
    [row] = (records.items(record.history.item) for record in logged["history"])
    written = json.loads((Path(told) / "files" / row["rq3.path"]).read_text())
    assert written["columns"] == list(table) and len(written["data"]) == len(table)
    assert written["data"][0] == ["dense", 3.0, "('0.q',)", 1]


# ------------------------------------------------------------------------------------------------- runs come back


class Given:
    """An artifact as W&B would give it back."""

    def __init__(self, made) -> None:
        self.type, self.entries = made.type, made.manifest.entries

    def download(self, root: str) -> None:
        for path, entry in self.entries.items():
            target = Path(root, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(entry.local_path, target)


class GivenRun:
    def __init__(self, directory: Path, profile: str | None, finished: bool = True) -> None:
        (directory / "wandb").mkdir(exist_ok=True)
        self.made = [Given(run_artifact(directory, "run-1"))] if finished else []
        self.used = [Given(profile_artifact(Path(profile)))] if profile else []

    def logged_artifacts(self) -> list[Given]:
        return self.made

    def used_artifacts(self) -> list[Given]:
        return self.used


class GivenApi:
    def __init__(self, runs: list[GivenRun]) -> None:
        self.given = runs

    def runs(self, path: str, order: str) -> list[GivenRun]:
        assert (path, order) == ("me/igrad", "+created_at")
        return self.given


@pytest.fixture
def outputs(tmp_path, monkeypatch) -> Path:
    """Two finished studies, one of them with profiles."""
    monkeypatch.chdir(tmp_path)
    synthetic.write_sweep(synthetic.points("rq1", workload=["pubmed", "wiki"]), truth=planted.workload_effect)
    synthetic.write_sweep(synthetic.points("rq3", release_period=[1, 4], residual=["full"]))
    return Path("outputs")


def given(outputs: Path) -> list[GivenRun]:
    summaries = sorted(outputs.glob("*/*/summary.json"))
    return [GivenRun(path.parent, json.loads(path.read_text())["profile"]) for path in summaries]


def test_runs_from_wandb_are_those_that_were_made(outputs):
    folder = track.runs_from_wandb("me/igrad", outputs, api=GivenApi(given(outputs)))
    assert folder == outputs / "wandb_me_igrad"
    for name in ("rq1", "rq3"):
        made, fetched = results.load(name, outputs), results.load(name, folder)
        assert len(made.runs) == len(fetched.complete().runs) > 1
        for frame in ("curves", "components", "sweeps"):
            pd.testing.assert_frame_equal(getattr(made, frame), getattr(fetched, frame))
        there = "profile_file"
        pd.testing.assert_frame_equal(made.runs.drop(columns=there), fetched.runs.drop(columns=there))
        if name == "rq1":
            assert all(Path(path).is_relative_to(folder / "profiles") for path in fetched.runs[there])


def test_a_run_that_is_not_finished_is_missing_from_its_sweep(outputs):
    *rest, last = sorted(outputs.glob("rq3/*/summary.json"))
    runs = [GivenRun(path.parent, None, finished=path != last) for path in (*rest, last)]
    folder = track.runs_from_wandb("me/igrad", outputs, api=GivenApi(runs))
    sweeps = results.load("rq3", folder).sweeps.set_index("name")["status"]
    assert sweeps[last.parent.name] == "missing"
    assert (sweeps.drop(last.parent.name) == "finished").all()


def test_a_wrong_project_is_told(tmp_path):
    with pytest.raises(ValueError, match="named ENTITY/PROJECT, got 'igrad'"):
        track.runs_from_wandb("igrad", tmp_path, api=GivenApi([]))
    with pytest.raises(ValueError, match="me/igrad holds no finished run"):
        track.runs_from_wandb("me/igrad", tmp_path, api=GivenApi([]))
