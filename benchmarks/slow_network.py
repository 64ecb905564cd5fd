"""What a step of each method takes on a slow network, beside what arithmetic and a model say it should.

Ranks of this machine on a network of their own (benchmarks/network.py), held to 100 Mbit/s, 1 Gbit/s or to nothing.
First each method trains a little on the loopback: what it sends is recorded, and what it computes is timed. Then the
paths are measured with bare messages. From these two igrad.simulate predicts every step time, and the predictions are
written before the table is measured. Exit code 1 when a claim fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
import yaml
from torch import Tensor
from tqdm import tqdm

from benchmarks import network
from igrad import compose, profile, simulate
from igrad.collective import wire
from igrad.command_line import Parser, words
from igrad.config import one_line
from igrad.data import Inputs, prepare
from igrad.link import Cluster, Link, fit_link, sent_bytes
from igrad.metrics import PHASES

STUDY = "slow_network"  # of the runs on the loopback
BLOCK_STEPS, NUM_BLOCKS = 8, 3  # timed steps of a method, each block followed by one of noop; whole release periods
TIMED_STEPS = BLOCK_STEPS * NUM_BLOCKS
TRACE_STEPS, TRACE_WINDOW = 40, 8
BANDWIDTHS = {"100": 100e6, "1000": 1e9, "unlimited": None}  # Mbit/s: bit/s
NUM_RANKS = (2, 4)
PROBES = {  # bytes of the messages by which a path is measured: latency by small ones, bandwidth by large ones,
    "all_reduce": (24, 1_048_576, 4_194_304),  # since a token bucket lets a few kB through at once
    "all_gather": (64, 512),
}
NUM_PROBES = 9
NUM_OVERHEAD_PROBES = 200
SMALL = {"vote": ("all_reduce", torch.zeros(3, dtype=torch.float64)),  # three numbers: some ranks of a ring have none
         "all_reduce": ("all_reduce", torch.zeros(16)), "all_gather": ("all_gather", torch.zeros(16))}  # fmt: skip
SHAPING = {  # by which the shaping is checked: kind, bytes, how often in a row, the best of how many such rows
    "all-reduce of 50 MB": ("all_reduce", 50_000_000, 1, 1),
    "100 exchanges of 30 kB": ("all_gather", 30_000, 100, 5),
}
SHAPED = ["num_ranks", "bandwidth", "what", "seconds", "free_s", "wire_s", "ratio"]
STEPS = Path("docs/results/rq5_target/rq5_target.csv")
STEPS_NUM_RANKS = 2  # with which they were found: more ranks see more data, and need others
OVERHEAD_SHARE, LIMIT_FACTOR = 0.10, 1.15


def methods() -> list[str]:
    """RQ5's, noop first: the others are compared with it. One rank alone has no network."""
    swept = yaml.safe_load((compose.CONF / "rq" / "rq5.yaml").read_text())["hydra"]["sweeper"]["params"]["+method"]
    names = [name for name in swept.split(",") if name != "alone"]
    return sorted(names, key=lambda name: name != "noop")


def overrides(method: str, num_ranks: int | str) -> list[str]:
    return [f"+method={method}", f"num_processes={num_ranks}", f"steps={TRACE_STEPS}", f"log_every={TRACE_WINDOW}",
            "eval_windows=8", f"eval_every={TRACE_STEPS}", f"study={STUDY}", "tracking=none"]  # fmt: skip


# ------------------------------------------------------------------------------------------ on the loopback


