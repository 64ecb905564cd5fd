"""One name per column, and a missing package is told before anything starts."""

import importlib.util

import pytest

from igrad.metrics import COLUMNS
from igrad.tracking.names import SECTIONS, metric
from tests.strategies import make


def test_every_column_has_a_name_of_its_own():
    names = [metric(column) for column in COLUMNS]
    assert len(set(names)) == len(names)
    assert {name.split("/")[0] for name in names} == {"train", *SECTIONS}


@pytest.mark.parametrize("option", ["tensorboard", "trackio"])
def test_a_missing_package_is_one_line(option, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Exception) as raised:
        make("tracking", option, study="s")
    assert isinstance(raised.value.__cause__, ValueError)
    assert str(raised.value.__cause__) == f"tracking={option} needs {option}: pip install 'igrad[{option}]'"
