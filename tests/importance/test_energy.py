"""Energy: the mean squared activity."""

import numpy as np

from igrad.importance.energy import Energy


def test_energy_weighs_a_rare_burst_by_its_square():
    steady, burst = np.full((4, 1), 2.0), np.array([[0.0], [0], [0], [4]])
    assert Energy()({"retained": np.hstack([steady, burst])}).tolist() == [4.0, 4.0]
