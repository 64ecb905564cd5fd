"""The dense baseline: every gradient becomes the rank mean, in buckets of one type."""

import pytest
import torch

from igrad.interfaces import View
from igrad.synchronizer import dense
from igrad.synchronizer.dense import Dense
from tests.ranks import on_ranks

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
SIZES = ((8, 5), (30,), (3, 3), (100,), (7,), (20, 2), (1,))
VIEWS = [
    View(f"v{i}", "0.q" if i % 2 else None, f"v{i}", s, part=torch.t if i == 0 else torch.clone)
    for i, s in enumerate(SIZES)
]


def gradients_of(rank, dtypes):
    generator = torch.Generator().manual_seed(rank)
    made = {}
    for view, dtype in zip(VIEWS, dtypes, strict=True):
        gradient = torch.randn(view.shape, generator=generator, dtype=F64).to(dtype)
        made[view] = gradient.t().contiguous().t() if len(view.shape) == 2 else gradient  # strided
    return made


def check(rank, cases, bucket_bytes):
    """Everything on one pair of ranks; the buckets that were sent are noted."""
    found = []
    for dtypes in cases:
        buckets = []

        class Noting(dense.DenseCollective):
            def start(self, given, group, noted=buckets, **more):
                noted += given
                return super().start(given, group, **more)

        original, dense.DenseCollective = dense.DenseCollective, Noting
        synchronizer = Dense(bucket_bytes)
        synchronizer.prepare(VIEWS, frozenset())
        gradients = gradients_of(rank, dtypes)
        stats = synchronizer.synchronize(gradients, 0)
        dense.DenseCollective = original

        both = [gradients_of(other, dtypes) for other in range(2)]
        for view, dtype in zip(VIEWS, dtypes, strict=True):
            assert gradients[view].dtype == dtype and gradients[view].shape == view.shape
            assert torch.equal(gradients[view], (both[0][view] + both[1][view]) / 2)
        num_bytes = sum(view.numel * dtype.itemsize for view, dtype in zip(VIEWS, dtypes, strict=True))
        assert stats.payload_bytes == num_bytes
        assert stats.wire_bytes == num_bytes, "two ranks: 2 (N - 1) / N is one"
        assert not stats.deferred
        assert synchronizer.flush(gradients, {}) is None and synchronizer.pending(VIEWS[0]) is None
        found.append([[(payload.values.dtype, payload.bytes) for payload in bucket] for bucket in buckets])
    return found


@pytest.mark.parametrize("bucket_bytes", (1, 200, 10**9))
def test_mean_bytes_and_buckets(bucket_bytes):
    cases = ([F32] * 7, [F32, BF16, BF16, F64, F64, F32, F32], [BF16] * 7)
    for dtypes, buckets in zip(cases, on_ranks(2, check, cases, bucket_bytes)[0], strict=True):
        assert [dtype for bucket in buckets for dtype, _ in bucket] == dtypes, "in the order of the views"
        for i, bucket in enumerate(buckets):
            sizes = [size for _, size in bucket]
            assert len({dtype for dtype, _ in bucket}) == 1
            assert sum(sizes[:-1]) < bucket_bytes, "a full bucket takes no more"
            if i + 1 < len(buckets) and buckets[i + 1][0][0] == bucket[0][0]:
                assert sum(sizes) >= bucket_bytes, "a bucket is not closed before it is full"


def test_bucket_bytes_out_of_range():
    with pytest.raises(ValueError, match="bucket_bytes must be at least 1, got 0"):
        Dense(bucket_bytes=0)
