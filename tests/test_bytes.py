"""Law 7: bytes are real, and they fall as the arithmetic says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from igrad.components import map_components
from igrad.interfaces import Payload, View
from tests.loopback import bytes_sent, on_own_loopback
from tests.ranks import on_ranks
from tests.strategies import make, options
from tests.test_laws import build

NUM_EXCHANGES = 20
NUM_TIMES = 3


def sparse_payload(rank: int, k: int) -> Payload:
    indices = torch.randperm(10 * k, generator=torch.Generator().manual_seed(rank))[:k]
    return Payload("v", 0, 10 * k, torch.randn(k), indices)


def counted(exchange: Callable[[], int]) -> tuple[int, int]:
    """(what the loopback counted, what this rank said) while all ranks exchange."""
    dist.barrier()
    before = bytes_sent()
    dist.barrier()  # nobody starts before everybody has read the counter
    said = exchange()
    dist.barrier()
    return bytes_sent() - before, said


def some_exchanges(rank, collective, payload_of, k, num_exchanges=NUM_EXCHANGES):
    """Of k entries."""
    payload = payload_of(rank, k)

    def exchange():
        said = 0
        for _ in range(num_exchanges):
            [handle] = collective.start([[payload]], None)
            handle.wait()
            said += handle.decode().wire_bytes
        return said

    return counted(exchange)


@pytest.mark.parametrize("collective", options("collective"))
@pytest.mark.parametrize("num_ranks", (2, 3))
def test_wire_bytes_are_what_the_loopback_counts(collective, num_ranks):
    """Summed over ranks, within 5 %, once the overhead per message is taken from exchanges of next to nothing."""
    strategy = make("collective", collective)

    def measure(k):
        results = on_own_loopback(on_ranks, num_ranks, some_exchanges, strategy, sparse_payload, k)
        return max(interface for interface, _ in results), sum(said for _, said in results)

    (nothing, said_nothing), (interface, said) = measure(1), measure(20_000)
    overhead = nothing - said_nothing
    assert overhead > 0
    assert said == pytest.approx(interface - overhead, rel=0.05)


# ----------------------------------------------------------------------------------- the arithmetic


KNEE = frozenset({"0.v", "0.o", "0.fc2", "2.v"})  # as few as the knee of the default model's scores
FEW = frozenset({"0.q", "0.v", "1.v", "2.v", "3.v"})  # of what ADTopk sends, with embeddings, a twentieth
FP32_INT32 = {"value_codec": "fp32", "index_codec": "int32"}
BF16_GAP8 = {"value_codec": "bf16", "index_codec": "gap8"}


class Case(NamedTuple):
    """A synchronizer at a density of 1 %: important components every step, the others every `period` steps."""

    sparsifier: str
    codecs: dict[str, str]
    important: frozenset[str]
    period: int = 1
    num_periods: int = 2

    @property
    def num_steps(self) -> int:
        return self.period * self.num_periods


def llama_views(embeddings: bool = False) -> list[View]:
    """The shapes of the embedded default model; with `embeddings` these are of a component, too."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=341, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        return map_components(LlamaForCausalLM(config), None, embeddings).views


def whole_periods(views: Sequence[View], case: Case) -> Callable[[], int]:
    """A prepared synchronizer's steps; they return the bytes that this rank says it sent."""
    parts = {"sparsifier": case.sparsifier, "residual": "full", "release": "periodic", "packing": "greedy",
             "collective": "allgather"}  # fmt: skip
    synchronizer = build(parts, density=0.01, release_period=case.period, **case.codecs)
    synchronizer.prepare({view: torch.zeros(view.shape) for view in views}, case.important | {None})

    def steps():
        generator = torch.Generator().manual_seed(dist.get_rank())
        said = 0
        for step in range(case.num_steps):
            gradients = {view: torch.randn(view.shape, generator=generator) for view in views}
            said += synchronizer.synchronize(gradients, step).wire_bytes
        return said

    return steps


def said_per_step(rank, views, cases):
    return [whole_periods(views, case)() / case.num_steps for case in cases]


def counted_cases(rank, views, cases):
    """Each with its views and with views of two elements: the same messages, with next to nothing in them.

    The least of some times: a packet that a slow machine sends again says nothing about a codec.
    """
    tiny = [replace(view, shape=(*(1 for _ in view.shape[1:]), 2)) for view in views]
    return [[min(counted(whole_periods(v, case)) for _ in range(NUM_TIMES)) for v in (views, tiny)] for case in cases]


def on_the_interface(views: Sequence[View], cases: Sequence[Case], num_ranks: int = 2) -> list[tuple[float, float]]:
    """(bytes that the loopback counts less protocol overhead, bytes that ranks say they sent), per rank and step."""
    found = []
    ranks = on_own_loopback(partial(on_ranks, timeout_s=300), num_ranks, counted_cases, views, cases)
    for case, each in zip(cases, zip(*ranks, strict=True), strict=True):
        interface, nothing = (max(result[size][0] for result in each) for size in range(2))
        said, said_nothing = (sum(result[size][1] for result in each) for size in range(2))
        total = num_ranks * case.num_steps
        found.append(((interface - (nothing - said_nothing)) / total, said / total))
    return found


