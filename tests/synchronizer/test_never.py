"""Ranks alone until the flush, which makes every parameter the mean of what it was."""

from functools import partial

import pytest
import torch

from igrad.collective.wire import allreduce_bytes
from igrad.fused import section
from igrad.interfaces import SyncStats, View, whole
from igrad.synchronizer.never import Never
from tests.ranks import on_ranks

PARAMETERS = {"fused": (7, 12), "weight": (4, 5), "bias": (5,)}  # `fused` is stored (in, out), two groups of [q; k]
PARTS = {kind: partial(section, groups=2, start=3 * i, size=3, transposed=True) for i, kind in enumerate("qk")}
VIEWS = [
    *(View(f"fused.{kind}", f"0.{kind}", "fused", (6, 7), part) for kind, part in PARTS.items()),
    *(View(name, None, name, PARAMETERS[name], whole) for name in ("weight", "bias")),
]


def made(rank):
    generator = torch.Generator().manual_seed(rank)
    return {name: torch.randn(shape, generator=generator) for name, shape in PARAMETERS.items()}


def train_alone(rank, num_ranks):
    """A step and a flush; this rank's parameters before and after the flush."""
    synchronizer, phases = Never(), []
    synchronizer.timed = lambda phase: phases.append(phase) or torch.no_grad()
    synchronizer.prepare(VIEWS, frozenset())
    named = made(rank)
    gradients = {view: view.part(torch.randn_like(named[view.parameter])) for view in VIEWS}
    copies = {view: gradient.clone() for view, gradient in gradients.items()}
    assert synchronizer.synchronize(gradients, 0) == SyncStats()
    assert not phases, "no rank waits for another"
    before = {name: parameter.clone().numpy() for name, parameter in named.items()}
    stats = synchronizer.flush(gradients, {view: view.part(named[view.parameter]) for view in VIEWS})
    assert all(torch.equal(gradients[view], copies[view]) for view in VIEWS)
    num_bytes = 4 * sum(parameter.numel() for parameter in named.values())
    assert stats.payload_bytes == num_bytes and stats.wire_bytes == allreduce_bytes(num_bytes, num_ranks)
    assert stats.deferred == {view.name for view in VIEWS}, "the optimizer has nothing left to step"
    assert phases == ["pack", "exchange", "exchange", "unpack"], "begun while packing, then waited for"
    return before, {name: parameter.numpy() for name, parameter in named.items()}


@pytest.mark.parametrize("num_ranks", (1, 2, 3))
def test_a_flush_makes_every_parameter_the_mean_on_all_ranks(num_ranks):
    """Fused parameters too, all of whose elements belong to one view or another."""
    results = on_ranks(num_ranks, train_alone, num_ranks)
    for name in PARAMETERS:
        alone = [before[name] for before, _ in results]
        mean = sum(before.astype(float) for before in alone) / num_ranks
        for before, after in results:
            assert (after[name] == results[0][1][name]).all(), "bit for bit"
            assert abs(after[name] - mean).max() < 1e-6
            assert num_ranks == 1 or abs(after[name] - before[name]).max() > 0.1, "they had drifted apart"
