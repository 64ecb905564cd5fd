"""RQ4's figures: how even does each packing make the buckets, and where does the time of a step go?"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from igrad.results import Study
from rq import rq4


def figures(study: Study) -> dict[str, Figure]:
    """Every figure that the runs allow, by file name."""
    drawn = {"balance": balance(rq4.table(study))}
    if (study.runs["packing"] == "greedy").any():
        drawn["phases"] = phases(rq4.phases(study))
    return drawn


def balance(table: pd.DataFrame) -> Figure:
    """Largest bucket over the mean and overflows per step, one row per packing, one mark per sparsifier."""
    names = sorted_packings(table)
    figure, panels = style.panels(2, 0.45 + 0.2 * len(names), sharex=False)
    sparsifiers = list(table["sparsifier"].unique())
    colors, markers = style.colors(sparsifiers), style.markers(sparsifiers)
    for axes, column in zip(panels, ("bucket_imbalance", "num_overflows"), strict=True):
        for i, (sparsifier, rows) in enumerate(table.groupby("sparsifier", sort=False)):
            height = rows["packing"].map(names.index) + 0.4 * (i - (len(sparsifiers) - 1) / 2)
            sd = rows[f"{column}_sd"].fillna(0)
            bars: dict[str, Any] = {"xerr": sd if sd.any() else None, "capsize": 2, "elinewidth": 0.8}
            look = {"color": colors[sparsifier], "marker": markers[sparsifier], "linestyle": "none"}
            axes.errorbar(rows[column], height, label=sparsifier, **bars, **look)
        style.rows_axis(axes, names, "packing")
        axes.margins(x=0.08)
        axes.set_xlabel(style.label(column))
    panels[0].axvline(1, color=style.GREY, linestyle=":", zorder=1)
    handles = [style.handle(s, color=colors[s], marker=markers[s], linestyle="none") for s in sparsifiers]
    handles.append(style.handle("even", color=style.GREY, linestyle=":"))
    style.legend(figure, style.rows_of(handles, 4), f"sparsifier; {style.seeds(table)}")
    return figure


def phases(table: pd.DataFrame) -> Figure:
    """A step's phases one after the other, one panel per sparsifier, in step times of greedy; a tick at the whole."""
    names, sparsifiers = sorted_packings(table), list(table["sparsifier"].unique())
    figure, panels = style.panels(len(sparsifiers), 0.45 + 0.2 * len(names))
    for axes, sparsifier in zip(panels, sparsifiers, strict=True):
        rows = table[table["sparsifier"] == sparsifier]
        height = rows["packing"].map(names.index)
        left = pd.Series(0.0, rows.index)
        for phase, color in style.PHASE_COLORS.items():
            width = rows[f"{phase}_share"]
            axes.barh(height, width, 0.7, left, color=color, edgecolor="white", linewidth=0.4, label=phase)
            left += width
        sd = rows["step_share_sd"].fillna(0)
        tick: dict[str, Any] = {"color": "black", "marker": "|", "markersize": 10, "linestyle": "none"}
        bars: dict[str, Any] = {"xerr": sd if sd.any() else None, "capsize": 2, "elinewidth": 0.8}
        axes.errorbar(rows["step_share"], height, label="step", **bars, **tick)
        axes.axvline(1, color=style.GREY, linestyle=":", zorder=0)
        style.rows_axis(axes, names, "packing")
        axes.set_title(f"sparsifier: {sparsifier}", loc="left")
    panels[-1].set_xlabel(style.label("step_share"))
    handles = [style.handle(p, color=color, marker="s", linestyle="none") for p, color in style.PHASE_COLORS.items()]
    handles.append(style.handle("whole step", color="black", marker="|", markersize=8, linestyle="none"))
    style.legend(figure, style.rows_of(handles, 3), f"phase; {style.seeds(table)}; indicative: runs apart")
    return figure


def sorted_packings(table: pd.DataFrame) -> list[str]:
    """In the table's order, whichever sparsifier has them."""
    return list(table.sort_values("packing", key=rq4.positions)["packing"].unique())
