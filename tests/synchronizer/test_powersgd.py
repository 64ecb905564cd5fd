"""PowerSGD: torch's hook under DDP bit for bit, nothing lost for good, resumable, and safe where torch's is not."""

from __future__ import annotations

import io
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from igrad.collective.wire import allreduce_bytes
from igrad.interfaces import View
from igrad.synchronizer.dense import Dense
from igrad.synchronizer.powersgd import PowerSGD
from tests.ranks import on_ranks
from tests.test_laws import VIEWS, local_gradient, parts_of

NUM_STEPS = 6
EXACT = {"rank": 100, "min_compression_rate": 1e-9}  # everything is compressed, vectors too, and nothing is lost
DENSE = {"min_compression_rate": 1e9}


def made(**knobs) -> PowerSGD:
    synchronizer = PowerSGD(**knobs)
    synchronizer.prepare(VIEWS, frozenset())
    return synchronizer


def gradients_of(rank, step, dtype=torch.float32):
    return parts_of({view: local_gradient(view, rank, step, dtype) for view in VIEWS})


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def run(synchronizer, rank, steps, dtype=torch.float32, change=lambda gradients, step: None):
    """What was applied, [steps, elements]; `change(gradients, step)` may interfere."""
    applied = []
    for step in steps:
        gradients = gradients_of(rank, step, dtype)
        change(gradients, step)
        synchronizer.synchronize(gradients, step)
        applied.append(flat(gradients.values()))
    return torch.stack(applied)


# -------------------------------------------------------------------------------------- it is torch's


def compare_with_ddp(rank):
    for powersgd_rank in (1, 2, 3):
        compare_at(rank, powersgd_rank)


def compare_at(rank, powersgd_rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 12))
    ddp = DistributedDataParallel(model)
    state = PowerSGDState(None, powersgd_rank, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook)
    ours = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 12))
    ours.load_state_dict(model.state_dict())
    named = dict(reversed(list(ours.named_parameters())))  # as gradients become ready: Qs are drawn in this order
    views = [View(name, None, name, tuple(p.shape)) for name, p in named.items()]
    synchronizer = PowerSGD(powersgd_rank)
    synchronizer.prepare(views, frozenset())
    torch.manual_seed(rank)
    for step in range(NUM_STEPS):
        x = torch.randn(8, 20)
        for each in (ddp, ours):
            each.zero_grad()
            each(x).square().sum().backward()
        gradients = {view: named[view.name].grad for view in views}
        synchronizer.synchronize(gradients, step)
        found = {view.name: gradient for view, gradient in gradients.items()}
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.grad, found[name]), (step, name)
    assert 0 < state.compression_stats()[2] < state.compression_stats()[1], "something was compressed"


def test_it_is_torchs_hook_under_ddp():
    """Bit for bit with torch's defaults, where DDP has one bucket."""
    on_ranks(2, compare_with_ddp)


def limits(rank):
    """Nothing is lost where the rank is high enough, or where nothing is worth compressing."""
    dense = Dense()
    dense.prepare(VIEWS, frozenset())
    mean = run(dense, rank, range(NUM_STEPS), torch.float64)
    for knobs in (EXACT, DENSE):
        synchronizer = made(**knobs)
        assert abs(run(synchronizer, rank, range(NUM_STEPS), torch.float64) - mean).max() < 1e-9
    lossy = run(made(rank=1), rank, range(NUM_STEPS), torch.float64)
    assert torch.allclose(lossy[:2], mean[:2], rtol=1e-12) and abs(lossy[2:] - mean[2:]).max() > 1e-2


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_a_rank_that_loses_nothing_is_dense(num_ranks):
    """The first steps are dense at any rank."""
    on_ranks(num_ranks, limits)


# ------------------------------------------------------------------------ conservation, replicas agree


