"""The laws that every strategy obeys, over everything under conf/ that claims them."""

from __future__ import annotations

import itertools
import random
import zlib

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from igrad.interfaces import Item, Payload, View
from igrad.synchronizer.importance import Importance
from tests.ranks import on_ranks
from tests.strategies import make, options

RANKS = (1, 2, 3)
# Examples run in processes of their own: shrinking one would take minutes, and a rerun must see the same ones.
settings.register_profile(
    "ranks", deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
)
VIEWS = (
    View("0.q", "0.q", "0.q", (12, 8)),
    View("0.k", "0.k", "0.k", (4, 8)),
    View("0.k.bias", "0.k", "0.k.bias", (4,)),
    View("1.fc1", "1.fc1", "1.fc1", (16, 12)),
    View("1.fc2", "1.fc2", "1.fc2", (8, 16), part=torch.t),
    View("norm", None, "norm", (8,)),
    View("embed", None, "embed", (30, 8)),
)
IMPORTANT = frozenset({"0.q", "1.fc2", None})  # None: views of no component
CODECS = [{"value_codec": v, "index_codec": i} for v in options("value_codec") for i in options("index_codec")]


def build(parts: dict[str, str], **knobs) -> Importance:
    built = {group: make(group, option, **knobs) for group, option in parts.items()}
    built.setdefault("deferral", make("deferral", "zeros"))
    return Importance(**built, **{name: knobs.get(name) for name in ("release_fraction", "block_numel")})


