"""From run directories to files: only what is complete, the same bytes each time, one line for a mistake."""

from __future__ import annotations

import re
import shutil

import pandas as pd
import pytest

from analysis import make_figures
from analysis import rq3 as drawing
from analysis.make_figures import main
from igrad import results
from rq import rq3
from tests.analysis import synthetic


@pytest.fixture
def copy(outputs, tmp_path, monkeypatch):
    """The complete sweep in ./outputs, free to be changed."""
    shutil.copytree(outputs, tmp_path / "outputs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs" / "rq3"


@pytest.fixture
def only_tables(monkeypatch):
    """Figures take the time, and are not what these tests ask about."""
    monkeypatch.setattr(drawing, "figures", lambda study: {})


@pytest.fixture
def one_figure(monkeypatch):
    """The busiest: panels, bands, dotted ends."""
    monkeypatch.setattr(drawing, "figures", lambda study: {"loss": drawing.curves(study, "total_wire_bytes")})


def test_the_same_runs_give_the_same_bytes_and_the_names_are_told(one_figure, outputs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    told = []
    for out in ("a", "b"):
        assert main(["rq3", "--runs", str(outputs), "--out", out]) == 0
        told.append(capsys.readouterr().out)
    written = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    assert {path.suffix for path in written} == {".pdf", ".png", ".csv", ".tex"} and len(written) == 6
    for path in written:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path
        assert f"a/{path}\n" in told[0]
    pdf = (tmp_path / "a" / "rq3" / "loss.pdf").read_bytes()
    assert b"/CIDFontType2" in pdf and b"/Type3" not in pdf and b"CreationDate" not in pdf


def test_tables_say_what_the_runs_say(only_tables, outputs, study, tmp_path):
    assert main(["rq3", "--runs", str(outputs), "--out", str(tmp_path), "--format", "svg"]) == 0
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "rq3" / "rq3.csv"), rq3.table(study), rtol=1e-6, check_dtype=False
    )
    each = pd.read_csv(tmp_path / "rq3" / "rq3_runs.csv")
    assert sorted(each["run"]) == sorted(study.runs["run"])
    tex = (tmp_path / "rq3" / "rq3.tex").read_text()
    lines = [line for line in tex.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + 10 and len({line.count("&") for line in lines}) == 1
    assert r"\toprule" in tex and r"\bottomrule" in tex and r"$\pm$" in tex and "rq3" not in tex
    assert tex.isascii() and not re.search(r"(?<!\\)[_%#]", tex)


def test_an_incomplete_sweep_is_refused_and_drawn_marked_on_request(one_figure, copy, tmp_path, capsys):
    gone = next(copy.glob("*/summary.json")).parent
    shutil.rmtree(gone)
    assert main(["rq3"]) == main([]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and "1 of 20 runs are not finished" in errors[0] and gone.name in errors[0]
    assert "go on with: python run.py +rq=rq3 -m" in errors[0]
    assert not (copy.parent / "figures").exists()

    assert main(["rq3", "--partial", "--format", "svg"]) == 0
    assert "incomplete: 19 of 20 runs" in capsys.readouterr().out
    folder = copy.parent / "figures" / "rq3"
    for path in folder.glob("*.csv"):
        assert set(pd.read_csv(path)["note"]) == {"incomplete: 19 of 20 runs"}
    for path in folder.glob("*.tex"):
        assert r"\emph{incomplete: 19 of 20 runs}" in path.read_text()
    figures = list(folder.glob("*.svg"))
    assert len(figures) == 1
    assert all("incomplete: 19 of 20 runs" in path.read_text() for path in figures)


def test_a_complete_sweep_is_drawn_and_the_one_under_way_is_named(only_tables, copy, capsys):
    synthetic.write_sweep(synthetic.points(release_period=[32], residual=["full"]), but=1)
    capsys.readouterr()
    assert main(["--table", "csv", "--format", "svg"]) == 0
    out = capsys.readouterr().out
    assert "rq3: 20 runs" in out and "left out" in out and "1 of 2 runs" in out
    assert set(pd.read_csv(copy.parent / "figures/rq3/rq3.csv")["release_period"]) == {1, 2, 4, 8, 16}


def test_settings_have_a_folder_each(only_tables, copy):
    synthetic.write_sweep(synthetic.points(density=[0.05], release_period=[1, 2], seed=[42]))
    assert main(["--table", "csv", "--format", "svg"]) == 0
    folder = copy.parent / "figures" / "rq3"
    assert sorted(path.name for path in folder.iterdir()) == ["density=0.01", "density=0.05"]
    assert set(pd.read_csv(folder / "density=0.05" / "rq3.csv")["num_seeds"]) == {1}


def test_an_rq_without_runs_says_how_to_make_them(tmp_path, capsys):
    assert main(["rq3", "--runs", str(tmp_path)]) == main(["--runs", str(tmp_path)]) == 2
    named, every = capsys.readouterr().err.splitlines()
    assert "rq3 has no runs" in named and "rq3 has no runs" in every
    assert re.search(r"make them with: python run.py \+rq=rq3", named)


def test_an_rq_without_runs_does_not_stop_the_others(only_tables, outputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_figures, "studies", lambda: {"rq0": [], "rq3": []})
    monkeypatch.setattr(make_figures, "command", lambda name: f"python run.py +rq={name} -m")
    quick = ["--runs", str(outputs), "--out", str(tmp_path), "--format", "svg", "--table", "csv"]
    assert main(quick) == 0
    assert "rq0 has no runs" in capsys.readouterr().out
    assert main([*quick, "rq0", "rq3"]) == 2
    assert "rq0 has no runs" in capsys.readouterr().err and (tmp_path / "rq3" / "rq3.csv").exists()


def test_every_study_that_only_failed_is_said_to(copy, capsys):
    for summary in copy.glob("*/summary.json"):
        synthetic.rewrite(summary, status="failed", error="out of memory")
    assert main(["--partial"]) == 2
    assert "rq3 has no finished run" in (error := capsys.readouterr().err) and "out of memory" in error


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rq77"], "unknown study 'rq77'; known: rq1, rq2, "),
        (["--runs", "nowhere"], "no folder 'nowhere'"),
        (["--format", "pdf,gif"], "--format must be of pdf, png, svg, got 'gif'"),
        (["--tables", "csv"], "unrecognized arguments: --tables; see --help"),
        (["--table", ""], "--table must be of latex, csv, got ''"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}") and captured.err.count("\n") == 1 and not captured.out


def test_every_question_has_its_command():
    assert set(make_figures.questions()) <= set(make_figures.studies())
    for name, files in make_figures.studies().items():
        commands = make_figures.command(name).split("; ")
        assert [command.split()[2] for command in commands] == [f"+rq={path.stem}" for path in files]


def test_a_study_that_several_files_fill_is_drawn_once_from_all_their_sweeps(tmp_path_factory, tmp_path, capsys):
    assert len(make_figures.studies()["rq5_frontier"]) > 1
    outputs = synthetic.complete(tmp_path_factory, "rq5_frontier", synthetic.rq5)
    argv = ["rq5_frontier", "--runs", str(outputs), "--out", str(tmp_path), "--format", "svg", "--table", "csv"]
    assert main(argv) == 0
    sweeps = results.load("rq5_frontier", outputs).sweeps
    assert sweeps["sweep"].nunique() == len(synthetic.SWEEPS["rq5_frontier"])
    each = pd.read_csv(tmp_path / "rq5_frontier" / "rq5_runs.csv")
    assert sorted(each["run"]) == sorted(sweeps["name"]) and f"{len(each)} runs" in capsys.readouterr().out
    assert (tmp_path / "rq5_frontier" / "frontier.svg").exists()


def test_unfinished_is_empty_for_a_whole_study(outputs):
    assert results.load("rq3", outputs).unfinished() == ""
