"""Random: a permutation within each kind, by the seed."""

import numpy as np
import pytest

from igrad.threshold.fixed_ratio import FixedRatio
from igrad.threshold.random import Random
from tests.strategies import make
from tests.threshold.test_every import names

SCORES = np.random.default_rng(1).normal(size=96)


def chosen(seed):
    return Random(FixedRatio(0.25), seed)(SCORES, names(96))[1]


def test_seeds_differ_and_calls_do_not():
    sets = {chosen(seed).tobytes() for seed in range(8)}
    assert len(sets) == 8
    assert (chosen(3) == chosen(3)).all()


def test_every_component_has_the_chance_of_its_kind():
    """Over many seeds, whatever its own score."""
    n, num_seeds = 8, 2000
    policy = FixedRatio(0.25)
    scores, components = np.arange(8.0), [f"{i}.q" for i in range(n)]
    share = np.mean([Random(policy, seed)(scores, components)[1] for seed in range(num_seeds)], axis=0)
    assert np.abs(share - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / num_seeds)


def test_the_seed_is_the_run_s():
    assert [make("threshold", "random", seed=seed).seed for seed in (5, 6)] == [5, 6]


def test_a_negative_seed_is_an_error():
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        Random(FixedRatio(0.5), -1)
