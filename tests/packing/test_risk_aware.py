"""Risk-aware packing: greedy where sizes are certain, fewer overflows where they are not."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import Item
from igrad.packing.greedy import Greedy
from igrad.packing.risk_aware import RiskAware, expected_overflow

NUM_BUCKETS = 4


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**7), max_size=25), st.integers(1, 6), st.sampled_from([0, 0.5, 3]), st.floats(0, 100))
def test_on_certain_costs_it_is_greedy(costs, num_buckets, risk, penalty):
    items = [Item(f"v{i % 5}", i, 5, float(cost), 0.0) for i, cost in enumerate(costs)]
    assert RiskAware(num_buckets, risk, penalty).pack(items) == Greedy(num_buckets).pack(items)


@settings(deadline=None, max_examples=20)
@given(st.floats(-50, 50), st.floats(0.1, 30), st.floats(-50, 50))
def test_expected_overflow_is_the_mean_of_what_lies_above(mean, sd, capacity):
    draws = mean + sd * np.random.default_rng(0).standard_normal(200_000)
    assert expected_overflow(mean, sd, capacity) == pytest.approx(np.maximum(0, draws - capacity).mean(), abs=0.02 * sd)
    assert expected_overflow(mean, 0.0, capacity) == max(0, mean - capacity)


def test_uncertain_payloads_of_equal_means_are_spread():
    """Four uncertain and four certain payloads: greedy goes by name, this one puts one of each into a bucket."""
    items = [Item(f"v{i}", 0, 5, 10.0, 9.0 if i in (0, 1, 4, 5) else 0.0) for i in range(8)]
    assert sorted(sum(items[i].cost_sd > 0 for i in bucket) for bucket in Greedy(4).pack(items)) == [0, 0, 2, 2]
    for risk, penalty in ((0.5, 0.0), (0.5, 1.0), (1.0, 1.0)):
        buckets = RiskAware(4, risk, penalty).pack(items)
        assert [sum(items[i].cost_sd > 0 for i in bucket) for bucket in buckets] == [1, 1, 1, 1]


def uncertain_case(seed):
    """Payloads of a few size classes, certain or gamma distributed: items and 1000 draws of their bytes."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(8, 40))
    means = rng.choice([1.0, 3.0, 8.0, 16.0], number) * rng.uniform(0.5, 1.5, number)
    variation = rng.choice([0.0, 0.1, 1.0], number) * rng.uniform(0.2, 1, number)
    shapes = 1 / np.maximum(variation, 1e-6) ** 2
    draws = np.where(variation > 0, rng.gamma(shapes, means / shapes, (1000, number)), means)
    pairs = enumerate(zip(means, means * variation, strict=True))
    return [Item(f"v{i:02}", 0, 5, float(mean), float(sd)) for i, (mean, sd) in pairs], draws


def overflow(buckets, draws, capacity):
    """Probability that some bucket is above `capacity`, and the bytes above it as a share of one bucket."""
    loads = np.stack([draws[:, bucket].sum(1) for bucket in buckets], axis=1)
    return (loads > capacity).any(1).mean(), np.maximum(0, loads - capacity).sum(1).mean() / capacity


def test_it_overflows_less_often_than_greedy_where_sizes_are_uncertain():
    outcomes = []
    for seed in range(60):
        items, draws = uncertain_case(seed)
        capacity = 1.2 * sum(item.cost_mean for item in items) / NUM_BUCKETS
        greedy, aware = Greedy(NUM_BUCKETS).pack(items), RiskAware(NUM_BUCKETS).pack(items)
        outcomes.append((*overflow(greedy, draws, capacity), *overflow(aware, draws, capacity)))
    often, much, less_often, less = np.mean(outcomes, axis=0)
    assert less_often < often
    assert less < 0.95 * much


def test_the_penalty_tames_a_large_risk():
    """At risk 2 uncertain payloads alone would make means uneven: expected bytes above an even share say so."""
    frequency = {penalty: [] for penalty in (0.0, 4.0)}
    for seed in range(40):
        items, draws = uncertain_case(seed)
        capacity = 1.2 * sum(item.cost_mean for item in items) / NUM_BUCKETS
        for penalty, found in frequency.items():
            found.append(overflow(RiskAware(NUM_BUCKETS, 2.0, penalty).pack(items), draws, capacity)[0])
    assert np.mean(frequency[4.0]) < 0.9 * np.mean(frequency[0.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        ((0,), "num_buckets must be at least 1, got 0"),
        ((4, -1.0), "risk must be at least 0 and finite, got -1.0"),
        ((4, 1.0, math.inf), "overflow_penalty must be at least 0 and finite, got inf"),
    ),
)
def test_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        RiskAware(*arguments)
