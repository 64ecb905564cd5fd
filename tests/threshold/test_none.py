"""Threshold `none`: nothing is important, scores or not."""

import numpy as np
import pytest

from igrad.threshold.none import NoneImportant


@pytest.mark.parametrize("scores", ([], [0.0], [3.0, -np.inf, np.nan, np.inf]))
def test_nothing_is_important(scores):
    tau, important = NoneImportant()(np.array(scores))
    assert important.dtype == bool and important.shape == (len(scores),) and not important.any()
    assert tau == np.inf, "which tells that what is of no component waits too"
    assert not NoneImportant().needs_scores
