"""Staggered release: once per period, by identity and cost, level."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.interfaces import View
from igrad.release.staggered import Staggered, phases

NAMES = [f"{layer}.{kind}" for layer in range(12) for kind in ("q", "k", "v", "o", "fc1", "fc2")]
costs_of = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 10**6), max_size=40)


def smollm2_135m():
    """Views of its 30 layers."""
    hidden, narrow, wide = 576, 192, 1536
    shapes = {"q": (hidden, hidden), "k": (narrow, hidden), "v": (narrow, hidden), "o": (hidden, hidden),
              "fc1": (wide, hidden), "fc2": (hidden, wide)}  # fmt: skip
    for layer in range(30):
        for kind, shape in shapes.items():
            for part in ("gate", "up") if kind == "fc1" else ("weight",):
                yield View(f"{layer}.{kind}.{part}", f"{layer}.{kind}", f"{layer}.{kind}.{part}", shape)


def loads_of(costs, period):
    loads = [0] * period
    for component, phase in phases(costs, period).items():
        loads[phase] += costs[component]
    return loads


@settings(deadline=None)
@given(costs_of, st.integers(1, 16), st.integers(0, 1000))
def test_every_component_is_due_once_in_any_period(costs, period, first):
    schedule = Staggered(period)
    schedule.prepare(costs)
    for component in costs:
        view = View(component, component, component, (3, 2))
        due = [schedule.due(view, step) for step in range(first, first + period)]
        assert [part for part in due if part is not None] == [slice(0, 6)]


@settings(deadline=None)
@given(costs_of, st.integers(1, 16), st.randoms(use_true_random=False))
def test_a_phase_goes_by_names_and_costs_alone(costs, period, shuffle: random.Random):
    order = shuffle.sample(list(costs), len(costs))
    assert phases(costs, period) == phases({component: costs[component] for component in order}, period)
    schedule = Staggered(period)
    schedule.prepare({"of an earlier model": 1})
    schedule.prepare(costs)
    assert schedule.phase == phases(costs, period)


@settings(deadline=None)
@given(costs_of.filter(bool), st.integers(1, 16))
def test_the_dearest_phase_is_within_the_mean_and_one_component(costs, period):
    dearest, mean = max(loads_of(costs, period)), sum(costs.values()) / period
    assert max(mean, max(costs.values())) <= dearest <= mean + max(costs.values())


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(1, 3))
def test_the_dearest_phase_is_within_grahams_bound_of_the_best(sizes, period):
    costs = {f"{i}.q": size for i, size in enumerate(sizes)}
    best = min(
        max(sum(c for c, p in zip(sizes, choice, strict=True) if p == phase) for phase in range(period))
        for choice in itertools.product(range(period), repeat=len(sizes))
    )
    assert best <= max(loads_of(costs, period)) <= (4 / 3 - 1 / (3 * period)) * best + 1e-9


@pytest.mark.parametrize("period", (4, 8, 16))
def test_a_real_model_is_level(period):
    views = list(smollm2_135m())
    costs = {}
    for view in views:
        costs[view.component] = costs.get(view.component, 0) + view.numel
    assert sum(costs.values()) == 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576)
    schedule = Staggered(period)
    schedule.prepare(costs)
    loads = [sum(v.numel for v in views if schedule.due(v, step) is not None) for step in range(period)]
    assert sum(loads) == sum(costs.values())
    assert max(loads) <= 1.10 * sum(loads) / period
    due = {view.name: [schedule.due(view, step) is not None for step in range(period)] for view in views}
    assert all(due[f"{layer}.fc1.gate"] == due[f"{layer}.fc1.up"] for layer in range(30))


def test_a_component_above_the_mean_is_alone_in_its_phase():
    assert sorted(loads_of({"0.q": 1, "0.fc1": 100, "1.q": 1}, 2)) == [2, 100]


def test_period_out_of_range():
    with pytest.raises(ValueError, match="release_period must be at least 1, got 0"):
        Staggered(0)
