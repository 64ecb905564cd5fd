"""Inverse: ranks reversed within each kind."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from igrad.threshold.fixed_ratio import FixedRatio
from igrad.threshold.inverse import Inverse, reversed_ranks


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20))
def test_ranks_are_reversed(values):
    scores = np.array(values, dtype=np.float64)
    other = reversed_ranks(scores)
    assert sorted(other) == sorted(scores)
    for i in range(len(scores)):
        assert (other[scores < scores[i]] >= other[i]).all()


def test_the_least_important_of_each_kind_are_sent():
    components = [f"{layer}.{kind}" for kind in ("q", "fc1") for layer in range(4)]
    scores = np.array([1.0, 2, 3, 4, 10, 40, 30, 20])
    tau, important = Inverse(FixedRatio(5 / 8))(scores, components)
    assert tau == 4  # one q and all of fc1 reach it, whatever their order
    assert important.tolist() == [True, False, False, False, True, True, True, True]
    tau, important = Inverse(FixedRatio(1 / 4))(scores, components)
    assert tau == 30
    assert important.tolist() == [False] * 4 + [True, False, False, True]
