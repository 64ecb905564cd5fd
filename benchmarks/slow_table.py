"""The slow network's table: measured steps beside the limit and the prediction, and what is claimed of them."""

from __future__ import annotations

from typing import Any

import pandas as pd

BANDWIDTHS = {"100": 100e6, "1000": 1e9, "unlimited": None}  # Mbit/s: bit/s
OVERHEAD_SHARE, LIMIT_FACTOR = 0.10, 1.15


def compared(
    rows: list[dict[str, Any]], predictions: list[dict[str, Any]], steps: dict[int, dict[str, float]]
) -> pd.DataFrame:
    """The measured rows beside the limit, the prediction, and what it takes to a target loss.

    `limit_ms`: noop's step in turn with the method's, and the wire bytes at the bandwidth. `predicted_ms`: what was
    foretold, at the speed of that noop in place of the one alone before. `level_ms`: the step on a machine whose noop
    is the median of all cells with so many ranks, so that no method is ahead for when it was measured.
    `to_target_s`: `steps` that a method needs to the target loss with so many ranks, at that.
    """
    table = pd.DataFrame(rows)
    where = ["num_ranks", "bandwidth"]
    bits_per_ms = table["bandwidth"].map(lambda name: (BANDWIDTHS[name] or float("inf")) / 1e3)
    table["bytes_ms"] = 8 * table["wire_bytes"] / bits_per_ms
    table["limit_ms"] = table["noop_ms"] + table["bytes_ms"]
    table["over_limit"] = table["step_ms"] / table["limit_ms"]
    table["bytes_ratio"] = table["wire_bytes"] / table["interface_bytes"]
    told = pd.DataFrame(predictions)[[*where, "method", "foretold_ms", "noop_alone_ms", "per_noop"]]
    table = table.merge(told, on=[*where, "method"], how="left", validate="one_to_one")
    table["foretold_ratio"] = table["foretold_ms"] / table["step_ms"]
    table["predicted_ms"] = table["foretold_ms"] + table["per_noop"] * (table["noop_ms"] - table["noop_alone_ms"])
    table["prediction_ratio"] = table["predicted_ms"] / table["step_ms"]
    level = table.groupby("num_ranks")["noop_ms"].transform("median") / table["noop_ms"]
    table["level_ms"] = table["bytes_ms"] + level * (table["step_ms"] - table["bytes_ms"])
    table["to_target_steps"] = [
        steps.get(n, {}).get(method, float("nan"))
        for n, method in zip(table["num_ranks"], table["method"], strict=True)
    ]
    table["to_target_s"] = table["to_target_steps"] * table["level_ms"] / 1e3
    return table


def for_figures(table: pd.DataFrame) -> pd.DataFrame:
    """The names that analysis/simulated.py knows: `measured_ms`, and `bandwidth_mbit`, null where it is unlimited."""
    mbit = table["bandwidth"].map({name: rate and rate / 1e6 for name, rate in BANDWIDTHS.items()})
    return table.drop(columns="bandwidth").assign(bandwidth_mbit=mbit).rename(columns={"step_ms": "measured_ms"})


def claims(table: pd.DataFrame, shaped: pd.DataFrame) -> list[tuple[str, bool, str]]:
    """(claim, whether it holds, by what) in the order in which they are told."""
    still = table[table["method"] == "noop"]  # what is measured of the others is no better than this
    talks = table[table["wire_bytes"] > 0]
    free = talks[talks["bandwidth"] == "unlimited"]
    slow = talks[(talks["bandwidth"] == "100") & (talks["method"] == "ig_adtopk")]
    with_selection = slow["step_ms"] / (slow["limit_ms"] + slow["select_ms"])

    def worst(frame: pd.DataFrame, values: pd.Series, least: float, most: float) -> tuple[bool, str]:
        over = pd.concat([least - values, values - most], axis=1).max(axis=1)
        at = frame.loc[over.idxmax()]
        name = at["method" if "method" in frame else "what"]
        worst = f"worst {values[over.idxmax()]:.3f} (N = {at['num_ranks']}, {at['bandwidth']}: {name})"
        return bool((over <= 0).all()), f"{(over <= 0).sum()} of {len(values)}; {worst}"

    told = [
        ("noop beside noop takes the same within 3 %", still, still["overhead_share"], -0.03, 0.03),
        ("shaping takes what arithmetic says within 10 %", shaped, shaped["ratio"], 0.90, 1.10),
        ("wire bytes are the interface's within 3 %", talks, talks["bytes_ratio"], 0.97, 1.03),
        ("predicted step time within 20 % at the speed of noop beside it", talks, talks["prediction_ratio"], 0.8, 1.2),
        ("overhead at most 10 % of a noop step (unlimited)", free, free["overhead_share"], -1.0, OVERHEAD_SHARE),
        ("ig_adtopk at 100 Mbit/s over noop + selection + bytes / bandwidth", slow, with_selection, 0.0, LIMIT_FACTOR),
    ]
    return [(text, *worst(frame, values, least, most)) for text, frame, values, least, most in told if len(frame)]


