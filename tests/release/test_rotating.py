"""Rotating release: ranges of whole rows, in turn, each within its bound and of its share."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import View
from igrad.release.periodic import Periodic
from igrad.release.rotating import Rotating, ranges
from igrad.residual.delayed import Delayed
from igrad.residual.full import Full
from igrad.residual.none import NoResidual
from igrad.sparsifier.adtopk import ADTopk
from igrad.sparsifier.none import NoSparsifier
from igrad.sparsifier.topk import TopK

shapes = st.one_of(st.tuples(st.integers(1, 40)), st.tuples(st.integers(1, 40), st.integers(1, 9)))


def view_of(shape):
    return View("w", "0.q", "w", shape)


@settings(deadline=None)
@given(shapes, st.integers(1, 50))
def test_ranges_are_whole_rows_of_near_equal_number_that_cover_the_view_once(shape, num_groups):
    view = view_of(shape)
    found = ranges(view, num_groups)
    assert len(found) == min(num_groups, shape[0])
    assert [i for part in found for i in range(part.start, part.stop)] == list(range(view.numel))
    width = shape[1] if len(shape) == 2 else 1
    sizes = [part.stop - part.start for part in found]
    assert all(size % width == 0 for size in sizes)
    assert max(sizes) - min(sizes) <= width


@settings(deadline=None)
@given(shapes, st.integers(1, 8), st.integers(1, 6), st.integers(0, 100))
def test_any_turn_of_steps_sends_every_range_once(shape, period, num_groups, first):
    view, schedule = view_of(shape), Rotating(period, num_groups)
    turn = period * min(num_groups, shape[0])
    assert turn <= schedule.max_age_steps == period * num_groups
    due = [schedule.due(view, step) for step in range(first, first + turn)]
    found = [(part.start, part.stop) for part in due if part is not None]
    assert sorted(found) == [(part.start, part.stop) for part in ranges(view, num_groups)]


def test_what_is_due_does_not_depend_on_which_components_are_low():
    one, other = Rotating(2, 3), Rotating(2, 3)
    one.prepare({"0.q": 12})
    other.prepare({"1.q": 50, "0.q": 12, "0.k": 7})
    assert [one.due(view_of((6, 2)), step) for step in range(12)] == [
        other.due(view_of((6, 2)), step) for step in range(12)
    ]


@settings(deadline=None)
@given(shapes, st.integers(1, 5))
def test_one_group_is_periodic(shape, period):
    view = view_of(shape)
    for step in range(3 * period):
        assert Rotating(period, 1).due(view, step) == Periodic(period).due(view, step)


def entries_in_a_turn(schedule, sparsifier, view, release_fraction, num_steps):
    residual = Full()
    sent = 0
    for step in range(num_steps):

        def select(candidate, share, *_, step=step):
            return sparsifier.select(candidate, view, step, share)

        due, share = schedule.due(view, step), release_fraction * schedule.period
        payload = residual.offer(view, torch.randn(view.shape), select, due, share, True)
        if payload is not None:
            residual.memory.subtract(payload)
            sent += payload.values.numel()
    return sent


@pytest.mark.parametrize("sparsifier", (TopK(0.05), ADTopk(0.05)), ids=("topk", "adtopk"))
@pytest.mark.parametrize(("period", "num_groups"), ((4, 1), (4, 2), (4, 4), (8, 4)))
def test_a_low_component_costs_release_fraction_over_m_of_an_important_one(sparsifier, period, num_groups):
    view = view_of((40, 40))
    every_step = len(sparsifier.select(torch.randn(view.shape), view, 0))
    num_steps = 4 * num_groups * period
    for fraction in (1 / period, num_groups / period, 1.0):
        sent = entries_in_a_turn(Rotating(period, num_groups), sparsifier, view, fraction, num_steps)
        assert sent == pytest.approx(fraction / num_groups * every_step * num_steps)
    as_periodic = entries_in_a_turn(Periodic(period), sparsifier, view, 1 / period, num_steps)
    assert as_periodic == entries_in_a_turn(
        Rotating(period, num_groups), sparsifier, view, num_groups / period, num_steps
    )


@pytest.mark.parametrize("residual", (Full, Delayed, NoResidual))
@pytest.mark.parametrize("shape", ((10, 6), (3, 8), (1, 5), (9,), (2,)))
def test_residuals_offer_no_more_than_the_range_and_lose_nothing(residual, shape):
    """Without a sparsifier a turn sends everything there was; outside the range memory stays as it is."""
    view, schedule, made = view_of(shape), Rotating(2, 4), residual()
    total, sent = torch.zeros(view.numel), torch.zeros(view.numel)
    turn = 2 * len(ranges(view, 4))
    for step in range(2 * turn):
        gradient = torch.randn(shape) if step < turn else torch.zeros(shape)
        total += gradient.view(-1)
        due = schedule.due(view, step)

        def select(candidate, share, *_, step=step):
            return NoSparsifier().select(candidate, view, step, share)

        payload = made.offer(view, gradient, select, due, 1.0, True)
        assert (payload is None) == (due is None)
        if payload is not None:
            assert (payload.start, payload.start + payload.numel) == (due.start, due.stop)
            sent[due] += payload.values
            made.memory.subtract(payload)
    if residual is NoResidual:
        assert sent.any() and made.memory.pending(view) is None
    else:
        assert torch.allclose(sent, total, atol=1e-5)
        assert not made.memory.pending(view).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    (((0, 4), "release_period must be at least 1, got 0"), ((4, 0), "num_groups must be at least 1, got 0")),
)
def test_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        Rotating(*arguments)
