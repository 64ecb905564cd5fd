"""RQ2: how should the important set be chosen, and does importance beat its controls at equal bytes?"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pandas as pd

from igrad.results import Study, baseline, label, over_seeds, unique

AXES = ("threshold",)

CONTROLS = ("random", "inverse")

MEASURES = (
    "num_important", "num_low", "tau", "val_loss", "loss_over_all", "val_ppl", "val_accuracy", "payload_bytes",
    "wire_bytes", "time_over_all",
)  # fmt: skip

EQUAL_BYTES = 0.005  # relative; a collective that codes indices by their distances makes equal counts differ a little

PAIRED = (
    "difference", "difference_sd", "num_seeds", "difference_in_sd", "t", "p", "wire_bytes_ratio", "wire_bytes_ratio_sd",
    "overlap", "overlap_sd",
)  # fmt: skip


def tables(study: Study) -> dict[str, pd.DataFrame]:
    """`rq2`: mean and sd over seeds by policy; `rq2_runs`: one row per run; `rq2_paired`: policy minus control."""
    return {"rq2": table(study), "rq2_runs": per_run(study), "rq2_paired": paired(study)}


def table(study: Study) -> pd.DataFrame:
    """One row per policy, mean and sample sd over seeds; `all` first, controls last."""
    each = per_run(study)
    measured = [name for name in MEASURES if name in each]
    frame = over_seeds(each, ["policy", "control"], measured)
    return frame.sort_values("policy", key=positions, ignore_index=True)


def same_seeds(study: Study) -> Study:
    """The runs of the seeds that every policy has: means over other seeds do not compare.

    All runs where no seed is common.
    """
    runs = with_policy(study)
    common = set.intersection(*(set(mine["seed"]) for _, mine in runs.groupby("policy")))
    return study.of(study.runs[study.runs["seed"].isin(common)], study.incomplete) if common else study


def positions(policies: pd.Series) -> pd.Series:
    """To sort by: `all` first, controls last."""

    def position(policy: str) -> str:
        option = policy.split(" ")[0]
        return f"{2 if option in CONTROLS else option != 'all':d}{policy}"

    return policies.map(position)


def per_run(study: Study) -> pd.DataFrame:
    """One row per run; columns that nothing measures are left out.

    `loss_over_all`: loss minus the loss of `all` with the same seed; `time_over_all`: step time over that of `all`.
    Bytes are per rank and step, means over whole release periods, without the flush.
    """
    runs = with_policy(study)
    everything = runs["policy"] == "all"
    runs["loss_over_all"] = runs["val_loss"] - baseline(runs, everything, ["seed"], "val_loss")
    runs["time_over_all"] = runs["step_ms"] / baseline(runs, everything, ["seed"], "step_ms")
    measured = [name for name in MEASURES if runs[name].notna().any()]
    return runs[["policy", "control", "seed", *measured, "run"]]


def with_policy(study: Study) -> pd.DataFrame:
    """The runs with `policy` and `control`, in the order of the tables.

    A policy is its option, and what of its own keys varies: `percentile (percentile=90)`. A τ that is no number, as
    that of `all`, is not told.
    """
    runs = study.runs.sort_values("seed", ignore_index=True)
    runs["policy"] = runs["threshold"].astype(str)
    for option, mine in runs.groupby("threshold"):
        own = [name for name in study.knobs if name.startswith("threshold.")]
        varying = [name for name in own if mine[name].map(repr).nunique() > 1]
        for i, keys in mine[varying].iterrows():
            words = label({name.split(".", 1)[1]: word(value) for name, value in keys.dropna().items()})
            runs.loc[i, "policy"] = f"{option} ({words})" if words else option
    runs["control"] = runs["threshold"].isin(CONTROLS)
    runs["tau"] = runs["tau"].astype(float).replace([np.inf, -np.inf], np.nan)
    unique(runs, ["policy", "seed"])
    return runs.sort_values("policy", key=positions, kind="stable", ignore_index=True)


def word(value: Any) -> Any:
    """A key's value; of a strategy its word, `otsu`. A column with gaps has made floats of whole numbers."""
    if isinstance(value, float):
        return f"{value:g}"
    found = re.search(r'"_target_": "(?:\w+\.)*(\w+)\.\w+"', str(value))
    return found[1] if found else value


