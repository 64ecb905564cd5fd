"""Global Top-k against sorting, and large tensors against torch.topk."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import View
from igrad.sparsifier.topk import CACHED, SMALL, TopK, above, largest, sampled_threshold

VIEW = View("v", "0.q", "v", (1,))  # Top-k looks at the gradient alone

# Small integers make ties; every size down to one entry.
gradients = st.lists(st.integers(-4, 4).map(float) | st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)
densities = st.floats(0, 1, exclude_min=True)

# Large enough to be searched by threshold on a CPU.
KINDS = {
    "normal": lambda x: x,
    "heavy tails": lambda x: x**9,
    "ties": torch.round,
    "mostly zero": lambda x: torch.where(x.abs() > 2.5, x, 0),
    "constant": torch.ones_like,
    "zeros": torch.zeros_like,
    "a few columns of a matrix": lambda x: x * 1e3 ** (torch.arange(len(x)) % 64 == 5),
}
larges = st.tuples(st.sampled_from(list(KINDS)), st.integers(SMALL - 5, 3 * SMALL), st.integers(0, 9))


def large(kind, numel, seed, dtype=torch.float32):
    return KINDS[kind](torch.randn(numel, generator=torch.Generator().manual_seed(seed), dtype=dtype))


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


# --------------------------------------------------------------------------------- large tensors, by threshold


def magnitudes_of(flat, indices):
    return flat[indices].abs().sort(descending=True).values


@settings(deadline=None)
@given(larges, st.floats(1e-5, 0.4), st.sampled_from((torch.float32, torch.float64, torch.bfloat16)))
def test_large_tensors_have_the_largest_magnitudes_too(drawn, density, dtype):
    flat = large(*drawn, dtype)
    k = max(1, round(density * flat.numel()))
    chosen = largest(flat, k)
    assert chosen.dtype == torch.int64 and chosen.unique().numel() == k
    assert torch.equal(magnitudes_of(flat, chosen), flat.abs().topk(k).values)
    assert torch.equal(chosen, largest(flat, k)), "the same every time"


@pytest.mark.parametrize("every", (16, 17, 18))
def test_a_sample_that_misleads_costs_time_alone(every):
    """All that the sample sees is large, so that its threshold lets fewer than k through."""
    flat = large("normal", SMALL, 0)
    flat[::every] *= 100
    k = len(flat) // 10
    assert torch.equal(magnitudes_of(flat, largest(flat, k)), flat.abs().topk(k).values)


@settings(deadline=None)
@given(st.integers(0, 3 * SMALL), st.sampled_from((float("nan"), float("inf"), -float("inf"))), st.integers(0, 9))
def test_what_is_not_finite_comes_first(number, value, seed):
    """However many there are; torch.topk has the same order."""
    flat = large("normal", 3 * SMALL, seed)
    flat[torch.randperm(len(flat), generator=torch.Generator().manual_seed(seed))[:number]] = value
    k = len(flat) // 50
    chosen = largest(flat, k)
    assert chosen.unique().numel() == k
    found, expected = magnitudes_of(flat, chosen), flat.abs().topk(k).values
    assert torch.equal(found.nan_to_num(), expected.nan_to_num()) and torch.equal(found.isnan(), expected.isnan())


def test_strides_do_not_matter():
    matrix = large("normal", SMALL * 2, 0).view(-1, 64)
    chosen = largest(matrix.t(), 100)
    assert torch.equal(magnitudes_of(matrix.t().reshape(-1), chosen), matrix.abs().view(-1).topk(100).values)


@pytest.mark.parametrize("numel", (1, 100, CACHED, 2 * CACHED + 1))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_above_is_a_comparison_in_order_that_nan_passes(numel, dtype):
    flat = large("normal", numel, 0, dtype)
    flat[::7] = float("nan")
    for threshold in (0.0, 0.5, 2.0, float("inf"), float("nan")):
        found = above(flat, torch.tensor(threshold, dtype=dtype))
        assert found.dtype == torch.int64
        assert found.tolist() == [i for i, x in enumerate(flat.tolist()) if not abs(x) <= threshold]


@pytest.mark.parametrize("density", (1e-3, 1e-2, 0.2))
def test_a_sampled_threshold_passes_about_k_and_a_lowered_one_at_least_k(density):
    """Also where a sample of every 16-th entry would see 4 of 64 columns alone."""
    for seed in range(10):
        for kind in ("normal", "a few columns of a matrix"):
            flat = large(kind, 1 << 17, seed)
            k = round(density * len(flat))
            errors = 1 / (len(flat) / 17 * density) ** 0.5  # one standard error, relative
            passed = [above(flat, sampled_threshold(flat, k, 16, number)).numel() / k for number in (0, 4)]
            assert abs(passed[0] - 1) < 4 * errors
            assert 1 <= passed[1] < 1 + 9 * errors
