"""Saliency: the mean of |weight * gradient|."""

import numpy as np

from igrad.importance.saliency import Saliency


def test_it_is_the_mean_over_the_window_of_that_measure_alone():
    trace = {"retained": np.full((2, 2), 9.0), "saliency": np.array([[1.0, 0], [3, 5]])}
    assert Saliency()(trace).tolist() == [2.0, 2.5]
