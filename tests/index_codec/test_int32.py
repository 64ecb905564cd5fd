"""Int32: positions as they come, up to 2**32."""

import pytest
import torch

from igrad.index_codec.int32 import Int32


def test_positions_beyond_the_sign_come_back_in_their_order():
    positions = torch.tensor([2**32 - 1, 0, 2**31, 7])
    data = Int32().encode(positions, 2**32)
    assert data.dtype == torch.uint8 and data.numel() == 16
    found, used = Int32().decode(torch.cat([data, data]), 4, 2**32)
    assert torch.equal(found, positions) and used == 16


def test_more_than_it_can_reach_is_refused():
    with pytest.raises(ValueError, match=r"int32 reaches 2\*\*32 elements, a bucket has 4294967297; raise num_buckets"):
        Int32().encode(torch.tensor([0]), 2**32 + 1)
