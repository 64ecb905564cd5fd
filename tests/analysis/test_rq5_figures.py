"""RQ5's figures show the tables: a dozen methods that can be told apart, named where their lines end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import rq5 as drawing
from analysis import style
from rq import rq5
from rq.times import PHASES
from tests.analysis import legible, synthetic

CURVES = {"loss_by_steps": "step", "loss_by_bytes": "total_wire_bytes", "loss_by_seconds": "seconds"}
STUDIES = {
    "rq5": {*CURVES, "frontier", "step_time"},
    "rq5_lr": {*CURVES, "frontier", "step_time", "learning_rates"},
    "rq5_frontier": {"frontier"},
    "rq5_scale": {"scale"},
}


@pytest.fixture(scope="module")
def studies(library):
    return {name: library.study(name) for name in STUDIES}


@pytest.fixture(scope="module")
def figures(library):
    return {name: library.figures(name) for name in STUDIES}


@pytest.fixture(scope="module")
def tables(studies):
    return {name: rq5.tables(studies[name]) for name in ("rq5", "rq5_frontier")}


def texts(axes) -> list[str]:
    """Names beside a panel."""
    return [text.get_text() for text in axes.texts]


def line(axes, label: str):
    return next(each for each in axes.get_lines() if each.get_label() == label)


def heading(figure) -> str:
    return figure.legends[0].get_title().get_text() if figure.legends else figure.get_suptitle()


def test_there_is_a_figure_for_every_part_of_the_answer(figures):
    for name, expected in STUDIES.items():
        assert set(figures[name]) == expected
        for figure in figures[name].values():
            assert figure.get_figwidth() == style.WIDTH and figure.axes[-1].get_xlabel()
            assert all(axes.get_ylabel() for axes in figure.axes)
            assert ("1 seed" if name in ("rq5_lr", "rq5_scale") else "mean ± sd over 2 seeds") in heading(figure)
    for name in ("step_time", "loss_by_seconds"):
        assert "indicative" in heading(figures["rq5"][name])


@pytest.mark.parametrize(
    "methods", [("dense",), ("dense", "bf16"), ("dense", "powersgd"), ("topk_sync", "adtopk_sync"), ("never", "dense"),
                ("local_sgd", "topk_sync", "ig_adtopk")],
)  # fmt: skip
def test_a_frontier_of_few_is_legible_and_has_ticks(studies, methods):
    runs = studies["rq5"].runs
    figure = drawing.frontier(rq5.per_run(studies["rq5"].of(runs[runs["method"].isin(methods)])))
    legible.check(figure, ", ".join(methods))
    for axes in figure.axes:
        low, high = axes.get_xlim()
        assert sum(low <= tick <= high for tick in axes.get_xticks()) >= 2


def test_hollow_is_explained_where_something_is(studies):
    runs = studies["rq5"].runs
    for methods, hollow in ((["dense", "bf16"], False), (["dense", "local_sgd"], True)):
        figure = drawing.frontier(rq5.per_run(studies["rq5"].of(runs[runs["method"].isin(methods)])))
        assert ("hollow" in heading(figure)) == hollow


def test_methods_can_be_told_apart_and_look_the_same_in_every_study(studies):
    look = drawing.looks(rq5.per_run(studies["rq5"]))
    assert set(look) == set(synthetic.METHODS)
    assert len({(each["color"], each["marker"]) for each in look.values()}) == len(look)
    for families in rq5.FAMILIES.values():
        assert len({look[name]["color"] for name in families}) == len(families)
        assert len({look[name]["linestyle"] for name in families}) == len(families)
    for name in STUDIES:
        assert drawing.looks(rq5.per_run(studies[name])).items() <= look.items()


def test_a_family_that_is_new_has_a_look_of_its_own(studies):
    each = rq5.per_run(studies["rq5"])
    look = drawing.looks(each.replace({"family": {"ig_adtopk": "mine"}}))
    assert len({(one["color"], one["marker"]) for one in look.values()}) == len(look)


def test_hollow_is_who_has_models_that_differ(studies):
    each = rq5.per_run(studies["rq5"]).drop_duplicates("family").set_index("family")
    for family, look in drawing.looks(rq5.per_run(studies["rq5"])).items():
        assert (look["markerfacecolor"] == "white") == each.loc[family, "replicas"].startswith(rq5.APART)


@pytest.mark.parametrize(("name", "x"), CURVES.items())
def test_curves_are_means_of_the_evaluations_in_the_panel_of_their_group(figures, studies, name, x):
    curves = studies["rq5"].curves
    curves = curves[curves["val_loss"].notna() & (curves["step"] > 0) & (curves["step"] <= synthetic.STEPS)]
    for axes, (group, families) in zip(figures["rq5"][name].axes, rq5.FAMILIES.items(), strict=True):
        assert axes.get_title(loc="left") == group and sorted(texts(axes)) == sorted(families)
        for family in families:
            means = curves[curves["method"] == family].groupby("step")[[x, "val_loss"]].mean()
            means = means[means[x] > 0]
            if len(means):
                assert line(axes, family).get_xydata() == pytest.approx(means.to_numpy())
    assert len({axes.get_ylim() for axes in figures["rq5"][name].axes}) == 1


def test_a_flush_is_the_dotted_end_of_a_line(figures):
    axes = figures["rq5"]["loss_by_steps"].axes[0]
    ends = [each for each in axes.get_lines() if each.get_linestyle() == ":" and each.get_xdata()[-1] > synthetic.STEPS]
    [never] = ends
    assert never.get_xdata().tolist() == [synthetic.STEPS, synthetic.STEPS + 1]
    assert np.diff(never.get_ydata()) == pytest.approx(-0.2)


def test_who_sends_nothing_is_a_level(figures, tables):
    table = tables["rq5"]["rq5_bytes"].set_index("method")
    for axes, names in (
        (figures["rq5"]["loss_by_bytes"].axes[0], ("alone", "noop")),
        (figures["rq5"]["frontier"].axes[0], ("alone", "never")),
        (figures["rq5"]["frontier"].axes[1], ("alone",)),
    ):
        levels = {
            each.get_label(): each.get_ydata()[0] for each in axes.get_lines() if list(each.get_xdata()) == [0, 1]
        }
        assert levels == pytest.approx(table.loc[list(names), "val_loss"].to_dict())
        assert axes.get_xscale() == "log" and set(names) <= set(texts(axes))


@pytest.mark.parametrize("name", ["rq5", "rq5_frontier"])
@pytest.mark.parametrize(
    ("panel", "column", "best"), [(0, "wire_bytes", "best_per_step"), (1, "total_bytes", "best_per_run")]
)
def test_the_frontier_is_who_is_not_dominated_ringed_and_named(figures, tables, name, panel, column, best):
    axes, table = figures[name]["frontier"].axes[panel], tables[name]["rq5_bytes"]
    edge = table[table[best] & (table[column] > 0)].sort_values(column)
    ring = line(axes, "frontier")
    assert ring.get_xydata() == pytest.approx(edge[[column, "val_loss"]].to_numpy())
    assert len(texts(axes)) == len(edge) + (table[(table["replicas"] != rq5.APART)][column] == 0).sum()
    drawn = np.concatenate([container.lines[0].get_xydata() for container in axes.containers])
    shown = table[(table["replicas"] != rq5.APART) & (table[column] > 0)]
    assert sorted(drawn.tolist()) == sorted(shown[[column, "val_loss"]].to_numpy().tolist())


def test_points_are_joined_where_one_knob_makes_them_and_controls_are_crosses(figures):
    axes = figures["rq5_frontier"]["frontier"].axes[0]
    by_label = {}
    for container in axes.containers:
        by_label.setdefault(container.get_label(), []).append(container.lines[0])
    assert by_label["topk_sync"][0].get_linestyle() != "None"
    ours, controls = by_label["ig_local"]
    assert ours.get_linestyle() == controls.get_linestyle() == "None"
    assert controls.get_marker() == "x" != ours.get_marker()
    assert len(controls.get_xdata()) == 2 * len(ours.get_xdata())


def test_learning_rates_are_a_line_per_method(figures, studies):
    table = rq5.rates(studies["rq5_lr"]).set_index("method").filter(like="lr=")
    panels = figures["rq5_lr"]["learning_rates"].axes
    for axes, families in zip(panels, rq5.FAMILIES.values(), strict=True):
        drawn = {container.get_label(): container.lines[0].get_ydata() for container in axes.containers}
        assert set(drawn) == set(families) == set(texts(axes))
        for family in families:
            assert drawn[family] == pytest.approx(table.loc[family].to_numpy())
    ticks = [tick.get_text() for tick in panels[-1].get_xticklabels()]
    assert ticks == ["0.001", "0.003", "0.006"]


def test_scale_has_a_panel_per_split_over_the_ranks(figures, studies):
    runs = studies["rq5_scale"].runs
    panels = figures["rq5_scale"]["scale"].axes
    assert [axes.get_title(loc="left") for axes in panels] == ["split: shuffled", "split: by_rank"]
    for axes, split in zip(panels, ("shuffled", "by_rank"), strict=True):
        for container in axes.containers:
            own = runs[(runs["method"] == container.get_label()) & (runs["split"] == split)]
            expected = own.sort_values("num_processes")[["num_processes", "val_loss"]].to_numpy()
            assert container.lines[0].get_xydata() == pytest.approx(expected)


def test_phases_follow_one_another_to_the_step(figures, tables):
    table = tables["rq5"]["rq5_times"].set_index("method")
    [axes] = figures["rq5"]["step_time"].axes
    rows = table.loc[[label.get_text() for label in axes.get_yticklabels()]]
    assert axes.yaxis_inverted() and len(rows) == len(table)
    bars = {container.get_label(): container for container in axes.containers}
    left = 0 * rows["step_ms"]
    for phase in PHASES:
        assert [bar.get_x() for bar in bars[phase]] == pytest.approx(left.tolist())
        left += rows[f"{phase}_ms"]
        assert [bar.get_x() + bar.get_width() for bar in bars[phase]] == pytest.approx(left.tolist())
    assert bars["step"].lines[0].get_xdata() == pytest.approx(rows["step_ms"].to_numpy())


# -------------------------------------------------------------------------------------------- names beside panels


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_names_stand_in_order_apart_and_inside(heights):
    _, [axes] = style.panels(1, 2.0)
    axes.set_ylim(0, 1)
    style.label_beside(axes, [(0.5, y, str(i), "black") for i, y in enumerate(heights)])
    placed = {int(text.get_text()): text.get_position()[1] for text in axes.texts}
    order = sorted(placed, key=placed.get)
    assert [heights[i] for i in order] == sorted(heights)
    gaps = np.diff([placed[i] for i in order])
    height = axes.get_window_extent().height * 72 / axes.figure.dpi  # points
    assert (gaps * height >= style.NAME_SIZE).all()
    assert min(placed.values()) >= -1e-9 and max(placed.values()) <= 1 + 1e-9


def test_names_with_room_stand_where_they_belong():
    _, [axes] = style.panels(1, 2.0)
    axes.set_ylim(0, 1)
    style.label_beside(axes, [(0.5, y, "", "black") for y in (0.1, 0.5, 0.9)])
    assert [text.get_position()[1] for text in axes.texts] == pytest.approx([0.1, 0.5, 0.9])
