"""Law 7 for the baselines: bytes are real."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from igrad.interfaces import View
from igrad.synchronizer.bf16 import BF16
from igrad.synchronizer.dense import Dense
from igrad.synchronizer.powersgd import PowerSGD
from tests.loopback import bytes_sent, on_own_loopback
from tests.ranks import on_ranks

NUM_STEPS = 10
BASELINES = {"dense": Dense(), "bf16": BF16(), "powersgd": PowerSGD(start_iter=NUM_STEPS)}


def counted(rank, synchronizer, views):
    """(what the loopback counted, what this rank said) for the first and the second half of some steps.

    PowerSGD sends everything in the first half, factors in the second.
    """
    synchronizer.prepare(views, frozenset())
    halves = []
    for half in range(2):
        dist.barrier()
        before = bytes_sent()
        dist.barrier()  # nobody starts before everybody has read the counter
        said = 0
        for step in range(half * NUM_STEPS, (half + 1) * NUM_STEPS):
            said += synchronizer.synchronize({view: torch.randn(view.shape) for view in views}, step).wire_bytes
        dist.barrier()
        halves.append((bytes_sent() - before, said))
    return halves


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("num_ranks", (2, 3))
def test_wire_bytes_are_what_the_loopback_counts(baseline, num_ranks):
    """Summed over ranks, within 5 %, once the overhead per message is taken from steps of next to nothing."""

    def measure(*shapes):
        views = [View(f"v{i}", None, f"v{i}", shape) for i, shape in enumerate(shapes)]
        ranks = on_own_loopback(on_ranks, num_ranks, counted, BASELINES[baseline], views)
        return [(max(count for count, _ in half), sum(said for _, said in half)) for half in zip(*ranks, strict=True)]

    little, much = measure((32, 32), (1,)), measure((800, 1000), (20_000,))
    for (nothing, said_nothing), (interface, said) in zip(little, much, strict=True):
        overhead = nothing - said_nothing
        assert overhead > 0
        assert said == pytest.approx(interface - overhead, rel=0.05)
