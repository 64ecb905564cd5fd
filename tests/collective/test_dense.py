"""Dense all-reduce: every element is charged, zeros included."""

import pytest
import torch

from igrad.collective.dense import Dense
from igrad.interfaces import Payload
from tests.collective.test_allgather import BUCKETS, F32, F64, payloads_of, scattered
from tests.ranks import on_ranks


def check_all(rank, num_ranks):
    for name, sizes in BUCKETS.items():
        bucket = payloads_of(rank, sizes)
        before = [payload.values.clone() for payload in bucket]
        [handle] = Dense().start([bucket], None)
        handle.wait()
        means, sent, wire_bytes, _ = handle.decode()
        dtype = F64 if any(dtype == F64 for _, _, dtype in sizes) else F32

        everyone = [payloads_of(other, sizes) for other in range(num_ranks)]
        for i, mean in enumerate(means):
            parts = torch.stack([scattered(theirs[i], dtype) for theirs in everyone])
            rounding = num_ranks * torch.finfo(dtype).eps * parts.abs().sum(0)
            assert mean.dtype == dtype, name
            assert ((mean - parts.mean(0)).abs() <= rounding).all(), name
            if num_ranks < 3:
                assert torch.equal(mean, parts.sum(0) / num_ranks), f"a sum of two has no order: {name}"
            assert torch.equal(sent[i].values, before[i]) and torch.equal(bucket[i].values, before[i]), name

        num_bytes = sum(numel for numel, _, _ in sizes) * (4 if dtype == F32 else 8)
        assert wire_bytes == round(2 * (num_ranks - 1) * num_bytes / num_ranks), name


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_means_and_bytes(num_ranks):
    on_ranks(num_ranks, check_all, num_ranks)


def bytes_at(rank, counts):
    found = set()
    for k in counts:
        [handle] = Dense().start([[Payload("v", 0, 100, torch.zeros(k), torch.arange(k))]], None)
        handle.wait()
        found.add(handle.decode().wire_bytes)
    return found


def test_bytes_do_not_depend_on_how_many_entries_were_selected():
    assert on_ranks(2, bytes_at, (1, 50, 100)) == [{400}, {400}]
