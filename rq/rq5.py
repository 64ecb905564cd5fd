"""RQ5: what does it buy end to end?"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import yaml

from igrad.config import CONF
from igrad.results import Study, baseline, label, over_seeds, unique
from rq import rq2
from rq.times import INDICATIVE, PHASES_MS

SETTING = ("num_processes", "split")  # where methods are tried; only runs of one setting are compared

AXES = (
    "method", "sparsifier", "importance", "threshold", "residual", "release", "packing", "collective", "value_codec",
    "index_codec", "deferral", "synchronizer", "density", "release_period", "release_fraction", "num_buckets",
    "components", "clip", "learning_rate", "learning_rate_factor", *SETTING,
)  # fmt: skip

RATE = ("learning_rate", "learning_rate_factor")  # tuning: the peak rate, their product, is what counts
SYMBOLS = {"release_period": "R", "peak_rate": "lr"}

FAMILIES = {  # in the order of tables; others come after those of their group
    "baselines": ("dense", "bf16", "powersgd", "never", "alone", "noop"),
    "sparse": ("topk_sync", "adtopk_sync", "adtopk_sync_ef"),
    "delayed": ("iad_adtopk", "ig_adtopk", "ig_adtopk_ef"),
    "local": ("local_sgd", "streaming_local", "diloco", "local_topk", "ig_local"),
}
APART = "apart"  # the ranks' models never meet: their times count, their loss is no method's
ONE = "one"  # rank alone: a level to compare with, no way to synchronise

QUALITY = ("peak_rate", "val_loss", "best_val_loss", "val_ppl", "val_accuracy", "loss_over_adtopk", "loss_over_dense")
BYTES = ("payload_bytes", "wire_bytes", "flush_wire_bytes", "total_bytes", "saved_over_adtopk", "saved_over_dense")
TIMES = ("tokens_per_s", "step_ms", *PHASES_MS)
TO_DENSE = ("to_dense_steps", "to_dense_bytes", "to_dense_s")

BUDGET = 0.25  # of adtopk_sync's bytes; the claim
RIVALS = ("topk_sync", "powersgd", "local_sgd", "never")  # what anyone would use who wants to send less


def tables(study: Study) -> dict[str, pd.DataFrame]:
    """Mean and sd over seeds by method: `rq5` quality, `rq5_bytes`, `rq5_times`, `rq5_to_dense`; `rq5_runs`: per run.

    Where a method has several learning rates, `rq5_rates` has them all, the means by method are at the best of them.
    """
    each = per_run(at_best_rates(study))
    told = {
        "rq5": by_method(each, QUALITY),
        "rq5_bytes": on_frontier(by_method(each, ("val_loss", *BYTES))),
        "rq5_times": by_method(each, TIMES).assign(note=INDICATIVE),
        "rq5_to_dense": to_dense(each),
        "rq5_runs": per_run(study).drop(columns=["family", "group"]),
    }
    return told | ({"rq5_rates": rates(study)} if "peak_rate" in varying(study) else {})


# ---------------------------------------------------------------------------------------- what a run is of


def named(study: Study, ignore: Iterable[str] = ()) -> pd.DataFrame:
    """The runs with `family`, `method`, `group`, `replicas`, `control` and `peak_rate`, in the order of the tables.

    `family` is what +method=... was, the run's own name where there was none; `method` adds what varies within a
    family or was changed: `topk_sync (density=0.001)`, but for the knobs to `ignore`. `group`: of FAMILIES. `replicas`:
    are the ranks' models equal while training? `control`: its important set is random or inverse.
    """
    runs = study.runs.sort_values("seed", ignore_index=True)
    told = runs["method"] if "method" in runs else pd.Series(None, runs.index, dtype=object)
    runs["family"] = told.where(told.notna(), runs["run"])
    runs["method"] = runs["family"]
    runs["peak_rate"] = runs["learning_rate"] * runs["learning_rate_factor"]
    known = [name for name in made_of(study) if name.split(".")[0] not in ignore]
    several = varying_by_family(runs, known)
    for family, mine in runs.groupby("family"):
        own = sets(str(family))
        names = [name for name in known if name in several[family] or (name in own and changed(mine[name], own[name]))]
        for i, values in mine[names].iterrows():
            words = [word(name, value) for name, value in values.items() if value == value]
            runs.loc[i, "method"] = f"{family} ({', '.join(words)})" if words else family
    kinds = [kind(run) for run in runs.to_dict("records")]
    runs["group"], runs["replicas"] = [group for group, _ in kinds], [replicas for _, replicas in kinds]
    runs["control"] = runs["threshold"].isin(rq2.CONTROLS) & (runs["group"] != "baselines")
    return runs.sort_values(["group", "family"], key=positions, kind="stable", ignore_index=True)


def made_of(study: Study) -> list[str]:
    """The knobs that tell a method from another."""
    others = {"method", *RATE, *SETTING}
    return [*(name for name in study.knobs if name.split(".")[0] in set(AXES) - others), "peak_rate"]


def positions(values: pd.Series) -> pd.Series:
    """To sort by: groups and families in their order, numbers as they are."""
    if pd.api.types.is_numeric_dtype(values):
        return values
    order = [*FAMILIES, *(family for families in FAMILIES.values() for family in families)]
    return values.map(lambda name: f"{order.index(name) if name in order else len(order):02d}{name}")


def varying_by_family(runs: pd.DataFrame, names: Sequence[str]) -> dict[Any, set[str]]:
    """The knobs that tell a family's runs apart; an option's own key does only among the runs of that option."""
    values = defaultdict(set)
    for run in runs.to_dict("records"):
        for name in names:
            group = name.split(".")[0]
            values[run["family"], name, name != group and run.get(group)].add(repr(run[name]))
    several: dict[Any, set[str]] = {family: set() for family in runs["family"]}
    for (family, name, _), told in values.items():
        if len(told) > 1:
            several[family].add(name)
    return several


def changed(values: pd.Series, told: Any) -> bool:
    """Whether some run has another value than its method's file sets."""
    return bool((values.notna() if told is None else values != told).any())


