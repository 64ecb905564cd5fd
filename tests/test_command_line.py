"""What the commands share: where they may write, told in one line before anything is measured."""

from __future__ import annotations

import pytest

from analysis import make_figures
from benchmarks import growth, selection, wire
from igrad import profile_table, simulate, track
from igrad.command_line import output_file, output_folder
from tests import test_simulate

COMMANDS = {
    "selection": (selection.main, []),
    "wire": (wire.main, []),
    "growth": (growth.main, []),
    "track": (track.main, ["workspace", "rq3"]),
}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("out", "why"), (("folder", "it is a folder"), ("file/x/out.json", "file is a file")))
def test_a_file_that_cannot_be_written_is_one_line_before_anything_else(name, out, why, place, capsys):
    main, argv = COMMANDS[name]
    assert main([*argv, "--out", str(place / out)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: cannot write to {place}/") and why in said.err
    assert said.err.count("\n") == 1 and not said.out and (place / "file").read_text() == "kept"


@pytest.mark.parametrize("out", ("file", "file/x"))
def test_figures_need_a_folder(out, place, capsys):
    assert make_figures.main(["--runs", str(place / "folder"), "--out", str(place / out)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: cannot write to {place / out}: ") and said.err.count("\n") == 1


def test_a_simulation_makes_the_folders_of_its_file(place, capsys):
    run = test_simulate.write(place / "study")
    for out, code in (("new/folders/out.json", 0), ("folder", 2), ("file/out.json", 2)):
        assert simulate.main([str(run), "--out", str(place / out)]) == code
        assert (place / out).is_file() == (code == 0)
    assert capsys.readouterr().err.count("\n") == 2


def test_folders_are_made(place, monkeypatch):
    monkeypatch.chdir(place)
    for path in (place / "a" / "b" / "c.json", output_file(place / "file").relative_to(place)):
        output_file(path).write_text("new")
    assert output_folder(place / "d" / "e").is_dir() and output_folder(place / "folder").is_dir()


@pytest.mark.parametrize("main", (selection.main, wire.main, growth.main, profile_table.main))
def test_an_unknown_flag_is_one_line(main, capsys):
    assert main(["--nonsense"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.endswith("; see --help\n") and said.count("\n") == 1
