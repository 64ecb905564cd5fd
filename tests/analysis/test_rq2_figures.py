"""RQ2's figures show the tables: every policy and control, named, readable."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from analysis import rq2 as drawing
from analysis import style
from rq import rq2
from tests.analysis import legible


@pytest.fixture(scope="module")
def study(library):
    return library.study("rq2")


@pytest.fixture(scope="module")
def figures(library):
    return library.figures("rq2")


def names(figure) -> set[str]:
    return {text.get_text() for text in figure.legends[0].get_texts()}


def test_there_is_a_figure_for_every_part_of_the_answer(figures, study):
    assert set(figures) == {"tradeoff", "paired"}
    for figure in figures.values():
        assert figure.get_figwidth() == style.WIDTH
        assert all(axes.get_ylabel() and axes.get_xlabel() for axes in figure.axes)
    assert names(figures["tradeoff"]) >= set(study.runs["threshold"])
    assert names(figures["paired"]) >= {"42", "43", "44", "mean ± sd"}
    assert "mean ± sd over 3 seeds" in figures["tradeoff"].legends[0].get_title().get_text()


def test_many_policies_have_room(study):
    table = rq2.table(study)
    knee, others = table[table["policy"] == "knee"], ("fixed_ratio", "gmm", "kneed", "percentile")
    every = pd.concat([table, *(knee.assign(policy=name) for name in others)]).sort_values(
        "policy", key=rq2.positions, ignore_index=True
    )
    legible.check(drawing.tradeoff(every), "every policy")


def test_each_policy_is_a_point_with_its_spread(figures, study):
    [axes] = figures["tradeoff"].axes
    for row in rq2.table(study).itertuples():
        [point] = [container for container in axes.containers if container.get_label() == row.policy]
        assert point.lines[0].get_xydata()[0] == pytest.approx([row.wire_bytes, row.val_loss])
        [[bar]] = [lines.get_segments() for lines in point.lines[2]]  # bytes do not vary here
        assert bar[1, 1] - bar[0, 1] == pytest.approx(2 * row.val_loss_sd)


def test_policies_and_controls_do_not_look_alike():
    policies = [*"abcdefghij", "random", "inverse"]
    looks = drawing.looks(pd.DataFrame({"policy": policies, "control": [False] * 10 + [True] * 2}))
    assert len({(look["color"], look["marker"]) for look in looks.values()}) == len(policies)
    shapes = {looks[name]["marker"] for name in policies[:10]}
    assert not shapes & {looks[name]["marker"] for name in policies[10:]}


def test_each_seed_is_a_difference_and_the_mean_is_beside_them(figures, study):
    [axes] = figures["paired"].axes
    for row in rq2.pairs(study).itertuples():
        drawn = [line.get_xydata()[0] for line in axes.lines if line.get_label() == str(row.seed)]
        assert any(x == pytest.approx(row.difference) for x, _ in drawn)
        assert len(drawn) == 2
    means = [c.lines[0].get_xdata()[0] for c in axes.containers if c.get_label() == "mean ± sd"]
    assert means == pytest.approx(rq2.paired(study)["difference"].tolist())
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == ["knee −\ninverse", "knee −\nrandom"]
    assert any(np.allclose(line.get_xdata(), 0) for line in axes.lines)


def test_without_controls_there_is_nothing_to_pair(study):
    assert set(drawing.figures(study.of(study.runs[~study.runs["threshold"].isin(rq2.CONTROLS)]))) == {"tradeoff"}
    one = drawing.figures(study.only(seed=43))
    assert "1 seed" in one["tradeoff"].legends[0].get_title().get_text()
    assert not any(c.has_xerr or c.has_yerr for figure in one.values() for axes in figure.axes for c in axes.containers)


def test_one_row_is_high_enough_for_its_legend(study):
    runs = study.runs[study.runs["threshold"] != "inverse"]
    figure = drawing.figures(dataclasses.replace(study, runs=runs))["paired"]
    legible.check(figure, "one control")
