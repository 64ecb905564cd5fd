"""The α–β model: its formulas agree with each other, and a link is found from the times it gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrad.collective.auto import PROBE_BYTES
from igrad.link import KINDS, Cluster, Link, fit_link, operation_us, sent_bytes

kinds = st.sampled_from(KINDS)
latencies, bandwidths, sizes = st.floats(0, 1e4), st.floats(1, 1e6), st.floats(0, 1e9)
links = st.builds(Link, latencies, bandwidths)
FREE = Link(0.0, float("inf"))


@pytest.mark.parametrize("told, why", (((-1.0, 1.0), "latency_us must be at least 0, got -1"),
                                       (({"all_reduce": 1.0, "broadcast": -2.0}, 1.0), "at least 0, got -2"),
                                       ((1.0, 0.0), "bytes_per_us must be above 0, got 0")))  # fmt: skip
def test_a_link_that_cannot_be_is_an_error(told, why):
    with pytest.raises(ValueError, match=why):
        Link(*told)


@pytest.mark.parametrize("told", ((6, 4), (0, 1), (4, 0)))
def test_a_cluster_that_cannot_be_is_an_error(told):
    with pytest.raises(ValueError, match=r"num_ranks .*must be .*, got"):
        Cluster(*told, FREE, FREE)


# ------------------------------------------------------------------------------------------ operations


@given(kind=kinds, num_ranks=st.integers(2, 64), link=links)
def test_time_is_latency_and_bandwidth_and_one_rank_needs_none(kind, num_ranks, link):
    assert operation_us(kind, 1e6, 1, link) == 0
    empty, some, more = (operation_us(kind, size, num_ranks, link) for size in (0, 1000, 2000))
    assert more - some == pytest.approx(some - empty, abs=1e-6) and some > empty >= link.latency_us
    assert operation_us(kind, 1000, num_ranks + 1, link) >= some


def test_an_all_gather_grows_with_ranks_an_all_reduce_does_not():
    gathered, reduced = (
        [operation_us(kind, 1.0, n, Link(0.0, 1.0)) for n in (2, 4, 8)] for kind in ("all_gather", "all_reduce")
    )
    assert gathered == [1, 3, 7] and reduced == [1, 1.5, 1.75]


@given(kind=kinds, num_bytes=sizes, num_ranks=st.integers(2, 64), bandwidth=bandwidths)
def test_no_operation_is_faster_than_its_bytes(kind, num_bytes, num_ranks, bandwidth):
    """Without latency all but the broadcast, whose leader's link is idle for none, take just as long."""
    least_us = sent_bytes(kind, num_bytes, num_ranks) / bandwidth
    took_us = operation_us(kind, num_bytes, num_ranks, Link(0.0, bandwidth))
    if kind == "broadcast":
        assert took_us >= least_us
    else:
        assert took_us == pytest.approx(least_us)


@given(kind=kinds, num_bytes=sizes, num_ranks=st.integers(2, 5000), link=links)
def test_trees_never_cost_and_need_few_rounds(kind, num_bytes, num_ranks, link):
    rings, trees = (operation_us(kind, num_bytes, num_ranks, link, trees=trees) for trees in (False, True))
    assert trees <= rings
    rounds = operation_us(kind, 1e12, num_ranks, Link(1e15, 1e9), trees=True) / 1e15  # latency is all that counts
    assert rounds <= 2 * np.ceil(np.log2(num_ranks)) + 1e-2
    assert trees * link.bytes_per_us >= sent_bytes(kind, num_bytes, num_ranks) * (1 - 1e-9)


def test_a_latency_may_differ_by_kind():
    link = Link({"all_reduce": 1.0, "all_gather": 3.0}, 1.0)
    assert [link.latency(kind) for kind in KINDS] == [1, 3, 3, 3]


# -------------------------------------------------------------------------------------------- clusters


@given(kind=kinds, num_bytes=sizes, num_ranks=st.integers(2, 64), inner=links, outer=links)
def test_one_level_is_the_plain_formula(kind, num_bytes, num_ranks, inner, outer):
    """One rank per node, or one node."""
    flat, node = (Cluster(num_ranks, on_node, inner, outer) for on_node in (1, 64 * num_ranks))
    assert flat.us(kind, num_bytes) == pytest.approx(operation_us(kind, num_bytes, num_ranks, outer))
    assert node.us(kind, num_bytes) == pytest.approx(operation_us(kind, num_bytes, num_ranks, inner))
    assert node.outer_bytes(kind, num_bytes) == 0
    assert flat.outer_bytes(kind, num_bytes) == pytest.approx(sent_bytes(kind, num_bytes, num_ranks))


