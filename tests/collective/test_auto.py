"""Auto: the cheapest by the model, the same on every rank, and after a resume."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from igrad.collective.auto import PROBE_BYTES, Auto
from igrad.collective.wire import Space
from igrad.index_codec.int32 import Int32
from igrad.interfaces import Payload
from igrad.link import Link, operation_us
from igrad.value_codec.fp32 import FP32
from tests.ranks import on_ranks
from tests.test_laws import IMPORTANT, VIEWS, build, local_gradient

LATENCIES, BANDWIDTHS = st.floats(0, 1e4), st.floats(1, 1e6)
SLOW_LINK, SLOW_START = (0.0, 1.0), (1e6, 1e9)  # all bandwidth, all latency


def auto(latency_us=None, bytes_per_us=None):
    return Auto(FP32(), Int32(), latency_us, bytes_per_us)


@pytest.mark.parametrize("field, value", (("latency_us", -1.0), ("bytes_per_us", 0.0)))
def test_a_link_that_cannot_be_is_an_error(field, value):
    with pytest.raises(ValueError, match=f"{field} must be .*, got {value}; null measures it"):
        auto(**{field: value})


# ------------------------------------------------------------------------------------------ the choice


def bucket_of(numel, k, rank=0):
    """A payload of k entries, or all of them as they are."""
    generator = torch.Generator().manual_seed(rank)
    source = torch.randn(numel, generator=generator)
    indices = torch.randperm(numel, generator=generator)[:k]
    return [Payload("v", 0, numel, source[indices], indices, source)]


def cheapest(k, num_ranks, link):
    prices = auto(*link).prices_us(Space(bucket_of(10_000, k)), [k], num_ranks, link)
    return min(prices, key=prices.get)


def test_bandwidth_makes_dense_win_at_density_1_and_what_does_not_grow_win_among_many():
    for num_ranks in (2, 3, 8, 64):
        assert cheapest(10_000, num_ranks, SLOW_LINK) == "dense"
        assert cheapest(10, num_ranks, SLOW_LINK) == ("allgather" if num_ranks == 2 else "shared_mask")


def test_latency_makes_the_fewest_rounds_win():
    for num_ranks in (2, 3, 8, 64):
        assert cheapest(10_000, num_ranks, SLOW_START) == cheapest(10, num_ranks, SLOW_START) == "allgather"


@given(k=st.integers(1, 10_000), num_ranks=st.integers(2, 64), latency=LATENCIES, bandwidth=BANDWIDTHS)
def test_a_choice_is_no_dearer_than_any_other(k, num_ranks, latency, bandwidth):
    """Four bytes per value and per index; a ring, or a tree that passes the leader's indices on."""
    ring, tree = num_ranks - 1, (num_ranks - 1).bit_length()
    prices = {
        "dense": 2 * ring * (latency + 40_000 / num_ranks / bandwidth),
        "allgather": ring * (latency + 8 * k / bandwidth),
        "shared_mask": (2 * ring + tree) * latency + (2 * ring / num_ranks + tree) * 4 * k / bandwidth,
    }
    assert prices[cheapest(k, num_ranks, (latency, bandwidth))] <= min(prices.values()) * (1 + 1e-9)


def finished(collective, buckets, step, sizes_vary=False):
    handles = collective.start(buckets, None, step, sizes_vary)
    for handle in handles:
        handle.wait()
    return [handle.decode() for handle in handles], sum(handle.predicted_ms for handle in handles)


def beside_what_it_chose(rank, num_ranks):
    collective = auto(*SLOW_LINK)
    ks = (10, 10_000, 20)
    buckets = [bucket_of(10_000, k, rank) for k in ks]
    results, predicted_ms = finished(collective, buckets, 1)
    for k, bucket, result in zip(ks, buckets, results, strict=True):
        name = cheapest(k, num_ranks, SLOW_LINK) if num_ranks > 1 else "dense"
        [alone], _ = finished(collective.kinds[name], [bucket], 1)
        assert torch.equal(result.means[0], alone.means[0]) and result.wire_bytes == alone.wire_bytes
        assert torch.equal(result.sent[0].indices, alone.sent[0].indices)
        assert result.counts == [k]
    return predicted_ms


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_a_bucket_goes_as_if_its_collective_had_been_asked(num_ranks):
    predicted = on_ranks(num_ranks, beside_what_it_chose, num_ranks)
    assert len(set(predicted)) == 1 and (predicted[0] > 0) == (num_ranks > 1)


def one_rank_has_more(rank):
    """Alone, rank 1 would gather its few entries and rank 0 send all elements."""
    bucket = bucket_of(10_000, 10_000 if rank == 0 else 10, rank)
    [result], predicted_ms = finished(auto(*SLOW_LINK), [bucket], 0, True)
    assert result.counts == [10_000]
    return predicted_ms


def test_sizes_are_agreed_before_the_choice():
    assert cheapest(10_000, 2, SLOW_LINK) != cheapest(10, 2, SLOW_LINK)
    first, second = on_ranks(2, one_rank_has_more)
    assert first == second == 1e-3 * operation_us("all_reduce", 40_000, 2, Link(*SLOW_LINK))


# ----------------------------------------------------------------------------------------- the link kept

PARTS = {"sparsifier": "topk", "residual": "full", "release": "periodic", "packing": "greedy", "collective": "auto"}


def synchronizer_with(state=None):
    synchronizer = build(PARTS, density=0.1)
    synchronizer.prepare(VIEWS, IMPORTANT)
    if state is not None:
        synchronizer.load_state_dict(deepcopy(state))
    return synchronizer


def step_of(synchronizer, rank, step):
    gradients = {view: view.part(local_gradient(view, rank, step)) for view in VIEWS}
    stats = synchronizer.synchronize(gradients, step)
    means = torch.cat([gradient.reshape(-1) for gradient in gradients.values()])
    return stats.predicted_exchange_ms, stats.wire_bytes, means.tolist()


def resumed(rank):
    whole = synchronizer_with()
    step_of(whole, rank, 0)
    state = deepcopy(whole.state_dict())
    forgetful = {**state, "collective": {}}
    return [step_of(each, rank, 1) for each in (whole, synchronizer_with(state), synchronizer_with(forgetful))]


def test_a_link_is_measured_once_and_a_resumed_run_decides_by_it():
    results = on_ranks(2, resumed)
    assert len({predicted for ranks in results for predicted, _, _ in ranks[:2]}) == 1, "all ranks, before and after"
    for went_on, again, measured_anew in results:
        assert went_on == again and went_on[0] > 0
        assert measured_anew[1] - went_on[1] > sum(PROBE_BYTES) / 2, "what measuring sends counts"