def record_traces(names: list[str], num_ranks: tuple[int, ...]) -> None:
    """Run every method on the loopback, anew: a run of other code is no trace of this one."""
    told = overrides(",".join(names), ",".join(map(str, num_ranks)))
    print("traces on the loopback", flush=True)
    command = [sys.executable, "run.py", *told, "rerun=true", "-m"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise ValueError("a trace could not be recorded, see above")


def planned(method: str, num_ranks: int) -> tuple[compose.Point, Inputs]:
    """A point as `record_traces` ran it, with its profile, which is there."""
    [point] = compose.points(overrides(method, num_ranks))
    inputs = prepare(point.cfg)

    def missing(*_: Any) -> None:
        raise ValueError(f"no profile for {method}: its trace was not recorded here")

    return point, replace(inputs, profile=profile.resolve(point.cfg, inputs, missing))


# ----------------------------------------------------------------------------------------------- on a rank


def train(rank: int, point: compose.Point, inputs: Inputs) -> dict[str, Any]:
    """Time a run's steps, and noop's in turn with them: what differs between processes and minutes is in both.

    Everything per step, this rank's.
    """
    from igrad.synchronizer.noop import Noop
    from igrad.train import Run

    run = Run(point.cfg, point.directory, inputs, torch.device("cpu"), time.time())
    synchronizers = {"method": run.synchronizer, "noop": Noop()}
    seconds: dict[str, list[float]] = {name: [] for name in synchronizers}
    phases_ms, kinds, wire_bytes, interface_bytes = Counter(), Counter(), 0, 0
    steps = itertools.count()

    def block(name: str) -> int:
        run.synchronizer, sent = synchronizers[name], 0
        for step in itertools.islice(steps, BLOCK_STEPS):
            start = time.perf_counter()
            _, stats = run.optimizer_step(step)
            seconds[name].append(time.perf_counter() - start)
            sent += stats.wire_bytes
        return sent

    block("method")  # caches, allocators, PowerSGD's first steps
    seconds["method"].clear()
    for _ in range(NUM_BLOCKS):
        run.timer.drain()
        wire.take_messages()
        dist.barrier()
        before = network.carried()
        wire_bytes += block("method")
        dist.barrier()
        interface_bytes += network.carried() - before
        phases_ms.update(run.timer.drain())
        kinds.update(kind_of(message) for message in wire.take_messages())
        block("noop")
    return {
        "step_ms": 1e3 * statistics.mean(seconds["method"]), "noop_ms": 1e3 * statistics.mean(seconds["noop"]),
        **{f"{phase}_ms": ms / TIMED_STEPS for phase, ms in phases_ms.items()},
        "wire_bytes": wire_bytes, "interface_bytes": interface_bytes, "num_messages": dict(kinds),
    }  # fmt: skip


def kind_of(message: wire.Message) -> str:
    """Of SMALL: whose overhead it has."""
    return "vote" if message.kind == "all_reduce" and message.num_bytes <= 24 else message.kind


def send(kind: str, mine: Tensor) -> None:
    """One message."""
    if kind == "all_reduce":
        wire.all_reduce(mine)
    else:
        wire.gather(mine.new_empty(dist.get_world_size() * mine.numel()), mine)


def probe(rank: int) -> list[tuple[str, int, int, float]]:
    """(kind, bytes, ranks, median microseconds) of bare messages, one after the other."""
    samples = []
    for kind, sizes in PROBES.items():
        for num_bytes in sizes:
            times_us = []
            for _ in range(NUM_PROBES):
                dist.barrier()
                start = time.perf_counter()
                send(kind, torch.zeros(num_bytes // 4))
                times_us.append(1e6 * (time.perf_counter() - start))
            samples.append((kind, num_bytes, dist.get_world_size(), statistics.median(times_us)))
    return samples


def overhead(rank: int) -> dict[str, float]:
    """Bytes beside the headers that a message of each kind costs this rank over what it carries; `barrier`: the frame.

    From messages so small that hardly anything but overhead is sent.
    """

    def sent(name: str, times: int) -> int:
        dist.barrier()
        before = network.carried()
        for _ in range(times):
            send(*SMALL[name])
        dist.barrier()
        return network.carried() - before

    frame = statistics.median(sent("vote", 0) for _ in range(9))
    found = {"barrier": frame}
    for name, (kind, mine) in SMALL.items():
        carried = sent_bytes(kind, mine.numel() * mine.element_size(), dist.get_world_size())
        found[name] = (sent(name, NUM_OVERHEAD_PROBES) - frame) / NUM_OVERHEAD_PROBES - carried
    return found


def shaping(rank: int) -> list[float]:
    """Seconds of each in SHAPING."""
    found = []
    for kind, num_bytes, times, repeats in SHAPING.values():
        mine, seconds = torch.zeros(num_bytes // 4), []
        for _ in range(repeats):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(times):
                send(kind, mine)
            seconds.append(time.perf_counter() - start)
        found.append(min(seconds))
    return found


# ------------------------------------------------------------------------------------------------ all ranks


def mean_of(ranks: list[dict[str, Any]], name: str) -> float:
    return statistics.mean(rank[name] for rank in ranks)


def cell(net: network.Network, method: str, point: compose.Point, inputs: Inputs, extra: dict) -> dict[str, Any]:
    """One method on one network: a row of the table as measured. Means over ranks; bytes per rank and step."""
    ranks = net.on_ranks(train, point, inputs)
    per_message = {kind: num_bytes for kind, num_bytes in extra.items() if kind != "barrier"}
    beside = [sum(per_message[kind] * n for kind, n in rank["num_messages"].items()) for rank in ranks]
    barriers = NUM_BLOCKS * extra["barrier"]
    interface_bytes = sum(rank["interface_bytes"] - barriers for rank in ranks) - sum(beside)
    times = {f"{name}_ms": mean_of(ranks, f"{name}_ms") for name in ("step", "noop", *PHASES)}
    steps = len(ranks) * TIMED_STEPS
    wire_bytes = sum(rank["wire_bytes"] for rank in ranks)
    return {"method": method, **times, "wire_bytes": wire_bytes / steps, "interface_bytes": interface_bytes / steps,
            "num_messages": sum(ranks[0]["num_messages"].values()) / TIMED_STEPS}  # fmt: skip


def averaged(ranks: list[dict[str, float]]) -> dict[str, float]:
    return {name: mean_of(ranks, name) for name in ranks[0]}


def check_shaping(ranks: list[list[float]], free: list[float], num_ranks: int, bandwidth: str) -> list[dict[str, Any]]:
    """What is in SHAPING took, beside the arithmetic; nothing where nothing is shaped.

    Arithmetic: the bytes in full packets at the rate, headers and an acknowledgement per two packets included; or what
    the same takes where nothing is shaped, if that is longer: a bucket fills up while a message waits for its like.
    """
    bits_per_s = BANDWIDTHS[bandwidth]
    if bits_per_s is None:
        return []
    per_byte = (network.MTU_BYTES + 14 + network.HEADER_BYTES / 2) / (network.MTU_BYTES - 52)  # 52: IP and TCP
    rows = []
    for i, (what, (kind, num_bytes, times, _)) in enumerate(SHAPING.items()):
        seconds = max(rank[i] for rank in ranks)
        wire_s = 8 * per_byte * times * sent_bytes(kind, num_bytes, num_ranks) / bits_per_s
        told = (num_ranks, bandwidth, what, seconds, free[i], wire_s, seconds / max(wire_s, free[i]))
        rows.append(dict(zip(SHAPED, told, strict=True)))
    return rows


# ------------------------------------------------------------------------------------------------- the table


def compared(rows: list[dict[str, Any]], predictions: list[dict[str, Any]], steps: dict[str, float]) -> pd.DataFrame:
    """The measured rows beside the limit, the prediction, and what it takes to a target loss.

    `limit_ms`: noop's step in turn with the method's, and the wire bytes at the bandwidth. `overhead_ms`: what a step
    takes beyond noop's, selection and the exchange. `to_target_s`: `steps` that a method needs to the target loss, at
    this step time.
    """
    table = pd.DataFrame(rows)
    where = ["num_ranks", "bandwidth"]
    bits_per_ms = table["bandwidth"].map(lambda name: (BANDWIDTHS[name] or float("inf")) / 1e3)
    table["bytes_ms"] = 8 * table["wire_bytes"] / bits_per_ms
    table["limit_ms"] = table["noop_ms"] + table["bytes_ms"]
    table["over_limit"] = table["step_ms"] / table["limit_ms"]
    table["overhead_ms"] = table["step_ms"] - table["noop_ms"] - table["select_ms"] - table["exchange_ms"]
    table["overhead_share"] = table["overhead_ms"] / table["noop_ms"]
    table["bytes_ratio"] = table["wire_bytes"] / table["interface_bytes"]
    table = table.merge(pd.DataFrame(predictions)[[*where, "method", "predicted_ms"]], on=[*where, "method"])
    table["prediction_ratio"] = table["predicted_ms"] / table["step_ms"]
    table["to_target_steps"] = table["method"].map(steps).where(table["num_ranks"] == STEPS_NUM_RANKS)
    table["to_target_s"] = table["to_target_steps"] * table["step_ms"] / 1e3
    return table


def for_figures(table: pd.DataFrame) -> pd.DataFrame:
    """The names that analysis/simulated.py knows: `measured_ms`, and `bandwidth_mbit`, null where it is unlimited."""
    mbit = table["bandwidth"].map({name: rate and rate / 1e6 for name, rate in BANDWIDTHS.items()})
    return table.drop(columns="bandwidth").assign(bandwidth_mbit=mbit).rename(columns={"step_ms": "measured_ms"})


def claims(table: pd.DataFrame, shaped: pd.DataFrame) -> list[tuple[str, bool, str]]:
    """(claim, whether it holds, by what) in the order in which they are told."""
    talks = table[table["wire_bytes"] > 0]
    free = talks[talks["bandwidth"] == "unlimited"]
    slow = talks[(talks["bandwidth"] == "100") & (talks["method"] == "ig_adtopk")]
    with_selection = slow["step_ms"] / (slow["limit_ms"] + slow["select_ms"])

    def worst(frame: pd.DataFrame, values: pd.Series, least: float, most: float) -> tuple[bool, str]:
        over = pd.concat([least - values, values - most], axis=1).max(axis=1)
        at = frame.loc[over.idxmax()]
        name = at["method" if "method" in frame else "what"]
        worst = f"worst {values[over.idxmax()]:.3f} (N = {at['num_ranks']}, {at['bandwidth']}: {name})"
        return not (over > 0).any(), f"{(over <= 0).sum()} of {len(values)}; {worst}"

    told = [
        ("shaping takes what arithmetic says within 10 %", shaped, shaped["ratio"], 0.90, 1.10),
        ("wire bytes are the interface's within 3 %", talks, talks["bytes_ratio"], 0.97, 1.03),
        ("predicted step time within 20 %", table, table["prediction_ratio"], 0.80, 1.20),
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


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    torch.set_num_threads(1)  # ranks are forked
    try:
        told = arguments().parse_args(argv)
        names = words("--methods", told.methods, methods())
        names = ["noop", *(name for name in names if name != "noop")]
        bandwidths = words("--bandwidth", told.bandwidth, list(BANDWIDTHS))
        num_ranks = tuple(int(n) for n in words("--num-ranks", told.num_ranks, ["2", "3", "4"]))
        steps = simulate.read_steps(told.steps)
        if not os.environ.get(network.INSIDE):
            network.unshare()  # or nothing here can be measured
            record_traces(names, num_ranks)
        network.enter_own_namespaces("benchmarks.slow_network", argv)
        return measure(names, bandwidths, num_ranks, steps, told.out)
    except (ValueError, OSError, AssertionError) as error:  # of a rank: AssertionError
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


def arguments() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m benchmarks.slow_network", description=__doc__)
    parser.add_argument("--methods", default=",".join(methods()), help="of RQ5 (all); noop is always among them")
    parser.add_argument("--bandwidth", default=",".join(BANDWIDTHS), help="Mbit/s, of 100,1000,unlimited (all)")
    parser.add_argument("--num-ranks", default=",".join(map(str, NUM_RANKS)), help="of 2,3,4 (2,4)")
    parser.add_argument("--steps", type=Path, default=STEPS, help="csv with the columns method, to_target_steps: what "
                        "a method needs to the target loss (that of the study rq5_target)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("outputs/benchmarks/slow_network.json"), help="JSON, rows too")
    return parser


def measure(
    names: list[str], bandwidths: list[str], num_ranks: tuple[int, ...], steps: dict[str, float], out: Path
) -> int:
    """Within the own namespaces: measure the paths, predict, measure the methods, compare."""
    plans = {(n, name): planned(name, n) for n in num_ranks for name in names}
    cells = [(n, bandwidth) for n in num_ranks for bandwidth in bandwidths]
    shaped, links, recorded, overheads, noop_ms = [], {}, {}, {}, {}
    with tqdm(total=len(cells), desc="paths", unit="path", disable=None) as bar:
        for n in num_ranks:
            with network.Network(n) as net:
                free = [max(each) for each in zip(*net.on_ranks(shaping), strict=True)]
                overheads[n] = averaged(net.on_ranks(overhead))
                noop_ms[n] = mean_of(net.on_ranks(train, *plans[n, "noop"]), "step_ms")
                recorded[n] = path(net)  # as good as the loopback, on which the traces were recorded
                for bandwidth in bandwidths:
                    net.shape(BANDWIDTHS[bandwidth])
                    shaped += check_shaping(net.on_ranks(shaping), free, n, bandwidth)
                    links[n, bandwidth] = path(net)
                    bar.update()
    predictions = [
        {"num_ranks": n, "bandwidth": bandwidth, "method": name,
         "predicted_ms": predicted(plans[n, name][0].directory, n, links[n, bandwidth], recorded[n], noop_ms[n])}
        for n, bandwidth in cells for name in names
    ]  # fmt: skip
    constants = [{"num_ranks": n, "bandwidth": bandwidth, **asdict(links[n, bandwidth]), "noop_ms": noop_ms[n],
                  "overhead_bytes": overheads[n]} for n, bandwidth in cells]  # fmt: skip
    predictions_path = out.with_name(f"{out.stem}_predictions.json")
    write(predictions_path, {"constants": constants, "rows": predictions, "shaping": shaped})
    print(f"predictions, before the table is measured: {predictions_path}", flush=True)
    rows = []
    with tqdm(total=len(plans) * len(bandwidths), desc="methods", unit="run", disable=None) as bar:
        for n in num_ranks:
            with network.Network(n) as net:
                for bandwidth in bandwidths:
                    net.shape(BANDWIDTHS[bandwidth])
                    for name in names:
                        row = cell(net, name, *plans[n, name], overheads[n])
                        rows.append({"num_ranks": n, "bandwidth": bandwidth, **row})
                        bar.update()
    table = compared(rows, predictions, steps)
    shaped = pd.DataFrame(shaped, columns=SHAPED)
    found = claims(table, shaped)
    write(out, {
        "rows": json.loads(for_figures(table).to_json(orient="records")),
        "shaping": json.loads(shaped.to_json(orient="records")),
        "claims": [{"claim": text, "holds": holds, "by": by} for text, holds, by in found],
        "timed_steps": TIMED_STEPS, "torch": torch.__version__,
    })  # fmt: skip
    print(printed(table))
    if len(shaped):
        print("", shaped.round(3).to_string(index=False), sep="\n")
    print()
    for text, holds, by in found:
        print(f"{'pass' if holds else 'FAIL'}  {text}: {by}")
    for text in first_to_target(table):
        print(text)
    print(f"{sum(holds for _, holds, _ in found)} of {len(found)} claims hold; {out}")
    return 0 if all(holds for _, holds, _ in found) else 1


def path(net: network.Network) -> Link:
    """What bare messages say of a network."""
    return fit_link([sample for rank in net.on_ranks(probe) for sample in rank])


def predicted(directory: Path, num_ranks: int, link: Link, recorded: Link, noop_ms: float) -> float:
    """Milliseconds of a step, from a trace on the loopback and what was measured with bare messages."""
    return simulate.step_ms(simulate.load(directory), Cluster(num_ranks, 1, link, link), noop_ms, recorded)


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


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
