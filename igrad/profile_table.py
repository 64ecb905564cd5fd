"""A profile as one table: every score, every policy. `python -m igrad.profile_table outputs/profiles/<key>.parquet`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hydra.utils import instantiate
from omegaconf import OmegaConf

from igrad.command_line import Parser
from igrad.profile_file import load
from igrad.results import yamls


def table(path: str | Path, importance: str = "magnitude_persistence") -> pd.DataFrame:
    """One row per component, by rank under `importance`.

    score_<score>, rank_<score> (1 = highest) for every option of conf/importance; tau_<policy>, important_<policy>
    for every option of conf/threshold, applied to the scores of `importance`. ValueError for an unknown score.
    """
    known = yamls("importance")
    if importance not in known:
        raise ValueError(f"unknown importance '{importance}'; options: {', '.join(known)}")
    trace, numel, provenance = load(path)
    seed = provenance.get("seed", 0)
    rows = pd.DataFrame({"component": list(numel), "numel": list(numel.values())})
    for name in known:
        rows[f"score_{name}"] = option("importance", name, seed)(trace)
        rows[f"rank_{name}"] = rows[f"score_{name}"].rank(ascending=False, method="min").astype(int)
    scores = rows[f"score_{importance}"].to_numpy()
    for name in yamls("threshold"):
        rows[f"tau_{name}"], rows[f"important_{name}"] = option("threshold", name, seed)(scores, list(numel))
    return rows.sort_values(f"rank_{importance}", ignore_index=True)


def option(group: str, name: str, seed: int) -> Any:
    """The strategy conf/<group>/<name>.yaml with a run's seed."""
    root = OmegaConf.create({"seed": seed, group: yamls(group)[name]})
    return instantiate(root[group], _convert_="all")


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m igrad.profile_table", description=__doc__)
    parser.add_argument("profile", help="a file in outputs/profiles/")
    parser.add_argument("--importance", default="magnitude_persistence", help="the score that the policies cut")
    try:
        told = parser.parse_args(argv)
        rows = table(told.profile, told.importance)
        path = Path(told.profile).with_suffix(".table.parquet")
        how = json.dumps({**load(told.profile)[2], "importance": told.importance})
        pq.write_table(pa.Table.from_pandas(rows).replace_schema_metadata({"igrad": how}), path)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shown = rows[["component", "numel", f"score_{told.importance}"]].round(4)
    policies = [name.removeprefix("important_") for name in rows if name.startswith("important_")]
    for name in policies:
        shown[name] = rows[f"important_{name}"].map({True: "yes", False: ""})
    print(shown.to_string(index=False))
    print(f"{path} (every score, rank, tau and membership)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
