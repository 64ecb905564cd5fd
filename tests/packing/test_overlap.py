"""Overlap: runs in backward order, the largest as small as can be."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrad.interfaces import Item
from igrad.packing.overlap import Overlap, contiguous


def items_of(costs):
    return [Item(f"v{i}", 0, 1, float(cost), 0.0) for i, cost in enumerate(costs)]


def smallest_largest(costs, num_runs):
    """Of every way to cut a list."""
    places = range(1, len(costs))
    ways = itertools.chain.from_iterable(itertools.combinations(places, n) for n in range(num_runs))
    edges = ([0, *cuts, len(costs)] for cuts in ways)
    return min(max(sum(costs[a:b]) for a, b in itertools.pairwise(each)) for each in edges)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 4))
def test_no_other_cut_has_a_smaller_largest_run(costs, num_runs):
    runs = contiguous([float(cost) for cost in costs], num_runs)
    assert len(runs) <= num_runs and list(itertools.chain(*runs)) == list(range(len(costs)))
    assert max(sum(costs[i] for i in run) for run in runs) == pytest.approx(smallest_largest(costs, num_runs))


def test_the_last_view_leaves_first():
    assert Overlap(3).pack(items_of([1, 1, 1, 1, 1, 1])) == [[5, 4], [3, 2], [1, 0]]
    assert Overlap(4).pack(items_of([3, 1])) == [[1], [0], [], []]
    assert Overlap(2).pack([]) == [[], []]


def test_it_asks_for_gradients_during_the_backward_pass():
    assert Overlap(1).overlaps
    with pytest.raises(ValueError, match="num_buckets must be at least 1, got 0"):
        Overlap(0)
