"""Threshold `all`: everything is important, scores or not."""

import numpy as np
import pytest

from igrad.threshold.all import All


@pytest.mark.parametrize("scores", ([], [0.0], [3.0, -np.inf, np.nan, np.inf]))
def test_everything_is_important(scores):
    tau, important = All()(np.array(scores))
    assert important.dtype == bool and important.shape == (len(scores),) and important.all()
    assert tau == -np.inf
    assert not All().needs_scores
