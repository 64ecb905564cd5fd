"""Figures of simulated and of slow networks: who wins where, was it foreseen, and what is a step made of?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from analysis import style
from igrad.simulate import in_words

Rows = Sequence[Mapping[str, Any]]
WITHIN = 0.2  # relative: what a prediction is held to
MOST_NAMES = 14  # beside a panel
PARTS = {"noop_ms": "step of noop", "select_ms": "selection", "bytes_ms": "wire bytes / bandwidth"}
PART_COLORS = dict(zip(PARTS, ("#BBBBBB", style.PALETTE[5], style.PALETTE[4]), strict=True))
MEASURED: dict[str, Any] = {
    "color": "black",
    "marker": "|",
    "markersize": 6,
    "markeredgewidth": 1.3,
    "linestyle": "none",
}


# ------------------------------------------------------------------------------------------------ who wins


def win_map(document: Mapping[str, Any]) -> Figure:
    """The fastest method by ranks and bandwidth, of what igrad.simulate wrote; in each field its factor over dense."""
    fields = pd.DataFrame(document["fastest"])
    table, factors = (
        fields.pivot(index="bandwidth_mbit", columns="num_ranks", values=value)
        for value in ("method", "factor_over_dense")
    )
    names = list(dict.fromkeys(name for name in table.to_numpy().ravel() if isinstance(name, str)))
    keys, colors = keyed(names), {name: pale(color) for name, color in style.colors(names).items()}
    figure, [axes] = style.panels(1, 0.4 + 0.3 * len(table))
    shown = [[to_rgb(colors[name]) if isinstance(name, str) else (1, 1, 1) for name in row] for row in table.to_numpy()]
    x, y = np.array(table.columns, float), np.array(table.index, float)
    axes.pcolormesh(edges(x), edges(y), np.array(shown), edgecolors="white", linewidth=0.8)
    for (i, j), name in np.ndenumerate(table.to_numpy(object)):
        if isinstance(name, str):
            factor = factors.iloc[i, j]
            axes.text(x[j], y[i], f"{keys[name]} {times(factor)}", ha="center", va="center", fontsize=style.NAME_SIZE)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(False)
    named_axis(axes.xaxis, x, "{:g}".format)
    named_axis(axes.yaxis, y, in_words)
    axes.set_xlabel(style.label("num_ranks"))
    axes.set_ylabel("bandwidth")
    handles = [
        style.handle(f"{keys[name]} {name}", color=colors[name], marker="s", markersize=6, linestyle="none")
        for name in names
    ]
    style.legend(figure, style.rows_of(handles, 3), f"least {document['by']}, × over dense")
    return figure


def times(factor: float | None) -> str:
    """`1.3×`, `17×`; nothing where it is not known."""
    if factor is None or factor != factor:
        return ""
    return f"{factor:.1f}×" if factor < 10 else f"{factor:.0f}×"


def keyed(names: Iterable[str]) -> dict[str, str]:
    """A letter per name, for fields too small for it."""
    return {name: chr(ord("a") + i) for i, name in enumerate(names)}


def pale(color: str) -> tuple[float, ...]:
    """So light that black can be read on it."""
    return tuple(0.45 * part + 0.55 for part in to_rgb(color))


def edges(values: np.ndarray) -> np.ndarray:
    """Of fields around rising values on a log axis: [n] to [n + 1]."""
    logs = np.log(values)
    middle = (logs[1:] + logs[:-1]) / 2
    first, last = (logs[1] - logs[0], logs[-1] - logs[-2]) if len(logs) > 1 else (1.0, 1.0)
    return np.exp(np.concatenate([[logs[0] - first / 2], middle, [logs[-1] + last / 2]]))


def named_axis(axis: Any, values: np.ndarray, words: Any) -> None:
    """A log axis that names exactly these values."""
    axis.set_major_locator(FixedLocator(values))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))


# ------------------------------------------------------------------------------------------------ foreseen


def predicted_against_measured(rows: Rows) -> Figure:
    """A point per method, ranks and bandwidth in a band of ± 20 %; what lies outside is named, farthest first."""
    table = told(rows)
    bandwidths, ranks = list(dict.fromkeys(table["bandwidth"])), sorted(table["num_ranks"].unique())
    colors, markers = style.colors(bandwidths), style.markers(ranks)
    figure, [axes] = style.panels(1, 2.6)
    both = table[["measured_ms", "predicted_ms"]]
    ends = np.array([both.min().min() / 1.3, both.max().max() * 1.3])
    axes.plot(ends, ends, color=style.GREY, linewidth=0.8, zorder=1)
    axes.fill_between(ends, (1 - WITHIN) * ends, (1 + WITHIN) * ends, color="#E5E5E5", linewidth=0, zorder=0)
    for (bandwidth, num_ranks), mine in table.groupby(["bandwidth", "num_ranks"], sort=False):
        look = {"color": colors[bandwidth], "marker": markers[num_ranks], "alpha": 0.8, "linestyle": "none"}
        axes.plot(mine["measured_ms"], mine["predicted_ms"], markerfacecolor="none", **look)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("measured step (ms)")
    axes.set_ylabel("predicted step (ms)")
    handles = [style.handle(name, color=colors[name], marker="s", linestyle="none") for name in bandwidths]
    shapes = [
        style.handle(f"N = {n}", color=style.GREY, marker=markers[n], markerfacecolor="none", linestyle="none")
        for n in ranks
    ]
    held = (table["error"].abs() <= WITHIN).sum()
    title = f"{held} of {len(table)} within ± {WITHIN * 100:.0f} % (band)"
    style.legend(figure, [*style.rows_of(handles, 3), *style.rows_of(shapes, 3)], title)
    farthest = table.loc[table["error"].abs().sort_values(ascending=False, kind="stable").index]
    outside = farthest[farthest["error"].abs() > WITHIN].head(MOST_NAMES)
    if len(outside):
        figure.draw_without_rendering()  # limits and layout are final now
        named = [(row.measured_ms, row.predicted_ms, row.method, colors[row.bandwidth]) for row in outside.itertuples()]
        style.label_beside(axes, named)
    return figure


def told(rows: Rows) -> pd.DataFrame:
    """The rows with the bandwidth in words, from slow to unlimited, and the relative error of what was predicted."""
    table = pd.DataFrame(rows).sort_values(["bandwidth_mbit", "num_ranks"], kind="stable", ignore_index=True)
    table["bandwidth"] = table["bandwidth_mbit"].map(lambda mbit: in_words(mbit) if mbit == mbit else "unlimited")
    return table.assign(error=table["predicted_ms"] / table["measured_ms"] - 1)


# --------------------------------------------------------------------------------------- what it is made of


def slow_network(rows: Rows) -> Figure:
    """Per bandwidth (down) and number of ranks (across) a bar per method: what it cannot beat, and what it took."""
    table = told(rows)
    table["bytes_ms"] = table["limit_ms"] - table["noop_ms"]
    methods, bandwidths = list(dict.fromkeys(pd.DataFrame(rows)["method"])), list(dict.fromkeys(table["bandwidth"]))
    ranks = sorted(table["num_ranks"].unique())
    figure, _ = style.panels(1, len(bandwidths) * (0.45 + 0.105 * len(methods)))
    figure.clear()
    grid = figure.subplots(len(bandwidths), len(ranks), sharex="row", sharey=True, squeeze=False)
    for (bandwidth, num_ranks), mine in table.groupby(["bandwidth", "num_ranks"], sort=False):
        axes = grid[bandwidths.index(bandwidth), ranks.index(num_ranks)]
        stack(axes, mine.assign(row=mine["method"].map(methods.index)))
        axes.set_title(f"{bandwidth}, N = {num_ranks}", fontsize=style.NAME_SIZE + 0.5)
    for axes in grid[:, 0]:
        axes.set_xlim(0, axes.get_xlim()[1])  # of the row, now that all is drawn
        style.rows_axis(axes, methods)
        axes.tick_params(axis="y", labelsize=style.NAME_SIZE - 1)
    figure.supxlabel(style.label("step_ms"), fontsize=8)
    handles = [
        style.handle(name, color=PART_COLORS[part], marker="s", linestyle="none") for part, name in PARTS.items()
    ]
    style.legend(figure, style.rows_of([*handles, style.handle("measured", **MEASURED)], 2), "")
    return figure


def stack(axes: Axes, rows: pd.DataFrame) -> None:
    """The parts of a step side by side, and a tick where the measured step ends."""
    start = np.zeros(len(rows))
    for part, color in PART_COLORS.items():
        axes.barh(rows["row"], rows[part], 0.75, start, color=color)
        start = start + rows[part].to_numpy()
    axes.plot(rows["measured_ms"], rows["row"], **MEASURED)
    axes.grid(False, axis="y")
    axes.tick_params(axis="x", labelsize=style.NAME_SIZE - 0.5)
    axes.tick_params(axis="y", length=0)
