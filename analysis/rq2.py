"""RQ2's figures: what does each way to choose the important set cost and save, and does it beat its controls?"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import style
from igrad.results import Study
from rq import rq2


def figures(study: Study) -> dict[str, Figure]:
    """Every figure that the runs allow, by file name."""
    drawn = {"tradeoff": tradeoff(rq2.table(rq2.same_seeds(study)))}
    each = rq2.pairs(study)
    if len(each):
        drawn["paired"] = paired(each, rq2.paired(study))
    return drawn


def looks(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Policies are hollow, so that one behind another shows; controls are crosses, in black and grey."""
    policies = list(table.loc[~table["control"], "policy"])
    controls = list(table.loc[table["control"], "policy"])
    shapes = style.MARKERS[:5]  # and six colours: thirty policies before two share both
    look: dict[str, dict[str, Any]] = {}
    for i, name in enumerate(policies):
        marker = shapes[i % len(shapes)]
        look[name] = {"color": style.PALETTE[i % 6], "marker": marker, "markerfacecolor": "none", "markersize": 5}
    for i, name in enumerate(controls):
        look[name] = {"color": ("black", style.GREY)[i % 2], "marker": ("x", "+", "1", "2")[i % 4], "markersize": 6}
    return look


def tradeoff(table: pd.DataFrame) -> Figure:
    """Loss against bytes per step, one point per policy over the seeds that all have; lower left is better."""
    figure, [axes] = style.panels(1, 2.4)
    look = looks(table)
    for row in table.to_dict("records"):
        spread = {key: row[f"{column}_sd"] for key, column in (("xerr", "wire_bytes"), ("yerr", "val_loss"))}
        known = {key: sd for key, sd in spread.items() if sd > 0}
        each = {**look[row["policy"]], "linestyle": "none", "elinewidth": 0.7, "capsize": 1.5}
        axes.errorbar([row["wire_bytes"]], [row["val_loss"]], label=row["policy"], **known, **each)
    style.bytes_axis(axes.xaxis)
    axes.set_xlabel(style.label("wire_bytes"))
    axes.set_ylabel(style.label("val_loss"))
    handles = {name: style.handle(name, linestyle="none", **each) for name, each in look.items()}
    policies = [handles[name] for name in table.loc[~table["control"], "policy"]]
    controls = [handles[name] for name in table.loc[table["control"], "policy"]]
    rows = [*style.rows_of(policies, 4), *style.rows_of(controls, 4)]
    style.legend(figure, rows, f"policy, then controls; {style.seeds(table)}")
    return figure


def paired(each: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Loss of the policy minus loss of its control, one point per seed; left of the line importance wins."""
    figure, [axes] = style.panels(1, 0.5 + 0.45 * len(table))
    seeds = sorted(each["seed"].unique())
    shades, shapes = style.shades(seeds), style.markers(seeds)
    names = [f"{row.policy} −\n{row.control}" for row in table.itertuples()]
    axes.axvline(0, color=style.GREY, linewidth=0.8)
    for y, row in enumerate(table.itertuples()):
        mine = each[(each["policy"] == row.policy) & (each["control"] == row.control)]
        for one in mine.itertuples():
            height = y + 0.4 * ((seeds.index(one.seed) + 1) / (len(seeds) + 1) - 0.5)
            axes.plot([one.difference], [height], shapes[one.seed], color=shades[one.seed], label=str(one.seed))
        sd = row.difference_sd if row.difference_sd > 0 else None
        mean = {"marker": "|", "markersize": 10, "color": "black", "capsize": 2, "elinewidth": 0.8}
        axes.errorbar([row.difference], [y + 0.33], xerr=sd, label="mean ± sd", **mean)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel(style.label("difference"))
    axes.set_ylabel("policy − control")
    handles = [style.handle(str(seed), color=shades[seed], marker=shapes[seed], linestyle="none") for seed in seeds]
    handles.append(style.handle("mean ± sd", color="black", marker="|", markersize=8))
    style.legend(figure, style.rows_of(handles, 6), "seed")
    return figure
