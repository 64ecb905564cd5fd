"""Every policy under conf/threshold, a new one by existing: degenerate scores have a defined answer, nothing hangs on
the order of the components, nor on the scale or offset of the scores.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import make, options

POLICIES = {option: make("threshold", option) for option in options("threshold")}
SCORED = sorted(option for option, policy in POLICIES.items() if policy.needs_scores)
UNSCORED = sorted(set(POLICIES) - set(SCORED))
BY_SCORE = [option for option in SCORED if not hasattr(POLICIES[option], "policy")]  # the others are controls
KINDS = ("q", "k", "v", "o", "fc1", "fc2")

values = st.one_of(
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),  # ties
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=30),
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
)
examples = settings(deadline=None, max_examples=15)


def names(n):
    return [f"{i // len(KINDS)}.{KINDS[i % len(KINDS)]}" for i in range(n)]


def ask(option, scores, components=None):
    scores = np.array(scores)
    tau, important = POLICIES[option](scores, names(len(scores)) if components is None else components)
    assert important.dtype == bool and important.shape == scores.shape
    return tau, important


@pytest.mark.parametrize("option", SCORED)
@examples
@given(scores=values)
def test_the_important_set_is_what_reaches_tau_and_never_empty(option, scores):
    """Integers too. A control's tau bounds rearranged scores, of which as many reach it."""
    tau, important = ask(option, scores)
    assert tau in scores and isinstance(tau, float)
    assert important.sum() == (np.array(scores) >= tau).sum() > 0
    if option in BY_SCORE:
        assert (important == (np.array(scores) >= tau)).all()
        assert (important == ask(option, scores, ())[1]).all()


@pytest.mark.parametrize("option", SCORED)
@pytest.mark.parametrize("score", (0.0, 0.3, -2.0, 1e-300))
@pytest.mark.parametrize("n", (1, 2, 7))
def test_equal_scores_or_a_single_one_are_all_important(option, score, n):
    tau, important = ask(option, [score] * n)
    assert tau == score and important.all()


@pytest.mark.parametrize("option", BY_SCORE)
@pytest.mark.parametrize("scores", ([0.1, 0.4], [0.4, 0.1], [-1, 1], [0, 1e-300]))
def test_of_two_the_larger_is_important(option, scores):
    assert ask(option, scores)[1][np.argmax(scores)]


@pytest.mark.parametrize("option", ("otsu", "gmm", "kmeans"))
@pytest.mark.parametrize("num_high", (1, 5, 20))
def test_two_far_groups_are_told_apart(option, num_high):
    scores = np.concatenate([np.linspace(0, 0.1, 24 - num_high), np.linspace(0.9, 1, num_high)])
    tau, important = ask(option, scores)
    assert tau == scores[-num_high] and important.sum() == num_high


@pytest.mark.parametrize("option", SCORED)
@examples
@given(scores=values, shuffle=st.randoms(use_true_random=False))
def test_the_order_of_the_components_does_not_matter(option, scores, shuffle):
    order = shuffle.sample(range(len(scores)), len(scores))
    tau, important = ask(option, scores)
    other, shuffled = ask(option, np.array(scores)[order], [names(len(scores))[position] for position in order])
    assert other == tau and (shuffled == important[order]).all()


@pytest.mark.parametrize("option", SCORED)
@examples
@given(
    scores=st.lists(st.integers(-1000, 1000), min_size=1, max_size=30),
    scale=st.sampled_from([0.25, 1, 8]),
    offset=st.integers(-50, 50),
)
def test_scale_and_offset_do_not_matter(option, scores, scale, offset):
    tau, important = ask(option, scores)
    other, moved = ask(option, np.array(scores) * scale + offset)
    assert other == tau * scale + offset and (moved == important).all()


@pytest.mark.parametrize("option", SCORED)
def test_the_same_scores_give_the_same_set_and_stay_as_they_were(option):
    scores = np.random.default_rng(0).normal(size=40)
    before = scores.copy()
    tau, important = ask(option, scores)
    again, same = POLICIES[option](scores, names(40))
    assert again == tau and (same == important).all() and (scores == before).all()


@pytest.mark.parametrize("option", UNSCORED)
@examples
@given(scores=values)
def test_a_policy_that_needs_no_scores_heeds_none(option, scores):
    tau, important = ask(option, scores)
    other, same = ask(option, np.zeros(len(scores)))
    assert other == tau and (same == important).all()
    assert important.all() if tau == -np.inf else tau == np.inf and not important.any()
