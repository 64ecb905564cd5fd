"""RQ4's figures show the tables: every packing and sparsifier, named, readable."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from analysis import rq4 as drawing
from analysis import style
from rq import rq4
from rq.times import PHASES

SPARSIFIERS = ["threshold", "topk"]


@pytest.fixture(scope="module")
def study(library):
    return library.study("rq4")


@pytest.fixture(scope="module")
def figures(library) -> dict[str, Figure]:
    return library.figures("rq4")


def names(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.legends[0].get_texts()}


def packings(axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_there_is_a_figure_for_every_part_of_the_answer(figures, study):
    assert set(figures) == {"balance", "phases"}
    for figure in figures.values():
        assert figure.get_figwidth() == style.WIDTH and figure.axes[-1].get_xlabel()
        assert "mean ± sd over 2 seeds" in figure.legends[0].get_title().get_text()
        for axes in figure.axes:
            assert set(packings(axes)) == set(study.runs["packing"]) and packings(axes)[0] == "direct"
            assert axes.yaxis_inverted()  # the baseline is on top
    assert names(figures["balance"]) >= set(SPARSIFIERS)
    assert names(figures["phases"]) >= set(PHASES)
    assert "indicative" in figures["phases"].legends[0].get_title().get_text()


@pytest.mark.parametrize(("panel", "column"), [(0, "bucket_imbalance"), (1, "num_overflows")])
def test_each_packing_is_a_point_per_sparsifier(figures, study, panel, column):
    axes, table = figures["balance"].axes[panel], rq4.table(study)
    for sparsifier in SPARSIFIERS:
        rows = table[table["sparsifier"] == sparsifier]
        [points] = [container for container in axes.containers if container.get_label() == sparsifier]
        x, y = points.lines[0].get_data()
        assert x == pytest.approx(rows[column].to_numpy())
        assert [packings(axes)[round(height)] for height in y] == rows["packing"].tolist()
        sd = rows[f"{column}_sd"].to_numpy()
        assert points.has_xerr == sd.any()
        if sd.any():
            reach = [segment[1, 0] - segment[0, 0] for segment in points.lines[2][0].get_segments()]
            assert reach == pytest.approx(2 * sd)


def test_phases_follow_one_another_to_the_step(figures, study):
    table = rq4.phases(study)
    for axes, sparsifier in zip(figures["phases"].axes, SPARSIFIERS, strict=True):
        assert axes.get_title(loc="left") == f"sparsifier: {sparsifier}"
        rows = table[table["sparsifier"] == sparsifier].set_index("packing").loc[packings(axes)]
        bars = {container.get_label(): container for container in axes.containers}
        left = 0 * rows["step_share"]
        for phase in PHASES:
            assert [bar.get_x() for bar in bars[phase]] == pytest.approx(left.tolist())
            assert [bar.get_width() for bar in bars[phase]] == pytest.approx(rows[f"{phase}_share"].tolist())
            left += rows[f"{phase}_share"]
        assert bars["step"].lines[0].get_xdata() == pytest.approx(rows["step_share"].to_numpy())
        assert (left <= rows["step_share"]).all()


def test_phases_and_sparsifiers_can_be_told_apart(figures):
    assert len(set(style.PHASE_COLORS.values())) == len(PHASES) == len(style.PHASE_COLORS)
    points = [container.lines[0] for container in figures["balance"].axes[0].containers]
    assert len({point.get_color() for point in points}) == len({point.get_marker() for point in points}) == 2


def test_without_greedy_there_is_nothing_to_divide_by(study):
    assert set(drawing.figures(study.of(study.runs[study.runs["packing"] != "greedy"]))) == {"balance"}


def test_a_packing_that_one_sparsifier_lacks_keeps_its_row(study):
    runs = study.runs[(study.runs["sparsifier"] == "topk") | (study.runs["packing"] != "direct")]
    balance = drawing.figures(study.of(runs))["balance"]
    assert packings(balance.axes[0]) == ["direct", "greedy", "overlap", "risk_aware", "sequential"]


def test_one_seed_has_no_bars_and_says_so(study):
    for figure in drawing.figures(study.only(seed=42)).values():
        assert "1 seed" in figure.legends[0].get_title().get_text()
        assert not any(getattr(c, "has_xerr", False) for axes in figure.axes for c in axes.containers)
