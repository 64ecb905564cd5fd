"""RQ1's figures show the profiles: every pair, curve and component, named, readable."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from analysis import rq1 as drawing
from analysis import style
from rq import rq1
from tests.analysis import planted


@pytest.fixture(scope="module")
def study(library):
    return library.study("rq1")


@pytest.fixture(scope="module")
def figures(library):
    return library.figures("rq1")


@pytest.fixture(scope="module")
def tables(study):
    return rq1.tables(study)


def test_there_is_a_figure_for_every_part_of_the_answer(figures):
    assert set(figures) == {"similarity", "by_score", "score_curve", "components"}
    assert all(figure.get_figwidth() == style.WIDTH for figure in figures.values())
    for name, figure in figures.items():
        assert all(axes.get_ylabel() for axes in figure.axes) and any(a.get_xlabel() for a in figure.axes), name


def test_every_cell_is_the_similarity_of_its_pair(figures, study, tables):
    each = tables["rq1_pairs"]
    each = each[each["score"] == "magnitude_persistence"]
    for axes, column in zip(figures["similarity"].axes[:2], ("jaccard", "spearman"), strict=True):
        [image] = axes.get_images()
        values = np.asarray(image.get_array())
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert sorted(names) == sorted(f"{run.workload} {run.seed}" for run in study.runs.itertuples())
        assert np.diag(values) == pytest.approx(1)
        told = {}
        for row in each.itertuples():
            told[f"{row.workload_a} {row.seed_a}", f"{row.workload_b} {row.seed_b}"] = getattr(row, column)
        for (i, a), (j, b) in itertools.combinations(enumerate(names), 2):
            assert values[i, j] == values[j, i] == pytest.approx(told[a, b])
        assert len([text for text in axes.texts if text.get_text()]) == len(names) ** 2


def test_scores_are_beside_each_other_by_kind_of_pair(figures, tables):
    table = tables["rq1"]
    for axes, column in zip(figures["by_score"].axes, ("jaccard", "spearman"), strict=True):
        for pair in (rq1.OTHER_SEED, rq1.OTHER_WORKLOAD):
            [drawn] = [container.lines[0] for container in axes.containers if container.get_label() == pair]
            rows = table[table["pair"] == pair]
            assert drawn.get_xdata() == pytest.approx(rows[column].to_numpy())
            assert np.round(drawn.get_ydata().astype(float)).tolist() == list(range(table["score"].nunique()))


def test_a_curve_per_workload_falls_and_is_cut_at_tau(figures, study):
    [axes] = figures["score_curve"].axes
    for workload in planted.WORKLOADS:
        runs = study.runs[study.runs["workload"] == workload]
        [curve] = [line for line in axes.lines if line.get_label() == workload]
        ordered = [sorted(scores.values(), reverse=True) for scores in runs["scores"]]
        assert curve.get_ydata() == pytest.approx(np.mean(ordered, axis=0))
        cut = [runs["num_important"].mean(), runs["tau"].mean()]
        assert any(np.allclose(line.get_xydata(), [cut]) for line in axes.lines if line.get_xydata().shape == (1, 2))
    texts = [text.get_text() for text in figures["score_curve"].legends[0].get_texts()]
    assert {*planted.WORKLOADS, "τ"} <= set(texts)


def test_components_lie_on_one_scale_and_dots_are_on_what_is_important(figures, tables):
    table = tables["rq1_components"]
    panels = figures["components"].axes[:3]
    assert {axes.get_title(loc="left") for axes in panels} == set(planted.WORKLOADS)
    assert len({axes.get_images()[0].get_clim() for axes in panels}) == 1
    for axes in panels:
        workload = axes.get_title(loc="left")
        values = axes.get_images()[0].get_array()
        dots = {tuple(point) for line in axes.lines for point in np.round(line.get_xydata()).astype(int)}
        for row in table.to_dict("records"):
            x, y = int(row["layer"]), planted.KINDS.index(row["kind"])
            assert values[y, x] == pytest.approx(row[f"score_{workload}"])
            assert ((x, y) in dots) == (row[f"important_{workload}"] > 0)


def test_one_profile_alone_can_be_drawn(study):
    figures = drawing.figures(study.only(workload="wiki", seed=42))
    assert set(figures) == {"similarity", "score_curve", "components"}
    assert "1 seed" in figures["score_curve"].legends[0].get_title().get_text()
