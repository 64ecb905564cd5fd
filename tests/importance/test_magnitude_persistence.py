"""The paper's score, worked out by hand and at its extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.importance.magnitude_persistence import MagnitudePersistence, magnitude, persistence


@pytest.mark.parametrize("alpha", (0.0, 0.7, 1.0))
def test_scores_are_those_worked_out_by_hand(alpha):
    activity = np.random.default_rng(3).random((7, 5))
    averages = [sum(column) / 7 for column in activity.T]
    shares = [sum(row[c] > sorted(row)[2] for row in activity) / 7 for c in range(5)]
    by_hand = [
        alpha * (average - min(averages)) / (max(averages) - min(averages)) + (1 - alpha) * share
        for average, share in zip(averages, shares, strict=True)
    ]
    assert MagnitudePersistence(alpha)({"retained": activity}) == pytest.approx(by_hand, abs=1e-12)


traces = st.lists(st.lists(st.floats(0, 100), min_size=4, max_size=4), min_size=1, max_size=8).map(np.array)


@settings(deadline=None)
@given(traces)
def test_both_parts_lie_in_zero_to_one_and_magnitude_reaches_both_ends(trace):
    share = magnitude(trace)
    assert ((share >= 0) & (share <= 1)).all()
    mean = trace.mean(axis=0)
    if np.ptp(mean) > 0:
        assert share[mean.argmin()] == 0 and share[mean.argmax()] == 1
    else:
        assert not share.any()
    steadiness = persistence(trace)
    assert ((steadiness >= 0) & (steadiness <= 1)).all()
    steps_above = (steadiness * len(trace)).round()
    assert steps_above.sum() <= 2 * len(trace), "at most half of four components are above a median"


def test_persistence_counts_steps_above_the_median_not_by_how_much():
    trace = np.array([[9.0, 2, 1], [3.0, 1, 2], [3.0, 2, 900], [4.0, 4, 4]])
    assert persistence(trace).tolist() == [0.5, 0, 0.25]


@pytest.mark.parametrize("alpha", (-0.1, 1.1, float("nan")))
def test_alpha_out_of_range(alpha):
    with pytest.raises(ValueError, match=rf"alpha must be in \[0, 1\], got {alpha}"):
        MagnitudePersistence(alpha)
