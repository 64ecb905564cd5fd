"""RQ1: does the workload change which components matter?"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from igrad import profile_file
from igrad.config import build, digest
from igrad.results import Study, follow, unique, yamls
from igrad.threshold.kinds import kind

AXES = ("workload",)

OTHER_SEED, OTHER_WORKLOAD = "same workload, other seed", "other workload"

SIMILARITIES = ("jaccard", "top_k_overlap", "spearman", "tau_difference")
WORDS = {"jaccard": "Jaccard", "top_k_overlap": "overlap of the highest third", "spearman": "Spearman"}
ROUNDING = 1e-9  # a difference of means that is none


class Scored(NamedTuple):
    """One profile under one score."""

    workload: str
    seed: int
    values: pd.Series  # component -> score, in the order of the model's components
    tau: float
    important: frozenset[str]


def tables(study: Study) -> dict[str, pd.DataFrame]:
    """`rq1`: how alike profiles are, by score and kind of pair; `rq1_pairs`: every pair; `rq1_components`."""
    scored = by_score(study)
    each = pairs(scored)
    return {"rq1": over_pairs(each), "rq1_pairs": each, "rq1_components": components(configured(scored))}


def table(study: Study) -> pd.DataFrame:
    """One row per score and kind of pair; the configured score first, the random one last."""
    return over_pairs(pairs(by_score(study)))


# ------------------------------------------------------------------------------------------------ profiles


def by_score(study: Study) -> dict[str, list[Scored]]:
    """Score -> every profile under it, by workload and seed.

    The configured score comes first, as the runs recorded it. The others are worked out from the traces, with the
    threshold of the run. A score with a seed is a control: it gets another one for each profile, and comes last.
    """
    runs = study.runs.sort_values(["workload", "seed"], ignore_index=True)
    unique(runs, ["workload", "seed"])
    first = str(runs["importance"].iloc[0])
    names = sorted(yamls("importance").keys() - {first}, key=lambda name: ("seed" in yamls("importance")[name], name))
    scored: dict[str, list[Scored]] = {name: [] for name in (first, *names)}
    for _, run in runs.iterrows():
        if not run["scores"] or run["profile_file"] is None:
            raise ValueError(f"{run['run']} names no profile, which RQ1 compares; repeat it with rerun=true")
        recorded = pd.Series(run["scores"], dtype=float)
        scored[first].append(
            Scored(run["workload"], run["seed"], recorded, run["tau"], frozenset(run["important"]))
        )  # fmt: skip
        config = study.configs[run["run"]]
        trace, numel, _ = profile_file.load(run["profile_file"])
        threshold = make(config["threshold"])
        for name in names:
            node = {key: follow(told, config) for key, told in yamls("importance")[name].items()}
            if "seed" in node:
                node["seed"] = int(digest(run["run"]), 16)
            values = pd.Series(make(node)(trace), list(numel))[recorded.index]
            tau, mask = threshold(values.to_numpy(), list(values.index))
            important = frozenset(values.index[mask])
            scored[name].append(Scored(run["workload"], run["seed"], values, tau, important))
    return scored


def make(node: dict[str, Any]) -> Any:
    """The strategy that a config node describes."""
    return build(OmegaConf.create(node))


def configured(scored: dict[str, list[Scored]]) -> list[Scored]:
    """The profiles under the score that the runs used."""
    return next(iter(scored.values()))


# ---------------------------------------------------------------------------------------------- similarity


def pairs(scored: dict[str, list[Scored]]) -> pd.DataFrame:
    """One row per score and pair of profiles.

    `jaccard`: of the important sets. `top_k_overlap`: share that the highest third of the components have in common,
    whatever the threshold. `spearman`: rank correlation of the scores. `tau_difference`: |Δτ|, the scores of each
    profile scaled to [0, 1] so that scores of different units compare.
    """
    rows = []
    for score, profiles in scored.items():
        for a, b in itertools.combinations(profiles, 2):
            rows.append({
                "score": score,
                "pair": OTHER_SEED if a.workload == b.workload else OTHER_WORKLOAD,
                "workload_a": a.workload, "seed_a": a.seed, "workload_b": b.workload, "seed_b": b.seed,
                **similarity(a, b),
            })  # fmt: skip
    columns = ["score", "pair", "workload_a", "seed_a", "workload_b", "seed_b", *SIMILARITIES]
    return pd.DataFrame(rows, columns=columns)


def similarity(a: Scored, b: Scored) -> dict[str, float]:
    k = max(1, round(len(a.values) / 3))
    return {
        "jaccard": jaccard(a.important, b.important),
        "top_k_overlap": len(highest(a.values, k) & highest(b.values, k)) / k,
        "spearman": spearman(a.values, b.values),
        "tau_difference": abs(scaled(a) - scaled(b)),
    }


def jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """|a ∩ b| / |a ∪ b|; two empty sets are equal."""
    return len(a & b) / len(a | b) if a | b else 1.0


def highest(values: pd.Series, k: int) -> set[str]:
    """The k components of the highest scores; ties in the order of the components."""
    return set(values.sort_values(ascending=False, kind="stable").index[:k])


def spearman(a: pd.Series, b: pd.Series) -> float:
    """Correlation of the ranks, ties at their mean; NaN where one side's scores are all equal."""
    if a.nunique() == 1 or b.nunique() == 1:
        return math.nan
    return float(np.corrcoef(a.rank(), b[a.index].rank())[0, 1])


