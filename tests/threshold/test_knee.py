"""Knee: the point of the sorted curve farthest from its chord."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.threshold.knee import Knee

curves = st.lists(st.integers(-1000, 1000), min_size=2, max_size=40)


def bent(n, corner, height):
    """n scores falling in a straight line from 1 to `height` at position `corner`, and in another one to 0."""
    return np.interp(np.arange(n), [0, corner, n - 1], [1, height, 0])


@pytest.mark.parametrize("n", (3, 10, 96))
@pytest.mark.parametrize("share", (0.1, 0.5, 0.8))
@pytest.mark.parametrize("bend", (-0.7, 0.7))
def test_a_curve_of_two_straight_lines_has_its_knee_at_the_corner(n, share, bend):
    """Below the chord (few components stand out) as above it (few fall off)."""
    corner = min(n - 2, max(1, round(share * (n - 1))))
    on_chord = 1 - corner / (n - 1)
    height = on_chord * (1 + bend) if bend < 0 else on_chord + (1 - on_chord) * bend
    scores = bent(n, corner, height)
    tau, important = Knee()(scores)
    assert tau == scores[corner]
    assert important.sum() == corner + 1


@settings(deadline=None)
@given(curves)
def test_no_other_point_is_farther_from_the_chord(values):
    scores = np.array(values, dtype=np.float64)
    tau, important = Knee()(scores)
    assert (important == (scores >= tau)).all() and tau in scores
    if np.ptp(scores) == 0:
        return
    ordered = np.sort(scores)[::-1]
    points = np.stack([np.arange(len(scores)) / (len(scores) - 1), (ordered - ordered[-1]) / np.ptp(scores)])
    chord = points[:, -1] - points[:, 0]
    away = points - points[:, :1]
    distances = np.abs(chord[0] * away[1] - chord[1] * away[0]) / np.linalg.norm(chord)
    assert distances[ordered == tau].max() >= distances.max() - 1e-12


@settings(deadline=None)
@given(curves, st.sampled_from([0.25, 1, 8]), st.integers(-50, 50), st.randoms(use_true_random=False))
def test_scale_offset_and_order_do_not_matter(values, scale, offset, shuffle):
    scores = np.array(values, dtype=np.float64)
    order = shuffle.sample(range(len(values)), len(values))
    _, important = Knee()(scores)
    tau, other = Knee()((scores * scale + offset)[order])
    assert (other == important[order]).all()
    assert tau == Knee()(scores)[0] * scale + offset


@pytest.mark.parametrize("scores", ([0.3], [2.0, 2.0], [0.0] * 7))
def test_equal_scores_are_all_important(scores):
    with np.errstate(all="raise"):  # a curve without a spread has no slope to divide by
        tau, important = Knee()(np.array(scores))
    assert tau == scores[0] and important.all()


def test_of_two_the_larger_is_important():
    tau, important = Knee()(np.array([0.1, 0.4]))
    assert tau == 0.4 and important.tolist() == [False, True]
