"""What a step of each recorded method would take on another cluster: more ranks, other links.

A run leaves behind every cross-rank operation of its rank 0 (messages.parquet) and the times of its phases. Operations
are taken to another number of ranks and priced by latency and bandwidth (igrad/link.py); work is as recorded. RUN_DIR
is a finished run, or a study: all finished runs in it, the mean over seeds. The fastest method is the one with the
least step time among those that send anything, with --steps the one with the least time to a target loss.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from igrad.command_line import Parser, output_file
from igrad.config import NOT_IDENTITY, one_line
from igrad.files import read_summary
from igrad.link import Cluster, Link, sent_bytes
from igrad.results import knobs, label

DENSE = "dense"  # what others are compared with
PHASES_MS = ("compute_ms", "select_ms", "pack_ms", "exchange_ms", "unpack_ms")
VOTE_BYTES = 16  # of the all-gather in which ranks agree on a step
RECORD_BYTES = 8  # of reduce_scatter: an entry in float32, the least that an owner gathers
COUNT_BYTES = 8  # of reduce_scatter: how many entries a bucket has for an owner
PREFIXES = {"": 1e-6, "k": 1e-3, "M": 1.0, "G": 1e3, "T": 1e6}  # Mbit/s
ASSUMED = (
    "compute, selection, packing and the steps that a method needs: those of the recorded number of ranks",
    "unpacking an all-gather grows as the number of ranks, all of it: an upper bound",
    "operations follow one another, nothing is computed meanwhile; messages are as long as on the recorded ranks",
    "collective auto keeps the choices that it made",
    "exchange time over what the recording link explains is work or waiting, and stays",
)


@dataclass(frozen=True)
class Trace:
    """A run as it was recorded. Messages and times are of the same steps, whole release periods."""

    method: str
    num_ranks: int
    num_buckets: int
    num_steps: int
    messages: pd.DataFrame  # step, kind, num_bytes: all of these steps
    compute_ms: float  # per step, as the rest: medians over windows, so that none counts in which the machine stalled
    select_ms: float
    pack_ms: float
    exchange_ms: float
    unpack_ms: float
    knobs: Mapping[str, Any]

    @property
    def gathers(self) -> bool:
        """Whether every rank unpacks every rank's share: there is an all-gather, and no owner added up before it."""
        kinds, sizes = self.messages["kind"], self.messages["num_bytes"]
        return bool(((kinds == "all_gather") & (sizes != VOTE_BYTES)).any()) and "all_to_all" not in set(kinds)


# ---------------------------------------------------------------------------------------------- traces


def load(directory: Path) -> Trace:
    """The trace of a finished run. The first window is left out, as in its means. ValueError where there is none."""
    path, summary = directory / "messages.parquet", read_summary(directory)
    if summary.get("status") != "finished" or made_a_profile(directory):
        raise ValueError(without(directory, [directory]))
    if not path.exists():
        raise ValueError(f"{directory} has no messages.parquet, an older version made it; repeat it with rerun=true")
    from igrad.metrics import read_rows  # imports torch, which drawing a map does not need

    config = yaml.safe_load((directory / "config.yaml").read_text())
    windows = timed_windows(read_rows(directory / "metrics.jsonl"))
    if not windows:
        raise ValueError(f"{directory} has no window of whole release periods; raise steps or lower log_every")
    messages, steps = pd.read_parquet(path), [step for window, _ in windows for step in window]
    return Trace(
        method=config["method"] or config["study"],
        num_ranks=config["num_processes"],
        num_buckets=config["num_buckets"],
        num_steps=len(steps),
        messages=messages[messages["step"].isin(steps)],
        **{name: float(np.median([row[name] for _, row in windows])) for name in PHASES_MS},
        knobs=knobs(config),
    )


def timed_windows(rows: Iterable[Mapping[str, Any]]) -> list[tuple[range, Mapping[str, Any]]]:
    """(steps, from 1, and row) of the windows that a run's mean times are of (igrad.metrics.means)."""
    windows, last = [], 0
    for row in rows:
        if row["step_ms"] is not None:
            windows.append((range(last + 1, row["step"] + 1), row))
        last = row["step"]
    return windows[1:] or windows


