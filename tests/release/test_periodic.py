"""Periodic release: everything together, at the last step of every period."""

import pytest

from igrad.interfaces import View
from igrad.release.periodic import Periodic

VIEWS = (View("a", "0.q", "a", (6, 2)), View("a.bias", "0.q", "a.bias", (6,)), View("b", "1.fc1", "b", (3, 3)))


@pytest.mark.parametrize("period", (1, 2, 5, 16))
def test_all_views_are_due_whole_at_the_end_of_a_period(period):
    schedule = Periodic(period)
    schedule.prepare({"0.q": 10, "1.fc1": 10_000})
    for view in VIEWS:
        due = {step: schedule.due(view, step) for step in range(4 * period)}
        assert {step for step, part in due.items() if part is not None} == {i * period - 1 for i in range(1, 5)}
        assert all(part in (None, slice(0, view.numel)) for part in due.values())


@pytest.mark.parametrize("period", (0, -3))
def test_period_out_of_range(period):
    with pytest.raises(ValueError, match=f"release_period must be at least 1, got {period}"):
        Periodic(period)
