"""Gap8: one byte, three or eleven per index."""

import pytest
import torch

from igrad.index_codec.gap8 import Gap8


@pytest.mark.parametrize(
    ("gap", "size"), ((0, 1), (254, 1), (255, 3), (256, 3), (65534, 3), (65535, 11), (65536, 11), (2**40, 11))
)
def test_a_gap_takes_what_it_needs(gap, size):
    """Whether it is the first or one among others."""
    for before in ([], [0], [4, 5]):
        positions = torch.tensor([*before, gap + (before[-1] + 1 if before else 0)])
        data = Gap8().encode(positions, 2**41)
        found, used = Gap8().decode(data, len(positions), 2**41)
        assert torch.equal(found, positions)
        assert used == data.numel() == size + len(before)


def test_mixed_gaps_keep_their_order():
    gaps = torch.tensor([2**20, 3, 255, 2**17, 65535, 0, 65534, 254, 300])
    positions = (gaps + 1).cumsum(0) - 1
    data = Gap8().encode(positions, 2**24)
    assert data.numel() == 9 + 2 * 6 + 8 * 3
    assert torch.equal(Gap8().decode(data, 9, 2**24)[0], positions)


def test_bytes_per_index():
    """At 1 % 1.15, as its docstring says; one entry in each row of 128 never takes a second byte."""
    assert Gap8().bytes(100, 10_000) == pytest.approx(115, abs=1)
    rows = torch.arange(1000) * 128
    positions = rows + torch.randint(128, (1000,), generator=torch.Generator().manual_seed(0))
    assert Gap8().encode(positions, 128_000).numel() == 1000
