"""Density warm-up: from the initial density to the final one by equal factors, then Top-k."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import View
from igrad.sparsifier.dgc import DGC
from igrad.sparsifier.topk import TopK

VIEW = View("v", "0.q", "v", (1,))
NUMEL = 4000
GRADIENT = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0))
densities = st.floats(0.001, 1)


def kept(sparsifier, turn, share=1.0, gradient=GRADIENT):
    chosen = sparsifier.select(gradient, VIEW, turn, share)
    return NUMEL if chosen is None else chosen.numel()


def test_the_papers_epochs():
    """25 %, 6.25 %, 1.5625 %, 0.4 % and then 0.1 %: four warm-up turns, a factor of four each."""
    sparsifier = DGC(density=0.25 / 4**4, warmup_turns=4)
    assert [100 * sparsifier.density_at(n) for n in range(6)] == pytest.approx(
        [25, 6.25, 1.5625, 0.390625] + [25 / 256] * 2
    )


@settings(deadline=None)
@given(densities, densities, st.integers(1, 30))
def test_density_falls_by_equal_factors_between_its_ends(density, initial, warmup):
    sparsifier = DGC(density, warmup, initial)
    found = [sparsifier.density_at(number) for number in range(warmup + 3)]
    assert found[0] == pytest.approx(max(density, initial))
    assert found[warmup:] == [density] * 3
    factors = [later / earlier for earlier, later in itertools.pairwise(found[: warmup + 1])]
    assert factors == pytest.approx([min(1.0, density / initial) ** (1 / warmup)] * warmup)


@settings(deadline=None)
@given(densities, st.integers(0, 9), st.integers(0, 12), st.sampled_from((0.25, 1.0, 4.0)))
def test_every_turn_is_topk_of_its_density_and_releases_count_on_their_own(density, warmup, number, share):
    sparsifier = DGC(density, warmup)
    expected = TopK(sparsifier.density_at(number)).select(GRADIENT, VIEW, 0, share)
    for turn in (number, -1 - number):
        chosen = sparsifier.select(GRADIENT, VIEW, turn, share)
        assert chosen is expected is None or torch.equal(chosen, expected)
        assert kept(sparsifier, turn, share) == kept(sparsifier, turn, share, torch.zeros(NUMEL)), "k is the ranks' own"


@pytest.mark.parametrize("sparsifier", (DGC(0.01, 0), DGC(0.01, 10, 0.01), DGC(0.3, 10, 0.25)))
def test_without_a_warmup_it_is_topk(sparsifier):
    for turn in range(-12, 12):
        expected = TopK(sparsifier.density).select(GRADIENT, VIEW, turn)
        assert torch.equal(sparsifier.select(GRADIENT, VIEW, turn), expected)


@pytest.mark.parametrize(("density", "initial"), ((0.01, 0.25), (0.001, 0.25), (0.1, 1.0)))
def test_what_the_warmup_costs(density, initial):
    """The docstring's estimate, an integral, to the half turn that a sum differs by."""
    sparsifier, warmup = DGC(density, 200, initial), 200
    turns = sum(sparsifier.density_at(number) for number in range(warmup)) / density
    assert turns == pytest.approx(warmup * (initial / density - 1) / math.log(initial / density), rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        ((0, 1), r"density must be in \(0, 1\], got 0"),
        ((0.1, -1), "warmup_turns must be at least 0, got -1"),
        ((0.1, 1, 1.5), r"initial_density must be in \(0, 1\], got 1.5"),
    ),
)
def test_values_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        DGC(*arguments)
