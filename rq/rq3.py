"""RQ3: how rarely may low-importance components be released?"""

from __future__ import annotations

import pandas as pd

from igrad.results import Study, baseline, over_seeds

AXES = ("release_period", "residual")

MEASURES = (
    "val_loss", "val_loss_difference", "val_ppl", "val_accuracy", "wire_bytes", "wire_ratio", "flush_wire_bytes",
    "staleness_steps", "max_staleness_steps", "step_ratio",
)  # fmt: skip


def tables(study: Study) -> dict[str, pd.DataFrame]:
    """`rq3`: mean and sd over seeds by R and residual; `rq3_runs`: one row per run."""
    return {"rq3": table(study), "rq3_runs": per_run(study)}


def table(study: Study) -> pd.DataFrame:
    """One row per residual and R, mean and sample sd over seeds."""
    each = per_run(study)
    measured = [name for name in MEASURES if name in each]
    return over_seeds(each, ["residual", "release_period"], measured)


def per_run(study: Study) -> pd.DataFrame:
    """One row per run. Compared with R = 1 of the same residual and seed; columns that nothing measures are left out.

    `wire_bytes`: per rank and step, mean over whole release periods, without the flush. `wire_ratio`, `step_ratio`:
    over R = 1's. `staleness_steps`: steps since last sent, mean over the low-importance components and all steps;
    `max_staleness_steps`: the largest age of any component.
    """
    runs = study.runs.sort_values(["residual", "release_period", "seed"], ignore_index=True)
    runs = runs.merge(staleness(study), on="run", how="left")
    every_step = runs["release_period"] == 1

    def at_every_step(column: str) -> pd.Series:
        return baseline(runs, every_step, ["residual", "seed"], column)

    runs["val_loss_difference"] = runs["val_loss"] - at_every_step("val_loss")
    runs["wire_ratio"] = runs["wire_bytes"] / at_every_step("wire_bytes")
    runs["step_ratio"] = runs["step_ms"] / at_every_step("step_ms")
    measured = [name for name in MEASURES if runs[name].notna().any()]
    return runs[["residual", "release_period", "seed", *measured, "run"]]


def staleness(study: Study) -> pd.DataFrame:
    """Per run the mean age of the low-importance components, and the largest age of any, in steps."""
    columns = ["run", "staleness_steps", "max_staleness_steps"]
    rows = []
    for run, trace in study.components.groupby("run"):
        [low] = study.runs.loc[study.runs["run"] == run, "low"]
        trace = trace[trace["component"].isin(low)]
        steps = trace.groupby("step")["staleness_steps"].mean()
        lengths = steps.index.to_series().diff().fillna(steps.index[0] if len(steps) else 0)  # windows may differ
        mean = (steps * lengths).sum() / lengths.sum() if len(steps) else float("nan")
        rows.append((run, mean, trace["max_staleness_steps"].max()))
    return pd.DataFrame(rows, columns=columns).astype({"run": study.runs["run"].dtype})


def conclusion(study: Study, tolerance: float = 0.02) -> str:
    """The answer in words, markdown. `tolerance`: nats per token above R = 1 that count as nothing lost."""
    lines = []
    for residual, rows in table(study).groupby("residual"):
        if "val_loss_difference" not in rows or rows["val_loss_difference"].isna().all():
            lines.append(f"- **{residual}**: no run with R = 1 to compare with.")
            continue
        kept = rows[rows["val_loss_difference"] <= tolerance]
        best, last = kept.loc[kept["release_period"].idxmax()], rows.loc[rows["release_period"].idxmax()]
        if best["release_period"] == 1:
            lines.append(f"- **{residual}**: every R above 1 costs more than {tolerance:g} nats per token.")
        else:
            lines.append(
                f"- **{residual}**: R = {best['release_period']} is the rarest release that costs at most "
                f"{tolerance:g} nats per token ({difference(best)}); it sends {best['wire_ratio']:.0%} of the bytes "
                "per step of R = 1."
            )
        if last["release_period"] != best["release_period"]:
            lines[-1] += f" R = {last['release_period']}: {difference(last)}; {last['wire_ratio']:.0%} of the bytes."
    return "\n".join(lines)


def difference(row: pd.Series) -> str:
    """`+0.012 ± 0.003, 3 seeds`."""
    sd, n = row["val_loss_difference_sd"], row["num_seeds"]
    spread = f" ± {sd:.3f}" if sd == sd else ""
    return f"{row['val_loss_difference']:+.3f}{spread}, {n} seed{'s' if n > 1 else ''}"