def keep_books(rank, knobs):
    """Applied, put in and left over, fp64."""
    synchronizer = made(**knobs)
    assert synchronizer.pending(VIEWS[0]) is None, "dense steps leave nothing"
    applied = run(synchronizer, rank, range(NUM_STEPS), torch.float64)
    put_in = sum(flat(gradients_of(rank, step, torch.float64).values()) for step in range(NUM_STEPS))
    left = flat([synchronizer.pending(view) for view in VIEWS])
    assert synchronizer.flush(gradients_of(rank, 0), {}) is None
    return applied.numpy(), put_in.numpy(), left.numpy()


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
@pytest.mark.parametrize("powersgd_rank", (1, 2, 4))
def test_what_is_not_applied_is_pending_and_replicas_agree(num_ranks, powersgd_rank):
    """Sum applied = mean over ranks of (what was put in - what is left)."""
    results = on_ranks(num_ranks, keep_books, {"rank": powersgd_rank, "min_compression_rate": 1.0})
    applied = results[0][0]
    for other in results[1:]:
        assert (other[0] == applied).all(), "bit for bit"
    left = sum(left for _, _, left in results) / num_ranks
    put_in = sum(put_in for _, put_in, _ in results) / num_ranks
    assert abs(left).max() > 1e-2, "something was lost on the way"
    assert abs(applied.sum(0) - (put_in - left)).max() < 1e-9


# ---------------------------------------------------------------------------------------------- bytes


def count_elements(rank, num_ranks, knobs):
    """payload_bytes is what goes through the collectives, wire_bytes a ring's share of it and of the vote."""
    synchronizer, all_reduce = made(**knobs), dist.all_reduce
    dense_bytes = 4 * sum(view.numel for view in VIEWS)
    for step in range(NUM_STEPS):
        sizes = []

        def counting(tensor, *args, sizes=sizes, **kwargs):
            sizes.append(tensor.numel() * tensor.element_size())
            return all_reduce(tensor, *args, **kwargs)

        phases = []
        synchronizer.timed = lambda phase, phases=phases: phases.append(phase) or torch.no_grad()
        with mock.patch.object(dist, "all_reduce", counting):
            stats = synchronizer.synchronize(gradients_of(rank, step), step)
        vote, *gradients = sizes
        assert stats.payload_bytes == sum(gradients)
        assert stats.wire_bytes == allreduce_bytes(vote, num_ranks) + allreduce_bytes(sum(gradients), num_ranks)
        assert (stats.payload_bytes < dense_bytes) == (step >= synchronizer.start_iter and knobs != DENSE)
        assert not stats.deferred and [payload.view for payload in stats.payloads] == [view.name for view in VIEWS]
        assert phases == ["pack", "exchange", "pack", "exchange", "unpack"]


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_bytes_are_those_of_what_is_reduced(num_ranks):
    for knobs in ({"rank": 1}, {"rank": 2, "start_iter": 4}, DENSE):
        on_ranks(num_ranks, count_elements, num_ranks, knobs)


# ------------------------------------------------------------------------------- resume, drop, odd inputs


def resume(rank, stop, knobs):
    whole = run(made(**knobs), rank, range(NUM_STEPS))
    first = made(**knobs)
    run(first, rank, range(stop))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    run(first, rank, range(stop, NUM_STEPS))  # what was saved is not touched by what follows
    file.seek(0)
    second = made(**knobs)
    second.load_state_dict(torch.load(file, weights_only=False))
    assert torch.equal(run(second, rank, range(stop, NUM_STEPS)), whole[stop:])
    assert all(torch.equal(first.pending(view), second.pending(view)) for view in VIEWS)


@pytest.mark.parametrize("knobs", ({"rank": 1}, {"rank": 3, "min_compression_rate": 1.0}), ids=str)
def test_resumed_is_uninterrupted_bit_for_bit(knobs):
    """Stopped while steps are dense, before the first factors are drawn, and after."""
    for stop in (1, 2, 3, 5):
        on_ranks(2, resume, stop, knobs)