def varying(study: Study) -> set[str]:
    """Knobs that vary within a family."""
    return set().union(*varying_by_family(named(study), made_of(study)).values())


@functools.cache
def sets(family: str) -> dict[str, Any]:
    """The knobs that conf/method/<family>.yaml sets, flat; none where there is no such file."""
    path = CONF / "method" / f"{family}.yaml"
    content = yaml.safe_load(path.read_text()) if path.exists() else {}
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if key == "defaults":
            flat |= {name.split("/")[-1]: option for default in value for name, option in default.items()}
        else:
            flat |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def word(knob: str, value: Any) -> str:
    """`R=8`, `rank=4`; of an option its name alone."""
    if (CONF / knob).is_dir():
        return str(value)
    return f"{SYMBOLS.get(knob, knob.split('.')[-1])}={rq2.word(value)}"


def kind(run: dict[str, Any]) -> tuple[str, str]:
    """Group and replicas of a run, from what it is made of."""
    if run["num_processes"] == 1:
        return "baselines", ONE
    if run["synchronizer"] != "importance":
        return "baselines", {"noop": APART, "never": "apart until the end"}.get(run["synchronizer"], "equal")
    if run["deferral"] == "local" and run["num_low"]:
        return "local", "apart between releases"
    return "delayed" if run["num_low"] and run["release_period"] > 1 else "sparse", "equal"


def setting(study: Study) -> list[str]:
    """N and how the texts are split, where the study has several; a rank alone has no part in it."""
    several = study.runs[study.runs["num_processes"] > 1]
    return [name for name in SETTING if name in several and several[name].nunique() > 1]


# -------------------------------------------------------------------------------------------------- tables