def scaled(profile: Scored) -> float:
    """τ where the profile's scores are scaled to [0, 1]."""
    low, high = profile.values.min(), profile.values.max()
    return (profile.tau - low) / (high - low) if high > low else 0.0


def over_pairs(each: pd.DataFrame) -> pd.DataFrame:
    """Mean and sample sd over the pairs, by score and kind of pair.

    Pairs share profiles, so that the sd describes them and is no error of the mean.
    """
    groups = each.groupby(["score", "pair"], sort=False)
    told = {"num_pairs": groups.size()}
    for name in SIMILARITIES:
        told[name], told[f"{name}_sd"] = groups[name].mean(), groups[name].std(ddof=1)
    frame = pd.DataFrame(told).reset_index()
    order = {score: position for position, score in enumerate(each["score"].unique())}
    by = [frame["score"].map(order), frame["pair"].map([OTHER_SEED, OTHER_WORKLOAD].index)]
    return frame.iloc[np.lexsort(by[::-1])].reset_index(drop=True)


# ---------------------------------------------------------------------------------------------- components


def components(profiles: list[Scored]) -> pd.DataFrame:
    """One row per component: its score, rank (1 = highest) and the share of seeds in which it is important.

    `<column>_<workload>`; scores are means over the seeds, their sample sd beside them, ranks are those of the means.
    """
    names = profiles[0].values.index
    frame = pd.DataFrame({"component": names, "layer": map(layer, names), "kind": map(kind, names)}, index=names)
    for workload in dict.fromkeys(profile.workload for profile in profiles):
        mine = [profile for profile in profiles if profile.workload == workload]
        scores = pd.concat([profile.values for profile in mine], axis=1)
        frame[f"score_{workload}"], frame[f"score_{workload}_sd"] = scores.mean(axis=1), scores.std(axis=1, ddof=1)
        frame[f"rank_{workload}"] = scores.mean(axis=1).rank(ascending=False, method="min").astype(int)
        frame[f"important_{workload}"] = [np.mean([name in profile.important for profile in mine]) for name in names]
    return frame.reset_index(drop=True)


def layer(component: str) -> str:
    """`3` of `3.q`, the last number of a name; empty where there is none."""
    return next((word for word in reversed(component.split(".")) if word.isdigit()), "")


# ---------------------------------------------------------------------------------------------- conclusion


def conclusion(study: Study) -> str:
    """The answer in words, markdown: is another workload further away than another seed, beyond the spread?"""
    lines = []
    for score, rows in table(study).groupby("score", sort=False):
        by_pair = rows.set_index("pair")
        if OTHER_WORKLOAD not in by_pair.index:
            lines.append(f"- **{score}**: one workload only; nothing to compare.")
        elif OTHER_SEED not in by_pair.index:
            lines.append(f"- **{score}**: one seed per workload; a workload effect cannot be told from noise.")
        else:
            seed, workload = by_pair.loc[OTHER_SEED], by_pair.loc[OTHER_WORKLOAD]
            said = [compared(seed, workload, name) for name in ("jaccard", "top_k_overlap", "spearman")]
            lines.append(f"- **{score}**, another workload against another seed: {'; '.join(said)}.")
    return "\n".join(lines)


def compared(seed: pd.Series, workload: pd.Series, name: str) -> str:
    """`Jaccard 0.610 ± 0.050 against 0.900 ± 0.040, lower by 0.290, more than the spread (0.050)`.

    The spread is the larger sd of the two, or the one that is known.
    """
    spread = np.fmax(seed[f"{name}_sd"], workload[f"{name}_sd"])
    gap = seed[name] - workload[name]
    text = f"{WORDS[name]} {told(workload, name)} against {told(seed, name)}, "
    if math.isnan(gap):
        return f"{WORDS[name]} not defined, some scores are all equal"
    if math.isnan(spread):
        return f"{text}lower by {gap:.3f}, from one pair each, so the spread is not known"
    if gap > spread + ROUNDING:
        return f"{text}lower by {gap:.3f}, more than the spread ({spread:.3f})"
    return f"{text}not lower by more than the spread ({spread:.3f})"


def told(row: pd.Series, name: str) -> str:
    """`0.610 ± 0.050`."""
    sd = row[f"{name}_sd"]
    return f"{row[name]:.3f} ± {sd:.3f}" if sd == sd else f"{row[name]:.3f}"
