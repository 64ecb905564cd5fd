"""A study's saved workspace and report in Weights & Biases, made from what its conf/rq files sweep."""

from __future__ import annotations

from typing import Any

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces import expr

from igrad.config import GROUPS
from igrad.tracking.names import heatmap_name, metric
from igrad.tracking.wandb import TABLES

WIDTH, HEIGHT, COLUMNS = 8, 6, 3  # of a panel in a report, whose grid is 24 wide
X_AXES = ("step", metric("total_wire_bytes"), metric("seconds"))
CURVES = {
    "Cost": ("total_wire_bytes", "wire_bytes", "step_ms", "tokens_per_s", "exchange_ms", "select_ms", "pack_ms"),
    "Balance": ("bucket_imbalance", "bucket_cv", "num_overflows"),
    "Training": ("train_loss", "learning_rate", "num_dropped_steps"),
}
HEATMAPS = ("importance_score", "residual_norm")


def workspace(study: str, knobs: list[str], entity: str, project: str) -> ws.Workspace:
    """A view of the study's runs, grouped by what it sweeps; seeds fall into one group."""
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"igrad {study}",
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections(knobs).items()],
        settings=ws.WorkspaceSettings(x_axis="step", max_runs=100),
        runset_settings=ws.RunsetSettings(filters=of(study), groupby=[expr.Config(key) for key in grouped(knobs)]),
    )


def report(study: str, knobs: list[str], heads: list[str], entity: str, project: str) -> wr.Report:
    """The same panels below what the study's files ask and the commands that make the runs."""
    blocks: list[Any] = [wr.CodeBlock(head, language=None) for head in heads]
    blocks.append(wr.P(f"Grouped by {', '.join(grouped(knobs))}; a line is the mean of a group, shaded min to max."))
    for name, panels in sections(knobs).items():
        for i, panel in enumerate(panels):
            panel.layout = wr.Layout(x=i % COLUMNS * WIDTH, y=i // COLUMNS * HEIGHT, w=WIDTH, h=HEIGHT)
        runs = wr.Runset(name=study, filters=of(study), groupby=[f"config.{key}" for key in grouped(knobs)])
        blocks += [wr.H2(name), wr.PanelGrid(runsets=[runs], panels=panels)]
    return wr.Report(entity=entity, project=project, title=f"igrad {study}", blocks=blocks)


def of(study: str) -> expr.And:
    """The runs of a study, without the run that holds its tables."""
    return expr.And(expr.Metric("Group") == study, expr.Metric("JobType") != TABLES)


def grouped(knobs: list[str]) -> list[str]:
    """Config keys of what is swept, the seed apart: of a group it is the option."""
    return [f"options.{knob}" if knob in GROUPS else knob for knob in knobs if knob != "seed"]


def sections(knobs: list[str]) -> dict[str, list[Any]]:
    """Every panel: curves, the final loss against bytes and against each knob, heatmaps."""
    final = [wr.SummaryMetric("final.val_loss"), wr.SummaryMetric("totals.wire_bytes")]
    columns = [*(wr.Config(key) for key in grouped(knobs)), *reversed(final)]
    return {
        "Loss": [
            *(wr.LinePlot(x=axis, y=[metric("val_loss")], title=f"val_loss by {axis}") for axis in X_AXES),
            wr.LinePlot(x="step", y=[metric("val_accuracy")]),
            wr.ScatterPlot(x=final[1], y=final[0], log_x=True),
            wr.ParallelCoordinatesPlot(columns=[wr.ParallelCoordinatesPlotColumn(metric=each) for each in columns]),
        ],
        **{name: [wr.LinePlot(x="step", y=[metric(each)]) for each in names] for name, names in CURVES.items()},
        "Importance": [
            wr.LinePlot(x="step", y=[metric("residual_norm")]),
            wr.LinePlot(x="step", y=[metric("num_released")]),
            *(wr.MediaBrowser(media_keys=[heatmap_name(name)]) for name in HEATMAPS),
        ],
    }
