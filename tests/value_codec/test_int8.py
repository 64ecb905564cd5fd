"""Int8: steps of a block's own largest value."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from igrad.value_codec.int8 import Int8, block_sizes


def coded(values, counts=None, **fields):
    counts = counts or [len(values)]
    return Int8(**fields).decode(Int8(**fields).encode(values, counts), counts, values.dtype)


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 20))
def test_blocks_are_as_long_as_they_may_be_and_end_with_their_payload(counts, block):
    expected = [min(block, count - first) for count in counts for first in range(0, count, block)]
    assert block_sizes(counts, block).tolist() == expected


def test_multiples_of_a_step_come_back_and_the_rest_goes_to_the_nearest():
    steps = torch.tensor([127.0, -127, 64, 1, 0, 0.49, -0.51, 2.5, 3.5])
    assert coded(steps).tolist() == [127, -127, 64, 1, 0, 0, -1, 2, 4]


@pytest.mark.parametrize("block", (1, 7, 256))
def test_at_most_half_a_step_of_its_own_block_is_lost(block):
    values = torch.randn(10 * block) * 10.0 ** torch.randint(-9, 9, (10 * block,))
    largest = values.view(-1, block).abs().amax(1, keepdim=True)
    lost = (coded(values, block=block) - values).view(-1, block).abs()
    assert (lost <= largest / 254 * (1 + 1e-5)).all()
    assert (lost > largest / 1000).any() or block == 1


def test_a_large_value_coarsens_its_own_payload_only():
    small = torch.rand(10) + 1
    beside = torch.cat([small, torch.tensor([1e6])])
    assert not coded(beside)[:10].any(), "half a step is 4000"
    assert torch.equal(coded(beside, [10, 1])[:10], coded(small))
    assert torch.equal(coded(beside, block=10)[:10], coded(small))


def test_block_out_of_range():
    with pytest.raises(ValueError, match="block must be at least 1, got 0"):
        Int8(0)
