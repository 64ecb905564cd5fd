"""Direct packing: a bucket for life, chosen by the size of the whole tensor."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import Item
from igrad.packing.direct import Direct
from igrad.packing.greedy import Greedy

sizes_of = st.lists(st.integers(1, 1000), min_size=1, max_size=25)


def whole(sizes):
    return [Item(f"v{i:02}", 0, numel, 4.0 * numel, 0.0) for i, numel in enumerate(sizes)]


def prepared(items, num_buckets):
    packing = Direct(num_buckets)
    packing.prepare(items)
    return packing


def names_of(buckets, items):
    return [{items[i].view for i in bucket} for bucket in buckets]


@settings(deadline=None)
@given(sizes_of, st.integers(1, 6), st.data())
def test_a_view_stays_in_its_bucket_when_payloads_shrink_and_others_are_deferred(sizes, num_buckets, data):
    items = whole(sizes)
    packing = prepared(items, num_buckets)
    layout = names_of(packing.pack(items), items)
    for _ in range(3):
        kept = data.draw(st.lists(st.sampled_from(items), unique=True))
        sent = [
            item._replace(cost_mean=item.cost_mean * data.draw(st.floats(0.01, 1)), numel=data.draw(st.integers(1, 9)))
            for item in kept
        ]
        for now, then in zip(names_of(packing.pack(sent), sent), layout, strict=True):
            assert now == then & {item.view for item in sent}


@settings(deadline=None)
@given(sizes_of, st.integers(1, 6))
def test_whole_tensors_are_packed_as_greedy_would(sizes, num_buckets):
    items = whole(sizes)
    assert names_of(prepared(items, num_buckets).pack(items), items) == names_of(Greedy(num_buckets).pack(items), items)


def test_ranges_of_one_view_share_its_bucket():
    packing = prepared(whole([9, 8, 7, 6]), 2)
    items = [Item("v01", start, 2, 8.0, 0.0) for start in range(0, 8, 2)]
    assert sorted(map(len, packing.pack(items))) == [0, 4]


def test_another_layout_replaces_the_first():
    packing = prepared(whole([9, 1, 1]), 2)
    packing.prepare(whole([1, 1, 9]))
    assert names_of(packing.pack(whole([1, 1, 9])), whole([1, 1, 9])) == [{"v02"}, {"v00", "v01"}]


def test_deferral_makes_buckets_uneven_where_greedy_sees_it():
    """Four equal views lie two by two; when the two of one bucket are deferred the other holds everything."""
    items = whole([5, 5, 5, 5])
    packing = prepared(items, 2)
    sent = [items[i] for i in packing.pack(items)[0]]
    assert sorted(map(len, packing.pack(sent))) == [0, 2]
    assert sorted(map(len, Greedy(2).pack(sent))) == [1, 1]


def test_num_buckets_out_of_range():
    with pytest.raises(ValueError, match="num_buckets must be at least 1, got 0"):
        Direct(0)
