"""Signal to noise: mean over standard deviation."""

import numpy as np
import pytest

from igrad.importance.snr import Snr


def test_steady_beats_loud_and_silence_scores_zero():
    activity = np.array([[1.0, 5, 0, 2], [1.2, 15, 0, 2], [0.8, 1, 0, 2]])
    scores = Snr()({"retained": activity})
    assert scores[0] == pytest.approx(1 / np.std([1, 1.2, 0.8]))
    assert scores[3] > scores[0] > scores[1] > scores[2] == 0
    assert np.isfinite(scores).all()


def test_scale_does_not_matter():
    activity = np.random.default_rng(0).random((9, 6))
    assert Snr()({"retained": activity}) == pytest.approx(Snr()({"retained": 1e-8 * activity}))


def test_a_trace_of_zeros_scores_zero():
    assert not Snr()({"retained": np.zeros((3, 4))}).any()
