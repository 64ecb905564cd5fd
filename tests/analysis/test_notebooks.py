"""Notebooks run from the files of a sweep, and are committed without what they showed."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import analysis
from analysis.make_figures import questions
from tests.analysis import planted, synthetic

FOLDER = Path(analysis.__file__).parent


@pytest.mark.parametrize("name", questions())
def test_every_question_has_a_notebook_committed_without_outputs(name):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
    assert not any(word in cell.source for cell in code for word in ("for ", "def ", "if "))
    assert any(f"python run.py +rq={name}" in cell.source for cell in notebook.cells)


def executed(name, outputs, folder) -> list:
    """What an RQ's notebook shows, run beside a copy of outputs/: no error, nothing printed."""
    (folder / "analysis").mkdir()
    shutil.copytree(outputs, folder / "outputs")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder / "analysis")}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output.output_type in ("stream", "error")]
    return [output.data for output in shown]


@pytest.mark.parametrize(
    ("name", "truth", "num_figures", "num_tables", "said"),
    [
        ("rq1", planted.workload_effect, 4, 2, "more than the spread"),
        ("rq2", planted.worse_controls, 2, 2, "importance beats the control"),
        ("rq3", synthetic.rq3, 6, 1, "**full**"),
        ("rq4", synthetic.rq4, 2, 2, "`risk_aware` earns its keep"),
        ("rq5", synthetic.rq5, 5, 4, "`never` ends at"),
    ],
)
def test_it_shows_every_figure_and_table_and_concludes(
    name, truth, num_figures, num_tables, said, tmp_path_factory, tmp_path
):
    shown = executed(name, synthetic.complete(tmp_path_factory, name, truth), tmp_path)
    assert sum("image/png" in kind for kind in shown) == num_figures
    assert sum("text/html" in kind for kind in shown) == num_tables
    [conclusion] = [data["text/markdown"] for data in shown if "text/markdown" in data]
    assert said in conclusion
