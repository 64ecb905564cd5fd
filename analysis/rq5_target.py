"""The target study's figures: what does a method need to get as far as dense in the fewest steps?"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import rq5, style
from analysis.rq5 import Name
from igrad.results import Study, over_seeds
from rq import rq5_target


def figures(study: Study) -> dict[str, Figure]:
    """Final loss by steps and by bytes of the whole run, by file name."""
    each = rq5_target.per_run(study)
    by = ["group", "family", "method", "replicas", "steps"]
    rows = over_seeds(each, by, ["val_loss", "total_bytes"])
    level = each.loc[each["over_target"] == 0, "val_loss"].mean()  # NaN where dense has no run
    return {f"target_by_{name}": target(rows, x, level) for name, x in (("steps", "steps"), ("bytes", "total_bytes"))}


def target(rows: pd.DataFrame, x: str, level: float) -> Figure:
    """One line per method through runs of different length, a panel per group; dotted the loss to get to."""
    look = rq5.looks(rows)
    figure, panels = rq5.by_group(rows)
    names: dict[Axes, list[Name]] = {axes: [] for axes in panels.values()}
    for (family, method), line in rows[rows[x] > 0].groupby(["family", "method"]):
        axes, last = panels[line["group"].iloc[0]], line.iloc[-1]
        style.points(axes, line, x, "val_loss", label=method, **look[str(family)])
        names[axes].append(Name(last[x], last["val_loss"], str(method), look[str(family)]["color"]))
    for axes in panels.values():
        axes.axhline(level, color=style.GREY, linestyle=":", linewidth=0.9, zorder=1)
    bottom = list(panels.values())[-1]
    if x == "steps":
        style.powers_axis(bottom, rows["steps"])
    else:
        bottom.set_xscale("log")
        style.bytes_axis(bottom.xaxis, log=True)
    bottom.set_xlabel(style.label(x))
    figure.suptitle(rq5.title(rows, f"dotted: dense, {rows['steps'].min()} steps"), fontsize=7)
    rq5.write(figure, names)
    return figure
