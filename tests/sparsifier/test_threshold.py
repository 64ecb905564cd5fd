"""A threshold that lasts: about k entries, the largest ones, whatever the gradients do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import View
from igrad.sparsifier.threshold import Threshold
from igrad.sparsifier.topk import count

VIEW = View("v", "0.q", "v", (1,))
numels = st.integers(2, 500) | st.integers(15_000, 40_000)
densities = st.floats(0.001, 0.99)
shares = st.sampled_from((0.25, 1.0, 4.0))
scales = st.integers(-30, 30).map(lambda power: 10.0**power)  # of a gradient, each step anew


def normal(numel, seed=0, scale=1.0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * scale


def check(gradient, chosen, k):
    """About k of the largest magnitudes, each once."""
    assert chosen.dtype == torch.int64 and chosen.unique().numel() == chosen.numel()
    assert k / 2 <= chosen.numel() <= 2 * k
    kept = torch.zeros(gradient.numel(), dtype=torch.bool).index_fill_(0, chosen, True)
    magnitudes = gradient.reshape(-1).abs()
    assert kept.all() or magnitudes[kept].min() >= magnitudes[~kept].max()


@settings(deadline=None)
@given(numels, densities, shares, st.integers(1, 4), st.lists(scales, min_size=1, max_size=8), st.booleans())
def test_about_k_of_the_largest_pass_however_wildly_gradients_jump(numel, density, share, every, scales, ties):
    sparsifier, k = Threshold(density, every), count(numel, density, share)
    for turn, scale in enumerate(scales):
        gradient = normal(numel, turn, scale)
        gradient = gradient.sign() * scale if ties and turn % 2 else gradient
        chosen = sparsifier.select(gradient, VIEW, turn, share)
        if k == numel:
            assert chosen is None
        else:
            check(gradient, chosen, k)


@settings(deadline=None)
@given(numels, densities, st.integers(1, 4), st.lists(st.tuples(st.integers(-9, 9), scales), max_size=8))
def test_the_same_arguments_select_the_same(numel, density, every, calls):
    """What `residual: delayed` keeps and what it sends of it must be one selection, also a few turns later."""
    sparsifier = Threshold(density, every)
    for seed, (turn, scale) in enumerate(calls):
        gradient = normal(numel, seed, scale)
        first, second = (sparsifier.select(gradient, VIEW, turn) for _ in range(2))
        assert first is second is None or torch.equal(first, second)


def thresholds(every, gradients, turns):
    sparsifier = Threshold(0.01, every)
    found = []
    for turn, gradient in zip(turns, gradients, strict=True):
        sparsifier.select(gradient, VIEW, turn)
        found.append(*(t.item() for t in sparsifier.state.values()))
    return found


@pytest.mark.parametrize("turns", (range(0, 9), range(-1, -10, -1)))
def test_a_threshold_lasts_for_so_many_selections(turns):
    gradients = [normal(20_000, seed) for seed in range(9)]
    kept, anew = thresholds(3, gradients, turns), thresholds(1, gradients, turns)
    assert len(set(anew)) == 9
    assert kept == [t for t in anew[::3] for _ in range(3)]


def test_a_threshold_is_found_exactly_where_it_would_starve_or_explode():
    """A factor of three in scale moves 1 % to far more or far less than 2 % and 0.5 %; 1.1 does not."""
    first, numel = normal(20_000), 20_000
    for scale, exact in ((1.1, False), (3.0, True), (1 / 3, True), (0.0, True)):
        sparsifier = Threshold(0.01, every=10)
        sparsifier.select(first, VIEW, 0)
        before = sparsifier.state["v/step"]
        chosen = sparsifier.select(first * scale, VIEW, 1)
        assert torch.equal(sparsifier.state["v/step"], before) != exact
        assert (chosen.numel() == numel // 100) == exact
        if exact:
            assert sparsifier.state["v/step"] == (first * scale).abs().topk(numel // 100 + 1).values[-1]


def test_releases_have_a_threshold_of_their_own_and_so_has_each_view():
    sparsifier, gradient = Threshold(0.01, every=100), normal(20_000)
    other = View("w", "0.q", "w", (1,))
    expected = {}
    for view, turn, scale in ((VIEW, 0, 1.0), (VIEW, -1, 100.0), (other, 0, 1e4)):
        sparsifier.select(gradient * scale, view, turn, share=2.0 if turn < 0 else 1.0)
        expected[view, turn < 0] = scale
    before = dict(sparsifier.state)
    assert len(before) == len(expected)
    for (view, release), scale in expected.items():
        sparsifier.select(gradient * scale, view, -2 if release else 1, share=2.0 if release else 1.0)
    assert all(sparsifier.state[key] is t for key, t in before.items()), "none had to be found anew"


def test_parts_of_a_rotating_release_share_a_threshold():
    """Rows of one matrix, k in proportion to the part."""
    matrix = normal(400 * 100).view(400, 100)
    sparsifier = Threshold(0.05, every=100)
    parts = [matrix[:100], matrix[100:300], matrix[300:], matrix.view(-1)[150:3150]]
    seen = []
    for release, part in enumerate(parts):
        check(part, sparsifier.select(part, VIEW, -1 - release), count(part.numel(), 0.05))
        seen.append(sparsifier.state["v/release"])
    assert all(t is seen[0] for t in seen)


@pytest.mark.parametrize("value", (float("nan"), float("inf")))
@pytest.mark.parametrize("share", (0.0001, 0.01, 1.0))
@pytest.mark.parametrize("density", (0.01, 0.7))
@pytest.mark.parametrize("turn", (0, 1))  # when a threshold is estimated, and when one is there
def test_what_is_not_finite_does_not_last(value, share, density, turn):
    numel = 20_000
    sparsifier, control = Threshold(density, every=10), Threshold(density, every=10)
    for each in (sparsifier, control):
        each.select(normal(numel), VIEW, 0)
    broken = normal(numel, 1)
    broken[: round(share * numel)] = value
    chosen = sparsifier.select(broken, VIEW, turn)
    k = count(numel, density)
    assert k / 2 <= chosen.numel() <= 2 * k
    for later in (2, 3):
        gradient = normal(numel, later)
        check(gradient, sparsifier.select(gradient, VIEW, later), k)
        assert not sparsifier.state["v/step"].isnan()
    assert float(sparsifier.state["v/step"]) == pytest.approx(float(control.state["v/step"]), rel=0.5)


def test_resume_is_as_if_there_had_been_no_stop():
    gradients = [normal(20_000, seed, 1 + seed / 10) for seed in range(6)]
    straight, first = Threshold(0.01, every=4), Threshold(0.01, every=4)
    for turn, gradient in enumerate(gradients):
        if turn == 3:
            resumed, fresh = Threshold(0.01, every=4), Threshold(0.01, every=4)
            resumed.state.update({key: t.clone() for key, t in first.state.items()})
            assert not torch.equal(fresh.select(gradient, VIEW, turn), straight.select(gradient, VIEW, turn))
            first = resumed
        assert torch.equal(first.select(gradient, VIEW, turn), straight.select(gradient, VIEW, turn))


def test_values_out_of_range():
    with pytest.raises(ValueError, match=r"density must be in \(0, 1\], got 0"):
        Threshold(0, 1)
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        Threshold(0.1, 0)