def printed(table: pd.DataFrame) -> str:
    """One table per number of ranks and bandwidth."""
    parts = []
    for (num_ranks, bandwidth), rows in table.groupby(["num_ranks", "bandwidth"], sort=False):
        shown = pd.DataFrame({
            "method": rows["method"].str.ljust(16),
            "noop ms": rows["noop_ms"].map("{:.1f}".format),
            "step ms": rows["step_ms"].map("{:.1f}".format),
            "limit ms": rows["limit_ms"].map("{:.1f}".format),
            "ratio": rows["over_limit"].map("{:.2f}".format),
            "predicted": rows["predicted_ms"].map("{:.1f}".format),
            "select": rows["select_ms"].map("{:.1f}".format),
            "exchange": rows["exchange_ms"].map("{:.1f}".format),
            "overhead": rows["overhead_share"].map("{:.0%}".format),
            "kB/step": (rows["wire_bytes"] / 1e3).map("{:,.1f}".format),
            "interface": (rows["interface_bytes"] / 1e3).map("{:,.1f}".format),
            "steps": rows["to_target_steps"].map(lambda n: "" if n != n else f"{n:.0f}"),
            "to target s": rows["to_target_s"].map(lambda s: "" if s != s else f"{s:.1f}"),
        })  # fmt: skip
        where = f"{bandwidth} Mbit/s" if BANDWIDTHS[bandwidth] else "unlimited"
        parts.append(f"\nN = {num_ranks}, {where}\n{shown.to_string(index=False)}")
    return "\n".join(parts)


def first_to_target(table: pd.DataFrame) -> list[str]:
    """Claim (d): at each bandwidth, who is first at the target loss, and by what factor over those one would use."""
    said = []
    for (num_ranks, bandwidth), rows in table.groupby(["num_ranks", "bandwidth"], sort=False):
        seconds = rows.set_index("method")["to_target_s"].dropna().sort_values()
        if len(seconds) < 2:
            continue
        best = seconds.index[0]
        over = [f"{seconds[name] / seconds[best]:.2f} over {name}" for name in seconds.index[1:]]
        said.append(f"N = {num_ranks}, {bandwidth}: {best} is first at the target loss, {seconds[best]:.1f} s; by "
                    f"{', '.join(over)}")  # fmt: skip
    return said


def as_foretold(table: pd.DataFrame) -> list[str]:
    """How predictions did as they were written, whatever the machine's speed had become by then, and who needs them."""
    talks = table[table["wire_bytes"] > 0]
    ratio, speed = talks["foretold_ratio"], talks["noop_ms"] / talks["noop_alone_ms"]
    bytes_alone = talks["limit_ms"] / talks["step_ms"]
    return [
        f"as written before, {within(ratio)} predictions within 20 %, {ratio.min():.2f} to {ratio.max():.2f} of the "
        f"step; noop took {speed.min():.2f} to {speed.max():.2f} of its time right before",
        f"noop beside it and bytes / bandwidth alone, without a trace: {within(bytes_alone)} within 20 %, "
        f"{bytes_alone.min():.2f} to {bytes_alone.max():.2f} of the step",
    ]


def within(ratio: pd.Series) -> str:
    return f"{ratio.between(0.80, 1.20).sum()} of {len(ratio)}"
