"""FP32: values come back bit for bit."""

import torch

from igrad.value_codec.fp32 import FP32


def test_nothing_is_lost_in_either_type():
    for dtype in (torch.float32, torch.float64):
        values = torch.randn(5, dtype=torch.float64).to(dtype)
        data = FP32().encode(values, [2, 3])
        assert data.numel() == 5 * dtype.itemsize
        longer = torch.cat([data.new_ones(3), data, data])[3:]  # the rest of a message, off the word
        assert torch.equal(FP32().decode(longer, [2, 3], dtype), values)
