"""Row16: a count per row, then two bytes per index."""

import torch

from igrad.index_codec.row16 import ROW, Row16


def test_counts_first_then_what_remains_within_the_row():
    positions = torch.tensor([1, ROW - 1, 2 * ROW + 3])
    data = Row16().encode(positions, 3 * ROW)
    assert data[:12].clone().view(torch.int32).tolist() == [2, 0, 1]
    assert data[12:].clone().view(torch.int16).tolist() == [1, -1, 3]


def test_a_row_may_be_full():
    """65536 entries are one more than two bytes can count."""
    positions = torch.arange(ROW)
    data = Row16().encode(positions, ROW + 1)
    assert data.numel() == 2 * ROW + 2 * 4, "the element left over has a row of its own"
    assert torch.equal(Row16().decode(data, ROW, ROW + 1)[0], positions)
