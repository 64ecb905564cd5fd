"""How a figure looks: one-column width, colours that colour-blind readers can tell apart, units on every axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from rq.times import PHASES

WIDTH = 3.35  # inches, one column

# Okabe and Ito (2008), without the yellow that vanishes on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#777777"
PHASE_COLORS = dict(zip(PHASES, ("#BBBBBB", *PALETTE), strict=False))  # compute, which no method changes, in grey
NAME_SIZE = 6.5  # points, of names within a figure

RC: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "igrad",
}

# What a column is called on an axis, with its unit.
LABELS = {
    "release_period": "release period R (steps)",
    "residual": "residual",
    "num_seeds": "seeds",
    "seed": "seed",
    "step": "optimizer step",
    "val_loss": "validation loss (nats/token)",
    "val_loss_difference": "loss − loss at R = 1 (nats/token)",
    "val_ppl": "perplexity",
    "val_accuracy": "next-token accuracy (%)",
    "wire_bytes": "wire bytes per rank and step",
    "total_wire_bytes": "wire bytes per rank so far",
    "flush_wire_bytes": "wire bytes of the flush",
    "wire_ratio": "bytes / bytes at R = 1",
    "staleness_steps": "staleness (steps)",
    "max_staleness_steps": "largest staleness (steps)",
    "step_ratio": "step time / step time at R = 1",
    "step_ms": "step time (ms)",
    # RQ1
    "jaccard": "Jaccard of the important sets",
    "top_k_overlap": "overlap of the highest third",
    "spearman": "rank correlation (Spearman)",
    "tau_difference": "|Δτ|",
    # RQ2
    "payload_bytes": "payload bytes per rank and step",
    "loss_over_all": "loss − loss of all (nats/token)",
    "time_over_all": "step time / step time of all",
    "difference": "loss of policy − loss of control (nats/token)",
    # RQ4
    "bucket_imbalance": "largest bucket / mean bucket",
    "num_overflows": "buckets over 10 % above the mean, per step",
    "step_share": "time / step time of greedy",
    # RQ5
    "seconds": "training time (s)",
    "tokens_per_s": "tokens/s",
    "total_bytes": "wire bytes per rank, flush included",
    "peak_rate": "peak learning rate",
    "num_processes": "ranks N",
    "steps": "steps of the run",
    # benchmarks
    "num_ranks": "ranks N",
}

# The same, short enough for the head of a table; bytes get their unit from the values.
HEADINGS = {
    "release_period": "R",
    "val_loss": "val. loss",
    "val_loss_difference": "Δ loss",
    "val_accuracy": "acc. (%)",
    "wire_bytes": "wire/step",
    "flush_wire_bytes": "flush",
    "wire_ratio": "bytes / R=1",
    "staleness_steps": "stale (steps)",
    "max_staleness_steps": "max",
    "step_ratio": "time / R=1",
    # RQ1
    "num_pairs": "pairs",
    "jaccard": "Jaccard",
    "top_k_overlap": "top third",
    "spearman": "Spearman",
    # RQ2
    "num_important": "important",
    "num_low": "low",
    "tau": "τ",
    "loss_over_all": "Δ loss",
    "payload_bytes": "payload/step",
    "time_over_all": "time / all",
    "difference": "Δ loss",
    "difference_in_sd": "Δ / sd",
    "wire_bytes_ratio": "bytes ratio",
    # RQ4
    "bucket_imbalance": "max / mean",
    "bucket_cv": "CV",
    "num_overflows": "overflows",
    "equal_loss": "same loss",
    "exchange_over_greedy": "exchange / greedy",
    "step_over_greedy": "step / greedy",
    # RQ5
    "num_processes": "N",
    "peak_rate": "lr",
    "best_val_loss": "best",
    "loss_over_adtopk": "Δ adtopk_sync",
    "loss_over_dense": "Δ dense",
    "total_bytes": "run + flush",
    "saved_over_adtopk": "saved/adtopk_sync (%)",
    "saved_over_dense": "saved/dense (%)",
    "best_per_step": "frontier/step",
    "best_per_run": "frontier/run",
    "reached": "reached (%)",
    "to_dense_steps": "steps",
    "to_dense_bytes": "wire",
    "to_dense_s": "time (s)",
    "to_target_steps": "steps",
    "to_target_bytes": "run + flush",
    "to_target_s": "time (s)",
    "over_target": "Δ target",
    # benchmarks
    "measured_bytes": "interface",
    "said_bytes": "said",
    "select_ms": "select (ms)",
    "fastest": "fastest other way",
    "fastest_ms": "takes (ms)",
    "ok": "holds",
}


def label(column: str) -> str:
    """A column's name for readers; one that LABELS lacks is read as written, its unit in brackets."""
    words, _, unit = column.rpartition("_")
    spelt = f"{words} ({unit})" if words and unit in ("ms", "s") else column
    return LABELS.get(column, spelt.replace("_", " "))


