"""Percentile: numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrad.threshold.percentile import Percentile


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=40), st.integers(0, 99))
def test_the_important_reach_the_percentile(values, percentile):
    scores = np.array(values, dtype=np.float64)
    tau, important = Percentile(percentile)(scores)
    linear = np.percentile(scores, percentile)
    assert tau >= linear and (important == (scores >= linear)).all()


def test_the_extremes_are_everything_and_the_highest():
    scores = np.arange(50.0)
    assert Percentile(0)(scores)[1].all()
    assert Percentile(99.9)(scores)[1].sum() == 1


@pytest.mark.parametrize("percentile", (-1.0, 100.0, np.nan))
def test_percentile_has_bounds(percentile):
    with pytest.raises(ValueError, match=rf"percentile must be in \[0, 100\), got {percentile}"):
        Percentile(percentile)