def local_gradient(view: View, rank: int, step: int, dtype=torch.float64) -> torch.Tensor:
    """A parameter-shaped gradient, different on every rank and step; view.part of it is not always contiguous."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{view.name}/{rank}/{step}".encode()))
    shape = tuple(reversed(view.shape)) if view.part is torch.t else view.shape
    scale = 10.0 ** torch.randint(-3, 3, (), generator=generator)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def parts_of(parameters: dict[View, torch.Tensor]) -> dict[View, torch.Tensor]:
    return {view: view.part(tensor) for view, tensor in parameters.items()}


# ------------------------------------------------------------------- 1. conservation, 2. replicas agree


def run_steps(rank, parts, knobs, num_steps):
    """Everything applied, put in, and left over on this rank, per view; fp64."""
    synchronizer = build(parts, **knobs)
    synchronizer.prepare(VIEWS, IMPORTANT)
    conserves = synchronizer.residual.conserves
    applied = {view: torch.zeros(view.shape, dtype=torch.float64) for view in VIEWS}
    given_in = {view: torch.zeros(view.shape, dtype=torch.float64) for view in VIEWS}
    each_step = []
    for step in range(num_steps):
        gradients = parts_of({view: local_gradient(view, rank, step) for view in VIEWS})
        for view, gradient in gradients.items():
            kept = gradient.clone().reshape(view.shape)
            if conserves == "selected":
                indices = synchronizer.sparsifier.select(kept, view, step)
                if indices is not None:
                    kept = torch.zeros(view.numel).double().index_put_((indices,), kept.reshape(-1)[indices])
            given_in[view] += kept.reshape(view.shape)
        synchronizer.synchronize(gradients, step)
        each_step.append(torch.cat([gradient.reshape(-1) for gradient in gradients.values()]))
        for view, gradient in gradients.items():
            applied[view] += gradient.reshape(view.shape)
    held = {view: synchronizer.pending(view) for view in VIEWS}
    left = {
        v: torch.zeros(v.shape, dtype=torch.float64) if r is None else r.view(v.shape).clone() for v, r in held.items()
    }
    gradients = parts_of({view: torch.randn_like(local_gradient(view, rank, 0)) for view in VIEWS})
    flushed = synchronizer.flush(gradients, {})
    final = {view: applied[view] + gradients[view].reshape(view.shape) for view in VIEWS} if flushed else applied
    after = [synchronizer.pending(view) for view in VIEWS]
    assert all(held is None or not held.any() for held in after), "a flush leaves nothing behind"
    results = [
        torch.cat([t.reshape(-1) for t in tensors.values()]).numpy() for tensors in (applied, given_in, left, final)
    ]
    return conserves, *results, torch.stack(each_step).numpy()


def run_all(rank, examples):
    return [run_steps(rank, *example) for example in examples]


@pytest.mark.parametrize("sparsifier", options("sparsifier"))
@pytest.mark.parametrize("num_ranks", RANKS)
def test_conservation_and_agreement(num_ranks, sparsifier):
    """Sum applied = (1/N)(sum over ranks of what was put in - what is left); all of it after a flush."""
    draw = random.Random(f"{sparsifier}/{num_ranks}")
    groups = ("residual", "release", "collective")
    packings = options("packing")
    first = draw.randrange(len(CODECS))
    examples = []
    # Each number of ranks has a share of the combinations, so that together they put every sparsifier through all.
    share = (num_ranks + options("sparsifier").index(sparsifier)) % len(RANKS)
    for number, chosen in list(enumerate(itertools.product(*map(options, groups))))[share :: len(RANKS)]:
        period = draw.randint(1, 4)
        knobs = {
            "density": draw.choice([0.02, 0.3, 1.0]),
            "release_period": period,
            "release_fraction": draw.choice([None, 1.0, 1 / (2 * period)]),
            "num_buckets": draw.randint(1, 9),
            "block_numel": draw.choice([None, 10, 64]),
            # Codecs take turns too; the collective goes fastest, so that each meets all of them.
            **CODECS[(first + number // len(options("collective"))) % len(CODECS)],
        }
        # Packings take turns (all of them with all else would take minutes), out of step with the other groups.
        packing = packings[(number + number // len(packings)) % len(packings)]
        parts = {"sparsifier": sparsifier, "packing": packing, **dict(zip(groups, chosen, strict=True))}
        examples.append((parts, knobs, draw.randint(1, 9)))
    for example, results in zip(examples, zip(*on_ranks(num_ranks, run_all, examples), strict=True), strict=True):
        check_conservation(results, example)


def check_conservation(results, example):
    """`example` stands in the message of a failure."""
    conserves, applied, _, _, final, steps = results[0]
    for other in results[1:]:
        assert (other[5] == steps).all(), f"gradients differ between ranks: {example}"
    assert applied.any(), f"nothing was applied: {example}"
    if conserves == "nothing":
        return
    put_in = sum(result[2] for result in results) / len(results)
    left = sum(result[3] for result in results) / len(results)
    scale = max(1.0, abs(put_in).max())
    assert abs(applied - (put_in - left)).max() < 1e-9 * scale, f"applied is not what left memory: {example}"
    assert abs(final - put_in).max() < 1e-9 * scale, f"a flush loses something: {example}"


# ------------------------------------------------------------------- 4. collectives mean what they say


def random_payloads(rank: int, seed: int, vary: bool = False) -> list[Payload]:
    """Some whole, some sparse, most with what they were chosen from; entries differ between ranks.

    `vary`: so does their number, down to none.
    """
    sizes = torch.Generator().manual_seed(seed)
    mine = torch.Generator().manual_seed(seed * 1009 + rank)
    payloads = []
    for i in range(int(torch.randint(1, 8, (), generator=sizes))):
        numel = int(torch.randint(1, 50, (), generator=sizes))
        k = int(torch.randint(1, numel + 1, (), generator=sizes))
        start = int(torch.randint(0, 5, (), generator=sizes))
        whole = int(torch.randint(0, 3, (), generator=sizes)) == 0
        if vary:
            k = int(torch.randint(0, numel + 1, (), generator=mine))
        indices = None if whole else torch.randperm(numel, generator=mine)[:k]
        source = torch.randn(numel, generator=mine, dtype=torch.float64)
        values = source.clone() if whole else source[indices]
        payloads.append(Payload(f"view{i}", start, numel, values, indices, source if i % 3 else None))
    return payloads


def exchange(rank, collective_option, seed, num_buckets, packing_option, vary=False, **codecs):
    payloads = random_payloads(rank, seed, vary)
    items = [Item(p.view, p.start, p.numel, float(p.numel), 0.0) for p in payloads]
    packing = make("packing", packing_option, num_buckets=num_buckets)
    packing.prepare(items)
    buckets = [b for b in packing.pack(items) if b]
    collective = make("collective", collective_option, **codecs)
    handles = collective.start([[payloads[i] for i in bucket] for bucket in buckets], None, seed, vary)
    means: dict[int, torch.Tensor] = {}
    sent: dict[int, Payload] = {}
    wire_bytes = 0
    for bucket, handle in zip(buckets, handles, strict=True):
        handle.wait()
        exchanged = handle.decode()
        wire_bytes += exchanged.wire_bytes
        means.update(zip(bucket, exchanged.means, strict=True))
        sent.update(zip(bucket, exchanged.sent, strict=True))
    assert wire_bytes > 0 or dist.get_world_size() == 1
    scattered = []
    for i, payload in enumerate(payloads):
        went = sent[i]
        assert (went.view, went.start, went.numel) == (payload.view, payload.start, payload.numel)
        whole = torch.zeros(payload.numel, dtype=torch.float64)
        whole[slice(None) if went.indices is None else went.indices] = went.values
        scattered.append(whole)
    in_order = [means[i] for i in range(len(payloads))]
    assert all(mean.shape == (payload.numel,) for mean, payload in zip(in_order, payloads, strict=True))
    return torch.cat(in_order).numpy(), torch.cat(scattered).numpy()


@pytest.mark.parametrize("collective", options("collective"))
@pytest.mark.parametrize("num_ranks", RANKS)
@settings(settings.get_profile("ranks"), max_examples=5)
@given(seed=st.integers(0, 10**6), num_buckets=st.integers(1, 5), vary=st.booleans())
def test_a_collective_returns_the_mean_of_what_it_says_was_sent(num_ranks, collective, seed, num_buckets, vary):
    results = on_ranks(num_ranks, exchange, collective, seed, num_buckets, "greedy", vary)
    expected = sum(sent for _, sent in results) / num_ranks
    for mean, _ in results:
        assert abs(mean - expected).max() < 1e-12
        assert (mean == results[0][0]).all()


@pytest.mark.parametrize("packing", options("packing"))
@pytest.mark.parametrize("num_ranks", (2, 3))
def test_packing_never_changes_the_result(num_ranks, packing):
    """Bit for bit where ranks are summed in rank order (allgather) and for any sum of two."""
    for one, many, ring in on_ranks(num_ranks, exchange_three_ways, packing)[0]:
        assert (one == many).all()
        if num_ranks == 2:
            assert (one == ring).all()
        assert abs(one - ring).max() < 1e-12


def exchange_coded(rank, seed):
    vary = seed % 2 == 1
    ways = [("allgather", seed, number, "greedy", vary) for number in (1, 4)]
    return [[exchange(rank, *way, **codecs) for way in ways] for codecs in CODECS]


@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("seed", range(4))
def test_every_codec_says_what_it_sent_and_no_packing_changes_a_bit(seed, num_ranks):
    """And index codecs lose nothing: with one value codec (a payload is no longer than a block) all of them agree."""
    means = {}
    for codecs, results in zip(CODECS, zip(*on_ranks(num_ranks, exchange_coded, seed), strict=True), strict=True):
        for (one, sent_of_one), (four, sent_of_four) in results:
            assert (one == four).all() and (sent_of_one == sent_of_four).all(), codecs
            expected = sum(sent for (_, sent), _ in results) / num_ranks
            assert abs(one - expected).max() < 1e-12 * max(1, abs(expected).max()), codecs
            assert (one == means.setdefault(codecs["value_codec"], one)).all(), codecs
    assert len(means) > 1 and len({mean.tobytes() for mean in means.values()}) == len(means), "codecs differ in loss"


def exchange_three_ways(rank, packing):
    ways = (("allgather", 1), ("allgather", 4), ("dense", 3))
    return [[exchange(rank, option, seed, number, packing)[0] for option, number in ways] for seed in range(4)]


@settings(deadline=None, max_examples=30)
@given(costs=st.lists(st.integers(1, 1000), max_size=20), num_buckets=st.integers(1, 6))
def test_every_packing_is_a_partition_whatever_the_order(costs, num_buckets):
    items = [Item(f"v{i}", 0, cost, float(cost), 0.0) for i, cost in enumerate(costs)]
    for option in options("packing"):
        packing = make("packing", option, num_buckets=num_buckets)
        packing.prepare(items)
        buckets = packing.pack(items)
        assert len(buckets) == num_buckets
        assert sorted(i for bucket in buckets for i in bucket) == list(range(len(items)))
        assert buckets == packing.pack(items)


# --------------------------------------------------------------------------------------- 5. liveness


LOW_VIEWS = (*(view for view in VIEWS if view.component is not None), View("2.o", "2.o", "2.o", (3, 8)))


def prepared(release, period):
    schedule = make("release", release, release_period=period)
    costs = {view.component: 0 for view in LOW_VIEWS}
    for view in LOW_VIEWS:
        costs[view.component] += view.numel
    schedule.prepare(costs)
    assert schedule.period == period <= schedule.max_age_steps
    return schedule


@pytest.mark.parametrize("release", options("release"))
@pytest.mark.parametrize("period", (1, 2, 3, 4, 8, 16))
def test_every_low_component_is_due_once_per_period(release, period):
    """And its ranges, which cover every view without overlap, take turns of constant length within the bound."""
    schedule = prepared(release, period)
    for view in LOW_VIEWS:
        due = [schedule.due(view, step) for step in range(10 * schedule.max_age_steps)]
        for first in range(len(due) - period + 1):
            assert sum(part is not None for part in due[first : first + period]) == 1
        steps: dict[tuple[int, int], list[int]] = {}
        for step, part in enumerate(due):
            if part is not None:
                steps.setdefault((part.start, part.stop), []).append(step)
        assert [i for start, stop in sorted(steps) for i in range(start, stop)] == list(range(view.numel))
        assert len({later - earlier for times in steps.values() for earlier, later in itertools.pairwise(times)}) == 1


@pytest.mark.parametrize("release", options("release"))
@pytest.mark.parametrize("period", (1, 2, 3, 4, 8, 16))
def test_every_element_is_sent_within_the_bound_of_its_schedule(release, period):
    """Sent, not only eligible: a payload that has an entry of its own in the range, however small the share."""
    schedule = prepared(release, period)
    sparsifier = make("sparsifier", "topk")
    for release_fraction in (1 / period, 1.0, 1 / (4 * period)):
        residual = make("residual", "full")
        last_sent = {view: torch.full((view.numel,), -1) for view in LOW_VIEWS}
        for step in range(10 * schedule.max_age_steps):
            for view, last in last_sent.items():

                def select(candidate, share, *_, view=view, step=step):
                    return sparsifier.select(candidate, view, step, share)

                due, share = schedule.due(view, step), release_fraction * period
                payload = residual.offer(view, torch.ones(view.shape), select, due, share, True)
                if payload is not None:
                    assert payload.values.numel() >= 1 and payload.values.all()
                    residual.memory.subtract(payload)
                    last[payload.start : payload.start + payload.numel] = step
                assert step - last.min() < schedule.max_age_steps


# ----------------------------------------------------------------------------------- 8. the same order


def disagree_on_layout(rank):
    synchronizer = build({"sparsifier": "topk", "residual": "full", "release": "periodic", "packing": "greedy",
                          "collective": "allgather"})  # fmt: skip
    with pytest.raises(ValueError, match=r"layouts differ: rank 0 has '0\.q.*every step', rank 1 has '0\.q.*low'"):
        synchronizer.prepare(VIEWS, IMPORTANT if rank == 0 else frozenset({"1.fc2", None}))


def disagree_on_plan(rank):
    synchronizer = build({"sparsifier": "topk", "residual": "full", "release": "periodic", "packing": "greedy",
                          "collective": "allgather"})  # fmt: skip
    synchronizer.prepare(VIEWS, IMPORTANT)
    with pytest.raises(ValueError, match=r"plans differ: rank 0 has 'step 2: .*', rank 1 has 'step 3: .*1\.fc1"):
        synchronizer.synchronize(parts_of({view: local_gradient(view, rank, 0) for view in VIEWS}), 2 + rank)


def test_a_plan_that_differs_between_ranks_is_an_error_naming_both():
    on_ranks(2, disagree_on_layout)
    on_ranks(2, disagree_on_plan)


# ---------------------------------------------------------------------------------------- odd inputs


def mixed_inputs(rank, parts):
    """bf16 and fp32 views in one bucket, a strided one among them; one step with an overflow on one rank."""
    synchronizer = build(parts, density=0.3, release_period=2, num_buckets=1)
    synchronizer.prepare(VIEWS, IMPORTANT)
    dtypes = {view: torch.bfloat16 if i % 2 else torch.float32 for i, view in enumerate(VIEWS)}
    outcomes = []
    for step in range(4):
        gradients = parts_of({view: local_gradient(view, rank, step, dtypes[view]) for view in VIEWS})
        if step == 1 and rank == 0:
            gradients[VIEWS[3]][0, 0] = float("inf")  # deferred or not, it must not get into memory
        stats = synchronizer.synchronize(gradients, step)
        assert bool(stats.dropped) == (step == 1)
        assert all(gradient.dtype == dtypes[view] for view, gradient in gradients.items())
        outcomes.append(torch.cat([gradient.double().reshape(-1) for gradient in gradients.values()]))
    assert torch.stack(outcomes).isfinite().all()
    for view in VIEWS:
        held = synchronizer.pending(view)
        assert held is None or (held.dtype == torch.float32 and held.isfinite().all())
    return torch.stack(outcomes).numpy()


@pytest.mark.parametrize("collective", options("collective"))
@pytest.mark.parametrize("residual", options("residual"))
def test_mixed_types_strides_and_overflow(residual, collective):
    parts = {"sparsifier": "topk", "residual": residual, "release": "periodic", "packing": "greedy",
             "collective": collective}  # fmt: skip
    first, second = on_ranks(2, mixed_inputs, parts)
    assert (first == second).all()
    if residual == "none":
        assert not first[1].any(), "a dropped step counts as zero"