def load_all(places: Iterable[Path]) -> list[Trace]:
    """The traces of run directories and of the finished runs of studies. ValueError where a place holds none."""
    traces = []
    for place in places:
        if (place / "config.yaml").exists():
            traces.append(load(place))
            continue
        inside = sorted(path.parent for path in place.glob("*/config.yaml"))
        finished = [run for run in inside if read_summary(run).get("status") == "finished" and not made_a_profile(run)]
        if not finished:
            raise ValueError(without(place, inside))
        traces += map(load, finished)
    return traces


def made_a_profile(directory: Path) -> bool:
    """Whether it is the run behind a profile, which lies beside it: it is no method's, and sends everything."""
    directory = directory.resolve()  # "." has no name
    return directory.with_name(f"{directory.name}.parquet").exists()


def without(place: Path, runs: Iterable[Path]) -> str:
    """Why a place holds no finished run of a study, and what may be meant."""
    if any(map(made_a_profile, runs)):
        return f"{place} holds what made a profile; name a study in outputs/ or a run of one"
    meant = Path("outputs") / place
    hint = f"; did you mean {meant}?" if not place.exists() and meant.exists() else ""
    return f"{place} holds no finished run{hint}"


def named(traces: Iterable[Trace]) -> dict[str, list[Trace]]:
    """By method, seeds and numbers of ranks together; what else varies within a method is added to its name."""
    methods: dict[str, list[Trace]] = {}
    for trace in traces:
        methods.setdefault(trace.method, []).append(trace)
    found: dict[str, list[Trace]] = {}
    for method, mine in methods.items():
        known = dict.fromkeys(name for trace in mine for name in trace.knobs)
        alike = {"seed", "num_processes", *NOT_IDENTITY}
        names = [
            name
            for name in known
            if name.split(".")[0] not in alike and len({repr(trace.knobs.get(name)) for trace in mine}) > 1
        ]
        for trace in mine:
            words = label({name: trace.knobs[name] for name in names if name in trace.knobs})
            found.setdefault(f"{method} ({words})" if words else method, []).append(trace)
    return found


def nearest(traces: Sequence[Trace], num_ranks: int) -> list[Trace]:
    """Those recorded with the number of ranks that is nearest by ratio, of two as near the larger."""
    best = min((abs(math.log(trace.num_ranks / num_ranks)), -trace.num_ranks) for trace in traces)
    return [trace for trace in traces if trace.num_ranks == -best[1]]


# ------------------------------------------------------------------------------------------------ model


def among(trace: Trace, num_ranks: int) -> pd.DataFrame:
    """The trace's messages among another number of ranks.

    What is reduced or broadcast keeps its size, and so does a rank's share of an all-gather. Only reduce_scatter sends
    all_to_all: the counts that it starts with (told by their size, which few entries may have too) go to every other
    rank, of its entries a rank keeps an N-th, and what an owner gathers is an N-th of a rank's entries. An owner keeps
    at least one entry of every payload, and messages do not tell payloads apart: among more ranks than a payload has
    entries it sends more than said here.
    """
    before, messages = trace.num_ranks, trace.messages
    kinds, sizes = messages["kind"].to_numpy(), messages["num_bytes"].to_numpy(np.float64, copy=True)
    to_others = kinds == "all_to_all"
    if num_ranks == before or not to_others.any():
        return messages
    if before == 1:
        raise ValueError(f"{trace.method} was recorded on one rank, which sends nothing to others; record it on two")
    counts = to_others & (sizes <= COUNT_BYTES * (before - 1) * trace.num_buckets)
    sizes[to_others] *= (num_ranks - 1) / (before - 1)
    sizes[to_others & ~counts] *= before / num_ranks
    gathered = (kinds == "all_gather") & (sizes != VOTE_BYTES)
    sizes[gathered] = np.maximum(RECORD_BYTES, sizes[gathered] * before / num_ranks)
    return messages.assign(num_bytes=sizes)


