"""FixedRatio: a share of the components, ties together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrad.threshold.fixed_ratio import FixedRatio


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=40, unique=True), st.floats(0.001, 1))
def test_the_highest_are_important_and_at_least_one(values, ratio):
    scores = np.array(values, dtype=np.float64)
    _, important = FixedRatio(ratio)(scores)
    assert important.sum() == max(1, round(ratio * len(scores)))
    assert scores[important].min() > max(scores[~important], default=-np.inf)


def test_scores_that_tie_with_the_last_are_important_too():
    tau, important = FixedRatio(0.4)(np.array([1.0, 2, 2, 2, 3]))
    assert tau == 2 and important.tolist() == [False, True, True, True, True]


def test_all_of_them():
    assert FixedRatio(1)(np.arange(7.0))[1].all()


@pytest.mark.parametrize("ratio", (0.0, -0.1, 1.01, np.nan))
def test_ratio_has_bounds(ratio):
    with pytest.raises(ValueError, match=rf"ratio must be in \(0, 1\], got {ratio}"):
        FixedRatio(ratio)
