"""RQ3's figures show the table: every series, named, readable, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis import rq3 as drawing
from analysis import style
from rq import rq3

RESIDUALS = {"full", "none"}
PERIODS = [1, 2, 4, 8, 16]


@pytest.fixture(scope="module")
def figures(library) -> dict[str, Figure]:
    return library.figures("rq3")


@pytest.fixture(scope="module")
def table(study):
    return rq3.table(study)


def names(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def lines(axes, label: str) -> np.ndarray:
    """[points, 2] of the line drawn under this label."""
    found = [each.lines[0] for each in axes.containers if each.get_label() == label]
    found += [line for line in axes.lines if line.get_label() == label]
    [line] = found
    return line.get_xydata()


def test_there_is_a_figure_for_every_part_of_the_answer(figures):
    assert set(figures) == {"quality", "bytes", "tradeoff", "loss_by_steps", "loss_by_bytes", "staleness"}
    assert all(figure.get_figwidth() == style.WIDTH for figure in figures.values())


def test_every_residual_and_period_is_named(figures):
    for name in ("quality", "bytes", "tradeoff", "staleness"):
        assert set(names(figures[name])) >= RESIDUALS, name
    for name in ("tradeoff", "loss_by_steps", "loss_by_bytes"):
        assert set(names(figures[name])) >= {f"R = {r}" for r in PERIODS}, name
    for name in ("loss_by_steps", "loss_by_bytes"):
        assert {axes.get_title(loc="left") for axes in figures[name].axes} == {f"residual: {r}" for r in RESIDUALS}
    for figure in figures.values():
        assert "mean ± sd over 2 seeds" in figure.legends[0].get_title().get_text()


def test_every_axis_says_what_it_measures(figures):
    for name, figure in figures.items():
        assert all(axes.get_ylabel() for axes in figure.axes) and figure.axes[-1].get_xlabel(), name


@pytest.mark.parametrize(
    ("name", "panel", "column", "scale"),
    [
        ("quality", 0, "val_loss", 1),
        ("quality", 1, "val_accuracy", 100),
        ("staleness", 0, "staleness_steps", 1),
        ("staleness", 1, "max_staleness_steps", 1),
        ("bytes", 0, "wire_bytes", 1),
    ],
)
def test_what_is_drawn_over_r_is_the_table(figures, table, name, panel, column, scale):
    axes = figures[name].axes[panel]
    for residual in RESIDUALS:
        rows = table[table["residual"] == residual]
        x, y = lines(axes, residual).T
        assert y == pytest.approx(rows[column] * scale)
        assert np.log2(x) == pytest.approx(np.log2(rows["release_period"]), abs=0.13)  # side by side
        [bars] = [c for c in axes.containers if c.get_label() == residual]
        sd = rows[f"{column}_sd"].to_numpy() * scale
        if sd.any():
            reach = [segment[1, 1] - segment[0, 1] for segment in bars.lines[2][0].get_segments()]
            assert reach == pytest.approx(2 * sd, abs=1e-9)


def test_bytes_are_drawn_beside_their_ideal_and_the_flush(figures, table):
    axes = figures["bytes"].axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    drawn = [line.get_ydata() for line in axes.lines]
    at_one = table["wire_bytes"].max()
    assert any(len(y) == 5 and np.allclose(y, at_one / np.array(PERIODS)) for y in drawn)
    flush = table.loc[table["residual"] == "full", "flush_wire_bytes"] / 32
    assert any(len(y) == 5 and np.allclose(y, flush) for y in drawn)


def test_the_tradeoff_joins_loss_and_bytes(figures, table):
    for residual in RESIDUALS:
        rows = table[table["residual"] == residual]
        assert lines(figures["tradeoff"].axes[0], residual) == pytest.approx(
            rows[["wire_bytes", "val_loss"]].to_numpy()
        )


@pytest.mark.parametrize(("name", "x"), [("loss_by_steps", "step"), ("loss_by_bytes", "total_wire_bytes")])
def test_a_curve_is_every_evaluation_and_the_flush_is_apart(figures, study, name, x):
    curves = study.curves[study.curves["val_loss"].notna()]
    for axes in figures[name].axes:
        residual = axes.get_title(loc="left").removeprefix("residual: ")
        for period in PERIODS:
            rows = curves[(curves["residual"] == residual) & (curves["release_period"] == period)]
            means = rows.groupby("step")[["step", "total_wire_bytes", "val_loss"]].mean()
            drawn = lines(axes, f"R = {period}")
            assert drawn[:, 1] == pytest.approx(means["val_loss"].to_numpy())
            flush = study.runs.loc[study.runs["residual"] == residual, "flush_wire_bytes"].iloc[0]
            expected = means[x].to_numpy(dtype=float, copy=True)
            if x == "total_wire_bytes":
                expected[-1] -= flush
                dotted = [line.get_xdata() for line in axes.lines if line.get_linestyle() == ":"]
                assert any(np.allclose(ends, [expected[-1], expected[-1] + flush]) for ends in dotted)
            assert drawn[:, 0] == pytest.approx(expected)
        low, high = axes.get_ylim()
        trained = curves[curves["step"] > 0]
        assert low < trained.groupby(["residual", "release_period", "step"])["val_loss"].mean().min() < high


def test_colours_can_be_told_apart():
    assert len(set(style.PALETTE)) == len(style.PALETTE) == len(set(style.MARKERS))
    assert len({tuple(color) for color in style.shades(PERIODS).values()}) == len(PERIODS)


def test_one_seed_has_no_bars_and_says_so(study):
    figure = drawing.figures(study.of(study.runs[study.runs["seed"] == 42]))["quality"]
    assert "1 seed" in figure.legends[0].get_title().get_text()
    assert not any(container.has_yerr for axes in figure.axes for container in axes.containers)
