"""What is written down of a step is what it is charged for: messages and wire bytes tell the same."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from igrad.collective.wire import all_reduce, take_messages
from igrad.link import KINDS, sent_bytes
from tests.ranks import on_ranks
from tests.strategies import make, options
from tests.test_laws import CODECS, VIEWS, build, local_gradient

EVERYTHING, SOME, NOTHING = frozenset(view.component for view in VIEWS), frozenset({"0.q", None}), frozenset()
NUM_STEPS = 4
OVERFLOW = 2  # the step in which a rank's gradient is not finite


def followed(rank, synchronizer, important):
    """(messages, wire bytes) of this rank over some steps, of which one is dropped."""
    parameters = {view: view.part(local_gradient(view, 99, 0)) for view in VIEWS}
    synchronizer.prepare(parameters, important)
    take_messages()
    messages, said = [], 0
    for step in range(NUM_STEPS):
        gradients = {view: view.part(local_gradient(view, rank, step)) for view in VIEWS}
        if step == OVERFLOW and rank == 0:
            gradients[VIEWS[0]][0, 0] = float("inf")
        if synchronizer.overlaps:
            for view in reversed(VIEWS):
                synchronizer.ready(view, gradients[view], step)
        stats = synchronizer.synchronize(gradients, step) + synchronizer.reconcile(parameters, step)
        said += stats.wire_bytes
        messages += take_messages()
    return messages, said


def cases():
    """Every collective, with sizes that are known and that vary, and every way to defer; every other synchronizer."""
    draw = random.Random(0)
    for collective, deferral in itertools.product(options("collective"), options("deferral")):
        for sparsifier in ("threshold", draw.choice(options("sparsifier"))):
            parts = {"collective": collective, "deferral": deferral, "sparsifier": sparsifier, "residual": "full"}
            parts |= {name: draw.choice(options(name)) for name in ("packing", "release")}
            knobs = {"density": 0.3, "release_period": 2, "num_buckets": 3, **draw.choice(CODECS)}
            yield (parts, {**knobs, "block_numel": draw.choice([None, 10])}), draw.choice((EVERYTHING, SOME, NOTHING))
    for codecs in CODECS:
        parts = {"collective": "allgather", "sparsifier": "topk", "residual": "full", "release": "periodic"}
        yield ({**parts, "packing": "greedy"}, {"density": 0.3, "release_period": 2, **codecs}), SOME
    for option in options("synchronizer"):
        if option != "importance":
            yield option, EVERYTHING


def every(rank, built):
    return [followed(rank, synchronizer, important) for synchronizer, important in built]


@pytest.mark.parametrize("num_ranks", (2, 3))
def test_messages_are_what_wire_bytes_say(num_ranks):
    """Summed over ranks and steps, to the rounding of each message."""
    chosen, seen = list(cases()), set()
    made = [make("synchronizer", told) if isinstance(told, str) else build(told[0], **told[1]) for told, _ in chosen]
    built = [(synchronizer, important) for synchronizer, (_, important) in zip(made, chosen, strict=True)]
    for case, ranks in zip(chosen, zip(*on_ranks(num_ranks, every, built), strict=True), strict=True):
        messages = [message for own, _ in ranks for message in own]
        counted = sum(sent_bytes(kind, num_bytes, num_ranks) for kind, num_bytes in messages)
        assert counted == pytest.approx(sum(said for _, said in ranks), abs=len(messages)), case
        assert len({tuple(kind for kind, _ in own) for own, _ in ranks}) == 1, (
            f"ranks take part in different ones: {case}"
        )
        seen |= {kind for kind, _ in messages}
    assert seen == set(KINDS)


def test_a_message_that_is_not_charged_is_seen():
    """The control: one message more than the synchronizer says."""
    messages, said = zip(*on_ranks(2, uncharged), strict=True)
    counted = sum(sent_bytes(*message, 2) for own in messages for message in own)
    assert counted - sum(said) == pytest.approx(2 * 8_000, abs=sum(map(len, messages)))


def uncharged(rank):
    messages, said = followed(rank, make("synchronizer", "dense"), EVERYTHING)
    all_reduce(torch.zeros(2000))
    return messages + take_messages(), said
