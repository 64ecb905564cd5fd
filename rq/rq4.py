"""RQ4: how should a release be packed?"""

from __future__ import annotations

import pandas as pd

from igrad.results import Study, baseline, over_seeds, unique
from rq.times import INDICATIVE, PHASES_MS

AXES = ("packing", "sparsifier")

EXACT = ("bucket_imbalance", "bucket_cv", "num_overflows", "wire_bytes", "val_loss", "equal_loss")
TIMES = (*PHASES_MS, "step_ms", "exchange_over_greedy", "step_over_greedy")


def tables(study: Study) -> dict[str, pd.DataFrame]:
    """`rq4`: mean and sd over seeds by sparsifier and packing; `rq4_times`: the same of times; `rq4_runs`: per run."""
    return {"rq4": table(study), "rq4_times": times(study).assign(note=INDICATIVE), "rq4_runs": per_run(study)}


def table(study: Study) -> pd.DataFrame:
    """One row per sparsifier and packing, mean and sample sd over seeds; what another run would repeat exactly."""
    return by_packing(per_run(study), EXACT)


def times(study: Study) -> pd.DataFrame:
    """The same of what depends on how busy the machine was."""
    return by_packing(per_run(study), TIMES)


def by_packing(each: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    frame = over_seeds(each, ["sparsifier", "packing"], [name for name in columns if name in each])
    return frame.sort_values(["sparsifier", "packing"], key=positions, ignore_index=True)


def positions(names: pd.Series) -> pd.Series:
    """To sort by: `direct`, which knows least, before the others."""
    return names.map(lambda name: f"{name != 'direct':d}{name}")


def per_run(study: Study) -> pd.DataFrame:
    """One row per run. Compared with `greedy` of the same sparsifier and seed; what nothing measures is left out.

    `bucket_imbalance`: largest bucket over the mean, `bucket_cv`: sd over mean, `num_overflows`: buckets a tenth or
    more above an even share; bytes on the wire, means over the steps of whole release periods. `equal_loss`: 1 where
    the loss is greedy's to the last digit, else 0. `exchange_over_greedy`, `step_over_greedy`: ratios of times.
    """
    runs = study.runs.sort_values("seed").sort_values(["sparsifier", "packing"], key=positions, ignore_index=True)
    unique(runs, ["sparsifier", "packing", "seed"])

    def greedys(column: str) -> pd.Series:
        return baseline(runs, runs["packing"] == "greedy", ["sparsifier", "seed"], column)

    loss = greedys("val_loss")
    runs["equal_loss"] = (runs["val_loss"] == loss).astype(float).where(loss.notna())
    for name in ("exchange", "step"):
        runs[f"{name}_over_greedy"] = runs[f"{name}_ms"] / greedys(f"{name}_ms")
    measured = [name for name in (*EXACT, *TIMES) if runs[name].notna().any()]
    return runs[["sparsifier", "packing", "seed", *measured, "run"]]


def phases(study: Study) -> pd.DataFrame:
    """As `times`, each phase and the step over the step time of `greedy` with the same sparsifier and seed."""
    each = per_run(study)
    unit = baseline(each, each["packing"] == "greedy", ["sparsifier", "seed"], "step_ms")
    shares = (
        each[[*PHASES_MS, "step_ms"]].div(unit, axis=0).rename(columns=lambda name: f"{name.removesuffix('_ms')}_share")
    )
    return by_packing(pd.concat([each[["sparsifier", "packing", "seed"]], shares], axis=1), tuple(shares))


# ---------------------------------------------------------------------------------------------- conclusion


def conclusion(study: Study) -> str:
    """The answer in words, markdown, over the seeds that every packing of a sparsifier has."""
    lines = []
    measures = ["bucket_imbalance", "num_overflows", "pack_ms", "exchange_ms", "step_ms", "val_loss"]
    for sparsifier, rows in per_run(study).groupby("sparsifier"):
        by = rows.pivot(index="seed", columns="packing", values=measures).dropna()  # [seeds, measures x packings]
        if by.empty:
            lines.append(f"- **{sparsifier}**: no seed that every packing has.")
            continue
        seeds = "1 seed" if len(by) == 1 else f"{len(by)} seeds"
        said = " ".join(filter(None, (most_even(by), risk_aware(by), overlap(by), same_loss(by))))
        lines.append(f"- **{sparsifier}** ({seeds}): {said}")
    return "\n".join([*lines, f"- {INDICATIVE} Imbalance, overflows and bytes are exact."])


def most_even(by: pd.DataFrame) -> str:
    """Whose largest bucket is least, and what that buys against `direct`."""
    imbalance, overflows = by["bucket_imbalance"].mean(), by["num_overflows"].mean()
    best = imbalance.index[imbalance == imbalance.min()]
    first = best[0]
    text = (
        f"`{'` and `'.join(best)}` {'is' if len(best) == 1 else 'are'} the most even: the largest bucket is "
        f"{imbalance[first]:.3f} of the mean, {overflows[first]:.2f} buckets per step overflow."
    )
    if "direct" not in imbalance or "direct" in best:
        return text
    return (
        f"{text} `direct` has {imbalance['direct']:.3f} and {overflows['direct']:.2f}; against it `{first}` takes "
        f"{ratio(by, 'exchange_ms', first, 'direct')} of the exchange time and "
        f"{ratio(by, 'step_ms', first, 'direct')} of the step time."
    )


def risk_aware(by: pd.DataFrame) -> str:
    """Whether it evens out more than `greedy`: on every seed, or it is not said to."""
    if not {"risk_aware", "greedy"} <= set(by["val_loss"]):
        return ""
    imbalance, overflows = (
        by[name]["risk_aware"] - by[name]["greedy"] for name in ("bucket_imbalance", "num_overflows")
    )
    if not imbalance.any() and not overflows.any():
        return "`risk_aware` is exactly as even as `greedy`."
    if (imbalance <= 0).all() and (overflows <= 0).all():
        verdict = "earns its keep"
    elif (imbalance >= 0).all() and (overflows >= 0).all():
        verdict = "does not earn its keep"
    else:
        verdict = "is not more even throughout"
    return (
        f"`risk_aware` {verdict}: against `greedy`, imbalance {change(imbalance)} and overflows per step "
        f"{change(overflows)}, for {ratio(by, 'pack_ms', 'risk_aware', 'greedy')} of the packing time and "
        f"{ratio(by, 'step_ms', 'risk_aware', 'greedy')} of the step time."
    )


def overlap(by: pd.DataFrame) -> str:
    """What it gains or loses in step time."""
    if not {"overlap", "greedy"} <= set(by["val_loss"]):
        return ""
    gained = 1 - (by["step_ms"]["overlap"] / by["step_ms"]["greedy"]).mean()
    return (
        f"`overlap` {'gains' if gained > 0 else 'loses'} {abs(gained):.1%} of `greedy`'s step time and takes "
        f"{ratio(by, 'exchange_ms', 'overlap', 'greedy')} of its exchange time."
    )


def same_loss(by: pd.DataFrame) -> str:
    """Whether packing left the result as it was."""
    losses = by["val_loss"]
    reference = "greedy" if "greedy" in losses else losses.columns[0]
    away = losses.sub(losses[reference], axis=0).abs().max()
    differ = away.index[away > 0]
    if differ.empty:
        return "The loss is the same to the last digit under every packing."
    return (
        f"The loss is not that of `{reference}` under `{'`, `'.join(differ)}` (up to {away.max():.2g} nats per token "
        "away): packing changes the result."
    )


def ratio(by: pd.DataFrame, column: str, packing: str, reference: str) -> str:
    """`0.93`, mean over seeds of what one takes over what the other takes."""
    return f"{(by[column][packing] / by[column][reference]).mean():.2f}"


def change(difference: pd.Series) -> str:
    """`−0.012 ± 0.003`; one seed has no spread."""
    spread = f" ± {difference.std(ddof=1):.3f}" if len(difference) > 1 else ""
    return f"{difference.mean():+.3f}".replace("-", "−") + spread