def axis_label(column: str) -> str:
    """The same on two lines where it ends in a unit: a low panel has no room for one."""
    return label(column).replace(" (", "\n(")


def panels(
    num: int, height: float, sharex: bool = True, ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A one-column figure with panels (of `height` inches, the highest where they differ) one above the other."""
    matplotlib.rcParams.update(RC)
    total = height * (num if ratios is None else sum(ratios) / max(ratios))
    figure = Figure(figsize=(WIDTH, total + 0.55), layout="constrained")
    axes = figure.subplots(num, 1, sharex=sharex, squeeze=False, height_ratios=ratios)[:, 0]
    return figure, list(axes)


def rows_axis(axes: Axes, names: Sequence[str], label: str = "") -> None:
    """One row per name, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.set_ylabel(label)


def colors(names: Iterable[Any]) -> dict[Any, str]:
    """A colour per category."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def markers(names: Iterable[Any]) -> dict[Any, str]:
    """A marker per category, so that a print in grey can still be read."""
    return {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(names)}


def shades(values: Iterable[Any]) -> dict[Any, Any]:
    """Colours of an ordered quantity, dark to light (viridis without its palest end)."""
    values = list(values)
    cmap = matplotlib.colormaps["viridis"]
    return {value: cmap(0.85 * i / max(1, len(values) - 1)) for i, value in enumerate(values)}


def dodge(position: int, num: int) -> float:
    """Factor on a log2 axis that sets series side by side: what coincides would hide."""
    return 2 ** (0.12 * (position - (num - 1) / 2))


def points(axes: Axes, rows: pd.DataFrame, x: str, y: str, shift: float = 1.0, scale: float = 1.0, **look: Any) -> None:
    """Means joined by a line, sd over seeds as error bars (none where there is one seed)."""
    sd = rows[f"{y}_sd"].fillna(0) * scale
    axes.errorbar(rows[x] * shift, rows[y] * scale, yerr=sd if sd.any() else None, capsize=2, elinewidth=0.8, **look)


def band(axes: Axes, rows: pd.DataFrame, x: str, y: str, **look: Any) -> None:
    """A curve of means in a band of one sd over seeds."""
    axes.plot(rows[x], rows[y], **look)
    if rows[f"{y}_sd"].notna().any():
        low, high = rows[y] - rows[f"{y}_sd"], rows[y] + rows[f"{y}_sd"]
        axes.fill_between(rows[x], low, high, color=look.get("color"), alpha=0.2, linewidth=0)


def heatmap(
    axes: Axes, values: np.ndarray, limits: tuple[float, float], label: str | None, numbered: bool
) -> AxesImage:
    """A matrix in shades of blue, what is not known in grey; its own colour bar where it has a label."""
    cmap = matplotlib.colormaps["Blues"].with_extremes(bad="#DDDDDD")
    image = axes.imshow(values, cmap=cmap, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="none")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    for (y, x), value in np.ndenumerate(values) if numbered else ():
        dark = value > limits[0] + 0.6 * (limits[1] - limits[0])
        axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=5.5, color="white" if dark else "black")
    if label:
        axes.figure.colorbar(image, ax=axes, label=label, pad=0.02)
    return image


def powers_axis(axes: Axes, values: Iterable[int]) -> None:
    """A log2 x axis that names exactly these values."""
    values = sorted(set(values))
    axes.set_xscale("log", base=2)
    axes.set_xlim(values[0] / 1.25, values[-1] * 1.25)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def bytes_axis(axis: Any, log: bool = False) -> None:
    """Ticks such as 50 kB, as many as have room; when all is drawn, since a log axis goes by its limits."""
    low, high = axis.get_view_interval()
    decades = np.log10(high / low) if log else 0
    if high < 1.25 * low:  # digits take room
        ticks: Any = MaxNLocator(3, steps=[1, 2, 5, 10])
    elif decades < 0.7:
        ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3)
    else:
        ticks = LogLocator(subs=(1, 2, 5) if decades < 1.2 else (1, 3) if decades < 1.8 else (1,), numticks=5)
    axis.set_major_locator(ticks)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(EngFormatter(unit="B"))


def label_beside(axes: Axes, ends: list[tuple[float, float, str, Any]]) -> None:
    """Names beside a panel, (x, y, name, colour) each, with a line to where they belong.

    At the heights nearest to their own at which none lies on another. Limits and layout must be final.
    """
    from scipy.optimize import isotonic_regression  # comes with scikit-learn; takes a while

    ends = sorted(ends, key=lambda end: end[1])
    gap = 1.3 * NAME_SIZE * axes.figure.dpi / 72 / axes.get_window_extent().height  # of the panel
    inside = axes.transData + axes.transAxes.inverted()
    own = np.array([inside.transform((x, y))[1] for x, y, *_ in ends])
    steps = gap * np.arange(len(ends))
    free = isotonic_regression(own - steps).x.clip(0, max(0, 1 - steps[-1])) + steps
    for (x, y, name, color), at in zip(ends, free, strict=True):
        axes.text(1.05, at, name, transform=axes.transAxes, fontsize=NAME_SIZE, color=color, va="center")
        line = ConnectionPatch((x, y), (1.04, at), axes.transData, axes.transAxes, color=color, linewidth=0.4)
        line.set_in_layout(False)
        axes.add_artist(line)


def seeds(frame: pd.DataFrame) -> str:
    """`mean ± sd over 3 seeds`."""
    counts = sorted(frame["num_seeds"].unique())
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    return "1 seed" if counts == [1] else f"mean ± sd over {number} seeds"


def legend(figure: Figure, rows: list[list[Line2D]], title: str) -> None:
    """Row by row above the panels, where it can hide no data."""
    columns = max(len(row) for row in rows)
    filled = [row + [handle("", linestyle="none")] * (columns - len(row)) for row in rows]
    by_column = [each for column in zip(*filled, strict=True) for each in column]  # the order matplotlib fills in
    figure.legend(handles=by_column, title=title, loc="outside upper center", ncols=columns)


def rows_of(handles: list[Line2D], columns: int) -> list[list[Line2D]]:
    """A legend's entries in rows."""
    return [handles[i : i + columns] for i in range(0, len(handles), columns)]


def handle(name: str, **look: Any) -> Line2D:
    """A legend entry."""
    return Line2D([], [], label=name, **look)


def mark(figure: Figure, text: str) -> None:
    """Say on the figure itself that it is not the whole."""
    figure.supxlabel(text, color=PALETTE[1], fontsize=7, fontweight="bold")


def save(figure: Figure, path: Path, formats: Iterable[str]) -> list[Path]:
    """The figure in each format; the same data gives the same bytes."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out; once is enough for every format
    written = []
    for suffix in formats:
        metadata = {"CreationDate": None} if suffix == "pdf" else {"Date": None} if suffix == "svg" else {}
        written.append(path.with_suffix(f".{suffix}"))
        figure.savefig(written[-1], metadata=metadata)
    return written
