"""Random: the control."""

import numpy as np

from igrad.importance.random import Random


def test_it_depends_on_the_seed_alone():
    traces = [{"retained": np.random.default_rng(i).random((4, 30))} for i in range(2)]
    first = Random(1)(traces[0])
    assert (first == Random(1)(traces[1])).all()
    assert (first != Random(2)(traces[0])).all() and (first != Random(-1)(traces[0])).all()
    assert ((first >= 0) & (first < 1)).all() and len(set(first)) == 30