# ------------------------------------------------------------------------------------------------ controls


def pairs(study: Study) -> pd.DataFrame:
    """One row per control run that has a partner: the run, same seed, of the policy that the control rearranges."""
    runs = with_policy(study)
    rows = []
    for _, control in runs[runs["control"]].iterrows():
        node: dict[str, Any] = study.configs[control["run"]]["threshold"]["policy"]
        same = runs[(runs["seed"] == control["seed"]) & ~runs["control"]]
        for _, run in same.iterrows():
            if study.configs[run["run"]]["threshold"] == node:
                mine, theirs = set(run["important"]), set(control["important"])
                rows.append({
                    "policy": run["policy"], "control": control["policy"], "seed": run["seed"],
                    "difference": run["val_loss"] - control["val_loss"],
                    "wire_bytes_ratio": run["wire_bytes"] / control["wire_bytes"],
                    "overlap": len(mine & theirs) / len(mine | theirs) if mine | theirs else 1.0,
                })  # fmt: skip
    names = ["policy", "control", "seed", "difference", "wire_bytes_ratio", "overlap"]
    return pd.DataFrame(rows, columns=names)


def paired(study: Study) -> pd.DataFrame:
    """One row per policy and control, over the seeds that both have.

    `difference`: loss of the policy minus loss of the control, nats per token; below 0 the policy is better.
    `difference_in_sd`: mean over sd; `t`, `p`: paired two-sided t test; none of them for one seed. `wire_bytes_ratio`:
    bytes of the policy over the control's. `overlap`: Jaccard of the two important sets.
    """
    each = pairs(study)
    frame = over_seeds(each, ["policy", "control"], ["difference", "wire_bytes_ratio", "overlap"])
    mean, sd, n = frame["difference"], frame["difference_sd"], frame["num_seeds"]
    same = (mean == 0) & (sd == 0)  # equal sets: no difference at all, and none to test
    frame["difference_in_sd"] = (mean / sd).where(~same, 0.0)
    frame["t"] = frame["difference_in_sd"] * n**0.5
    frame["p"] = [p_value(t, num_seeds) for t, num_seeds in zip(frame["t"], n, strict=True)]
    return frame[["policy", "control", *PAIRED]]


def p_value(t: float, num_seeds: int) -> float:
    """Of a two-sided t test."""
    from scipy.special import stdtr  # Student's distribution function; comes with scikit-learn

    return float(2 * stdtr(num_seeds - 1, -abs(t))) if t == t else math.nan


# ---------------------------------------------------------------------------------------------- conclusion


def conclusion(study: Study, level: float = 0.05) -> str:
    """The answer in words, markdown. `level`: of the two-sided paired t test, below which a difference counts."""
    rows = paired(study)
    if rows.empty:
        return "- No control has a partner of the same seed: whether importance matters cannot be said."
    said = [(f"{row['policy']} against {row['control']}", verdict(row, level)) for _, row in rows.iterrows()]
    return "\n".join(f"- **{who}**: {what}" for who, what in said)


def verdict(row: pd.Series, level: float) -> str:
    """One sentence, or two where the bytes differ."""
    n, p = row["num_seeds"], row["p"]
    size = f"{row['difference']:+.4f}".replace("-", "−")
    if n == 1:
        text = f"{size} nats per token; one seed, so the spread is not known."
    else:
        size = f"{size} ± {row['difference_sd']:.4f} nats per token, {abs(row['difference_in_sd']):.1f} sd, p = {p:.2g}"
        size = f"({size}, {n} seeds)"
        if p >= level:
            text = f"no difference that these seeds can tell {size}: the ranking is not shown to matter."
        elif row["difference"] < 0:
            text = f"importance beats the control {size}."
        else:
            text = f"the control beats importance {size}."
    ratio = row["wire_bytes_ratio"]
    if abs(ratio - 1) > EQUAL_BYTES:
        return f"{text} Not at equal bytes: the policy sends {ratio:.3f} times the control's."
    return f"{text} Equal bytes; the two sets overlap by {row['overlap']:.2f} (Jaccard)."
