"""Otsu: no other split has a larger variance between its groups."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.filters import threshold_otsu

from igrad.threshold.otsu import Otsu


def between(scores, mask):
    return mask.mean() * (~mask).mean() * (scores[mask].mean() - scores[~mask].mean()) ** 2


@settings(deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=40, unique=True), st.sampled_from([1, 3]))
def test_no_other_split_has_a_larger_variance_between_groups(values, power):
    """Also where a few large scores squeeze the rest together."""
    scores = np.array(values, dtype=np.float64) ** power
    _, important = Otsu()(scores)
    best = max(between(scores, scores >= tau) for tau in np.sort(scores)[1:])
    assert between(scores, important) >= best * (1 - 1e-9)


def test_a_threshold_cuts_through_no_bin():
    """Of the lower two, one lies above the centre of the first of 256 bins, which is where the library would cut."""
    scores = np.array([0.0, 0.0035, 1.0])
    assert threshold_otsu(scores) < 0.0035
    assert Otsu()(scores)[0] == 1
