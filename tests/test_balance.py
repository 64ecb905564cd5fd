"""Largest first against its bounds; tests/packing/test_greedy.py holds it against the best there is."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.balance import largest_first


def loads_of(bins, costs):
    return [sum(costs[i] for i in part) for part in bins]


@settings(deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 16))
def test_the_largest_bin_is_within_the_mean_and_the_largest_cost(costs, num_bins):
    bins = largest_first(costs, range(len(costs)), num_bins)
    assert sorted(i for part in bins for i in part) == list(range(len(costs)))
    mean = sum(costs) / num_bins
    assert mean <= max(loads_of(bins, costs)) <= mean + (1 - 1 / num_bins) * max(costs) + 1e-9


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), max_size=25), st.integers(1, 6), st.randoms(use_true_random=False))
def test_bins_hold_the_same_names_whatever_the_order(costs, num_bins, shuffle: random.Random):
    names = [f"{i}.q" for i in range(len(costs))]
    order = shuffle.sample(range(len(costs)), len(costs))
    given_in = [[names[i] for i in part] for part in largest_first(costs, names, num_bins)]
    shuffled = largest_first([costs[i] for i in order], [names[i] for i in order], num_bins)
    assert given_in == [[names[order[i]] for i in part] for part in shuffled]
