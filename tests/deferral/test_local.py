"""Local updates: changes are conserved, replicas meet at releases, and local SGD is a special case."""

import itertools
import random
import time

import numpy as np
import pytest
import torch

from igrad.deferral.local import Local
from igrad.interfaces import View
from igrad.train import Run
from tests import tiny
from tests.ranks import on_ranks
from tests.strategies import make, options
from tests.test_laws import CODECS, VIEWS, build, local_gradient
from tests.test_train import flat, trained

NOTHING, SOME = frozenset(), frozenset({"0.q", "1.fc2", None})
F64 = torch.float64


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return tiny.inputs(tmp_path_factory.mktemp("tiny"))


def start(view):
    return local_gradient(view, 99, 0)


# ----------------------------------------------------------------------------------- 1. conservation


def change_and_release(rank, parts, knobs, important, num_steps):
    """(what this rank's optimizer added, where its parameters ended, in how far releases agreed), fp64."""
    made = build({**parts, "deferral": "local"}, **knobs)
    parameters = {view: view.part(start(view)) for view in VIEWS}
    made.prepare(parameters, important)
    added = {view: torch.zeros(view.shape, dtype=F64) for view in VIEWS}
    for step in range(num_steps):
        gradients = {view: view.part(local_gradient(view, rank, step)) for view in VIEWS}
        own = {view: gradient.clone() for view, gradient in gradients.items()}
        stats = made.synchronize(gradients, step)
        assert stats.local == {view.name for view in made.local} and not stats.deferred
        for view in made.local:
            assert torch.equal(gradients[view], own[view]), "its gradient stays the rank's own"
            parameters[view] -= gradients[view]
            added[view] -= gradients[view]
        made.reconcile(parameters, step)
    references = torch.cat([made.deferral.state["reference"][view.name] for view in made.local]).numpy()
    made.flush({view: torch.randn(parameters[view].shape, dtype=F64) for view in VIEWS}, parameters)
    assert not any(made.pending(view).any() for view in made.local), "a flush leaves nothing behind"
    ends = [torch.cat([part[view].reshape(-1) for view in made.local]).numpy() for part in (added, parameters)]
    return *ends, references, torch.cat([view.part(start(view)).reshape(-1) for view in made.local]).numpy()


def all_cases(rank, cases):
    return [change_and_release(rank, *case) for case in cases]


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_every_ranks_change_is_conserved(num_ranks):
    """After the flush theta = start + mean over ranks of all changes, whatever was selected, rounded, cut or packed."""
    cases = []
    draw = random.Random(num_ranks)
    for collective in options("collective") * 5:
        parts = {"collective": collective, "residual": "full"}
        parts |= {name: draw.choice(options(name)) for name in ("sparsifier", "packing", "release")}
        knobs = {
            "density": draw.choice([0.1, 0.4, 1.0]),
            "release_period": draw.randint(1, 4),
            "block_numel": draw.choice([None, 20]),
            "num_buckets": draw.randint(1, 5),
            **draw.choice(CODECS),
        }
        cases.append((parts, knobs, draw.choice((NOTHING, SOME)), draw.randint(1, 8)))
    for case, results in zip(cases, zip(*on_ranks(num_ranks, all_cases, cases), strict=True), strict=True):
        added = sum(added for added, *_ in results) / num_ranks
        for _, ended, reference, started in results:
            assert (reference == results[0][2]).all(), f"the ranks do not share a reference: {case}"
            assert (ended == results[0][1]).all(), f"replicas differ after the flush: {case}"
            scale = max(1.0, abs(added).max())
            assert abs(ended - started - added).max() < 1e-9 * scale, f"a change was lost: {case}"


def two_releases(rank, outer):
    """Whole views: replicas are equal after a release; the outer optimizer written out by hand."""
    view = View("v", None, "v", (6,))
    made = build({"sparsifier": "none", "residual": "full", "release": "periodic", "packing": "greedy",
                  "collective": "dense"}, release_period=2)  # fmt: skip
    made.deferral = Local(*outer)
    theta = torch.arange(6, dtype=F64)
    made.prepare({view: theta}, NOTHING)
    shared, velocity = theta.clone(), torch.zeros(6, dtype=F64)
    for step in range(4):
        theta += (rank + 1) * (step + 1)
        made.reconcile({view: theta}, step)
        if step % 2:
            mean = 1.5 * (step + (step + 1))
            velocity = outer[1] * velocity + mean
            shared = shared + outer[0] * (mean + outer[1] * velocity)
            assert torch.allclose(theta, shared, atol=1e-12)


@pytest.mark.parametrize("outer", ((1.0, 0.0), (0.7, 0.0), (0.7, 0.9)))
def test_the_outer_optimizer_is_sgd_with_nesterov_momentum(outer):
    on_ranks(2, two_releases, outer)


