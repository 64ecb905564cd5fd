"""RQ5's figures: what does each method reach, by steps, by bytes and by time, and which send least for their loss?"""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis import style
from igrad.results import Study, over_seeds
from rq import rq5

# A hue per group; shades, markers and lines within it.
SHADES = {
    "baselines": ("#000000", "#8C8C8C", "#5A3E85", "#A88BD0", "#595959", "#B0B0B0"),
    "sparse": ("#0072B2", "#56B4E9", "#12355B"),
    "delayed": ("#D55E00", "#E69F00", "#7A2E00"),
    "local": ("#009E73", "#7CB342", "#00574B", "#5AC8AF", "#556B00"),
}
LINES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (4, 2)))
RING: dict[str, Any] = {"color": "black", "marker": "o", "markersize": 8, "markerfacecolor": "none"}
LOW, HIGH = 1.35, 2.4  # inches, of a panel


class Name(NamedTuple):
    """What is written beside a panel, and the point that it belongs to; at the right edge where `x` is None."""

    x: float | None
    y: float
    text: str
    color: str


def figures(study: Study) -> dict[str, Figure]:
    """Every figure that the runs allow, by file name: curves where a method is one line, else what its knobs change."""
    best = rq5.at_best_rates(study)
    each = rq5.per_run(best)
    drawn = {"learning_rates": learning_rates(study)} if best is not study else {}
    if rq5.setting(study):
        return drawn | {"scale": scale(best)}
    drawn["frontier"] = frontier(each)
    if not rq5.varying(best):
        curves = evaluations(best)
        for name, x in (("steps", "step"), ("bytes", "total_wire_bytes"), ("seconds", "seconds")):
            drawn[f"loss_by_{name}"] = loss(curves, x)
        drawn["step_time"] = step_time(each)
    return drawn


