"""The controls `random` and `inverse`: as many important components of every kind as under the policy they control."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from igrad import compose
from igrad.config import build, check
from igrad.threshold.kinds import kind, rearranged
from igrad.threshold.percentile import Percentile
from tests.strategies import make, options
from tests.threshold.test_every import BY_SCORE, names

CONTROLS = sorted(option for option in options("threshold") if hasattr(make("threshold", option), "policy"))
MIXED = [*names(48), "embed", "head", *(f"encoder.{i}.cross.q" for i in range(4))]
ROOT = 7


@pytest.mark.parametrize("name, expected", (
    ("3.q", "q"), ("11.fc1", "fc1"), ("encoder.3.cross.q", "encoder.cross.q"), ("embed", "embed"), ("head", "head"),
    ("1.3.o", "1.o"),
))  # fmt: skip
def test_a_kind_is_a_component_of_any_layer(name, expected):
    assert kind(name) == expected


def test_each_kind_keeps_its_scores():
    scores = np.random.default_rng(ROOT).normal(size=len(MIXED))
    moved = rearranged(scores, MIXED, lambda part: np.roll(part, 1))
    kinds = np.array([kind(name) for name in MIXED])
    for each in set(kinds):
        assert sorted(moved[kinds == each]) == sorted(scores[kinds == each])
    alone = np.isin(kinds, ["embed", "head"])
    assert (moved[alone] == scores[alone]).all() and (moved[~alone] != scores[~alone]).all()


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("inner", ["all", *BY_SCORE])
@pytest.mark.parametrize("ties", (False, True))
def test_as_many_of_every_kind_are_important(control, inner, ties):
    generator = np.random.default_rng(ROOT)
    scores = generator.normal(size=len(MIXED)) + [4 * name.endswith("fc1") for name in MIXED]
    scores = np.round(scores) if ties else scores
    policy = make("threshold", inner)
    controlled = replace(make("threshold", control), policy=policy)
    tau, important = policy(scores, MIXED)
    other, chosen = controlled(scores, MIXED)
    assert other == tau
    count = [Counter(kind(name) for name in np.array(MIXED)[mask]) for mask in (important, chosen)]
    assert count[0] == count[1]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("components", ((), ("0.q", "1.q")))
def test_every_score_needs_a_name(control, components):
    with pytest.raises(ValueError, match=f"names of all 3 components, got {len(components)}$"):
        make("threshold", control)(np.arange(3.0), components)


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("policy", ("otsu", None))
def test_the_policy_is_one(control, policy):
    with pytest.raises(ValueError, match=f"policy must be a threshold policy, got {policy!r}; set threshold.policy._t"):
        replace(make("threshold", control), policy=policy)


@pytest.mark.parametrize("control", CONTROLS)
def test_the_policy_is_chosen_on_the_command_line(control):
    target = "igrad.threshold.percentile.Percentile"
    [point] = compose.points(
        [f"threshold={control}", f"threshold.policy._target_={target}", "+threshold.policy.percentile=60"]
    )
    check(point.cfg)
    assert build(point.cfg.threshold).policy == Percentile(60)
