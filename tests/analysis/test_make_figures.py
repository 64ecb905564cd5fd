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


ALL_KINDS = ["--format", "pdf,png,svg", "--table", "latex,csv,md"]


def files(folder) -> list[str]:
    """Of a study, but for the list of them."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return sorted(found - {make_figures.MADE})


def test_the_same_runs_give_the_same_bytes_and_the_names_are_told(one_figure, outputs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    told = []
    for out in ("a", "b"):
        assert main(["rq3", "--runs", str(outputs), "--out", out, *ALL_KINDS]) == 0
        told.append(capsys.readouterr().out)
    written = files(tmp_path / "a" / "rq3")
    assert {name.split(".")[1] for name in written} == {"pdf", "png", "svg", "csv", "tex", "md"} and len(written) == 9
    for name in (*written, make_figures.MADE):
        assert (tmp_path / "a/rq3" / name).read_bytes() == (tmp_path / "b/rq3" / name).read_bytes(), name
    assert all(f"a/rq3/{name}\n" in told[0] for name in written)
    pdf = (tmp_path / "a" / "rq3" / "loss.pdf").read_bytes()
    assert b"/CIDFontType2" in pdf and b"/Type3" not in pdf and b"CreationDate" not in pdf
    assert "<date>" not in (tmp_path / "a" / "rq3" / "loss.svg").read_text().replace("dc:", "")


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
    assert errors[0] == errors[1] and "1 of 20 runs are not finished" in errors[0] and gone.name in errors[0]
    assert "go on with: python run.py +rq=rq3 -m" in errors[0]
    assert not (copy.parent / "figures").exists()

    assert main(["rq3", "--partial", *ALL_KINDS]) == 0
    assert "incomplete: 19 of 20 runs" in capsys.readouterr().out
    folder = copy.parent / "figures" / "rq3"
    for path in folder.glob("*.csv"):
        assert set(pd.read_csv(path)["note"]) == {"incomplete: 19 of 20 runs"}
    for path in folder.glob("*.tex"):
        assert r"\emph{incomplete: 19 of 20 runs}" in path.read_text()
    for path in folder.glob("*.md"):
        assert path.read_text().endswith("\n*incomplete: 19 of 20 runs*\n")
    assert len(list(folder.glob("*.md"))) == len(list(folder.glob("*.csv"))) == 2
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
    assert sorted({name.split("/")[0] for name in files(folder)}) == ["density=0.01", "density=0.05"]
    assert set(pd.read_csv(folder / "density=0.05" / "rq3.csv")["num_seeds"]) == {1}


def test_what_the_last_call_made_goes_and_nothing_else(only_tables, copy):
    quick = ["rq3", "--table", "csv"]
    folder = copy.parent / "figures" / "rq3"
    assert main(quick) == 0
    assert files(folder) == ["rq3.csv", "rq3_runs.csv"]
    (folder / "rq3_mine.csv").write_text("")
    synthetic.write_sweep(synthetic.points(density=[0.05], release_period=[1, 2], seed=[42]))
    assert main(quick) == 0
    settings = [f"density={density}/{name}.csv" for density in (0.01, 0.05) for name in ("rq3", "rq3_runs")]
    assert files(folder) == [*settings, "rq3_mine.csv"]
    for path in copy.glob("*density=0.05*"):
        shutil.rmtree(path)
    for path in copy.glob("sweeps/*.json"):
        if "0.05" in path.read_text():
            path.unlink()
    assert main(quick) == 0
    assert files(folder) == ["rq3.csv", "rq3_mine.csv", "rq3_runs.csv"]
    assert not (folder / "density=0.05").exists()


def test_studies_without_runs_are_a_short_list_with_their_commands(tmp_path, capsys):
    assert main(["rq3", "--runs", str(tmp_path)]) == main(["--runs", str(tmp_path)]) == 2
    before, named, every = capsys.readouterr().err.split("error: no runs yet in")
    assert not before and named.splitlines()[1:] == ["  rq3  python run.py +rq=rq3 -m"]
    lines = every.splitlines()[1:]
    commands = [command for name in make_figures.studies() for command in make_figures.commands(name)]
    assert [re.sub(r"^  \S*\s+", "", line) for line in lines[: len(commands)]] == commands
    assert max(map(len, lines)) < 100 and lines[-1].split()[:3] == ["python", "-m", "igrad.simulate"]


def test_an_rq_without_runs_does_not_stop_the_others(only_tables, outputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(make_figures, "studies", lambda: {"rq0": [], "rq3": []})
    monkeypatch.setattr(make_figures, "commands", lambda name: [f"python run.py +rq={name} -m"])
    quick = ["--runs", str(outputs), "--out", str(tmp_path), "--format", "svg", "--table", "csv"]
    assert main(quick) == 0
    assert "  rq0         python run.py +rq=rq0 -m\n" in capsys.readouterr().out
    assert main([*quick, "rq0", "rq3"]) == 2
    assert "  rq0  python run.py +rq=rq0 -m\n" in capsys.readouterr().err and (tmp_path / "rq3" / "rq3.csv").exists()


def test_a_study_of_ones_own_is_drawn_as_the_question_says(only_tables, copy, capsys):
    """By its name, by the command of its sweep, or as the user says."""
    outputs, quick = copy.parent, ["--table", "csv"]
    shutil.copytree(copy, outputs / "mine")
    shutil.copytree(copy, outputs / "yours")
    shutil.move(copy, outputs / "rq3_wide")
    for path in (outputs / "yours" / "sweeps").iterdir():
        synthetic.rewrite(path, command="python run.py study=yours -m")
    assert main(["yours", *quick]) == 2
    assert "'yours' is no question's study; say whose figures it gets: rq1=yours" in capsys.readouterr().err
    assert main(["rq3=yours", "mine", "rq3_wide", *quick]) == 0
    capsys.readouterr()
    assert main(quick) == 0
    told = capsys.readouterr().out
    assert "mine: 20 runs" in told and "rq3_wide: 20 runs" in told and "yours" not in told
    for name in ("mine", "yours", "rq3_wide"):
        assert files(outputs / "figures" / name) == ["rq3.csv", "rq3_runs.csv"]


def test_every_study_that_only_failed_is_said_to(copy, capsys):
    for summary in copy.glob("*/summary.json"):
        synthetic.rewrite(summary, status="failed", error="out of memory")
    assert main(["--partial"]) == 2
    assert "rq3 has no finished run" in (error := capsys.readouterr().err) and "out of memory" in error


def test_runs_come_from_wandb_and_tables_go_there(only_tables, outputs, tmp_path, monkeypatch, capsys):
    sent = []
    monkeypatch.setattr("igrad.track.runs_from_wandb", lambda path, folder: outputs if path == "us/igrad" else None)
    monkeypatch.setattr("igrad.track.has_api_key", lambda: False)
    monkeypatch.setattr("igrad.track.log_tables", lambda *told: sent.append(told) or "somewhere")
    argv = ["rq3", "--out", str(tmp_path), "--table", "csv", "--runs", str(tmp_path / "fresh")]
    assert main([*argv, "--from-wandb", "us/igrad", "--to-wandb", "results"]) == 0
    [(study, tables, project, mode, folder)] = sent
    assert (study, project, mode, folder) == ("rq3", "results", "offline", outputs)
    assert set(tables) == {"rq3", "rq3_runs"} and "  somewhere\n" in capsys.readouterr().out
    assert main([*argv[1:], "--to-wandb", "rq3"]) == 2
    assert "--to-wandb takes a project, got the study 'rq3'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rq77"], "unknown study 'rq77'; known: rq1, rq2, "),
        (["rq9=mine"], "unknown question 'rq9'; known: rq1, rq2, rq3, rq4, rq5"),
        (["rq3=mine"], "no study 'mine' in outputs"),
        (["rq3_wide"], "no study 'rq3_wide' in outputs"),
        (["--runs", "nowhere"], "no folder 'nowhere' with runs; to make some: python run.py +rq=rq3 -m"),
        (["rq2", "--runs", "nowhere"], "no folder 'nowhere' with runs; to make some: python run.py +rq=rq2 ("),
        (["--format", "pdf,gif"], "--format must be of pdf, png, svg, got 'gif'"),
        (["--tables", "csv"], "unrecognized arguments: --tables; see --help"),
        (["--table", ""], "--table must be of latex, csv, md, got ''"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}") and captured.err.count("\n") == 1 and not captured.out


def test_every_question_has_its_command():
    assert set(make_figures.questions()) <= set(make_figures.studies())
    for name, files in make_figures.studies().items():
        commands = make_figures.commands(name)
        assert [command.split()[2] for command in commands] == [f"+rq={path.stem}" for path in files]
        assert not any("  " in command for command in commands), "what it takes stands apart"


def test_a_study_that_several_files_fill_is_drawn_once_from_all_their_sweeps(library, tmp_path, capsys):
    assert len(make_figures.studies()["rq5_frontier"]) > 1
    outputs = library.outputs("rq5_frontier")
    argv = ["rq5_frontier", "--runs", str(outputs), "--out", str(tmp_path), "--format", "svg", "--table", "csv"]
    assert main(argv) == 0
    sweeps = results.load("rq5_frontier", outputs).sweeps
    assert sweeps["sweep"].nunique() == len(synthetic.SWEEPS["rq5_frontier"])
    each = pd.read_csv(tmp_path / "rq5_frontier" / "rq5_runs.csv")
    assert sorted(each["run"]) == sorted(sweeps["name"]) and f"{len(each)} runs" in capsys.readouterr().out
    assert (tmp_path / "rq5_frontier" / "frontier.svg").exists()


def test_unfinished_is_empty_for_a_whole_study(outputs):
    assert results.load("rq3", outputs).unfinished() == ""