def sparse_outer(rank):
    """Sparse changes, an outer step: what the ranks share after each of some releases."""
    made = build({"sparsifier": "topk", "residual": "full", "release": "periodic", "packing": "greedy",
                  "collective": "allgather"}, release_period=2, density=0.2)  # fmt: skip
    made.deferral = Local(0.7, 0.9)
    parameters = {view: view.part(start(view)) for view in VIEWS}
    made.prepare(parameters, NOTHING)
    shared = []
    for step in range(6):
        for view, parameter in parameters.items():
            parameter += view.part(local_gradient(view, rank, step))
        made.reconcile(parameters, step)
        references = made.deferral.state["reference"]
        unsent = torch.cat([made.pending(view) for view in VIEWS])
        theta = torch.cat([parameters[view].reshape(-1) for view in VIEWS])
        assert torch.allclose(theta - unsent, torch.cat([references[view.name] for view in VIEWS]), rtol=1e-12)
        shared.append(torch.cat([references[view.name] for view in VIEWS]).numpy())
    return np.stack(shared)


def test_sparse_changes_with_an_outer_step_keep_one_reference():
    first, second = on_ranks(2, sparse_outer)
    assert (first == second).all()
    moved = [(a != b).any() for a, b in itertools.pairwise(first)]
    assert moved == [True, False, True, False, True], "at releases only"


@pytest.mark.parametrize(("field", "value"), (("outer_learning_rate", 0.0), ("outer_momentum", 1.0)))
def test_out_of_range(field, value):
    with pytest.raises(ValueError, match=f"{field} must be .*, got {value}"):
        Local(**{field: value})


# ------------------------------------------------------------------------------------ what it contains


def test_one_rank_alone_trains_as_ever(inputs, tmp_path):
    """Bit for bit, sparse and whole releases."""
    plain = on_ranks(1, trained, tiny.config("sparsifier=none", "num_processes=1"), tmp_path / "plain", inputs)
    for i, more in enumerate((("sparsifier=none",), ("density=0.1", "release_period=3"))):
        cfg = tiny.config("threshold=none", "deferral=local", "num_processes=1", *more)
        [local] = on_ranks(1, trained, cfg, tmp_path / f"local{i}", inputs)
        assert (local == plain[0]).all()


def by_hand(rank, cfg, directory, inputs):
    """Local SGD: the same training, each rank for itself, parameters averaged every R steps and at the end."""
    import torch.distributed as dist

    directory.mkdir(exist_ok=True)
    run = Run(cfg, directory, inputs, torch.device("cpu"), time.time())
    for step in range(cfg.steps):
        run.backward(step)
        torch.nn.utils.clip_grad_norm_(run.trained, cfg.max_grad_norm)
        run.optimizer.step()
        run.scheduler.step()
        if (step + 1) % cfg.release_period == 0 or step + 1 == cfg.steps:
            for parameter in run.trained:
                dist.all_reduce(parameter.data)
                parameter.data /= 2
    return flat(run.model)


def test_with_nothing_important_and_whole_views_it_is_local_sgd(inputs, tmp_path):
    cfg = tiny.config("threshold=none", "deferral=local", "density=1", "release_period=3")
    local = on_ranks(2, trained, cfg, tmp_path / "local", inputs)
    hand = on_ranks(2, by_hand, cfg, tmp_path / "hand", inputs)
    assert (local[0] == hand[0]).all() and (local[1] == hand[1]).all()


def compared(rank, cfg, directory, inputs):
    """After every step: important parameters, and the rest less what this rank has not sent."""
    directory.mkdir(exist_ok=True)
    run = Run(cfg, directory, inputs, torch.device("cpu"), time.time())
    seen, released = [], []
    reconcile = run.synchronizer.reconcile

    def noting(parameters, step):
        stats = reconcile(parameters, step)
        local = set(run.synchronizer.local)
        assert local and len(local) < len(parameters)
        seen.append(np.concatenate([v.reshape(-1).numpy() for view, v in parameters.items() if view not in local]))
        own = [
            (parameters[view].reshape(-1) - run.synchronizer.pending(view)).numpy() for view in run.synchronizer.local
        ]
        released.append(np.concatenate(own))
        return stats

    run.synchronizer.reconcile = noting
    run.train()
    return np.stack(seen), np.stack(released), flat(run.model)


def test_important_parameters_agree_at_every_step_and_the_rest_after_the_flush(inputs, tmp_path):
    """Between, replicas differ by their unsent changes: to rounding here, the law is exact in fp64 above."""
    cfg = tiny.config("threshold.ratio=0.5", "threshold=fixed_ratio", "deferral=local", "density=0.2", "steps=10",
                      "profile_window=[2,6]")  # fmt: skip
    from igrad import profile

    path = tmp_path / "scores.parquet"
    on_ranks(2, trained, profile.profiling(cfg), tmp_path / "p", profile.replace(inputs, trace_to=str(path)))
    first, second = on_ranks(2, compared, cfg, tmp_path / "run", profile.replace(inputs, profile=str(path)))
    assert (first[0] == second[0]).all()
    assert np.abs(first[1] - second[1]).max() < 1e-6
    assert (first[2] == second[2]).all()


def test_a_deferral_is_made_of_its_yaml():
    assert make("deferral", "local") == Local(1.0, 0.0)
