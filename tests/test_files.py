"""Files of a run directory: whole or not at all, and read without what takes seconds to import."""

import subprocess
import sys

import pytest

from igrad.files import read_summary, write_whole


def test_what_fails_half_way_leaves_what_was_there(tmp_path):
    path = tmp_path / "summary.json"
    write_whole(path, lambda file: file.write_text('{"status": "failed"}'))

    def half(file):
        file.write_text("{")
        raise OSError("disk full")

    with pytest.raises(OSError):
        write_whole(path, half)
    assert read_summary(tmp_path) == {"status": "failed"}
    path.write_text("{")
    assert read_summary(tmp_path) == read_summary(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(("module", "slow"), (("igrad.launch", "pandas"), ("igrad.results", "torch")))
def test_what_starts_at_once_imports_nothing_slow(module, slow):
    code = f"import sys, {module}; print({{'{slow}', 'torch', 'transformers', 'wandb'}} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
