"""All-reduce in bfloat16: torch's hook bit for bit, Dense to bf16 rounding, half of its bytes."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from igrad.interfaces import View
from igrad.synchronizer.bf16 import BF16
from igrad.synchronizer.dense import Dense
from tests.ranks import on_ranks
from tests.test_laws import VIEWS, local_gradient, parts_of

F32, F64, BF = torch.float32, torch.float64, torch.bfloat16
DTYPES = ([F32] * len(VIEWS), [F64, F64, F32, BF, BF, F32, F32], [BF] * len(VIEWS))
EPSILON = torch.finfo(BF).eps


def gradients_of(rank, step, dtypes):
    return parts_of({v: local_gradient(v, rank, step, dtype) for v, dtype in zip(VIEWS, dtypes, strict=True)})


def flat(gradients):
    return torch.cat([gradient.double().reshape(-1) for gradient in gradients.values()])


def step_of(synchronizer, gradients):
    synchronizer.prepare(VIEWS, frozenset())
    return synchronizer.synchronize(gradients, 0)


def compare_with_dense(rank, num_ranks, bucket_bytes):
    """Every case: what each rank has afterwards, and that it is the mean but for the rounding of each addend."""
    results = []
    for step, dtypes in enumerate(DTYPES):
        halves, wholes = gradients_of(rank, step, dtypes), gradients_of(rank, step, dtypes)
        stats, dense = step_of(BF16(bucket_bytes), halves), step_of(Dense(bucket_bytes), wholes)
        assert all(gradient.dtype == dtype for gradient, dtype in zip(halves.values(), dtypes, strict=True))
        assert all(halves[view].isfinite().all() for view in VIEWS)
        size = sum(flat(gradients_of(other, step, dtypes)).abs() for other in range(num_ranks)) / num_ranks
        # Cast, division and each of N - 1 additions round once, by half of epsilon.
        assert (abs(flat(halves) - flat(wholes)) <= EPSILON / 2 * (num_ranks + 2) * size).all()
        if set(dtypes) != {BF}:
            assert not torch.equal(flat(halves), flat(wholes)), "bfloat16 is what went"
        assert stats.payload_bytes == dense.payload_bytes and not stats.deferred
        if dtypes == DTYPES[0]:
            assert stats.wire_bytes == pytest.approx(dense.wire_bytes / 2, abs=len(VIEWS))
        results.append(flat(halves).numpy())
    return results


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_dense_to_bf16_rounding_and_equal_on_all_ranks(num_ranks):
    for bucket_bytes in (1, 300, 10**9):
        first, *others = on_ranks(num_ranks, compare_with_dense, num_ranks, bucket_bytes)
        for other in others:
            assert all((mine == theirs).all() for mine, theirs in zip(first, other, strict=True))


def compare_with_torch(rank):
    ours = gradients_of(rank, 0, DTYPES[0])
    bucket = torch.cat([gradient.reshape(-1) for gradient in ours.values()])
    step_of(BF16(), ours)
    theirs = bf16_compress_hook(None, SimpleNamespace(buffer=lambda: bucket)).wait()
    assert torch.equal(flat(ours), theirs.double())


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_it_is_torchs_hook(num_ranks):
    """Bit for bit, where the bucket is the same."""
    on_ranks(num_ranks, compare_with_torch)


def large(rank):
    view = View("v", None, "v", (3,))
    gradient = {view: torch.tensor([3e38, -3e38, 1e-30])}
    synchronizer = BF16()
    synchronizer.prepare([view], frozenset())
    synchronizer.synchronize(gradient, 0)
    assert gradient[view].isfinite().all() and gradient[view].all()


def test_the_range_is_that_of_float32():
    """A sum of two would not fit, their mean does; float16 would hold neither."""
    on_ranks(2, large)


def test_bucket_bytes_out_of_range():
    with pytest.raises(ValueError, match="bucket_bytes must be at least 1, got 0"):
        BF16(bucket_bytes=0)
