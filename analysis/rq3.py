"""RQ3's figures: what does a longer release period cost, and what does it save?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import style
from igrad.results import Study, over_seeds
from rq import rq3


def figures(study: Study) -> dict[str, Figure]:
    """Every figure that the runs allow, by file name."""
    table = rq3.table(study)
    drawn = {
        "quality": quality(table),
        "bytes": wire_bytes(table, study.runs["steps"].max()),
        "tradeoff": tradeoff(table),
        "loss_by_steps": curves(study, "step"),
        "loss_by_bytes": curves(study, "total_wire_bytes"),
    }
    if "staleness_steps" in table:
        drawn["staleness"] = staleness(table)
    return drawn


def looks(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Colour and marker of each residual."""
    names = sorted(table["residual"].unique())
    return {name: {"color": style.colors(names)[name], "marker": style.markers(names)[name]} for name in names}


def against_period(table: pd.DataFrame, columns: dict[str, float], extra: tuple[Line2D, ...] = ()) -> Figure:
    """One panel per column (with the factor to draw it by) over R, one line per residual."""
    figure, panels = style.panels(len(columns), 1.5)
    look = looks(table)
    for axes, (column, scale) in zip(panels, columns.items(), strict=True):
        for i, (residual, rows) in enumerate(table.groupby("residual")):
            shift = style.dodge(i, len(look))
            style.points(axes, rows, "release_period", column, shift, scale, label=residual, **look[residual])
        axes.set_ylabel(style.axis_label(column))
    style.powers_axis(panels[-1], table["release_period"])
    panels[-1].set_xlabel(style.label("release_period"))
    handles = [style.handle(name, **each) for name, each in look.items()]
    style.legend(figure, style.rows_of([*handles, *extra], 4), f"residual; {style.seeds(table)}")
    return figure


def quality(table: pd.DataFrame) -> Figure:
    """Final validation loss and accuracy against R."""
    return against_period(table, {"val_loss": 1, "val_accuracy": 100})


def staleness(table: pd.DataFrame) -> Figure:
    """Age of what low-importance components wait to send, against R, with what one release every R steps makes it."""
    reference: dict[str, Any] = {"color": style.GREY, "linestyle": ":"}
    expected = style.handle("(R − 1) / 2 and R − 1", **reference)
    figure = against_period(table, {"staleness_steps": 1, "max_staleness_steps": 1}, (expected,))
    periods = np.array(sorted(table["release_period"].unique()))
    for axes, age in zip(figure.axes, ((periods - 1) / 2, periods - 1), strict=True):
        axes.plot(periods, age, zorder=1, **reference)
    return figure


def wire_bytes(table: pd.DataFrame, steps: int) -> Figure:
    """Bytes per step against R, beside the 1/R that there would be if every byte were a low component's.

    What is left at the end goes in one flush; it is drawn apart, spread over the `steps` of the run.
    """
    figure, [axes] = style.panels(1, 2.4)
    look = looks(table)
    for i, (residual, rows) in enumerate(table.groupby("residual")):
        shift = style.dodge(i, len(look))
        style.points(axes, rows, "release_period", "wire_bytes", shift, label=residual, **look[residual])
        flushed = rows[rows["flush_wire_bytes"] > 0]
        hollow = {**look[residual], "markerfacecolor": "white", "linestyle": "none"}
        axes.plot(flushed["release_period"] * shift, flushed["flush_wire_bytes"] / steps, **hollow)
    first = table.loc[table["release_period"].idxmin()]
    periods = np.array(sorted(table["release_period"].unique()))
    axes.plot(periods, first["wire_bytes"] * first["release_period"] / periods, ":", color=style.GREY, zorder=1)
    residuals = [style.handle(name, **each) for name, each in look.items()]
    references = [style.handle(f"R = {first['release_period']} scaled by 1/R", color=style.GREY, linestyle=":")]
    if (table["flush_wire_bytes"] > 0).any():
        hollow = {"color": style.GREY, "marker": "o", "markerfacecolor": "white", "linestyle": "none"}
        references.append(style.handle("flush ÷ steps", **hollow))
    axes.set_yscale("log")
    style.bytes_axis(axes.yaxis, log=True)
    style.powers_axis(axes, periods)
    axes.set_xlabel(style.label("release_period"))
    axes.set_ylabel(style.label("wire_bytes"))
    style.legend(figure, [*style.rows_of(residuals, 4), references], f"residual; {style.seeds(table)}")
    return figure


