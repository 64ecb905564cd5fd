"""Notebooks run from the files of a sweep, and are committed without what they showed."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

import analysis
from analysis import notebook
from analysis.make_figures import questions
from rq import rq3

FOLDER = Path(analysis.__file__).parent


def read(name: str):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", questions())
def test_every_question_has_a_notebook_with_all_its_parts_committed_without_outputs(name):
    told = read(name)
    nbformat.validate(told)
    code = [cell for cell in told.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert not any(word in cell.source for cell in code for word in ("for ", "def ", "if "))
    words = [cell.source for cell in told.cells if cell.cell_type == "markdown"]
    assert words[0].startswith(f"# {name.upper()}: ") and words[0].splitlines()[0].endswith("?")
    assert f"    python run.py +rq={name}" in words[0]
    calls = "\n".join(cell.source for cell in code)
    assert "notebook.table(" in calls and "notebook.show(" in calls
    assert words[-1].startswith("## Conclusion") and code[-1].source.startswith(f"notebook.say({name}.conclusion(")


@pytest.fixture(scope="module")
def folder(library, tmp_path_factory):
    """A repository's analysis/ beside outputs/ with every question's runs."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "analysis").mkdir()
    (folder / "outputs").mkdir()
    for name in questions():
        (folder / "outputs" / name).symlink_to(library.outputs(name) / name)
    (folder / "outputs" / "profiles").symlink_to(library.outputs("rq1") / "profiles")
    return folder


@pytest.fixture(scope="module")
def kernel(folder):
    """One for all: what takes long is what they import."""
    kernel = KernelManager()
    kernel.start_kernel(cwd=str(folder / "analysis"))
    yield kernel
    kernel.shutdown_kernel(now=True)


@pytest.mark.parametrize(
    ("name", "num_figures", "num_tables", "said"),
    [
        ("rq1", 4, 2, "more than the spread"),
        ("rq2", 2, 2, "importance beats the control"),
        ("rq3", 6, 1, "**full**"),
        ("rq4", 2, 2, "`risk_aware` earns its keep"),
        ("rq5", 5, 4, "`never` ends at"),
    ],
)
def test_it_shows_every_figure_and_table_and_concludes(kernel, name, num_figures, num_tables, said):
    told = read(name)
    NotebookClient(told, km=kernel, timeout=120).execute()
    outputs = [output for cell in told.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type in ("stream", "error")]
    shown = [output.data for output in outputs]
    assert sum("image/png" in kind for kind in shown) == num_figures
    assert sum("text/html" in kind for kind in shown) == num_tables
    [conclusion] = [data["text/markdown"] for data in shown if "text/markdown" in data]
    assert said in conclusion


@pytest.mark.parametrize("place", [".", "analysis"])
def test_runs_are_found_from_the_repository_and_from_the_notebooks_folder(folder, place, monkeypatch):
    monkeypatch.chdir(folder / place)
    assert len(notebook.study(rq3).runs) == 20


def test_without_runs_it_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="rq3: no sweep is complete"):
        notebook.study(rq3)