def drop(rank, value, bad_step):
    """A dropped step is zero on all ranks, and the others are as if it had never been."""

    def spoil(gradients, step):
        if step == bad_step and rank == 1:
            gradients[VIEWS[3]][0, 0] = value

    without = [step for step in range(NUM_STEPS) if step != bad_step]
    expected = run(made(rank=1), rank, without)
    applied = run(made(rank=1), rank, range(NUM_STEPS), change=spoil)
    assert not applied[bad_step].any()
    assert torch.equal(applied[without], expected)
    synchronizer, gradients = made(rank=1), gradients_of(rank, 0)
    assert not synchronizer.synchronize(gradients, 0).dropped
    spoil(gradients, bad_step)
    stats = synchronizer.synchronize(gradients, 1)
    assert stats.dropped and stats.payload_bytes == 0 and stats.wire_bytes > 0


@pytest.mark.parametrize("bad_step", (0, 2, 4))
def test_a_step_that_is_not_finite_on_one_rank_is_dropped_on_all(bad_step):
    for value in (float("nan"), float("inf")):
        on_ranks(2, drop, value, bad_step)


def unused(rank, powersgd_rank):
    """A matrix whose gradient is zero at first."""
    view = next(view for view in VIEWS if view.name == "1.fc1")

    def stop_using(gradients, step):
        if step < 4:
            gradients[view].zero_()

    synchronizer = made(rank=powersgd_rank, min_compression_rate=1.0)
    applied = run(synchronizer, rank, range(NUM_STEPS), change=stop_using)
    first = sum(v.numel for v in VIEWS[: VIEWS.index(view)])
    mine = applied[:, first : first + view.numel]
    assert applied.isfinite().all() and not mine[:4].any()
    assert bool(mine[4:].any()) == (powersgd_rank > 2), "else all of it stays pending, as documented"
    assert synchronizer.pending(view).any()


@pytest.mark.parametrize("powersgd_rank", (1, 2, 3))
def test_a_zero_gradient_is_no_trouble(powersgd_rank):
    on_ranks(2, unused, powersgd_rank)


def tiny(rank):
    """Norms that underflow when squared."""

    def shrink(gradients, step):
        for gradient in gradients.values():
            gradient.mul_(1e-24)

    applied = run(made(rank=1), rank, range(NUM_STEPS), change=shrink)
    assert abs(applied).max() < 1e-18, "of the size that was put in"


def test_tiny_gradients_stay_tiny():
    on_ranks(2, tiny)


def mixed(rank):
    """bf16 and fp32 views, strided ones among them, in a dense step: means of each view's own type and shape."""
    dtypes = [torch.bfloat16 if i % 2 else torch.float32 for i in range(len(VIEWS))]
    gradients = parts_of({v: local_gradient(v, rank, 0, d) for v, d in zip(VIEWS, dtypes, strict=True)})
    both = [parts_of({v: local_gradient(v, r, 0, d) for v, d in zip(VIEWS, dtypes, strict=True)}) for r in range(2)]
    made().synchronize(gradients, 0)
    for view, dtype in zip(VIEWS, dtypes, strict=True):
        assert gradients[view].dtype == dtype and gradients[view].shape == both[0][view].shape
        assert torch.equal(gradients[view], ((both[0][view].float() + both[1][view].float()) / 2).to(dtype))


def test_mixed_types_and_strides():
    on_ranks(2, mixed)


def on_the_cpu_of_a_gpu_machine(rank):
    with mock.patch("torch.cuda.is_available", lambda: True):
        applied = run(made(), rank, range(NUM_STEPS))
        assert torch.cuda.is_available(), "only the hook is told otherwise"
    assert applied.any(1).all()


def test_ranks_on_the_cpu_where_cuda_is_available():
    on_ranks(2, on_the_cpu_of_a_gpu_machine)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"rank": 0}, "rank must be at least 1, got 0"),
        ({"start_iter": 1}, "start_iter must be at least 2, got 1"),
        ({"min_compression_rate": 0.0}, "min_compression_rate must be above 0, got 0.0"),
    ],
)
def test_out_of_range(knobs, message):
    with pytest.raises(ValueError, match=message):
        PowerSGD(**knobs)
