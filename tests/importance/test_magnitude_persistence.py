"""The paper's score against numpy, on ranks that saw different payloads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from igrad.importance.magnitude_persistence import MagnitudePersistence, magnitude, persistence
from igrad.interfaces import Payload, View
from tests.ranks import on_ranks

VIEWS = (
    View("0.q", "0.q", "0.q", (6, 5)),
    View("norm", None, "norm", (50,)),
    View("1.fc1", "1.fc1", "1.fc1", (8, 3)),
    View("0.q.bias", "0.q", "0.q.bias", (6,)),
    View("1.v", "1.v", "1.v", (4, 4)),
)
NUM_STEPS = 7


def sent(rank, step):
    """View name -> the values that it sent."""
    random = np.random.default_rng([rank, step])
    return {view.name: random.normal(size=3) * random.choice([0.1, 1, 3]) for view in VIEWS}


def update(score, rank, step, order=1):
    """`order` = -1: the views come the other way round."""
    values = sent(rank, step)
    seen = {
        view: (torch.zeros(view.shape), torch.randn(view.shape),
               Payload(view.name, 0, view.numel, torch.tensor(values[view.name]), torch.tensor([4, 0, 2])))
        for view in VIEWS[::order]
    }  # fmt: skip
    score.update(seen, step)


def scores_of(rank, alphas):
    results = []
    for alpha in alphas:
        score = MagnitudePersistence(alpha)
        for step in range(NUM_STEPS):
            update(score, rank, step, order=-1 if step == 3 else 1)
        results += [score.compute(), score.compute()]
    return results


def by_hand(num_ranks, alpha):
    activity = []
    for step in range(NUM_STEPS):
        per_rank = []
        for rank in range(num_ranks):
            v = sent(rank, step)
            q = np.concatenate([v["0.q"], v["0.q.bias"]])
            per_rank.append([(q @ q / 36) ** 0.5, (v["1.fc1"] @ v["1.fc1"] / 24) ** 0.5,
                             (v["1.v"] @ v["1.v"] / 16) ** 0.5])  # fmt: skip
        activity.append(np.mean(per_rank, axis=0))
    averages = [sum(column) / NUM_STEPS for column in zip(*activity, strict=True)]
    high, low = max(averages), min(averages)
    shares = [sum(row[c] > sorted(row)[1] for row in activity) / NUM_STEPS for c in range(3)]
    return [
        alpha * (average - low) / (high - low) + (1 - alpha) * share
        for average, share in zip(averages, shares, strict=True)
    ]


def test_scores_are_those_worked_out_by_hand_and_the_same_on_all_ranks():
    alphas = (0.0, 0.7, 1.0)
    first, second = on_ranks(2, scores_of, alphas)
    assert first == second
    assert first[::2] == first[1::2], "asking twice changes nothing"
    for alpha, scores in zip(alphas, first[::2], strict=True):
        assert list(scores) == ["0.q", "1.fc1", "1.v"]
        assert list(scores.values()) == pytest.approx(by_hand(2, alpha), abs=1e-12)
    assert min(first[-1].values()) == 0 and max(first[-1].values()) == 1


traces = st.lists(st.lists(st.floats(0, 100), min_size=4, max_size=4), min_size=1, max_size=8).map(np.array)


@settings(deadline=None)
@given(traces)
def test_both_parts_lie_in_zero_to_one_and_magnitude_reaches_both_ends(trace):
    share = magnitude(trace)
    assert ((share >= 0) & (share <= 1)).all()
    mean = trace.mean(axis=0)
    if np.ptp(mean) > 0:
        assert share[mean.argmin()] == 0 and share[mean.argmax()] == 1
    else:
        assert not share.any()
    steadiness = persistence(trace)
    assert ((steadiness >= 0) & (steadiness <= 1)).all()
    assert steadiness.sum() <= 2, "at most half of four components are above a median"


def test_persistence_counts_steps_above_the_median_not_by_how_much():
    trace = np.array([[9.0, 2, 1], [3.0, 1, 2], [3.0, 2, 900], [4.0, 4, 4]])
    assert persistence(trace).tolist() == [0.5, 0, 0.25]


@pytest.mark.parametrize("alpha", (-0.1, 1.1, float("nan")))
def test_alpha_out_of_range(alpha):
    with pytest.raises(ValueError, match=rf"alpha must be in \[0, 1\], got {alpha}"):
        MagnitudePersistence(alpha)


def test_a_window_without_steps_is_an_error():
    with pytest.raises(ValueError, match="no step fell into profile_window; lower its first step or raise its last"):
        MagnitudePersistence().compute()
