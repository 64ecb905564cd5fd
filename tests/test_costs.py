"""Costs: what is expected of a block follows what was seen of it."""

import math

import pytest

from igrad.costs import NEWEST_WEIGHT, Costs


def test_a_certain_size_is_known_after_one_time():
    costs = Costs()
    for _ in range(3):
        costs.observe([("v", 0, 100), ("w", 0, 50)], [10, 50])
        assert costs.expected(("v", 0, 100)) == (10, 0)
        assert costs.expected(("w", 0, 50)) == (50, 0)


def test_what_was_never_sent_is_as_dense_as_what_was():
    costs = Costs()
    assert costs.expected(("v", 0, 100)) == (100, 0), "nothing is known: sizes go by elements"
    costs.observe([("v", 0, 100), ("w", 20, 120)], [10, 30])
    assert costs.expected(("v", 100, 150)) == (10, 0)


def test_mean_and_spread_follow_the_counts():
    costs = Costs()
    for i in range(200):
        costs.observe([("v", 0, 100)], [40 + 20 * (i % 2)])
    mean, sd = costs.expected(("v", 0, 100))
    assert mean == pytest.approx(50, abs=10 * NEWEST_WEIGHT) and sd == pytest.approx(10, rel=0.1)
    for _ in range(200):
        costs.observe([("v", 0, 100)], [7])
    mean, sd = costs.expected(("v", 0, 100))
    assert math.isclose(mean, 7) and sd < 1e-6
