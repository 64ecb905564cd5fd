"""Shared mask: every rank sends its own values where the leader chose, and every rank gets to lead."""

import pytest
import torch

from igrad.collective.dense import Dense
from igrad.collective.shared_mask import SharedMask, leader
from igrad.index_codec.int32 import Int32
from igrad.interfaces import Payload, View
from tests.collective.test_allgather import BUCKETS, F64, payloads_of, scattered
from tests.ranks import on_ranks
from tests.strategies import make, options
from tests.test_laws import build, parts_of


@pytest.mark.parametrize("num_ranks", (1, 2, 3, 4, 8))
def test_every_rank_leads_once_a_round_and_at_some_release_of_every_schedule(num_ranks):
    leaders = [leader(step, num_ranks) for step in range(64 * 16 * num_ranks)]
    for first in range(0, len(leaders), num_ranks):
        assert sorted(leaders[first : first + num_ranks]) == list(range(num_ranks))
    for period in range(1, 17):
        for phase in range(period):
            assert set(leaders[phase::period]) == set(range(num_ranks)), "in step with the releases"


def with_sources(rank, sizes, vary=False):
    """Payloads that know what they were chosen from; with `vary` their sizes depend on the rank, down to none."""
    generator = torch.Generator().manual_seed(100 + rank)
    payloads = []
    for payload in payloads_of(rank, sizes):
        indices = payload.indices
        if indices is not None and vary:
            indices = indices[: int(torch.randint(0, indices.numel() + 1, (), generator=generator))]
        source = torch.randn(payload.numel, generator=generator, dtype=F64).to(payload.values.dtype)
        values = source.clone() if indices is None else source[indices]
        payloads.append(Payload(payload.view, 0, payload.numel, values, indices, source))
    return payloads


def check_all(rank, num_ranks, index_codec):
    collective = make("collective", "shared_mask", index_codec=index_codec)
    for vary in (False, True):
        buckets = [with_sources(rank, sizes, vary) for sizes in BUCKETS.values()]
        for step in range(2 * num_ranks):
            handles = collective.start(buckets, None, step, vary)
            for sizes, bucket, handle in zip(BUCKETS.values(), buckets, handles, strict=True):
                handle.wait()
                means, sent, _, counts = handle.decode()
                everyone = [with_sources(other, sizes, vary) for other in range(num_ranks)]
                theirs = everyone[leader(step, num_ranks)]
                for i, (payload, went) in enumerate(zip(bucket, sent, strict=True)):
                    chosen = theirs[i].indices
                    if chosen is None:
                        assert torch.equal(went.values.double(), payload.values.double())
                        chosen = torch.arange(payload.numel)
                    else:
                        assert torch.equal(went.indices.sort().values, chosen.sort().values)
                        assert torch.equal(went.values.double(), payload.source[went.indices].double())
                    assert counts[i] == chosen.numel()
                    total = torch.stack([other[i].source.double() for other in everyone]).sum(0)
                    expected = torch.zeros(payload.numel, dtype=F64).index_copy_(0, chosen, total[chosen] / num_ranks)
                    assert (means[i] - expected).abs().max() < 1e-6 * max(1, expected.abs().max())


@pytest.mark.parametrize("index_codec", options("index_codec"))
@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_every_rank_sends_its_own_values_at_the_leaders_entries(num_ranks, index_codec):
    on_ranks(num_ranks, check_all, num_ranks, index_codec)


def beside_dense(rank, num_ranks):
    for sizes in BUCKETS.values():
        bucket = []
        for mine, agreed in zip(payloads_of(rank, sizes), payloads_of(0, sizes), strict=True):
            bucket.append(Payload(mine.view, 0, mine.numel, mine.values, agreed.indices))
        results = []
        for collective in (SharedMask(Int32()), Dense()):
            [handle] = collective.start([bucket], None, 1)
            handle.wait()
            results.append(handle.decode())
        dtype = results[0].means[0].dtype
        for i, (mean, dense) in enumerate(zip(results[0].means, results[1].means, strict=True)):
            assert torch.equal(scattered(results[0].sent[i], dtype), scattered(bucket[i], dtype))
            assert torch.equal(mean, dense) if num_ranks < 3 else torch.allclose(mean, dense)


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_where_all_ranks_choose_the_same_it_is_dense(num_ranks):
    on_ranks(num_ranks, beside_dense, num_ranks)


def bytes_of(rank, counts, num_ranks):
    found = []
    for k in counts:
        payload = Payload("v", 0, 600, torch.ones(k), torch.arange(k) + rank)
        [handle] = SharedMask(Int32()).start([[payload]], None)
        handle.wait()
        found.append(handle.decode().wire_bytes)
    return found


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_bytes_are_those_of_one_ranks_entries_however_many_there_are(num_ranks):
    """An all-reduce of four-byte values and a broadcast of four-byte indices."""
    counts = (3, 30, 300)
    expected = [(2 * (num_ranks - 1) * 4 * k + (num_ranks - 1) * 4 * k) / num_ranks for k in counts]
    for found in on_ranks(num_ranks, bytes_of, counts, num_ranks):
        assert found == expected


# -------------------------------------------------------------------------------------- nothing starves

LOW = View("0.q", "0.q", "0.q", (4, 10))


def last_sent(rank, num_steps, period):
    """Rank 0 alone has a gradient, in the lower half; rank 1 has one in the upper half."""
    parts = {"sparsifier": "topk", "residual": "full", "release": "periodic", "packing": "direct",
             "collective": "shared_mask"}  # fmt: skip
    synchronizer = build(parts, density=0.1, release_period=period)
    synchronizer.prepare([LOW], frozenset())
    gradient = torch.zeros(40)
    gradient[20 * rank : 20 * (rank + 1)] = torch.linspace(1, 2, 20)
    arrived = torch.zeros(40, dtype=torch.bool)
    for step in range(num_steps):
        gradients = parts_of({LOW: gradient.clone().view(4, 10)})
        synchronizer.synchronize(gradients, step)
        arrived |= gradients[LOW].view(-1) != 0
    return bool(arrived.all())


@pytest.mark.parametrize("period", (1, 2, 4))
def test_what_only_one_rank_knows_of_is_sent_where_releases_go_in_step_with_the_ranks(period):
    """A release is 4 entries, so 20 take 5 with this rank in the lead, or a few more, as the gradients differ."""
    assert on_ranks(2, last_sent, 64 * period, period) == [True, True]