def per_run(study: Study) -> pd.DataFrame:
    """One row per run, compared with `adtopk_sync` and `dense` of the same seed; what nothing measures is left out.

    Bytes are per rank: `wire_bytes` and `payload_bytes` per step, means over whole release periods without the flush,
    `total_bytes` of the whole run with it. `saved_over_*`: 1 less the ratio of wire bytes per step. `to_dense_*`: what
    it took to reach the loss that `dense` ends with, see `crossing`; `reached`: 1 where it was, else 0.
    """
    runs, pair_by = named(study), [*setting(study), "seed"]
    unique(runs, ["method", *pair_by])
    runs["total_bytes"] = runs["total_wire_bytes"] + runs["flush_wire_bytes"]

    def of(method: str, column: str) -> pd.Series:
        return baseline(runs, runs["method"] == method, pair_by, column)

    for name, method in (("adtopk", "adtopk_sync"), ("dense", "dense")):
        runs[f"loss_over_{name}"] = runs["val_loss"] - of(method, "val_loss")
        runs[f"saved_over_{name}"] = 1 - runs["wire_bytes"] / of(method, "wire_bytes")
    runs["important_share"] = runs["num_important"] / (runs["num_important"] + runs["num_low"])
    goal = of("dense", "val_loss")
    curves = dict(list(study.curves[study.curves["val_loss"].notna()].groupby("run")))
    passed = [crossing(curves[run], loss) for run, loss in zip(runs["run"], goal, strict=True)]
    runs[list(TO_DENSE)] = pd.DataFrame(passed, index=runs.index)
    runs["reached"] = runs["to_dense_steps"].notna().astype(float).where(goal.notna())
    measured = (*QUALITY, *BYTES, *TIMES, "reached", *TO_DENSE, "release_period", "important_share")
    kept = [name for name in measured if runs[name].notna().any()]
    return runs[["group", "family", "method", *setting(study), "replicas", "control", "seed", *kept, "run"]]


def crossing(curve: pd.DataFrame, loss: float) -> tuple[float, float, float]:
    """(steps, bytes, seconds) when an evaluation curve first is at or below a loss; NaN where it never is.

    Between two evaluations they go along a straight line. A flush is one step: what only it reaches is reached after.
    """
    columns = ["step", "total_wire_bytes", "seconds"]
    below = np.flatnonzero(curve["val_loss"] <= loss)
    if not below.size:
        return float("nan"), float("nan"), float("nan")
    after = curve.iloc[below[0]]
    passed = after[columns].to_numpy(float)
    if below[0] and after["step"] <= after["steps"]:
        before = curve.iloc[below[0] - 1]
        share = (before["val_loss"] - loss) / (before["val_loss"] - after["val_loss"])
        start = before[columns].to_numpy(float)
        passed = start + share * (passed - start)
    return tuple(passed)


