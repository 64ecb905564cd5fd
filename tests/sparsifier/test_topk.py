"""Global Top-k against sorting."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import View
from igrad.sparsifier.topk import TopK

VIEW = View("v", "0.q", "v", (1,))  # Top-k looks at the gradient alone

# Small integers make ties; every size down to one entry.
gradients = st.lists(st.integers(-4, 4).map(float) | st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)
densities = st.floats(0, 1, exclude_min=True)


@settings(deadline=None)
@given(gradients, densities, st.floats(0.1, 5))
def test_no_entry_left_out_is_larger_than_one_kept(values, density, share):
    gradient = torch.tensor(values, dtype=torch.float64)
    chosen = TopK(density).select(gradient, VIEW, 0, share)
    if chosen is None:
        return
    assert chosen.dtype == torch.int64 and chosen.unique().numel() == chosen.numel()
    ordered = gradient.abs().sort(descending=True).values
    assert (gradient[chosen].abs().sort(descending=True).values == ordered[: len(chosen)]).all()


@settings(deadline=None)
@given(st.integers(1, 500), densities, st.floats(0.1, 5))
def test_k_is_the_density_to_the_nearest_entry_and_share_scales_it(numel, density, share):
    def kept(gradient, share=1.0):
        chosen = TopK(density).select(gradient, VIEW, 0, share)
        return numel if chosen is None else chosen.numel()

    gradient = torch.arange(numel, dtype=torch.float32)
    k = kept(gradient)
    assert k == 1 or abs(k - numel * density) <= 0.5
    scaled = kept(gradient, share)
    assert 1 <= scaled <= numel
    assert abs(scaled - share * k) <= 0.5 or scaled == (1 if share < 1 else numel)
    assert scaled == kept(torch.zeros(numel), share), "k must not depend on values: it is the same on every rank"


def test_a_matrix_is_one_pool():
    """All of the largest entries may lie in one row, indices are row-major whatever the strides."""
    matrix = torch.tensor([[1.0, 2, 3], [40, -50, 60]])
    assert sorted(TopK(0.5).select(matrix, VIEW, 0).tolist()) == [3, 4, 5]
    assert sorted(TopK(0.5).select(matrix.t(), VIEW, 0).tolist()) == [1, 3, 5]


def test_keeping_everything_needs_no_indices():
    gradient = torch.randn(10)
    assert TopK(1.0).select(gradient, VIEW, 0) is None
    assert TopK(0.5).select(gradient, VIEW, 0, share=2.0) is None
    assert TopK(0.01).select(torch.randn(1), VIEW, 0) is None
    assert TopK(0.01).select(gradient, VIEW, 0).numel() == 1


@pytest.mark.parametrize("density", (0.0, -0.1, 1.01, float("nan")))
def test_density_out_of_range(density):
    with pytest.raises(ValueError, match=rf"density must be in \(0, 1\], got {density}"):
        TopK(density)
