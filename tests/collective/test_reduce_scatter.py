"""Reduce-scatter: the largest sums of every part, whatever the ranks offered, and nothing lost or starved."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from igrad.collective.reduce_scatter import ReduceScatter, by_owner, from_records, largest_per_segment, to_records
from igrad.collective.wire import Space
from igrad.interfaces import Payload, View
from tests.collective.test_allgather import BUCKETS, F32, F64, payloads_of, scattered
from tests.collective.test_shared_mask import with_sources
from tests.ranks import on_ranks
from tests.test_laws import build, check_conservation, run_steps

# ------------------------------------------------------------------------------------- pure functions


@given(data=st.data(), quotas=st.lists(st.integers(0, 5), min_size=1, max_size=6), num_entries=st.integers(0, 40))
def test_a_segment_keeps_its_largest_in_slots_of_its_own(data, quotas, num_entries):
    magnitudes = data.draw(st.lists(st.integers(0, 9), min_size=num_entries, max_size=num_entries))
    segments = data.draw(st.lists(st.integers(0, len(quotas) - 1), min_size=num_entries, max_size=num_entries))
    kept, slots = largest_per_segment(
        torch.tensor(magnitudes, dtype=F32), torch.tensor(segments, dtype=torch.int64), torch.tensor(quotas)
    )
    found = dict(zip(slots.tolist(), kept.tolist(), strict=True))
    assert len(found) == len(kept)
    for segment, quota in enumerate(quotas):
        inside = [i for i in range(num_entries) if segments[i] == segment]
        best = sorted(inside, key=lambda i: -magnitudes[i])[:quota]  # stable: among equals the first
        assert [found.pop(sum(quotas[:segment]) + place) for place in range(len(best))] == best
    assert not found


@pytest.mark.parametrize("dtype", (F32, F64))
@pytest.mark.parametrize("positions", ([], [0], [2**32 - 1, 7, 2**31, 2**31 - 1]))
def test_records_lose_nothing(dtype, positions):
    values = torch.randn(len(positions), dtype=F64).to(dtype)
    records = to_records(values, torch.tensor(positions, dtype=torch.int64))
    assert records.shape == (len(positions), 1 + dtype.itemsize // 4)
    back, where = from_records(records, dtype)
    assert torch.equal(back, values) and where.tolist() == positions


def test_a_bucket_that_no_position_reaches_is_named():
    payload = Payload("v", 0, 2**32, torch.ones(1), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="a bucket has 4294967296; raise num_buckets"):
        by_owner(Space([payload]), 2)


# ---------------------------------------------------------------------------------------- what is sent


def expected_mean(everyone, i, num_ranks):
    """Of the sums of what was offered of payload i, the ceil(k / N) largest in each N-th of the elements."""
    theirs = [bucket[i] for bucket in everyone]
    total = torch.stack([scattered(payload, F64) for payload in theirs]).sum(0)
    if theirs[0].indices is None:
        return total / num_ranks
    offered = torch.zeros(total.numel(), dtype=torch.bool)
    for payload in theirs:
        offered[payload.indices] = True
    quota = -(-max(payload.values.numel() for payload in theirs) // num_ranks)
    mean = torch.zeros_like(total)
    for part in range(num_ranks):
        inside = [e for e in offered.nonzero().view(-1).tolist() if e * num_ranks // total.numel() == part]
        for e in sorted(inside, key=lambda e: -abs(total[e]))[:quota]:
            mean[e] = total[e] / num_ranks
    return mean


def check_all(rank, num_ranks):
    num_dropped = 0
    for vary in (False, True):
        make = with_sources if vary else lambda rank, sizes, vary: payloads_of(rank, sizes)
        buckets = [make(rank, sizes, vary) for sizes in BUCKETS.values()]
        handles = ReduceScatter().start(buckets, None, 0, vary)
        for sizes, bucket, handle in zip(BUCKETS.values(), buckets, handles, strict=True):
            handle.wait()
            means, sent, _, counts = handle.decode()
            everyone = [make(other, sizes, vary) for other in range(num_ranks)]
            for i, (payload, went) in enumerate(zip(bucket, sent, strict=True)):
                expected = expected_mean(everyone, i, num_ranks)
                assert torch.allclose(means[i].double(), expected, rtol=1e-5)
                if payload.indices is None:
                    assert torch.equal(went.values, payload.values)
                    continue
                assert counts is None or counts[i] == max(other[i].values.numel() for other in everyone)
                mine = scattered(payload, F64)
                mine[means[i] == 0] = 0  # no sum of these values is zero
                assert torch.equal(scattered(went, F64), mine), "sent is what was offered and kept"
                num_dropped += payload.values.numel() - went.values.numel()
    return num_dropped


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_every_part_keeps_the_largest_sums(num_ranks):
    dropped = on_ranks(num_ranks, check_all, num_ranks)
    assert all(dropped) if num_ranks > 1 else not any(dropped)


def nobody_offers(rank):
    payload = Payload("v", 0, 9, torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    [handle] = ReduceScatter().start([[payload]], None, 0, True)
    handle.wait()
    [mean], [sent], wire_bytes, counts = handle.decode()
    assert not mean.any() and sent.values.numel() == 0 and counts == [0] and wire_bytes > 0


def test_nothing_may_be_offered():
    on_ranks(2, nobody_offers)


def bytes_of(rank, num_ranks, k):
    payload = Payload("v", 0, 60 * k, torch.ones(k), torch.arange(k) * 60 + rank)  # apart, and even over the parts
    [handle] = ReduceScatter().start([[payload]], None)
    handle.wait()
    return handle.decode().wire_bytes


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_bytes_are_those_of_one_ranks_entries_to_the_owners_and_back(num_ranks):
    """Eight for each, and first eight to each other rank that say how many."""
    k = 60
    expected = 2 * (num_ranks - 1) / num_ranks * 8 * k + 8 * (num_ranks - 1)
    assert on_ranks(num_ranks, bytes_of, num_ranks, k) == [expected] * num_ranks


# --------------------------------------------------------------------- what is not sent stays, and is sent

VIEWS = (
    View("0.q", "0.q", "0.q", (8, 10)),
    View("0.k", "0.k", "0.k", (30, 4)),
    View("0.o", "0.k", "0.o", (3, 7)),
    View("norm", None, "norm", (6,)),
)
PARTS = {"sparsifier": "topk", "release": "periodic", "packing": "direct", "collective": "reduce_scatter"}


def dropping_steps(rank, residual):
    parts = {**PARTS, "residual": residual}
    return run_steps(rank, parts, {"density": 0.05, "release_period": 2, "num_buckets": 2}, 8)


@pytest.mark.parametrize("residual", ("full", "delayed"))
@pytest.mark.parametrize("num_ranks", (2, 3))
def test_what_an_owner_dropped_returns_to_the_residual(num_ranks, residual):
    check_conservation(on_ranks(num_ranks, dropping_steps, residual), residual)


def longest_waits(rank, num_steps):
    """Steps between two times that an entry was sent, at most, by view; gradients last, in [1, 2], unlike on others."""
    synchronizer = build({**PARTS, "residual": "full"}, density=0.05, num_buckets=2)
    synchronizer.prepare(VIEWS, frozenset({"0.q", "0.k", None}))
    generator = torch.Generator().manual_seed(rank)
    lasting = {view: 1 + torch.rand(view.shape, generator=generator, dtype=F64) for view in VIEWS}
    last = {view: torch.full((view.numel,), -1) for view in VIEWS}
    waits = dict.fromkeys(VIEWS, 0)
    for step in range(num_steps):
        synchronizer.synchronize({view: gradient.clone() for view, gradient in lasting.items()}, step)
        for view in VIEWS:
            waits[view] = max(waits[view], step - int(last[view].min()))
            last[view][synchronizer.pending(view) == 0] = step
    return [waits[view] for view in VIEWS]


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_every_entry_with_a_lasting_gradient_is_sent_in_bounded_time(num_ranks):
    """k of a view's entries are sent in a step, N-fold rarer a rank's own where ranks never agree, twice as rare the
    least: each within 2 N numel / k steps. One view sends a single entry, fewer than there are parts."""
    ks = (4, 6, 1, 1)
    for waits in on_ranks(num_ranks, longest_waits, 200):
        for view, k, wait in zip(VIEWS, ks, waits, strict=True):
            assert wait <= 2 * num_ranks * view.numel / k, view.name