def by_method(each: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """One row per method and setting, mean and sample sd over seeds."""
    by = ["group", "family", "method", *(name for name in SETTING if name in each), "replicas"]
    frame = over_seeds(each, by, [name for name in (*columns, "wire_bytes") if name in each])
    frame = frame.sort_values(["group", "family", "wire_bytes"], key=positions, ignore_index=True)
    shown = [name for name in frame if name in columns or name.removesuffix("_sd") in columns]
    return frame[[*by[2:], "num_seeds", *shown]]


def to_dense(each: pd.DataFrame) -> pd.DataFrame:
    """What it took to reach the loss of `dense`: mean and sd where every seed did, else a gap."""
    if "reached" not in each:
        return by_method(each, ())
    frame = by_method(each, ("reached", *TO_DENSE)).drop(columns="reached_sd")
    timed = [name for name in frame if name.startswith("to_dense")]
    frame[timed] = frame[timed].where(frame["reached"] == 1)
    return frame.assign(note="Along straight lines between evaluations; seconds are indicative only.")


def on_frontier(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `best_per_step`, `best_per_run`: no other method of its setting has less loss and no more bytes.

    `best_per_step` goes by bytes per step without the flush, `best_per_run` by those of the whole run with it. Who
    never synchronises takes no place: ranks that stay apart, and one alone.
    """
    rivals = table[~table["replicas"].isin((APART, ONE))]
    by = [name for name in SETTING if name in table]
    for name, column in (("best_per_step", "wire_bytes"), ("best_per_run", "total_bytes")):
        table[name] = False
        for _, rows in rivals.groupby(by) if by else [((), rivals)]:
            table.loc[rows.index, name] = non_dominated(rows[column], rows["val_loss"])
    return table


def non_dominated(cost: pd.Series, loss: pd.Series) -> np.ndarray:
    """bool [n]: no other point is as good in both and better in one."""
    c, v = cost.to_numpy(), loss.to_numpy()
    as_good = (c[:, None] <= c) & (v[:, None] <= v)
    better = (c[:, None] < c) | (v[:, None] < v)
    return ~(as_good & better).any(0)


def rates(study: Study) -> pd.DataFrame:
    """Loss by method, setting and peak learning rate, mean over seeds, and the best rate."""
    by = ["group", "family", "method", *setting(study)]
    means = over_seeds(named(study, ignore=("peak_rate",)), [*by, "peak_rate"], ["val_loss"])
    wide = means.pivot(index=by, columns="peak_rate", values="val_loss")
    wide = wide.rename(columns=lambda rate: f"lr={rate:g}").assign(peak_rate=wide.idxmin(axis=1))
    return wide.reset_index().sort_values(by, key=positions, ignore_index=True).drop(columns=["group", "family"])


def at_best_rates(study: Study) -> Study:
    """Each method at the learning rate that ends lowest; chosen on the seeds it is told of, which flatters."""
    if "peak_rate" not in varying(study):
        return study
    by = ["method", *setting(study), "peak_rate"]
    best = named(study, ignore=("peak_rate",)).merge(rates(study)[by], on=by)["run"]
    return study.of(study.runs[study.runs["run"].isin(best)], study.incomplete)


# ---------------------------------------------------------------------------------------------- conclusion


def conclusion(study: Study) -> str:
    """The answer in words, markdown: one sentence per claim, as far as these runs go."""
    lines, best = [], at_best_rates(study)
    if best is not study:
        found = [f"`{run.method}` {run.peak_rate:g}" for run in named(best).drop_duplicates("method").itertuples()]
        lines.append(f"- **learning rates**: each at the best of its own, chosen on these seeds: {', '.join(found)}.")
    said: dict[str, dict[str, str]] = {}
    for words, part in settings(best).items():
        each = per_run(part)
        for claim, text in (*budget(each), *equal_bytes(each), *controls(part), *without_communication(each)):
            said.setdefault(claim, {})[words] = text
    for claim, texts in said.items():
        same = len(set(texts.values())) == 1  # as what is missing everywhere
        told = {"": next(iter(texts.values()))} if same else texts
        lines += [f"- **{', '.join(filter(None, (claim, words)))}**: {text}" for words, text in told.items()]
    return "\n".join([*lines, f"- {INDICATIVE} Losses and bytes are exact."])


def settings(study: Study) -> dict[str, Study]:
    """The study by what its methods are compared within: `num_processes=4,split=by_rank`, or one without a name."""
    names = setting(study)
    parts = study.runs.groupby(names) if names else [((), study.runs)]
    return {label(dict(zip(names, values, strict=True))): study.of(runs, study.incomplete) for values, runs in parts}


def budget(each: pd.DataFrame) -> list[tuple[str, str]]:
    """Claim (a): which R and share of important components bring ImportanceGradient to a quarter of the bytes."""
    return [(f"(a) {family}", budget_of(each, family, reference))
            for family, reference in (("ig_adtopk", "adtopk_sync"), ("ig_adtopk_ef", "adtopk_sync_ef"))]  # fmt: skip


def budget_of(each: pd.DataFrame, family: str, reference: str) -> str:
    mine, theirs = each[(each["family"] == family) & ~each["control"]].copy(), each["method"] == reference
    missing = [name for name, found in ((family, len(mine)), (reference, theirs.any())) if not found]
    if missing:
        return f"cannot be said: no run of `{'`, `'.join(missing)}` here."
    for name, column in (("cost", "val_loss"), ("bytes", "wire_bytes")):
        mine[name] = baseline(each, theirs, ["seed"], column)
    mine["cost"], mine["ratio"] = mine["val_loss"] - mine["cost"], mine["wire_bytes"] / mine["bytes"]
    rows = over_seeds(mine.dropna(subset="ratio"), ["method", "release_period"], ["ratio", "cost", "important_share"])
    if rows.empty:
        return f"cannot be said: no seed that both `{family}` and `{reference}` have."
    enough = rows[rows["ratio"] <= BUDGET]
    best = enough.loc[enough["cost"].idxmin()] if len(enough) else rows.loc[rows["ratio"].idxmin()]
    told = (
        f"`{best['method']}`, R = {best['release_period']} with {best['important_share']:.0%} of the components "
        f"important, sends {best['ratio']:.3f} of the wire bytes per step of `{reference}`; its loss less that one's: "
        f"{amount(best, 'cost')} nats per token ({best['num_seeds']} seed{'s' if best['num_seeds'] > 1 else ''})"
    )
    if len(enough):
        return f"{told}. It has the least loss of {len(enough)} that send at most {BUDGET:g}."
    return f"{BUDGET:g} is not reached here. The nearest of {len(rows)}: {told}."


def equal_bytes(each: pd.DataFrame) -> list[tuple[str, str]]:
    """Claim (b), by bytes of the whole run and by bytes per step."""
    return [("(b) whole run, flush included", best_composition(each, "total_bytes")),
            ("(b) per step, flush apart", best_composition(each, "wire_bytes"))]  # fmt: skip


def best_composition(each: pd.DataFrame, column: str) -> str:
    """The composition that ends below most rivals that send no more, of those the one with the least loss."""
    each = each[~each["control"]]
    table = over_seeds(each, ["group", "family", "method"], [column, "val_loss"]).set_index("method")
    compositions = table[(table["group"] != "baselines") & ~table["family"].isin(RIVALS)]
    rivals = {name: table[table["family"] == name] for name in RIVALS if (table["family"] == name).any()}
    missing = [name for name in RIVALS if name not in rivals]
    if compositions.empty or not rivals:
        return "cannot be said: no composition here, or nothing to compare it with."

    def strongest(rows: pd.DataFrame, most: float) -> str:
        """The rival's best for so many bytes; its cheapest where all send more."""
        affordable = rows[rows[column] <= most * (1 + rq2.EQUAL_BYTES)]
        return str(affordable["val_loss"].idxmin() if len(affordable) else rows[column].idxmin())

    def against(method: str) -> dict[str, str]:
        return {name: strongest(rows, table.loc[method, column]) for name, rows in rivals.items()}

    def wins(method: str) -> int:
        mine = table.loc[method, "val_loss"]
        return sum(bool(mine < table.loc[rival, "val_loss"]) for rival in against(method).values())

    best = max(compositions.index, key=lambda method: (wins(method), -table.loc[method, "val_loss"]))
    losses = each.pivot(index="seed", columns="method", values="val_loss")
    said = []
    for rival in against(best).values():
        gap = (losses[best] - losses[rival]).dropna()
        size = {"gap": gap.mean(), "gap_sd": gap.std(ddof=1)}
        more = table.loc[rival, column] > table.loc[best, column] * (1 + rq2.EQUAL_BYTES)
        said.append(f"`{rival}`{', which sends more' if more else ''} {amount(size, 'gap')}")
    text = (
        f"`{best}` ({table.loc[best, column] / 1e3:.4g} kB, {table.loc[best, 'val_loss']:.3f}) ends below {wins(best)} "
        f"of {len(rivals)} rivals that may send as much; its loss less theirs: {'; '.join(said)}."
    )
    return f"{text} Missing here: `{'`, `'.join(missing)}`." if missing else text


def controls(study: Study) -> list[tuple[str, str]]:
    """Claim (c): the important set against random and inverse sets of the same size, all else equal."""
    runs = named(study, ignore=("threshold",))
    said = []
    for method, mine in runs[runs["group"] != "baselines"].groupby("method", sort=False):
        if not mine["control"].any():
            continue
        rows = rq2.paired(study.of(study.runs[study.runs["run"].isin(mine["run"])]))
        for _, row in rows.iterrows():
            said.append((f"(c) {method}, {row['policy']} against {row['control']}", rq2.verdict(row, level=0.05)))
    return said or [("(c)", "cannot be said: no run with threshold=random or inverse has a partner here.")]


def without_communication(each: pd.DataFrame) -> list[tuple[str, str]]:
    """Who loses to ranks that do not talk while they train."""
    quiet = ("never", "alone")
    talking = each[(each["replicas"] != APART) & ~each["family"].isin(quiet) & ~each["control"]]
    losses = over_seeds(talking, ["family", "method"], ["val_loss"]).sort_values("family", key=positions)
    said = []
    for name in quiet:
        level = each.loc[each["method"] == name, "val_loss"].mean()
        worse = (losses["val_loss"] > level).groupby(losses["family"], sort=False).agg(["sum", "size"])
        who = [f"`{family}`" + (f" ({n} of {of})" if of > 1 else "") for family, n, of in worse.itertuples() if n]
        if level == level:
            said.append(f"`{name}` ends at {level:.3f}; worse than that: {', '.join(who) or 'nothing'}.")
    return [("not communicating", " ".join(said) or "cannot be said: neither `never` nor `alone` is here.")]


def amount(row: Any, column: str) -> str:
    """`+0.012 ± 0.003`; one seed has no spread."""
    spread = f" ± {row[f'{column}_sd']:.3f}" if row[f"{column}_sd"] == row[f"{column}_sd"] else ""
    return f"{row[column]:+.3f}".replace("-", "−") + spread
