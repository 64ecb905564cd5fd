"""How many steps does a method need for the loss that dense reaches in the fewest of the study's?

Each run has a learning rate schedule of its own length: a method is at its best when it knows how long it may train.
"""

from __future__ import annotations

import pandas as pd

from igrad.results import Study, baseline, over_seeds, unique
from rq import rq5

AXES = (*rq5.AXES, "steps")

TO_TARGET = ("to_target_steps", "to_target_bytes", "to_target_s")
NOTE = "On straight lines between numbers of steps; seconds are indicative only."


def tables(study: Study) -> dict[str, pd.DataFrame]:
    """`rq5_target`: what each method needs, mean and sd over seeds, its loss by steps; `rq5_target_runs`: per run."""
    each = per_run(study)
    return {"rq5_target": table(each), "rq5_target_runs": each.drop(columns=["group", "family"])}


def per_run(study: Study) -> pd.DataFrame:
    """One row per run; `over_target`: its loss less that of `dense` with the same seed and the fewest steps."""
    runs = rq5.named(study).sort_values("steps", kind="stable")
    runs = runs.sort_values(["group", "family"], key=rq5.positions, kind="stable", ignore_index=True)
    unique(runs, ["method", "steps", "seed"])
    runs["total_bytes"] = runs["total_wire_bytes"] + runs["flush_wire_bytes"]
    is_target = (runs["method"] == "dense") & (runs["steps"] == runs["steps"].min())
    runs["over_target"] = runs["val_loss"] - baseline(runs, is_target, ["seed"], "val_loss")
    names = ["group", "family", "method", "replicas", "steps", "seed"]
    return runs[[*names, "val_loss", "over_target", "total_bytes", "seconds", "run"]]


def table(each: pd.DataFrame) -> pd.DataFrame:
    """One row per method: what it takes to the target where every seed gets there, else a gap."""
    found = []
    for (group, family, method, seed), runs in each.groupby(["group", "family", "method", "seed"], sort=False):
        line = runs.assign(step=runs["steps"], total_wire_bytes=runs["total_bytes"])
        passed = rq5.crossing(line.assign(val_loss=runs["over_target"]), 0.0)
        found.append((group, family, method, seed, float(passed[0] == passed[0]), *passed))
    columns = ["group", "family", "method", "seed", "reached", *TO_TARGET]
    needs = over_seeds(pd.DataFrame(found, columns=columns), columns[:3], ["reached", *TO_TARGET])
    timed = [name for name in needs if name.startswith("to_target")]
    needs[timed] = needs[timed].where(needs["reached"] == 1)
    losses = each.pivot_table(index="method", columns="steps", values="val_loss")
    needs = needs.merge(losses.rename(columns=lambda steps: f"{steps}_steps"), on="method")
    needs = needs.sort_values(["group", "family"], key=rq5.positions, ignore_index=True)
    return needs.drop(columns=["group", "family", "reached_sd"]).assign(note=NOTE)