def per_step(trace: Trace, num_ranks: int, cost: Callable[[str, np.ndarray], np.ndarray]) -> float:
    """Mean over steps of the sum of what each message costs, by kind and bytes."""
    by_kind = among(trace, num_ranks).groupby("kind")["num_bytes"]
    return sum(float(cost(kind, sizes.to_numpy(np.float64)).sum()) for kind, sizes in by_kind) / trace.num_steps


def wire_bytes(trace: Trace, num_ranks: int) -> float:
    """Sent per rank and step."""
    return per_step(trace, num_ranks, partial(sent_bytes, num_ranks=num_ranks))


def communication_ms(trace: Trace, cluster: Cluster) -> float:
    """All operations of a step, one after the other."""
    return per_step(trace, cluster.num_ranks, cluster.us) / 1e3


def local_ms(trace: Trace, num_ranks: int, recorded: Link | None = None) -> float:
    """Work of a step besides compute: select, pack and unpack.

    An all-gather is unpacked rank by rank: it takes N / recorded N times as long. With the link that the trace was
    `recorded` over, also what the exchange took longer than that link explains: where ranks wait for each other, or
    where they compute, as PowerSGD does, whose factorisation lies between its messages.
    """
    grown = num_ranks / trace.num_ranks if trace.gathers else 1.0
    work_ms = trace.select_ms + trace.pack_ms + grown * trace.unpack_ms
    if recorded is None:
        return work_ms
    explained_ms = communication_ms(trace, Cluster(trace.num_ranks, 1, recorded, recorded))
    return work_ms + max(0.0, trace.exchange_ms - explained_ms)


def step_ms(trace: Trace, cluster: Cluster, compute_ms: float | None = None, recorded: Link | None = None) -> float:
    """Compute (the trace's own where none is given), then work (see `local_ms`), then communication."""
    compute_ms = trace.compute_ms if compute_ms is None else compute_ms
    return compute_ms + local_ms(trace, cluster.num_ranks, recorded) + communication_ms(trace, cluster)


def limit_ms(trace: Trace, cluster: Cluster, compute_ms: float | None = None) -> float:
    """Compute, and the bytes at full bandwidth between nodes: no synchronizer that waits for its exchange is faster."""
    compute_ms = trace.compute_ms if compute_ms is None else compute_ms
    sent = per_step(trace, cluster.num_ranks, cluster.outer_bytes)
    return compute_ms + sent / cluster.outer.bytes_per_us / 1e3


# ------------------------------------------------------------------------------------------------- grid


