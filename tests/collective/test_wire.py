"""What the collectives share."""

import torch

from igrad.collective.wire import rising_order


def test_rising_order_sorts():
    for k in (0, 1, 1000):
        positions = torch.randperm(10_000)[:k]
        order = rising_order(positions)
        assert order.dtype == torch.int64 and torch.equal(positions[order], positions.sort().values)
