"""What benchmarks/*.py measured, as tables and figures: one function per file of outputs/benchmarks/."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import simulated, style

Document = dict[str, Any]  # a file's content
PREDICTED: dict[str, Any] = {"color": "black", "marker": "|", "markersize": 8, "linestyle": "none"}


class Drawn(NamedTuple):
    """What a function makes of its file."""

    table: pd.DataFrame
    figures: dict[str, Figure]  # by name; the first is named as the benchmark


def load(folder: Path) -> dict[str, Document]:
    """The files that there are, by benchmark. ValueError, naming it, where one is damaged."""
    found = {}
    for name in known():
        path = folder / f"{name}.json"
        try:
            found |= {name: json.loads(path.read_text())} if path.exists() else {}
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is damaged ({error}); repeat it with: {command(name)}") from error
    return found


def known() -> list[str]:
    return [function.__name__ for function in BENCHMARKS]


def command(name: str) -> str:
    [program] = [program for function, program in BENCHMARKS.items() if function.__name__ == name]
    return f"python -m {program}"


def draw(found: dict[str, Document]) -> dict[str, Drawn]:
    """Table and figures of each, by benchmark."""
    drawers = {function.__name__: function for function in BENCHMARKS}
    return {name: drawers[name](document) for name, document in found.items()}


# ------------------------------------------------------------------------------------------------------- wire


def wire(document: Document) -> Drawn:
    """What codecs and delays leave of the bytes, beside what arithmetic predicts; on a log scale, ratios."""
    rows = pd.DataFrame(document["rows"])
    table = rows[["ratio_to", "name", "measured_bytes", "said_bytes", "predicted", "measured", "claim", "ok"]]
    groups = list(rows.groupby("ratio_to", sort=False))
    ratios = [len(mine) for _, mine in groups]
    figure, panels = style.panels(len(groups), 0.4 + 0.13 * max(ratios), sharex=False, ratios=ratios)
    for axes, (to, mine) in zip(panels, groups, strict=True):
        mine = mine.sort_values("measured", ascending=False)
        bars(axes, list(mine["name"]), mine["measured"], mine["predicted"])
        axes.set_xlabel(f"bytes / those of {to}")
    legend(figure, "as the interface counts", "bytes per rank and step")
    return Drawn(table, {"wire": figure})


# ----------------------------------------------------------------------------------------------------- growth


def growth(document: Document) -> Drawn:
    """What a rank sends against N when no two ranks select alike, over N = 2's, beside the law of each collective."""
    table = pd.DataFrame(document["rows"])
    names = list(dict.fromkeys(table["collective"]))
    colors, markers = style.colors(names), style.markers(names)
    figure, [axes] = style.panels(1, 2.2)
    for i, (name, rows) in enumerate(table.groupby("collective", sort=False)):
        look: dict[str, Any] = {"color": colors[name], "marker": markers[name], "linestyle": "none"}
        axes.plot(rows["num_ranks"] * style.dodge(i, len(names)), rows["measured_growth"], label=name, **look)
        axes.plot(rows["num_ranks"], rows["predicted_growth"], ":", color=colors[name], zorder=1)
    style.powers_axis(axes, table["num_ranks"])
    axes.set_xlabel(style.label("num_ranks"))
    axes.set_ylabel(f"bytes per rank / those at N = {table['num_ranks'].min()}")
    handles = [style.handle(name, color=colors[name], marker=markers[name], linestyle="none") for name in names]
    handles.append(style.handle("law", color=style.GREY, linestyle=":"))
    style.legend(figure, style.rows_of(handles, 3), "collective; ranks select apart")
    return Drawn(table, {"growth": figure})


# -------------------------------------------------------------------------------------------------- selection


def selection(document: Document) -> Drawn:
    """Time of each sparsifier over the fastest plain way to the same guarantee; dotted what is claimed at most."""
    table = pd.DataFrame(document["rows"])
    names, kinds = (list(dict.fromkeys(table[column])) for column in ("sparsifier", "gradients"))
    colors, markers = style.colors(kinds), style.markers(kinds)
    figure, [axes] = style.panels(1, 0.5 + 0.3 * len(names))
    for i, (kind, rows) in enumerate(table.groupby("gradients", sort=False)):
        height = rows["sparsifier"].map(names.index) + 0.3 * (i - (len(kinds) - 1) / 2)
        axes.plot(rows["ratio"], height, label=kind, color=colors[kind], marker=markers[kind], linestyle="none")
    axes.axvline(document["at_most"], color=style.GREY, linestyle=":", zorder=1)
    style.rows_axis(axes, names, "sparsifier")
    axes.set_xlim(left=0)
    axes.set_xlabel("processor time / that of the fastest other way")
    handles = [style.handle(kind, color=colors[kind], marker=markers[kind], linestyle="none") for kind in kinds]
    handles.append(style.handle("claimed at most", color=style.GREY, linestyle=":"))
    style.legend(figure, style.rows_of(handles, 3), "gradients")
    return Drawn(table, {"selection": figure})


# ---------------------------------------------------------------------------------- slow and simulated networks


def slow_network(document: Document) -> Drawn:
    """What a step is made of at each bandwidth, and how well it was foreseen."""
    rows = document["rows"]
    talks = [row for row in rows if row["wire_bytes"]]  # of others nothing is to be foreseen
    names = ["num_ranks", "bandwidth_mbit", "method", "noop_ms", "measured_ms", "noop_alone_ms", "foretold_ms",
             "predicted_ms", "limit_ms", "over_limit", "select_ms", "exchange_ms", "overhead_ms", "wire_bytes",
             "interface_bytes", "to_target_steps", "to_target_s"]  # fmt: skip
    figures = {"slow_network": simulated.slow_network(rows),
               "slow_network_predicted": simulated.predicted_against_measured(talks)}  # fmt: skip
    return Drawn(pd.DataFrame(rows)[names], figures)


def simulate(document: Document) -> Drawn:
    """Who wins by ranks and bandwidth."""
    table = pd.DataFrame(document["rows"]).drop(columns=["competes"])
    return Drawn(table, {"simulate": simulated.win_map(document)})


# --------------------------------------------------------------------------------------------------- together


def bars(axes: Axes, names: list[str], measured: pd.Series, predicted: pd.Series) -> None:
    """One row per name: a bar to what was measured, a tick at what was predicted."""
    rows = range(len(names))
    axes.barh(rows, measured, 0.7, color=style.PALETTE[4], label="measured")
    axes.plot(predicted, rows, label="predicted", **PREDICTED)
    axes.axvline(1, color=style.GREY, linestyle=":", zorder=0)
    style.rows_axis(axes, names)


def legend(figure: Figure, measured: str, title: str) -> None:
    """Of `bars`."""
    handles = [style.handle(f"measured, {measured}", color=style.PALETTE[4], marker="s", linestyle="none")]
    style.legend(figure, [[*handles, style.handle("predicted", **PREDICTED)]], title)


BENCHMARKS: dict[Callable[[Document], Drawn], str] = {
    wire: "benchmarks.wire",
    growth: "benchmarks.growth",
    selection: "benchmarks.selection",
    slow_network: "benchmarks.slow_network",
    simulate: "igrad.simulate outputs/slow_network",  # the traces that slow_network leaves
}
