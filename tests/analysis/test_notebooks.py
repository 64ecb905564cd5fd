"""Notebooks run from the files of a sweep, and are committed without what they showed."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import analysis
from analysis.make_figures import questions

FOLDER = Path(analysis.__file__).parent


@pytest.mark.parametrize("name", questions())
def test_every_question_has_a_notebook_committed_without_outputs(name):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
    assert not any(word in cell.source for cell in code for word in ("for ", "def ", "if "))
    assert any(f"python run.py +rq={name}" in cell.source for cell in notebook.cells)


def test_rq3_runs(outputs, tmp_path):
    (tmp_path / "analysis").mkdir()
    shutil.copytree(outputs, tmp_path / "outputs")
    notebook = nbformat.read(FOLDER / "rq3.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path / "analysis")}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output.output_type in ("stream", "error")]
    kinds = [set(output.data) for output in shown]
    assert sum("image/png" in kind for kind in kinds) == 6 and sum("text/html" in kind for kind in kinds) == 1
    [conclusion] = [output.data["text/markdown"] for output in shown if "text/markdown" in output.data]
    assert "**full**" in conclusion and "**none**" in conclusion
