"""What every score under conf/importance owes its users."""

import numpy as np
import pytest

from igrad.trace import MEASURES
from tests.strategies import make, options


def trace(num_steps, num_components, seed=0):
    random = np.random.default_rng(seed)
    return {measure: random.random((num_steps, num_components)) for measure in MEASURES}


@pytest.mark.parametrize("option", options("importance"))
@pytest.mark.parametrize("shape", ((1, 1), (1, 7), (40, 24)))
def test_one_finite_score_per_component_the_same_again(option, shape):
    score = make("importance", option)
    measures = trace(*shape)
    found = score(measures)
    assert found.shape == (shape[1],) and found.dtype == np.float64 and np.isfinite(found).all()
    assert (found == score(measures)).all()


@pytest.mark.parametrize("option", sorted(set(options("importance")) - {"random"}))
def test_scores_go_with_their_components(option):
    """Another order of the components is another order of the scores."""
    score, measures = make("importance", option), trace(12, 9)
    order = np.random.default_rng(1).permutation(9)
    shuffled = {measure: values[:, order] for measure, values in measures.items()}
    assert score(shuffled) == pytest.approx(score(measures)[order])


@pytest.mark.parametrize("option", sorted(set(options("importance")) - {"random"}))
def test_a_component_that_is_larger_in_every_measure_and_as_steady_scores_no_less(option):
    measures = trace(12, 5)
    for values in measures.values():
        values[:, 1] = 2 * values[:, 0]
    scores = make("importance", option)(measures)
    assert scores[1] >= scores[0] * (1 - 1e-12)
