"""Buckets that leave during the backward pass: the same numbers, in the same order, and really early."""

import time

import pytest
import torch
from torch.profiler import profile

from igrad.train import Run
from tests import tiny
from tests.ranks import on_ranks
from tests.strategies import options
from tests.test_laws import IMPORTANT, VIEWS, build, local_gradient, parts_of
from tests.test_train import trained

PARTS = {"sparsifier": "topk", "release": "periodic", "packing": "overlap", "collective": "allgather"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return tiny.inputs(tmp_path_factory.mktemp("tiny"))


def under_every_packing(rank, configs, folder, inputs):
    return [trained(rank, cfg, folder / name, inputs) for name, cfg in configs.items()]


@pytest.mark.parametrize("more", ((), ("micro_batches=2", "block_numel=100")), ids=str)
def test_trained_weights_are_bitwise_equal_under_every_packing(more, inputs, tmp_path):
    """Law 4, with a collective that adds up in rank order."""
    common = ("density=0.1", "steps=12", "threshold=all", *more)
    configs = {name: tiny.config(*common, f"packing={name}") for name in options("packing")}
    one, *others = on_ranks(2, under_every_packing, configs, tmp_path, inputs)[0]
    for other in others:
        assert (one == other).all()


# -------------------------------------------------------------------------------------- it leaves early


def traced(rank, cfg, folder, inputs):
    """Of one backward pass: when each exchange began, and when each gradient arrived (microseconds)."""
    folder.mkdir(exist_ok=True)
    run = Run(cfg, folder, inputs, torch.device("cpu"), time.time())
    with profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        run.backward(20)
        gradients = run.gradients()
        run.synchronizer.synchronize(gradients, 20)
    left = [e.time_range.start for e in recorded.events() if e.name == "c10d::_allgather_base_"]
    arrived = [e.time_range.start for e in recorded.events() if e.name == "torch::autograd::AccumulateGrad"]
    return sorted(left), sorted(arrived), len(run.trained)


@pytest.mark.parametrize("packing", ("overlap", "greedy"))
def test_a_recorded_trace_shows_a_bucket_that_leaves_before_the_last_gradient_is_there(packing, inputs, tmp_path):
    cfg = tiny.config("threshold=all", f"packing={packing}", "num_buckets=3")
    for left, arrived, num_parameters in on_ranks(2, traced, cfg, tmp_path / "run", inputs):
        assert len(left) == 3 + 1 and len(arrived) == num_parameters, "three buckets and the vote"
        early = sum(start < arrived[-1] for start in left)
        assert early == (2 if packing == "overlap" else 0), "the last bucket holds what comes last"


# --------------------------------------------------------------------------------- what may go wrong


def in_any_order(rank, residual, poisoned):
    """As under another packing, whatever is ready first; step 2, a release, has an overflow on rank 1 in one view."""
    parts = {**PARTS, "residual": residual}
    early, late = (
        build({**parts, "packing": name}, density=0.3, release_period=3, index_codec="gap8")
        for name in ("overlap", "direct")
    )
    for made in (early, late):
        made.prepare(VIEWS, IMPORTANT)
    for step in range(6):
        gradients = parts_of({view: local_gradient(view, rank, step) for view in VIEWS})
        bad = step == 2 and poisoned is not None
        if bad and rank == 1:
            gradients[poisoned].view(-1)[0] = float("nan")
        again = {view: gradient.clone() for view, gradient in gradients.items()}
        order = torch.randperm(len(VIEWS), generator=torch.Generator().manual_seed(10 * step + rank)).tolist()
        for i in order[: 2 * rank + 3]:
            early.ready(VIEWS[i], gradients[VIEWS[i]], step)
        stats = early.synchronize(gradients, step)
        expected = late.synchronize(again, step)
        assert bool(stats.dropped) == bool(expected.dropped) == bad
        assert stats.num_released == expected.num_released
        for view in VIEWS:
            assert torch.equal(gradients[view], again[view])
            held, wanted = early.pending(view), late.pending(view)
            assert held is wanted is None or torch.equal(held, torch.zeros_like(held) if wanted is None else wanted)


@pytest.mark.parametrize("residual", options("residual"))
def test_gradients_may_be_ready_in_any_order_and_a_step_may_be_dropped(residual):
    for poisoned in (None, VIEWS[0], VIEWS[-1]):
        on_ranks(2, in_any_order, residual, poisoned)


def agree_in_any_order(rank, parts):
    made = build({**PARTS, "residual": "full", **parts}, density=0.3, index_codec="gap8", release_period=2)
    made.prepare(parts_of({view: local_gradient(view, 9, 9) for view in VIEWS}), IMPORTANT)
    for step in range(4):
        gradients = parts_of({view: local_gradient(view, rank, step) for view in VIEWS})
        for i in torch.randperm(len(VIEWS), generator=torch.Generator().manual_seed(step + rank)).tolist()[rank:]:
            made.ready(VIEWS[i], gradients[VIEWS[i]], step)
        made.synchronize(gradients, step)
    return torch.cat([gradient.reshape(-1) for gradient in gradients.values()]).numpy()


@pytest.mark.parametrize("sparsifier", ("topk", "threshold"))
@pytest.mark.parametrize("collective", options("collective"))
def test_how_many_buckets_leave_together_is_no_matter(collective, sparsifier):
    """Collectives that exchange sizes do so for each: what leaves when is each rank's own timing."""
    first, second = on_ranks(2, agree_in_any_order, {"collective": collective, "sparsifier": sparsifier})
    assert first.any() and (first == second).all()


def test_local_clipping_needs_every_gradient_first():
    from igrad.config import check

    with pytest.raises(ValueError, match="clip must be global where packing overlaps the backward pass, got local"):
        check(tiny.config("packing=overlap", "clip=local"))