def simulate(
    methods: Mapping[str, Sequence[Trace]],
    clusters: Mapping[tuple[int, float], Cluster],
    compute_ms: float,
    recorded: Link | None = None,
    steps: Mapping[str, float] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """`rows`: every method on every cluster (by ranks and Mbit/s); `fastest`: the best of each cluster.

    `steps`: that a method needs to its target, no entry where it never gets there; then `time_s` is what counts, else
    the step time of the methods that send anything.
    """
    rows = []
    for (num_ranks, bandwidth_mbit), (name, traces) in product(clusters, methods.items()):
        cluster, mine = clusters[num_ranks, bandwidth_mbit], nearest(traces, num_ranks)
        took_ms = mean(step_ms(trace, cluster, compute_ms, recorded) for trace in mine)
        needed = steps.get(name) if steps is not None else None
        rows.append({
            "method": name, "num_ranks": num_ranks, "bandwidth_mbit": bandwidth_mbit, "step_ms": took_ms,
            "limit_ms": mean(limit_ms(trace, cluster, compute_ms) for trace in mine),
            "wire_bytes": mean(wire_bytes(trace, num_ranks) for trace in mine),
            "steps": needed, "time_s": None if needed is None else needed * took_ms / 1e3,
            "competes": any(len(trace.messages) for trace in mine) if steps is None else needed is not None,
            "recorded_ranks": mine[0].num_ranks,
        })  # fmt: skip
    return {"rows": rows, "fastest": [fastest(rows, at, "step_ms" if steps is None else "time_s") for at in clusters]}


def mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def fastest(rows: Iterable[Mapping[str, Any]], at: tuple[int, float], by: str) -> dict[str, Any]:
    """The best method of a cluster, and by what factor it beats dense; None where nobody, or dense, competes."""
    here = {
        row["method"]: row[by] for row in rows if (row["num_ranks"], row["bandwidth_mbit"]) == at and row["competes"]
    }
    best = min(here, key=here.__getitem__, default=None)
    factor = here[DENSE] / here[best] if DENSE in here else None
    return {"num_ranks": at[0], "bandwidth_mbit": at[1], "method": best, "factor_over_dense": factor}


# ---------------------------------------------------------------------------------------------- command


def mbit(text: str) -> float:
    """`10Mbit`, `2.5Gbit` in Mbit/s."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]?)bit", text.strip())
    if not found or not float(found[1]):
        raise ValueError(f"a bandwidth must be above 0 and look like 100Mbit or 2.5Gbit, got '{text}'")
    return float(found[1]) * PREFIXES[found[2]]


def in_words(bandwidth_mbit: float) -> str:
    """`100 Mbit/s`, `2.5 Gbit/s`."""
    return f"{bandwidth_mbit / 1e3:g} Gbit/s" if bandwidth_mbit >= 1e3 else f"{bandwidth_mbit:g} Mbit/s"


def link(latency_us: float, bandwidth_mbit: float) -> Link:
    return Link(latency_us, bandwidth_mbit / 8)


def ranks(text: str) -> int:
    if not text.strip().isdecimal() or not int(text):
        raise ValueError(f"num-ranks must be whole numbers of at least 1, got '{text}'")
    return int(text)


def read_steps(path: Path) -> dict[str, float]:
    """Columns method and steps (or to_target_steps, as the table rq5_target says); NaN where they are empty.

    ValueError where it is no such table.
    """
    frame = pd.read_csv(path, skipinitialspace=True).rename(columns={"to_target_steps": "steps"})
    if not {"method", "steps"} <= set(frame):
        raise ValueError(f"{path} must have columns method and steps, has {', '.join(frame)}")
    if frame["method"].duplicated().any():
        raise ValueError(f"{path} has two rows of {frame['method'][frame['method'].duplicated()].iloc[0]}")
    reached = frame.dropna(subset=["steps"])
    if reached.empty or not pd.api.types.is_numeric_dtype(reached["steps"]) or reached["steps"].min() <= 0:
        raise ValueError(f"{path}: steps must be numbers above 0, empty where the target is never reached")
    return dict(zip(frame["method"], frame["steps"].astype(float), strict=True))


def printed(found: Mapping[str, Any]) -> str:
    """The fastest method and its factor over dense, bandwidths down, ranks across."""
    frame = pd.DataFrame(found["fastest"])
    factors = frame["factor_over_dense"].map(lambda factor: "" if pd.isna(factor) else f" {factor:.1f}×")
    frame["cell"] = frame["method"].fillna("none") + factors
    table = frame.pivot(index="bandwidth_mbit", columns="num_ranks", values="cell")
    table.index = table.index.map(in_words)
    return table.rename(columns="N = {}".format).rename_axis(index=None, columns=None).to_string()


def remarks(found: Mapping[str, Any], by: str, compute_ms: float, steps: Mapping[str, float] | None) -> list[str]:
    def why_not(name: str) -> str:
        if steps is None:
            return "sends nothing"
        return "never reaches the target" if name in steps else "not in the table of steps"

    frame = pd.DataFrame(found["rows"])
    apart = frame.groupby("method", sort=False)["competes"].any()
    recorded = sorted(frame["recorded_ranks"].unique())
    factor = f", and its factor over {DENSE}" if DENSE in apart else ""
    lines = [f"fastest by {by}{factor}; compute {compute_ms:.1f} ms; "
             f"recorded with N = {', '.join(map(str, recorded))}"]  # fmt: skip
    if not apart.all():
        lines.append(f"do not compete: {', '.join(f'{name} ({why_not(name)})' for name in apart.index[~apart])}")
    return [*lines, "assumed:", *(f"  {each}" for each in ASSUMED)]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m igrad.simulate", description=__doc__)
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN_DIR", help="a finished run, or a study in outputs/")
    add("--num-ranks", metavar="N,N", default="2,8,64,512,4096", help="N of the clusters (default: %(default)s)")
    add("--bandwidth", metavar="RATE,RATE", default="10Mbit,100Mbit,1Gbit,10Gbit,100Gbit,400Gbit",
        help="of a rank's link, of a node's where it has several ranks (default: %(default)s)")  # fmt: skip
    add("--latency-us", type=float, metavar="US", default=50.0, help="of a round over it (default: %(default)s)")
    add("--ranks-per-node", type=int, metavar="N", default=1, help="that share a node's link (default: %(default)s)")
    add(
        "--inner-bandwidth",
        metavar="RATE",
        default="400Gbit",
        help="of a rank's link within a node (default: %(default)s)",
    )
    add(
        "--inner-latency-us",
        type=float,
        metavar="US",
        default=5.0,
        help="of a round within a node (default: %(default)s)",
    )
    add("--rings", action="store_true", help="as gloo does; default: the better of rings and trees")
    add("--compute-ms", type=float, metavar="MS", help="per step, for all methods alike (default: the traces' median)")
    add(
        "--recorded-bandwidth",
        metavar="RATE",
        default="10Gbit",
        help="of the link that runs were recorded over (default: %(default)s)",
    )
    add(
        "--recorded-latency-us",
        type=float,
        metavar="US",
        default=100.0,
        help="of a round over it (default: %(default)s)",
    )
    add("--steps", type=Path, metavar="FILE", help="CSV: method, steps to the target loss, empty = never reached")
    add("--out", type=Path, metavar="FILE", default=Path("outputs/benchmarks/simulate.json"),
        help="JSON, every method on every cluster (default: %(default)s)")  # fmt: skip
    return parser.parse_args(argv)


def run(told: argparse.Namespace) -> None:
    inner = link(told.inner_latency_us, mbit(told.inner_bandwidth))
    recorded = link(told.recorded_latency_us, mbit(told.recorded_bandwidth))
    grid = product(map(ranks, told.num_ranks.split(",")), map(mbit, told.bandwidth.split(",")))
    clusters = {
        (n, b): Cluster(n, told.ranks_per_node, inner, link(told.latency_us, b), not told.rings) for n, b in grid
    }
    methods, steps = named(load_all(told.runs)), read_steps(told.steps) if told.steps else None
    compute_ms = told.compute_ms
    if compute_ms is None:  # one for all: what differs between recordings is noise
        compute_ms = float(np.median([trace.compute_ms for traces in methods.values() for trace in traces]))
    if not compute_ms >= 0:
        raise ValueError(f"compute-ms must be at least 0, got {compute_ms}")
    reached = None
    if steps is not None:
        reached = {name: number for name, number in steps.items() if not math.isnan(number)}
        if not steps.keys() & methods.keys():
            raise ValueError(f"{told.steps} names no method that was recorded; these are: {', '.join(methods)}")
        if not reached.keys() & methods.keys():
            raise ValueError(f"{told.steps}: no recorded method reaches the target")
    found = simulate(methods, clusters, compute_ms, recorded, reached)
    by = "step time" if steps is None else "time to the target loss"
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(told).items()}
    document = {**asked, "runs": [str(place) for place in told.runs], "compute_ms": compute_ms, "by": by,
                "assumed": ASSUMED, **found}  # fmt: skip
    output_file(told.out).write_text(json.dumps(document, indent=1) + "\n")
    print(printed(found), "", *remarks(found, by, compute_ms, steps), told.out, sep="\n")


def main(argv: list[str] | None = None) -> int:
    try:
        run(parse(argv))
    except (ValueError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
