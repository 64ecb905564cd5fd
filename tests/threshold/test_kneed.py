"""Kneed: the library's knee, and everything where it finds none."""

import numpy as np
import pytest

from igrad.threshold.kneed import Kneed
from tests.threshold.test_knee import bent


@pytest.mark.parametrize("n", (20, 96))
@pytest.mark.parametrize("share", (0.2, 0.5, 0.8))
@pytest.mark.parametrize("bend", (-0.7, 0.7))
def test_a_curve_of_two_straight_lines_has_its_knee_at_the_corner(n, share, bend):
    """Below the chord (few components stand out) as above it (few fall off)."""
    corner = round(share * (n - 1))
    on_chord = 1 - corner / (n - 1)
    scores = bent(n, corner, on_chord * (1 + bend) if bend < 0 else on_chord + (1 - on_chord) * bend)
    tau, important = Kneed(1.0)(scores)
    assert tau == scores[corner]
    assert important.sum() == corner + 1


@pytest.mark.parametrize("sensitivity, scores", (
    (1.0, np.arange(20.0)),  # a straight line
    (1.0, np.array([0.1, 0.4])),
    (100.0, np.geomspace(1, 1e-3, 20)),
))  # fmt: skip
def test_without_a_knee_everything_is_important(sensitivity, scores):
    tau, important = Kneed(sensitivity)(scores)
    assert tau == scores.min() and important.all()


def test_a_lower_sensitivity_finds_the_knee_that_a_higher_one_does_not():
    scores = np.geomspace(1, 1e-3, 20)
    assert Kneed(1.0)(scores)[1].sum() < len(scores) == Kneed(100.0)(scores)[1].sum()


@pytest.mark.parametrize("sensitivity", (-1.0, np.inf, np.nan))
def test_sensitivity_has_bounds(sensitivity):
    with pytest.raises(ValueError, match=f"sensitivity must be at least 0 and finite, got {sensitivity}"):
        Kneed(sensitivity)
