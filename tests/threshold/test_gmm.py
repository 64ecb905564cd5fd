"""GMM: groups of unequal width, without holes."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.mixture import GaussianMixture

from igrad.threshold.gmm import GMM
from igrad.threshold.otsu import Otsu


def gaussian(n, mean, sd):
    """n scores at the quantiles of a Gaussian."""
    return norm.ppf((np.arange(n) + 0.5) / n, mean, sd)


@pytest.mark.parametrize("low, high", (((60, 0, 0.1), (30, 3, 1.0)), ((60, 0, 1.0), (30, 3, 0.1))))
def test_the_boundary_lies_by_the_narrower_group(low, high):
    """Where both groups' weighted densities are equal; Otsu's lies near the middle whatever the widths."""
    scores = np.append(gaussian(*low), gaussian(*high))
    tau, _ = GMM(5)(scores)
    between = np.linspace(low[1], high[1], 100_000)
    odds = high[0] * norm.pdf(between, *high[1:]) - low[0] * norm.pdf(between, *low[1:])
    crossing = between[np.argmax(odds > 0)]
    assert tau == pytest.approx(scores[scores >= crossing].min(), abs=0.3)
    narrower = 0 if low[2] < high[2] else 3
    assert abs(tau - narrower) < 1 < abs(Otsu()(scores)[0] - narrower)


def test_the_lower_tail_of_a_wide_upper_group_is_not_important():
    """The lowest scores are likelier in the wide group, and yet below the narrow one."""
    scores = np.append(gaussian(60, 0, 0.1), gaussian(60, 1, 1))
    mixture = GaussianMixture(2, n_init=5, random_state=0).fit(scores[:, None])
    assert mixture.predict([[scores.min()]]) == np.argmax(mixture.means_[:, 0])
    tau, important = GMM(5)(scores)
    assert 0 < tau < 1 and (important == (scores >= tau)).all()


def test_it_starts_at_least_once():
    with pytest.raises(ValueError, match="num_starts must be at least 1, got 0"):
        GMM(0)
