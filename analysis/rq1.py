"""RQ1's figures: how alike are the profiles of two workloads, beside those of two seeds?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import style
from igrad.results import Study
from rq import rq1
from rq.rq1 import Scored

MAX_NUMBERED = 8  # profiles; more cells have no room for a number


def figures(study: Study) -> dict[str, Figure]:
    """Every figure that the runs allow, by file name."""
    scored = rq1.by_score(study)
    [score, *_] = scored
    profiles = scored[score]
    drawn = {
        "similarity": similarity(profiles, score),
        "score_curve": score_curve(profiles, score),
        "components": components(rq1.components(profiles), score),
    }
    if len(profiles) > 1:
        drawn["by_score"] = by_score(rq1.over_pairs(rq1.pairs(scored)))
    return drawn


def similarity(profiles: list[Scored], score: str) -> Figure:
    """Jaccard and Spearman of every two profiles; a line between workloads."""
    figure, panels = style.panels(2, 2.3)
    names = [f"{profile.workload} {profile.seed}" for profile in profiles]
    starts = [i for i in range(1, len(profiles)) if profiles[i].workload != profiles[i - 1].workload]
    alike = [[rq1.similarity(a, b) for b in profiles] for a in profiles]
    for axes, column in zip(panels, ("jaccard", "spearman"), strict=True):
        values = np.array([[each[column] for each in row] for row in alike])
        limits = (min(0.0, np.nanmin(values)) if np.isfinite(values).any() else 0.0, 1.0)
        style.heatmap(axes, values, limits, style.label(column), len(names) <= MAX_NUMBERED)
        axes.set_yticks(range(len(names)), names)
        axes.set_xticks(range(len(names)), names, rotation=90)
        for start in starts:
            axes.axhline(start - 0.5, color="white", linewidth=2)
            axes.axvline(start - 0.5, color="white", linewidth=2)
        axes.set_ylabel("workload, seed")
    panels[-1].set_xlabel("workload, seed")
    figure.suptitle(f"score: {style.label(score)}", fontsize=8)
    return figure


def by_score(table: pd.DataFrame) -> Figure:
    """Mean similarity of another seed's and another workload's profile, one row per score."""
    figure, panels = style.panels(2, 0.45 + 0.2 * table["score"].nunique(), sharex=False)
    looks = look([rq1.OTHER_SEED, rq1.OTHER_WORKLOAD])
    scores = list(table["score"].unique())
    for axes, column in zip(panels, ("jaccard", "spearman"), strict=True):
        for pair, rows in table.groupby("pair"):
            height = rows["score"].map(scores.index) + (0.15 if pair == rq1.OTHER_WORKLOAD else -0.15)
            sd = rows[f"{column}_sd"].fillna(0)
            bars = {"xerr": sd if sd.any() else None, "capsize": 2, "elinewidth": 0.8}
            axes.errorbar(rows[column], height, linestyle="none", label=pair, **bars, **looks[str(pair)])
        axes.set_yticks(range(len(scores)), [style.label(score) for score in scores])
        axes.set_ylim(len(scores) - 0.5, -0.5)
        axes.grid(False, axis="y")
        axes.set_xlabel(style.label(column))
        axes.set_ylabel("score")
    handles = [style.handle(pair, linestyle="none", **each) for pair, each in looks.items()]
    style.legend(figure, style.rows_of(handles, 2), "mean ± sd over pairs of profiles")
    return figure


def score_curve(profiles: list[Scored], score: str) -> Figure:
    """Scores from high to low, mean in a band of one sd over seeds; a mark where τ cuts, a dotted line at τ."""
    figure, [axes] = style.panels(1, 2.3)
    looks = look(dict.fromkeys(profile.workload for profile in profiles))
    curves = []
    for workload, each in looks.items():
        mine = [profile for profile in profiles if profile.workload == workload]
        ordered = pd.DataFrame([sorted(profile.values, reverse=True) for profile in mine])
        told = {"rank": ordered.columns + 1, "score": ordered.mean(), "score_sd": ordered.std(ddof=1)}
        curves.append(pd.DataFrame(told).assign(num_seeds=len(mine)))
        style.band(axes, curves[-1], "rank", "score", color=each["color"], label=workload)
        tau, cut = np.mean([profile.tau for profile in mine]), np.mean([len(profile.important) for profile in mine])
        axes.axhline(tau, color=each["color"], linestyle=":", linewidth=0.8)
        axes.plot([cut], [tau], linestyle="none", markersize=6, markeredgecolor="black", **each)
    axes.set_xlabel("rank of the component")
    axes.set_ylabel(f"score ({style.label(score)})")
    axes.set_ylim(bottom=min(0, *(curve["score"].min() for curve in curves)))
    handles = [style.handle(workload, **each) for workload, each in looks.items()]
    rows = style.rows_of([*handles, style.handle("τ", color=style.GREY, linestyle=":")], 4)
    style.legend(figure, rows, f"mark: last important component; {style.seeds(pd.concat(curves))}")
    return figure


def components(table: pd.DataFrame, score: str) -> Figure:
    """Score by layer and kind, one panel per workload on one colour scale; dots on what is important."""
    workloads = [name.removeprefix("rank_") for name in table if name.startswith("rank_")]
    layers, kinds = (list(dict.fromkeys(table[name])) for name in ("layer", "kind"))
    figure, panels = style.panels(len(workloads), 0.35 + 0.13 * len(kinds))
    highest = max(table[f"score_{workload}"].max() for workload in workloads)
    lowest = min(table[f"score_{workload}"].min() for workload in workloads)
    for axes, workload in zip(panels, workloads, strict=True):
        values, important = (
            table.pivot(index="kind", columns="layer", values=f"{name}_{workload}").loc[kinds, layers].to_numpy(float)
            for name in ("score", "important")
        )
        image = style.heatmap(axes, values, (min(0, lowest), highest), None, False)
        for marked, face in ((important == 1, style.PALETTE[1]), ((important > 0) & (important < 1), "none")):
            y, x = np.nonzero(marked)
            axes.plot(x, y, "o", markersize=4, color=style.PALETTE[1], markerfacecolor=face)
        axes.set_yticks(range(len(kinds)), kinds)
        axes.set_ylabel("kind")
        axes.set_title(workload, loc="left")
    step = -(-len(layers) // 12)
    panels[-1].set_xticks(range(0, len(layers), step), layers[::step])
    panels[-1].set_xlabel("layer")
    figure.colorbar(image, ax=panels, label=f"score ({style.label(score)})", aspect=30, pad=0.02)
    dot: dict[str, Any] = {"color": style.PALETTE[1], "marker": "o", "linestyle": "none"}
    handles = [style.handle("for every seed", **dot), style.handle("for some", markerfacecolor="none", **dot)]
    style.legend(figure, [handles], "important")
    return figure


def look(names: Any) -> dict[str, dict[str, Any]]:
    """Colour and marker of each."""
    names = list(names)
    return {name: {"color": style.colors(names)[name], "marker": style.markers(names)[name]} for name in names}