def looks(rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each family; hollow where the ranks' models differ while training."""
    look: dict[str, dict[str, Any]] = {}
    for first, (group, known) in enumerate(rq5.FAMILIES.items()):
        shades, members = SHADES[group], rows[rows["group"] == group]
        others = sorted(set(members["family"]) - set(known))
        for family, mine in members.groupby("family"):
            i = [*known, *others].index(family)
            color = shades[i % len(shades)]
            fill = "white" if mine["replicas"].iloc[0].startswith(rq5.APART) else color
            marker = style.MARKERS[(i + first) % len(style.MARKERS)]
            look[str(family)] = {"color": color, "marker": marker, "markerfacecolor": fill, "markersize": 3.5}
            look[str(family)]["linestyle"] = LINES[i % len(LINES)]
    return look


def title(rows: pd.DataFrame, *more: str) -> str:
    """How to read a figure; what is peculiar to it in a second line."""
    hollow = ["hollow: replicas differ"] if rows["replicas"].str.startswith(rq5.APART).any() else []
    return "\n".join(filter(None, ("; ".join([style.seeds(rows), *hollow]), "; ".join(more))))


def by_group(rows: pd.DataFrame) -> tuple[Figure, dict[str, Axes]]:
    """A panel for each group that there is, on equal scales that leave out the loss of the untrained model."""
    groups = [group for group in rq5.FAMILIES if (rows["group"] == group).any()]
    figure, panels = style.panels(len(groups), LOW)
    low, high = rows["val_loss"].min(), rows["val_loss"].max()
    for axes, group in zip(panels, groups, strict=True):
        axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        axes.set_title(group, loc="left")
        axes.set_ylabel(style.axis_label("val_loss"))
    return figure, dict(zip(groups, panels, strict=True))


def write(figure: Figure, names: dict[Axes, list[Name]]) -> None:
    """Names beside the panels, when all else is drawn."""
    figure.draw_without_rendering()
    for axes, mine in names.items():
        right = axes.get_xlim()[1]
        ends = [(right if name.x is None else name.x, name.y, name.text, name.color) for name in mine]
        style.label_beside(axes, ends)


# -------------------------------------------------------------------------------------------------- curves


def evaluations(study: Study) -> pd.DataFrame:
    """Evaluations along training, mean and sd over seeds by family and step; `flush` tells the one after the flush."""
    columns = ["run", "seed", "step", "steps", "val_loss", "total_wire_bytes", "seconds"]
    rows = study.curves.loc[study.curves["val_loss"].notna(), columns]
    rows = rq5.named(study)[["run", "group", "family", "method", "replicas"]].merge(rows, on="run")
    rows["flush"] = rows["step"] > rows["steps"]
    by = ["group", "family", "method", "replicas", "flush", "step"]
    return over_seeds(rows, by, ["val_loss", "total_wire_bytes", "seconds"])


def loss(curves: pd.DataFrame, x: str) -> Figure:
    """Validation loss along training, a panel per group; the flush is the dotted end of a line.

    Over bytes, the level of who sends nothing at all is dotted.
    """
    look, by_bytes = looks(curves), x == "total_wire_bytes"
    trained = curves[curves["step"] > 0]
    figure, panels = by_group(trained)
    names: dict[Axes, list[Name]] = {axes: [] for axes in panels.values()}
    for family, line in trained.groupby("family"):
        axes, color = panels[line["group"].iloc[0]], look[family]["color"]
        sent = line[line[x] > 0] if by_bytes else line
        style.band(axes, sent[~sent["flush"]], x, "val_loss", label=family, **look[family])
        if line["flush"].any():
            dotted = {**look[family], "linestyle": ":", "linewidth": 0.9, "markerfacecolor": color}
            axes.plot(sent[x].iloc[-2:], sent["val_loss"].iloc[-2:], markevery=[-1], **dotted)
        if sent.empty:
            axes.axhline(line["val_loss"].iloc[-1], color=color, linestyle=":", linewidth=0.9, label=family)
        last = sent[x].iloc[-1] if len(sent) else None
        names[axes].append(Name(last, line["val_loss"].iloc[-1], line["method"].iloc[0], color))
    bottom = list(panels.values())[-1]
    bottom.set_xlabel(style.label(x))
    if by_bytes:
        bottom.set_xscale("log")
        style.bytes_axis(bottom.xaxis, log=True)
    told = ["dotted: flush, or nothing sent", "indicative: runs apart"][: 1 + (x == "seconds")]
    figure.suptitle(title(curves, *told), fontsize=7)
    write(figure, names)
    return figure


def learning_rates(study: Study) -> Figure:
    """Final loss against the peak learning rate, a panel per group."""
    runs = rq5.named(study, ignore=("peak_rate",))
    rows = over_seeds(runs, ["group", "family", "method", "replicas", "peak_rate"], ["val_loss"])
    look = looks(rows)
    figure, panels = by_group(rows)
    names: dict[Axes, list[Name]] = {axes: [] for axes in panels.values()}
    for (family, method), line in rows.groupby(["family", "method"]):
        axes, last = panels[line["group"].iloc[0]], line.iloc[-1]
        style.points(axes, line, "peak_rate", "val_loss", label=method, **look[str(family)])
        names[axes].append(Name(last["peak_rate"], last["val_loss"], str(method), look[str(family)]["color"]))
    bottom = list(panels.values())[-1]
    bottom.set_xscale("log")
    bottom.xaxis.set_major_locator(FixedLocator(sorted(rows["peak_rate"].unique())))
    bottom.xaxis.set_minor_locator(NullLocator())
    bottom.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    bottom.set_xlabel(style.label("peak_rate"))
    figure.suptitle(title(rows), fontsize=7)
    write(figure, names)
    return figure


# ---------------------------------------------------------------------------------------------------- time


def step_time(each: pd.DataFrame) -> Figure:
    """A step's phases one after the other in milliseconds, one row per method; a tick at the whole."""
    table = rq5.by_method(each, rq5.TIMES)
    figure, [axes] = style.panels(1, 0.4 + 0.16 * len(table))
    left = pd.Series(0.0, table.index)
    for phase, color in style.PHASE_COLORS.items():
        width = table[f"{phase}_ms"]
        axes.barh(table.index, width, 0.7, left, color=color, edgecolor="white", linewidth=0.4, label=phase)
        left += width
    sd = table["step_ms_sd"].fillna(0)
    tick: dict[str, Any] = {"color": "black", "marker": "|", "markersize": 8, "linestyle": "none"}
    bars: dict[str, Any] = {"xerr": sd if sd.any() else None, "capsize": 2, "elinewidth": 0.8}
    axes.errorbar(table["step_ms"], table.index, label="step", **bars, **tick)
    style.rows_axis(axes, list(table["method"]), "method")
    axes.set_xlabel(style.label("step_ms"))
    handles = [style.handle(p, color=color, marker="s", linestyle="none") for p, color in style.PHASE_COLORS.items()]
    handles.append(style.handle("whole step", color="black", marker="|", markersize=8, linestyle="none"))
    style.legend(figure, style.rows_of(handles, 3), f"{style.seeds(table)}; indicative: runs apart")
    return figure


# --------------------------------------------------------------------------------------- what bytes can buy


def frontier(each: pd.DataFrame) -> Figure:
    """Final loss against bytes, per step and of the whole run; who is not dominated is ringed, joined and named.

    What differs in one knob is joined, random and inverse important sets are crosses, who sends nothing is a level.
    """
    table = rq5.on_frontier(rq5.by_method(each, ("val_loss", *rq5.BYTES)))
    told = each[["method", "family", "group", "control"]].drop_duplicates("method")
    table = table[table["replicas"] != rq5.APART].merge(told, on="method")
    table["name"] = [short(row) for row in table.itertuples()]
    look = looks(table)
    figure, panels = style.panels(2, HIGH, sharex=False)
    names: dict[Axes, list[Name]] = {}
    shown = (("wire_bytes", "best_per_step"), ("total_bytes", "best_per_run"))
    for axes, (column, best) in zip(panels, shown, strict=True):
        sent = table[table[column] > 0].sort_values(column)
        for (family, control), points in sent.groupby(["family", "control"]):
            mine = {**look[str(family)], "linewidth": 0.6} | ({"marker": "x"} if control else {})
            joined = len(points) > 1 and not points["name"].str.contains(", ").any()
            style.points(
                axes, points, column, "val_loss", label=family, **(mine if joined else mine | {"linestyle": ""})
            )
        edge, quiet = sent[sent[best]], table[table[column] == 0]
        axes.plot(
            edge[column], edge["val_loss"], drawstyle="steps-post", linewidth=0.7, zorder=1, label="frontier", **RING
        )
        for row in quiet.itertuples():
            axes.axhline(row.val_loss, color=look[row.family]["color"], linestyle=":", linewidth=0.9, label=row.family)
        axes.set_xscale("log")
        style.bytes_axis(axes.xaxis, log=True)
        axes.set_xlabel(style.label(column))
        axes.set_ylabel(style.label("val_loss"))
        at = [*edge[column], *(None for _ in quiet.index)]
        rows = pd.concat([edge, quiet]).itertuples()
        names[axes] = [
            Name(x, row.val_loss, row.name, look[row.family]["color"]) for x, row in zip(at, rows, strict=True)
        ]
    handles = [style.handle(family, **look[family]) for family in dict.fromkeys(table["family"])]
    handles.append(style.handle("on the frontier", linestyle="", **RING))
    if table["control"].any():
        handles.append(style.handle("control set", color=style.GREY, marker="x", linestyle=""))
    style.legend(figure, style.rows_of(handles, 3), title(table))
    write(figure, names)
    return figure


def short(row: Any) -> str:
    """What tells a method from others of its family: the colour tells the family."""
    return row.method.removeprefix(row.family).strip(" ()") or row.family


def scale(study: Study) -> Figure:
    """Final loss against the number of ranks, a panel per split."""
    by = ["group", "family", "method", "replicas", "num_processes", "split"]
    rows = over_seeds(rq5.named(study), by, ["val_loss"])
    look, splits = looks(rows), sorted(rows["split"].unique(), reverse=True)
    figure, panels = style.panels(len(splits), HIGH)
    names: dict[Axes, list[Name]] = {axes: [] for axes in panels}
    for axes, split in zip(panels, splits, strict=True):
        for (family, method), line in rows[rows["split"] == split].groupby(["family", "method"]):
            style.points(axes, line, "num_processes", "val_loss", label=method, **look[str(family)])
            last = line.iloc[-1]
            names[axes].append(Name(last["num_processes"], last["val_loss"], str(method), look[str(family)]["color"]))
        axes.set_ylabel(style.label("val_loss"))
        axes.set_title(f"split: {split}", loc="left")
    style.powers_axis(panels[-1], rows["num_processes"])
    panels[-1].set_xlabel(style.label("num_processes"))
    figure.suptitle(title(rows), fontsize=7)
    write(figure, names)
    return figure
