"""Greedy packing against the best packing there is."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import Item
from igrad.packing.greedy import Greedy


def items_of(costs):
    return [Item(f"v{i % 3}", 10 * i, 5, float(cost), 0.0) for i, cost in enumerate(costs)]


def largest_load(buckets, costs):
    return max(sum(costs[i] for i in bucket) for bucket in buckets)


def best_load(costs, num_buckets):
    """By trying every assignment."""
    return min(
        max(sum(c for c, b in zip(costs, choice, strict=True) if b == bucket) for bucket in range(num_buckets))
        for choice in itertools.product(range(num_buckets), repeat=len(costs))
    )


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(1, 3))
def test_largest_bucket_is_within_grahams_bound(costs, num_buckets):
    load = largest_load(Greedy(num_buckets).pack(items_of(costs)), costs)
    best = best_load(costs, num_buckets)
    assert best <= load <= (4 / 3 - 1 / (3 * num_buckets)) * best + 1e-9


def test_grahams_worst_case_meets_the_bound():
    """5 5 4 4 3 3 3 in three buckets: 9 is best, largest first ends at 11 = 11/9 of it."""
    costs = [3, 5, 4, 3, 4, 5, 3]
    assert best_load(costs, 3) == 9
    assert largest_load(Greedy(3).pack(items_of(costs)), costs) == 11


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), max_size=25), st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_the_items(costs, num_buckets, shuffle: random.Random):
    items = items_of(costs)
    shuffled = shuffle.sample(items, len(items))
    plan = [[items[i] for i in bucket] for bucket in Greedy(num_buckets).pack(items)]
    assert plan == [[shuffled[i] for i in bucket] for bucket in Greedy(num_buckets).pack(shuffled)]


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), max_size=20), st.integers(1, 6))
def test_buckets_are_filled_largest_first_and_none_stays_empty_in_vain(costs, num_buckets):
    buckets = Greedy(num_buckets).pack(items_of(costs))
    assert len(buckets) == num_buckets
    assert sum(bool(bucket) for bucket in buckets) == min(num_buckets, len(costs))
    for bucket in buckets:
        assert [costs[i] for i in bucket] == sorted((costs[i] for i in bucket), reverse=True)


def test_num_buckets_out_of_range():
    with pytest.raises(ValueError, match="num_buckets must be at least 1, got 0"):
        Greedy(0)
