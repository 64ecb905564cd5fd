"""Row-wise Top-k: exact counts, the floor of one per row, and the interleaved variant."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import View
from igrad.sparsifier.adtopk import WIDE, ADTopk, largest_per_row
from igrad.sparsifier.topk import largest

VIEW = View("v", "0.q", "v", (1, 1))
shapes = st.tuples(st.integers(1, 12), st.integers(1, 40))
densities = st.floats(0, 1, exclude_min=True)


def random_matrix(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None)
@given(shapes, densities, st.booleans(), st.integers(0, 99))
def test_every_row_keeps_its_largest_entries(shape, density, ties, seed):
    rows, columns = shape
    matrix = random_matrix(shape, seed)
    matrix = matrix.round() if ties else matrix
    chosen = ADTopk(density).select(matrix, VIEW, 0)
    per_row = max(1, int(columns * density))
    if per_row == columns:
        assert chosen is None
        return
    assert chosen.dtype == torch.int64 and chosen.unique().numel() == rows * per_row
    for row in range(rows):
        mine = chosen[chosen // columns == row] % columns
        ordered = matrix[row].abs().sort(descending=True).values
        assert (matrix[row, mine].abs().sort(descending=True).values == ordered[:per_row]).all()


@settings(deadline=None)
@given(
    st.integers(1, 300), st.integers(-9, 65).map(lambda more: WIDE + 8 * more), st.integers(1, 80), st.integers(0, 9)
)
def test_wide_rows_are_searched_as_exactly(rows, columns, k, seed):
    """Ties, rows of zeros and entries that are not finite included."""
    matrix = random_matrix((rows, columns), seed)
    matrix[:, : 50 * seed] = matrix[:, : 50 * seed].round()
    matrix[::5] = 0
    matrix[::3, 7] = float("inf")
    matrix[1::4, ::9] = float("nan")
    chosen = largest_per_row(matrix, k).view(rows, k)
    assert (chosen // columns == torch.arange(rows).unsqueeze(1)).all() and chosen.unique().numel() == rows * k
    found = matrix.view(-1)[chosen].abs().sort(dim=1, descending=True).values
    assert torch.equal(found.nan_to_num(-1), matrix.abs().topk(k, dim=1).values.nan_to_num(-1))


@pytest.mark.parametrize(("shape", "percent"), (((768, 64), 1.56), ((64, 768), 0.91), ((16, 4096), 0.98)))
def test_achieved_density_at_one_percent(shape, percent):
    """The floor inflates narrow tensors, int() deflates the rest."""
    chosen = ADTopk(0.01).select(random_matrix(shape), VIEW, 0)
    assert round(100 * chosen.numel() / (shape[0] * shape[1]), 2) == percent


@settings(deadline=None)
@given(shapes, densities, st.floats(0.1, 5))
def test_share_scales_the_count_of_a_row(shape, density, share):
    rows, columns = shape

    def per_row(share, matrix):
        chosen = ADTopk(density).select(matrix, VIEW, 0, share)
        return columns if chosen is None else chosen.numel() / rows

    matrix = random_matrix(shape)
    scaled = per_row(share, matrix)
    assert 1 <= scaled <= columns
    assert abs(scaled - share * per_row(1.0, matrix)) <= 0.5 or scaled == (1 if share < 1 else columns)
    assert scaled == per_row(share, torch.zeros(shape)), "k must not depend on values: it is the same on every rank"


@settings(deadline=None)
@given(shapes, st.floats(0.01, 0.9), st.integers(0, 20), st.floats(0.5, 2))
def test_interleaved_odd_steps_select_over_the_whole_tensor(shape, density, step, share):
    matrix = random_matrix(shape)
    plain = ADTopk(density).select(matrix, VIEW, step, share)
    interleaved = ADTopk(density, interleaved=True).select(matrix, VIEW, step, share)
    if plain is None:
        assert interleaved is None
        return
    expected = largest(matrix, plain.numel()) if step % 2 else plain
    assert set(interleaved.tolist()) == set(expected.tolist())


def test_interleaved_may_leave_a_row_empty_and_rows_may_not():
    matrix = torch.tensor([[9.0, 8, 7, 6], [1, 2, 3, 4]])
    assert sorted(ADTopk(0.5).select(matrix, VIEW, 1).tolist()) == [0, 1, 6, 7]
    assert sorted(ADTopk(0.5, interleaved=True).select(matrix, VIEW, 1).tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("step", (0, 1))
def test_vectors_are_sent_whole(step):
    assert ADTopk(0.01, interleaved=True).select(torch.randn(50), View("b", "0.q", "b", (50,)), step) is None


def test_density_out_of_range():
    with pytest.raises(ValueError, match=r"density must be in \(0, 1\], got 0"):
        ADTopk(0)
