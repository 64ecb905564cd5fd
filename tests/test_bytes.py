"""Law 7: bytes are real, and they fall as the arithmetic says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from igrad.components import map_components
from igrad.interfaces import Payload
from tests.loopback import bytes_sent, on_own_loopback
from tests.ranks import on_ranks
from tests.strategies import make, options
from tests.test_laws import build

NUM_EXCHANGES = 20


def sparse_payload(rank: int, k: int) -> Payload:
    indices = torch.randperm(10 * k, generator=torch.Generator().manual_seed(rank))[:k]
    return Payload("v", 0, 10 * k, torch.randn(k), indices)


def counted(rank, collective, k):
    """(what the loopback counted, what this rank's collectives said) for some exchanges of k entries."""
    payload = sparse_payload(rank, k)
    dist.barrier()
    before = bytes_sent()
    dist.barrier()  # nobody starts before everybody has read the counter
    said = 0
    for _ in range(NUM_EXCHANGES):
        [handle] = collective.start([[payload]], None)
        handle.wait()
        said += handle.decode().wire_bytes
    dist.barrier()
    return bytes_sent() - before, said


@pytest.mark.parametrize("collective", options("collective"))
@pytest.mark.parametrize("num_ranks", (2, 3))
def test_wire_bytes_are_what_the_loopback_counts(collective, num_ranks):
    """Summed over ranks, within 5 %, once the overhead per message is taken from exchanges of next to nothing."""
    strategy = make("collective", collective)

    def measure(k):
        results = on_own_loopback(on_ranks, num_ranks, counted, strategy, k)
        return max(interface for interface, _ in results), sum(said for _, said in results)

    (nothing, said_nothing), (interface, said) = measure(1), measure(20_000)
    overhead = nothing - said_nothing
    assert overhead > 0
    assert said == pytest.approx(interface - overhead, rel=0.05)


# ----------------------------------------------------------------------------------- the arithmetic


def llama_views():
    """The shapes of the embedded default model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=341, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        return map_components(LlamaForCausalLM(config)).views


def wire_bytes_of_whole_periods(rank, views, important, period):
    parts = {"sparsifier": "topk", "residual": "full", "release": "periodic", "packing": "greedy",
             "collective": "allgather"}  # fmt: skip
    synchronizer = build(parts, density=0.01, release_period=period)
    synchronizer.prepare(views, important)
    total = 0
    for step in range(2 * period):
        gradients = {view: torch.randn(view.shape) for view in views}
        total += synchronizer.synchronize(gradients, step).wire_bytes
    return total / (2 * period)


@pytest.mark.parametrize("num_ranks", (2, 3))
@pytest.mark.parametrize("period", (4, 8, 16))
def test_bytes_fall_as_the_arithmetic_says(period, num_ranks):
    """(important + low / R) · density · 8 bytes per entry + the views that are always sent, times N - 1, within 5 %."""
    views = llama_views()
    important = frozenset({"0.v", "0.o", "0.fc2", "2.v"})
    numel = {"important": 0, "low": 0, "other": 0}
    for view in views:
        kind = "other" if view.component is None else "important" if view.component in important else "low"
        numel[kind] += view.numel
    expected = (numel["important"] + numel["low"] / period + numel["other"]) * 0.01 * 8 * (num_ranks - 1)
    for measured in on_ranks(num_ranks, wire_bytes_of_whole_periods, views, important, period):
        assert measured == pytest.approx(expected, rel=0.05)
