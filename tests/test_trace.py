"""The trace of a profiling run against numpy, on ranks that saw different gradients."""

import numpy as np
import pytest
import torch

from igrad.interfaces import Payload, View
from igrad.trace import MEASURES, Trace
from tests.ranks import on_ranks

VIEWS = (
    View("0.q", "0.q", "0.q", (6, 5)),
    View("norm", None, "norm", (50,)),
    View("1.fc1", "1.fc1", "1.fc1", (8, 3)),
    View("0.q.bias", "0.q", "0.q.bias", (6,)),
    View("1.v", "1.v", "1.v", (4, 4), part=torch.t),
)
COMPONENTS = {"0.q": ("0.q", "0.q.bias"), "1.fc1": ("1.fc1",), "1.v": ("1.v",)}
NUM_STEPS = 5


def drawn(rank, step):
    """View name -> (weight, gradient, sent values), all float64."""
    random = np.random.default_rng([rank, step])
    return {v.name: (random.normal(size=v.shape), random.normal(size=v.shape), random.normal(size=3)) for v in VIEWS}


def gathered(rank, num_steps):
    trace = Trace()
    for step in range(num_steps):
        tensors = {name: [torch.tensor(array) for array in arrays] for name, arrays in drawn(rank, step).items()}
        order = VIEWS[::-1] if step == 3 else VIEWS
        seen = {}
        for view in order:
            weight, gradient, values = tensors[view.name]
            if view.part is torch.t:
                weight, gradient = weight.t().contiguous().t(), gradient.t().contiguous().t()
            seen[view] = (weight, gradient, Payload(view.name, 0, view.numel, values, torch.tensor([4, 0, 2])))
        trace.update(seen, 10 + step)
    return trace.steps, trace.numel, trace.gather()


def test_measures_are_those_worked_out_by_hand_and_the_same_on_all_ranks():
    (steps, numel, first), (_, _, second) = on_ranks(2, gathered, NUM_STEPS)
    assert steps == [10, 11, 12, 13, 14]
    assert numel == {"0.q": 36, "1.fc1": 24, "1.v": 16}
    assert tuple(first) == MEASURES
    for measure in MEASURES:
        assert (first[measure] == second[measure]).all()
    for step in range(NUM_STEPS):
        for column, (component, names) in enumerate(COMPONENTS.items()):
            ranks = [drawn(rank, step) for rank in range(2)]
            n = numel[component]
            retained = np.mean([sum((d[v][2] ** 2).sum() / n for v in names) ** 0.5 for d in ranks])
            gradient = np.mean([sum((d[v][1] ** 2).sum() / n for v in names) ** 0.5 for d in ranks])
            saliency = np.mean([sum(abs(d[v][0] * d[v][1]).sum() for v in names) / n for d in ranks])
            for measure, value in (("retained", retained), ("gradient", gradient), ("saliency", saliency)):
                assert first[measure][step, column] == pytest.approx(value, rel=1e-12)


def without_steps(rank):
    with pytest.raises(ValueError, match="no step fell into profile_window; lower its first step or raise its last"):
        Trace().gather()


def test_a_window_without_steps_is_an_error():
    on_ranks(1, without_steps)
