"""KMeans: each score is in the group whose mean is nearer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.threshold.kmeans import KMeans
from igrad.threshold.otsu import Otsu

scores_of_any_shape = st.lists(st.integers(-1000, 1000), min_size=2, max_size=30, unique=True)


@settings(deadline=None, max_examples=50)
@given(scores_of_any_shape, st.sampled_from([1, 10]))
def test_every_score_is_nearest_to_the_mean_of_its_group(values, num_starts):
    scores = np.array(values, dtype=np.float64)
    _, important = KMeans(num_starts)(scores)
    assert 0 < important.sum() < len(scores)
    to_high, to_low = (np.abs(scores - scores[mask].mean()) for mask in (important, ~important))
    slack = 1e-9 * np.ptp(scores)
    assert (to_high <= to_low + slack)[important].all() and (to_low <= to_high + slack)[~important].all()


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_the_split_that_otsu_computes(seed):
    """Both minimise the variance within two groups."""
    generator = np.random.default_rng(seed)
    scores = np.append(generator.normal(0, 1, 60), generator.normal(5, 1, 20))
    assert KMeans(10)(scores)[0] == Otsu()(scores)[0]


def test_it_starts_at_least_once():
    with pytest.raises(ValueError, match="num_starts must be at least 1, got 0"):
        KMeans(0)