def coded_bytes(views: Sequence[View], case: Case) -> dict[View, int]:
    """What one step of each view takes, coded alone."""
    sparsifier = make("sparsifier", case.sparsifier, density=0.01)
    collective = make("collective", "allgather", **case.codecs)
    generator = torch.Generator().manual_seed(0)
    sizes = {}
    for view in views:
        gradient = torch.randn(view.shape, generator=generator)
        indices = sparsifier.select(gradient, view, 0)
        values = gradient.view(-1) if indices is None else gradient.view(-1)[indices]
        sizes[view] = collective.value_codec.encode(values, [len(values)]).numel()
        if indices is not None:
            sizes[view] += collective.index_codec.encode(indices.sort().values, view.numel).numel()
    return sizes


def share_of(some: frozenset[str | None], sizes: dict[View, int]) -> float:
    """Components' share of the bytes; None = the views of no component."""
    return sum(size for view, size in sizes.items() if view.component in some) / sum(sizes.values())


def share_of_every_step(sizes: dict[View, int], important: frozenset[str], period: int) -> float:
    """(important + low / R + views of no component) / total."""
    always = share_of(important | {None}, sizes)
    return always + (1 - always) / period


@pytest.mark.parametrize("num_ranks", (2, 3))
@pytest.mark.parametrize("period", (4, 8, 16))
def test_bytes_fall_as_the_arithmetic_says(period, num_ranks):
    """(important + low / R) · density · 8 bytes per entry + the views that are always sent, times N - 1, within 5 %."""
    views = llama_views()
    numel = {"important": 0, "low": 0, "other": 0}
    for view in views:
        kind = "other" if view.component is None else "important" if view.component in KNEE else "low"
        numel[kind] += view.numel
    expected = (numel["important"] + numel["low"] / period + numel["other"]) * 0.01 * 8 * (num_ranks - 1)
    for [measured] in on_ranks(num_ranks, said_per_step, views, [Case("topk", FP32_INT32, KNEE, period)]):
        assert measured == pytest.approx(expected, rel=0.05)


def components(views: Sequence[View]) -> frozenset[str]:
    return frozenset(view.component for view in views if view.component is not None)


def test_half_the_bytes_per_value_and_a_byte_per_gap_are_on_the_interface():
    """2 + 1.15 bytes per entry instead of 4 + 4."""
    views = llama_views()
    cases = [Case("topk", codecs, components(views)) for codecs in (FP32_INT32, BF16_GAP8)]
    (plain, said_plain), (coded, said) = on_the_interface(views, cases)
    assert (plain, coded) == pytest.approx((said_plain, said), rel=0.05)
    assert coded / plain == pytest.approx(3.15 / 8, rel=0.05)
    assert coded / plain < 0.45


def test_a_delay_saves_what_the_arithmetic_says_of_a_sparsifier_that_sends_every_step():
    """With the embedding as a component of its own. A twentieth of the bytes important, R = 16: at most a quarter."""
    views = llama_views(embeddings=True)
    periods = (4, 8, 16)
    always = Case("adtopk", BF16_GAP8, components(views))
    sizes = coded_bytes(views, always)
    assert share_of(FEW, sizes) == pytest.approx(0.05, rel=0.05)
    cases = [always._replace(important=important, period=period) for important in (KNEE, FEW) for period in periods]
    total, *measured = on_ranks(2, said_per_step, views, [always, *cases])[0]
    for case, each in zip(cases, measured, strict=True):
        assert each / total == pytest.approx(share_of_every_step(sizes, case.important, case.period), rel=0.05), case
    assert measured[-1] / total <= 0.25


# --------------------------------------------------------------------------------------------- growth

MOST_RANKS = 8


def ring(num_ranks: int) -> float:
    return 2 * (num_ranks - 1) / num_ranks


GROWTH = {  # how what a rank sends of as many entries goes with the number of ranks
    "dense": ring,
    "allgather": lambda num_ranks: num_ranks - 1,
    "shared_mask": ring,
    "reduce_scatter": ring,
}


def apart(rank: int, k: int) -> Payload:
    """k entries that no other rank has, evenly over the elements."""
    return Payload("v", 0, MOST_RANKS * k, torch.randn(k), MOST_RANKS * torch.arange(k) + rank)


def exchanges_apart(rank, k, num_exchanges):
    """Of each collective, with k entries and with one."""
    made = [make("collective", option) for option in GROWTH]
    return [[some_exchanges(rank, each, apart, size, num_exchanges) for size in (k, 1)] for each in made]


def bytes_apart(num_ranks: int, k: int, num_exchanges: int) -> dict[str, tuple[float, float]]:
    """(bytes that the loopback counts less protocol overhead, bytes that ranks say), per rank and exchange."""
    found = {}
    ranks = on_own_loopback(partial(on_ranks, timeout_s=300), num_ranks, exchanges_apart, k, num_exchanges)
    for option, each in zip(GROWTH, zip(*ranks, strict=True), strict=True):
        interface, nothing = (max(result[size][0] for result in each) for size in range(2))
        said, said_nothing = (sum(result[size][1] for result in each) for size in range(2))
        total = num_ranks * num_exchanges
        found[option] = (interface - (nothing - said_nothing)) / total, said / total
    return found


def test_a_union_grows_with_ranks_and_what_ranks_agree_on_does_not():
    """Supports have nothing in common. Within 15 %."""
    few, many = 2, 4
    first, second = (bytes_apart(num_ranks, 20_000, 5) for num_ranks in (few, many))
    for option, law in GROWTH.items():
        assert second[option][0] / first[option][0] == pytest.approx(law(many) / law(few), rel=0.15), option
