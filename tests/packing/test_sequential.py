"""Sequential packing: order kept, runs of near-equal bytes."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import Item
from igrad.packing.sequential import Sequential

costs_of = st.lists(st.integers(1, 1000), min_size=1, max_size=25)


def pack(costs, num_buckets):
    return Sequential(num_buckets).pack([Item(f"v{i}", 0, 5, float(cost), 0.0) for i, cost in enumerate(costs)])


def largest_load(buckets, costs):
    return max(sum(costs[i] for i in bucket) for bucket in buckets)


def best_runs(costs, num_buckets):
    """The least largest load of any cut into runs, by trying all."""
    cuts = itertools.combinations_with_replacement(range(len(costs) + 1), num_buckets - 1)
    return min(max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *places, len(costs)))) for places in cuts)


@settings(deadline=None)
@given(costs_of, st.integers(1, 6))
def test_the_order_is_kept(costs, num_buckets):
    buckets = pack(costs, num_buckets)
    assert len(buckets) == num_buckets
    assert [i for bucket in buckets for i in bucket] == list(range(len(costs)))


@settings(deadline=None)
@given(costs_of, st.integers(1, 6))
def test_the_largest_bucket_is_within_the_mean_and_one_payload(costs, num_buckets):
    assert largest_load(pack(costs, num_buckets), costs) <= sum(costs) / num_buckets + max(costs)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 4))
def test_the_largest_bucket_is_less_than_one_payload_above_the_best_runs(costs, num_buckets):
    load, best = largest_load(pack(costs, num_buckets), costs), best_runs(costs, num_buckets)
    assert best <= load <= min(best + max(costs), 2 * best)


@pytest.mark.parametrize(("number", "num_buckets"), ((12, 4), (12, 3), (4, 4), (7, 1)))
def test_equal_payloads_are_divided_evenly(number, num_buckets):
    assert {len(bucket) for bucket in pack([10] * number, num_buckets)} == {number // num_buckets}


def test_payloads_without_bytes_have_a_bucket_too():
    assert pack([0, 0, 0], 2) == [[0, 1, 2], []]


def test_num_buckets_out_of_range():
    with pytest.raises(ValueError, match="num_buckets must be at least 1, got 0"):
        Sequential(0)
