"""Random-k: a fair draw that the ranks share."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import View
from igrad.sparsifier.randomk import RandomK

VIEW = View("v", "0.q", "v", (1,))


def drawn(gradient, density=0.25, seed=0, view=VIEW, step=0, share=1.0):
    return set(RandomK(density, seed).select(gradient, view, step, share).tolist())


@settings(deadline=None)
@given(st.integers(2, 80), st.floats(0.01, 1), st.floats(0.1, 3), st.integers(0, 80), st.integers(0, 99))
def test_entries_are_distinct_and_zeros_come_last(numel, density, share, num_nonzero, step):
    gradient = torch.zeros(numel)
    gradient[torch.randperm(numel, generator=torch.Generator().manual_seed(step))[:num_nonzero]] = -1e-30
    chosen = RandomK(density).select(gradient, VIEW, step, share)
    k = min(numel, max(1, round(share * max(1, round(numel * density)))))
    if k == numel:
        assert chosen is None
        return
    assert chosen.dtype == torch.int64 and chosen.unique().numel() == chosen.numel() == k
    assert gradient[chosen].count_nonzero() == min(k, num_nonzero, numel)


def test_every_entry_has_the_same_chance():
    """1000 draws of 5 among 20: each is drawn 250 times, standard deviation 14."""
    times = torch.zeros(20)
    for step in range(1000):
        times[RandomK(0.25).select(torch.ones(20), VIEW, step)] += 1
    assert times.sum() == 5000
    assert (times - 250).abs().max() < 4 * (1000 * 0.25 * 0.75) ** 0.5


def test_magnitudes_do_not_count():
    assert drawn(torch.ones(40)) == drawn(torch.arange(1.0, 41) ** 4)


def test_ranks_draw_alike_whatever_their_generators_did():
    torch.manual_seed(1)
    one = drawn(torch.randn(40))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert one == drawn(torch.randn(40))
    torch.set_rng_state(state)
    drawn(torch.ones(40))
    assert (torch.get_rng_state() == state).all(), "a draw must not move the global generator"


def test_seed_step_and_view_each_change_the_draw():
    gradient = torch.ones(1000)
    draws = [
        drawn(gradient),
        drawn(gradient, seed=1),
        drawn(gradient, step=1),
        drawn(gradient, view=View("w", "0.q", "w", (1,))),
    ]
    for i, one in enumerate(draws):
        for other in draws[:i]:
            # 250 of 1000 twice: 62.5 in common when independent, standard deviation 6
            assert abs(len(one & other) - 62.5) < 30


def test_density_out_of_range():
    with pytest.raises(ValueError, match=r"density must be in \(0, 1\], got 2"):
        RandomK(2)