@given(kind=kinds, num_bytes=st.floats(1, 1e9), on_node=st.integers(2, 8), num_nodes=st.integers(2, 8), outer=links)
def test_a_fast_node_never_costs_and_spares_what_its_ranks_share(kind, num_bytes, on_node, num_nodes, outer):
    """Where nodes are free, time is that of the shared link; what ranks add up or are told alike crosses it once."""
    num_ranks = on_node * num_nodes
    cluster = Cluster(num_ranks, on_node, FREE, outer)
    across = operation_us(kind, cluster.levels(kind, num_bytes)[1], num_nodes, outer)
    assert cluster.us(kind, num_bytes) == pytest.approx(across)
    from_node = cluster.outer_bytes(kind, num_bytes)
    from_ranks = on_node * sent_bytes(kind, num_bytes, num_ranks)
    assert from_node < from_ranks
    if kind == "all_gather":
        shares = (num_nodes - 1) * on_node
        assert from_node == pytest.approx(shares * num_bytes), "every share reaches every other node once"
    if kind == "all_to_all":
        others = (num_ranks - on_node) / (num_ranks - 1)
        assert from_node == pytest.approx(on_node * num_bytes * others), "what is for ranks elsewhere"


# ------------------------------------------------------------------------------------------- the link


def times(link, sizes=(24, 4096, 2**20), num_ranks=(2, 4, 8), of=KINDS):
    return [(kind, size, n, operation_us(kind, size, n, link)) for kind in of for size in sizes for n in num_ranks]


@given(by_kind=st.lists(st.floats(1, 1e4), min_size=4, max_size=4), bandwidth=bandwidths)
def test_planted_constants_are_found(by_kind, bandwidth):
    planted = Link(dict(zip(KINDS, by_kind, strict=True)), bandwidth)
    found = fit_link(times(planted))
    assert found.bytes_per_us == pytest.approx(bandwidth, rel=1e-4)
    assert dict(found.latency_us) == pytest.approx(dict(planted.latency_us), rel=1e-4)


@given(num_ranks=st.integers(2, 64), link=links)
def test_two_probes_tell_a_link(num_ranks, link):
    found = fit_link(times(link, PROBE_BYTES, (num_ranks,), ("all_reduce",)))
    longest_us = operation_us("all_reduce", PROBE_BYTES[1], num_ranks, link)
    assert found.latency("all_reduce") == pytest.approx(link.latency_us, rel=1e-3, abs=1e-3 * longest_us)
    assert found.bytes_per_us == pytest.approx(link.bytes_per_us, rel=1e-3)


def test_small_messages_count_as_much_as_large_ones():
    """A tenth more on every time is a tenth more on both constants; noise of a tenth keeps both within it."""
    planted = Link({"all_reduce": 50.0, "all_gather": 80.0}, 125.0)
    samples = times(planted, of=("all_reduce", "all_gather"))
    slower = fit_link([(*sample[:3], 1.1 * sample[3]) for sample in samples])
    assert slower.bytes_per_us == pytest.approx(125 / 1.1) and slower.latency("all_gather") == pytest.approx(88)
    factors = np.random.default_rng(0).uniform(0.9, 1.1, len(samples))
    noisy = fit_link([(*sample[:3], factor * sample[3]) for sample, factor in zip(samples, factors, strict=True)])
    for kind, latency in planted.latency_us.items():
        assert noisy.latency(kind) == pytest.approx(latency, rel=0.1)
    assert noisy.bytes_per_us == pytest.approx(125, rel=0.1)


def test_no_constant_is_negative():
    """Times that fall with size: noise. All is latency then; and times of one rank tell nothing."""
    falling = fit_link([("all_reduce", 1000, 2, 100.0), ("all_reduce", 10_000, 2, 90.0)])
    assert 45 <= falling.latency("all_reduce") <= 50 and falling.bytes_per_us == float("inf")
    assert fit_link([("all_reduce", 1000, 1, 5.0)]) == Link({"all_reduce": 0.0}, float("inf"))
    with pytest.raises(ValueError, match="no samples"):
        fit_link([])
