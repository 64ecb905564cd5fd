"""The README's example of a strategy of one's own is run as it stands, in a copy of the tree."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
NAMED = re.compile(r"`([\w/]+\.(?:py|yaml))`[^`]*?\n\n```\w+\n(.*?)```", re.S)  # a file's name, then its contents


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The repository as it is after the example, installed nowhere."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("igrad", "conf", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("run.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    for name, contents in NAMED.findall(README):
        (root / name).write_text(contents)
    return root


def execute(tree: Path, *argv: str) -> str:
    done = subprocess.run([sys.executable, *argv], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_sparsifier_of_ones_own_is_three_short_files():
    files = dict(NAMED.findall(README))
    assert list(files) == ["igrad/sparsifier/rows.py", "conf/sparsifier/rows.yaml", "tests/sparsifier/test_rows.py"]
    assert len(files["igrad/sparsifier/rows.py"].splitlines()) <= 30


def test_it_obeys_the_laws_and_its_own(tree):
    [command] = re.findall(r"^    pytest (.+ -k rows)$", README, re.M)
    command = command.replace("test_laws.py", "test_laws.py::test_conservation_and_agreement[2-rows]")
    told = execute(tree, "-m", "pytest", "-p", "no:cacheprovider", *command.split())
    assert int(re.search(r"(\d+) passed", told)[1]) >= 4 and "skipped" not in told


def test_it_is_run_like_any_other(tree):
    [command] = re.findall(r"^    python (run\.py sparsifier=rows .+)$", README, re.M)
    small = ["steps=2", "threshold=fixed_ratio", "profile_window=[0,1]", "eval_windows=4"]
    told = execute(tree, *command.split(), *small, "release_period=1", "log_every=2", "tracking=none", "study=mine")
    [summary] = tree.glob("outputs/mine/*/summary.json")
    content = json.loads(summary.read_text())
    assert content["status"] == "finished" and content["achieved_density"] < 1
    lines = told.splitlines()
    assert sum(line.startswith("  profiling: step ") for line in lines) == 2, "told apart from the run's own"
    assert sum(line.startswith("  step ") for line in lines) == 2
    assert f"next: {summary.relative_to(tree)}" in told