def tradeoff(table: pd.DataFrame) -> Figure:
    """Loss against bytes per step: what each R buys; lower left is better."""
    figure, [axes] = style.panels(1, 2.4)
    shape = style.markers(sorted(table["release_period"].unique()))
    colors = style.colors(sorted(table["residual"].unique()))
    for residual, rows in table.groupby("residual"):
        axes.plot(rows["wire_bytes"], rows["val_loss"], color=colors[residual], linewidth=0.8, label=residual)
        for period, point in rows.groupby("release_period"):
            look: dict[str, Any] = {"color": colors[residual], "marker": shape[period], "linestyle": "none"}
            style.points(axes, point, "wire_bytes", "val_loss", **look)
    style.bytes_axis(axes.xaxis)
    axes.set_xlabel(style.label("wire_bytes"))
    axes.set_ylabel(style.label("val_loss"))
    residuals = [style.handle(name, color=color) for name, color in colors.items()]
    periods = [style.handle(f"R = {r}", color=style.GREY, marker=m, linestyle="none") for r, m in shape.items()]
    rows = [*style.rows_of(residuals, 5), *style.rows_of(periods, 5)]
    style.legend(figure, rows, f"residual, release period; {style.seeds(table)}")
    return figure


def curves(study: Study, x: str) -> Figure:
    """Validation loss along training, one panel per residual, one line per R.

    The loss of the untrained model is left above the panel. Over bytes, the flush is the dotted end of a line.
    """
    rows = study.curves[study.curves["val_loss"].notna()].merge(study.runs[["run", "flush_wire_bytes"]], on="run")
    last = rows["step"] == rows.groupby("run")["step"].transform("max")
    rows["flush_wire_bytes"] = rows["flush_wire_bytes"].where(last, 0)
    rows["total_wire_bytes"] -= rows["flush_wire_bytes"]
    rows = over_seeds(
        rows, ["residual", "release_period", "step"], ["val_loss", "total_wire_bytes", "flush_wire_bytes"]
    )
    residuals = sorted(rows["residual"].unique())
    shades = style.shades(sorted(rows["release_period"].unique()))
    figure, panels = style.panels(len(residuals), 1.6)
    for axes, residual in zip(panels, residuals, strict=True):
        for period, line in rows[rows["residual"] == residual].groupby("release_period"):
            style.band(axes, line, x, "val_loss", color=shades[period], label=f"R = {period}")
            if x == "total_wire_bytes":
                end = line.iloc[-1]
                reach = [end[x], end[x] + end["flush_wire_bytes"]]
                axes.plot(reach, [end["val_loss"]] * 2, ":", color=shades[period], linewidth=0.9)
        axes.set_title(f"residual: {residual}", loc="left")
        axes.set_ylabel(style.axis_label("val_loss"))
    trained = rows[rows["step"] > 0]["val_loss"]
    margin = 0.08 * (trained.max() - trained.min())
    for axes in panels:
        axes.set_ylim(trained.min() - margin, trained.max() + margin)
    handles = [style.handle(f"R = {period}", color=color) for period, color in shades.items()]
    if x == "total_wire_bytes":
        style.bytes_axis(panels[-1].xaxis)
        handles.append(style.handle("flush", color=style.GREY, linestyle=":"))
    panels[-1].set_xlabel(style.label(x))
    style.legend(figure, style.rows_of(handles, 5), f"release period; {style.seeds(rows)}")
    return figure
