"""Blocks: a payload cut up is the payload, and a block is the same block whatever range is due."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from igrad.blocks import cuts, split
from igrad.interfaces import Payload
from tests.ranks import on_ranks
from tests.test_laws import IMPORTANT, VIEWS, build


@given(start=st.integers(0, 40), numel=st.integers(1, 60), block=st.integers(1, 25), seed=st.integers(0, 99))
def test_blocks_together_are_the_payload(start, numel, block, seed):
    generator = torch.Generator().manual_seed(seed)
    source = torch.randn(numel, generator=generator)
    indices = None if seed % 4 == 0 else torch.randperm(numel, generator=generator)[: seed % (numel + 1)]
    values = source.clone() if indices is None else source[indices]
    blocks = cuts(slice(start, start + numel), block)
    parts = split(Payload("v", start, numel, values, indices, source), blocks)
    assert [(part.start, part.numel) for part in parts] == [(b.start, b.stop - b.start) for b in blocks]
    found = torch.zeros(start + numel)
    for part in parts:
        assert part.numel <= block and (part.indices is None) == (indices is None)
        at = torch.arange(part.numel) if part.indices is None else part.indices
        assert torch.equal(part.source[at], part.values)
        found[part.start + at] += part.values
    expected = torch.zeros(start + numel)
    expected[start + (torch.arange(numel) if indices is None else indices)] = values
    assert torch.equal(found, expected)


def test_a_block_keeps_its_place_whatever_range_is_due():
    """Its history goes by where it begins and ends."""
    assert cuts(slice(0, 10), 4) == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert cuts(slice(3, 10), 4) == [slice(3, 4), slice(4, 8), slice(8, 10)]
    assert cuts(slice(4, 8), 4) == [slice(4, 8)]
    assert cuts(slice(3, 10), None) == [slice(3, 10)]


def test_a_source_may_be_unknown():
    [first, second] = split(Payload("v", 0, 4, torch.tensor([1.0, 2.0]), torch.tensor([3, 0])), cuts(slice(0, 4), 2))
    assert first.source is second.source is None
    assert (first.indices.tolist(), first.values.tolist()) == ([0], [2])
    assert (second.indices.tolist(), second.values.tolist()) == ([1], [1])


def test_a_block_has_elements():
    parts = {"sparsifier": "topk", "residual": "full", "release": "periodic", "packing": "greedy",
             "collective": "allgather"}  # fmt: skip
    with pytest.raises(ValueError, match="block_numel must be at least 1, got 0"):
        build(parts, block_numel=0)


def layout_of(rank, block_numel):
    made = build({"sparsifier": "topk", "residual": "full", "release": "periodic", "packing": "direct",
                  "collective": "allgather"}, block_numel=block_numel, num_buckets=3)  # fmt: skip
    made.prepare({view: torch.zeros(view.shape) for view in VIEWS}, IMPORTANT)
    return made.packing.bucket_of


def test_the_layout_of_the_whole_model_knows_no_blocks():
    """`direct` puts all blocks of a view where the view would be."""
    assert on_ranks(1, layout_of, None) == on_ranks(1, layout_of, 20)
