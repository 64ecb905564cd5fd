"""All-gather: bytes as its docstring has them, mixed types, sums in rank order."""

import math

import pytest
import torch

from igrad.collective.allgather import HEADER_BYTES, AllGather
from igrad.collective.dense import Dense
from igrad.collective.wire import take_messages
from igrad.index_codec.gap8 import Gap8
from igrad.index_codec.int32 import Int32
from igrad.interfaces import Payload
from igrad.value_codec.fp32 import FP32
from tests.ranks import on_ranks

F32, F64 = torch.float32, torch.float64
# numel, k (None = whole), dtype per payload
BUCKETS = {
    "one entry": [(9, 1, F32)],
    "whole": [(7, None, F32)],
    "odd counts": [(9, 3, F32), (5, 2, F32)],
    "fp64, odd count": [(9, 3, F64)],
    "fp64, even count": [(9, 3, F64), (4, 1, F64)],
    "whole and sparse": [(7, None, F32), (9, 2, F32), (3, None, F32), (8, 8, F32)],
    "mixed types, odd count": [(9, 3, F32), (5, 2, F64), (7, None, F32)],
    "mixed types, wide and whole": [(9, 3, F32), (6, None, F64)],
}


def payloads_of(rank, sizes):
    """Values of very different magnitude, so that the order of a sum shows; entries differ between ranks."""
    generator = torch.Generator().manual_seed(rank)
    payloads = []
    for i, (numel, k, dtype) in enumerate(sizes):
        indices = None if k is None else torch.randperm(numel, generator=generator)[:k]
        exponents = torch.randint(-12, 13, (k or numel,), generator=generator)
        values = torch.randn(k or numel, generator=generator, dtype=F64) * 10.0**exponents
        payloads.append(Payload(f"v{i}", 0, numel, values.to(dtype), indices))
    return payloads


def scattered(payload, dtype):
    whole = torch.zeros(payload.numel, dtype=dtype)
    whole[slice(None) if payload.indices is None else payload.indices] = payload.values.to(dtype)
    return whole


def check_all(rank, num_ranks):
    for name, sizes in BUCKETS.items():
        bucket = payloads_of(rank, sizes)
        [handle] = AllGather(FP32(), Int32()).start([bucket], None)
        handle.wait()
        means, sent, wire_bytes, _ = handle.decode()
        dtype = F64 if any(dtype == F64 for _, _, dtype in sizes) else F32

        everyone = [payloads_of(other, sizes) for other in range(num_ranks)]
        for i, mean in enumerate(means):
            total = torch.zeros(sizes[i][0], dtype=dtype)
            for theirs in everyone:  # in rank order: bit for bit
                total += scattered(theirs[i], dtype) / num_ranks
            assert mean.dtype == dtype and torch.equal(mean, total), name
            assert torch.equal(sent[i].values.double(), bucket[i].values.double()), f"lossless: {name}"

        value_bytes = 4 if dtype == F32 else 8
        entries = sum(k or numel for numel, k, _ in sizes)
        index_bytes = 4 * sum(k or 0 for _, k, _ in sizes)
        assert wire_bytes == (num_ranks - 1) * (entries * value_bytes + index_bytes), name


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_means_and_bytes(num_ranks):
    on_ranks(num_ranks, check_all, num_ranks)


def compare_bytes(rank, num_ranks):
    """Sparse against dense bytes at densities around 2 * 4 / (N * (4 + 4))."""
    numel = 60 * num_ranks
    found = []
    for k in (59, 60, 61):
        bytes_of = []
        for collective in (AllGather(FP32(), Int32()), Dense()):
            [handle] = collective.start([[Payload("v", 0, numel, torch.ones(k), torch.arange(k))]], None)
            handle.wait()
            bytes_of.append(handle.decode().wire_bytes)
        found.append(bytes_of[0] - bytes_of[1])
    return found


@pytest.mark.parametrize("num_ranks", (2, 3))
def test_pays_below_the_break_even_density_only(num_ranks):
    for below, at, above in on_ranks(num_ranks, compare_bytes, num_ranks):
        assert below < 0 == at < above


# ------------------------------------------------------------------- sizes that are the data's, and are guessed

SPACE, K = 12_100, 40


def spread_payload(rank, gap):
    """K entries `gap` elements apart: up to 255 a byte each, above three."""
    indices = gap * torch.randperm(K, generator=torch.Generator().manual_seed(rank)) + rank
    return Payload("v", 0, SPACE, torch.randn(K, generator=torch.Generator().manual_seed(rank + 1)), indices)


def gathered(collective, payload):
    """(result, sizes of this step's messages)."""
    take_messages()
    [handle] = collective.start([[payload]], None)
    handle.wait()
    return handle.decode(), [message.num_bytes for message in take_messages()]


def guess(rank, num_ranks):
    """Narrow gaps twice, then wide ones on the last rank alone, then again."""
    collective, entries = AllGather(FP32(), Gap8()), 4 * K
    found = []
    for wide in (False, False, True, True):
        everyone = [spread_payload(r, 300 if wide and r == num_ranks - 1 else 5) for r in range(num_ranks)]
        result, sizes = gathered(collective, everyone[rank])
        expected = sum(scattered(payload, F32) / num_ranks for payload in everyone)
        assert torch.allclose(result.means[0], expected, atol=1e-7)
        assert torch.equal(result.sent[0].indices, everyone[rank].indices), "in the order in which they were selected"
        assert torch.equal(result.sent[0].values, everyone[rank].values)
        assert result.wire_bytes == (num_ranks - 1) * sum(sizes)
        found.append(sizes)
    [remembered] = collective.state.values()
    narrow, wide = K, K + 2 * (K - 1)  # bytes of the codes
    first = HEADER_BYTES + entries + narrow + round(2 * math.sqrt(narrow))
    assert found[0] == [16, entries + narrow], "at first sizes are exchanged"
    assert found[1] == [first]
    assert found[2] == [first, HEADER_BYTES + entries + wide - first], "what found no room follows"
    assert found[3] == [HEADER_BYTES + entries + wide + round(2 * math.sqrt(wide))]
    assert remembered == wide
    again = AllGather(FP32(), Gap8())
    again.state.update(collective.state)
    resumed = gathered(again, spread_payload(rank, 5))[1]
    return found, resumed


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_sizes_are_guessed_and_what_finds_no_room_follows(num_ranks):
    (found, resumed), *others = on_ranks(num_ranks, guess, num_ranks)
    assert all(other == (found, resumed) for other in others), "every rank takes part in the same messages"
    assert resumed == found[3], "what was learnt goes on"


def forget(rank):
    collective = AllGather(FP32(), Gap8())
    [handle] = collective.start([[spread_payload(rank, 5)]], None, sizes_vary=True)
    handle.wait()
    handle.decode()
    assert not collective.state, "what is exchanged anyway need not be remembered"


def test_nothing_is_remembered_where_sizes_are_exchanged():
    on_ranks(2, forget)
