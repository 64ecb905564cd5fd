"""ImportanceGradient: who is sent when, how much, and where the rest stays."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch

from igrad.collective.allgather import AllGather
from igrad.deferral.zeros import Zeros
from igrad.index_codec.int32 import Int32
from igrad.interfaces import Item, View, untimed
from igrad.packing.greedy import Greedy
from igrad.release.periodic import Periodic
from igrad.residual.delayed import Delayed
from igrad.residual.full import Full
from igrad.residual.none import NoResidual
from igrad.sparsifier.topk import TopK
from igrad.synchronizer.importance import Importance
from igrad.value_codec.fp32 import FP32
from tests.ranks import on_ranks

VIEWS = (
    View("0.q", "0.q", "0.q", (10, 10)),
    View("1.v", "1.v", "1.v", (20, 10)),
    View("1.v.bias", "1.v", "1.v.bias", (40,)),
    View("1.fc1", "1.fc1", "1.fc1", (10, 30)),
    View("norm", None, "norm", (10,)),
)
IMPORTANT = frozenset({"0.q", None})
LOW = {"1.v", "1.v.bias", "1.fc1"}
VOTE_BYTES = 2 * 8  # an all-gather of two fp64 on two ranks


def synchronizer(residual, release, collective=None, release_fraction=None, num_buckets=2):
    collective = collective or AllGather(FP32(), Int32())
    made = Importance(
        TopK(0.1), residual, release, Greedy(num_buckets), collective, Zeros(), release_fraction=release_fraction
    )
    made.prepare(VIEWS, IMPORTANT)
    return made


def gradients_of(rank, step, dtypes=(torch.float64,)):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return {
        view: torch.randn(view.shape, generator=generator, dtype=torch.float64).to(dtypes[i % len(dtypes)])
        for i, view in enumerate(VIEWS)
    }


def number_sent(stats):
    return {payload.view: payload.values.numel() for payload in stats.payloads}


# ------------------------------------------------------------------------------------------ decide, select


def who_is_sent(rank):
    made = synchronizer(Full(), Periodic(3))
    for step in range(7):
        gradients = gradients_of(rank, step)
        stats = made.synchronize(gradients, step)
        releases = step in (2, 5)
        assert stats.deferred == (set() if releases else LOW)
        assert stats.num_released == (2 if releases else 0), "components, not views"
        every_step = {"0.q": 10, "norm": 1}
        assert number_sent(stats) == {**every_step, **({"1.v": 20, "1.v.bias": 4, "1.fc1": 30} if releases else {})}
        for view, gradient in gradients.items():
            assert bool(gradient.any()) == (view.name not in stats.deferred)
        assert stats.payload_bytes == sum(number_sent(stats).values()) * 12
        entries = [sum(p.values.numel() for p in bucket) for bucket in buckets_of(stats.payloads)]
        assert stats.wire_bytes == VOTE_BYTES + 12 * sum(entries)


def buckets_of(payloads):
    """What two buckets hold."""
    items = [Item(p.view, p.start, p.numel, p.bytes, 0.0) for p in payloads]
    return [[payloads[i] for i in bucket] for bucket in Greedy(2).pack(items)]


def how_much_is_released(rank):
    """round(release_fraction * R * k); what is important has its usual k."""
    for period, fraction, scale in ((4, None, 1), (4, 1.0, 4), (4, 0.5, 2), (4, 1 / 8, 0.5), (1, 0.5, 0.5)):
        made = synchronizer(Full(), Periodic(period), release_fraction=fraction)
        stats = made.synchronize(gradients_of(rank, 0), period - 1)
        usual = {"1.v": 20, "1.v.bias": 4, "1.fc1": 30}
        expected = {"0.q": 10, "norm": 1, **{name: round(scale * k) for name, k in usual.items()}}
        assert number_sent(stats) == expected


def balance(rank):
    for num_buckets in (1, 2, 9):
        stats = synchronizer(Full(), Periodic(1), num_buckets=num_buckets).synchronize(gradients_of(rank, 0), 0)
        assert 1 <= stats.bucket_imbalance <= num_buckets
        if num_buckets == 1:
            assert (stats.bucket_imbalance, stats.bucket_cv) == (1, 0)
        if num_buckets == 2:
            loads = torch.tensor([float(sum(p.bytes for p in bucket)) for bucket in buckets_of(stats.payloads)])
            assert stats.bucket_imbalance == pytest.approx((loads.max() / loads.mean()).item())
            assert stats.bucket_cv == pytest.approx((loads.std(correction=0) / loads.mean()).item())


# ------------------------------------------------------------------------------------- what comes back


@dataclass(frozen=True)
class Halves:
    """A lossy collective: half of every value goes."""

    def cost_bytes(self, numel, count):
        return 8 * count

    def start(self, buckets, group, step=0, sizes_vary=False, timed=untimed):
        halves = [[replace(payload, values=payload.values / 2) for payload in bucket] for bucket in buckets]
        return AllGather(FP32(), Int32()).start(halves, group, step, sizes_vary)


@dataclass(frozen=True)
class Blocks:
    """A schedule of ranges: half of every view at a time."""

    period: int = 2
    max_age_steps: int = 4

    def prepare(self, costs_bytes):
        assert set(costs_bytes) == {"1.v", "1.fc1"}
        assert costs_bytes["1.v"] / costs_bytes["1.fc1"] == 240 / 300, "all views of a component, in proportion"

    def due(self, view, step):
        half = view.numel // 2
        return slice(0, half) if step % 2 == 0 else slice(half, view.numel)


def conserve(rank):
    """Everything that went in was applied or is still there, views of every kind, whatever the exchange lost."""
    cases = [
        (Full(), Periodic(2), Halves(), (torch.float64,), 1e-12),
        (Full(), Blocks(), AllGather(FP32(), Int32()), (torch.float64,), 1e-12),
        (Full(), Periodic(2), AllGather(FP32(), Int32()), (torch.float32, torch.float64), 1e-5),  # both in one bucket
    ]
    results = []
    for residual, release, collective, dtypes, tolerance in cases:
        made = synchronizer(residual, release, collective, num_buckets=1)
        balance = {view: torch.zeros(view.shape, dtype=torch.float64) for view in VIEWS}
        for step in range(5):
            gradients = gradients_of(rank, step, dtypes)
            for view, gradient in gradients.items():
                balance[view] += gradient
            stats = made.synchronize(gradients, step)
            for view, gradient in gradients.items():
                balance[view] -= gradient
                part = made.due(view, step)
                outside = gradient.reshape(-1).clone()
                if part is not None:
                    outside[part] = 0
                assert not outside.any(), "only what was due may be applied"
            assert bool(stats.deferred) == (isinstance(release, Periodic) and step % 2 == 0)
        for view in VIEWS:
            balance[view] -= made.pending(view).view(view.shape)
        results.append((torch.cat([b.reshape(-1) for b in balance.values()]).numpy(), tolerance))
    return results


def lossy_delayed(rank):
    """What was kept and did not go waits, for important views too."""
    made = synchronizer(Delayed(), Periodic(2), Halves())
    gradients = gradients_of(rank, 0)
    kept = {view: made.sparsifier.select(gradient, view, 0) for view, gradient in gradients.items()}
    values = {view: gradient.reshape(-1)[kept[view]].clone() for view, gradient in gradients.items()}
    made.synchronize(gradients, 1)
    for view in VIEWS:
        expected = torch.zeros(view.numel, dtype=torch.float64)
        expected[kept[view]] = values[view] / 2
        assert torch.equal(made.pending(view), expected)


# ----------------------------------------------------------------------------------- state, the whole life


def resume(rank):
    for residual in (Full, Delayed, NoResidual):
        straight, first = synchronizer(residual(), Periodic(4)), synchronizer(residual(), Periodic(4))
        second = synchronizer(residual(), Periodic(4))
        for step in range(9):
            if step == 6:  # in the middle of a period
                second.load_state_dict(copy.deepcopy(first.state_dict()))
                first = second
            expected, found = gradients_of(rank, step), gradients_of(rank, step)
            straight.synchronize(expected, step)
            first.synchronize(found, step)
            assert all(torch.equal(found[view], expected[view]) for view in VIEWS)


def flushes(rank):
    made = synchronizer(NoResidual(), Periodic(2))
    made.synchronize(gradients_of(rank, 0), 0)
    assert made.flush(gradients_of(rank, 1), {}) is None
    made = synchronizer(Full(), Periodic(2))
    assert made.flush(gradients_of(rank, 1), {}) is None, "nothing has been held back yet"
    made.synchronize({view: 0 * gradient for view, gradient in gradients_of(rank, 0).items()}, 0)
    stale = gradients_of(rank, 1)
    assert made.flush(stale, {}) is None, "memory is there and empty"
    assert not any(gradient.any() for gradient in stale.values())
    made.synchronize({view: rank * gradient for view, gradient in gradients_of(rank, 2).items()}, 2)
    assert any(made.pending(view).any() for view in VIEWS) == (rank == 1), "one rank alone holds something back"
    stats = made.flush(gradients_of(rank, 1), {})
    assert stats.payload_bytes == 8 * sum(view.numel for view in VIEWS), "dense"
    assert stats.wire_bytes == stats.payload_bytes + 8, "and the question whether there is anything"
    assert made.reconcile({}, 0).wire_bytes == 0


SCENES = (who_is_sent, how_much_is_released, balance, lossy_delayed, resume, flushes)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_on_two_ranks(scene):
    on_ranks(2, scene)


def test_conservation_with_a_lossy_exchange_ranges_and_mixed_types():
    first, second = on_ranks(2, conserve)
    for (one, tolerance), (other, _) in zip(first, second, strict=True):
        assert abs(one + other).max() < tolerance
        assert abs(one).max() > 0.1, "a rank alone does not balance: the mean is of both"
