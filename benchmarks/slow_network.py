"""What a step of each method takes on a slow network, beside what arithmetic and a model say it should.

Ranks of this machine on a network of their own (benchmarks/network.py), held to 100 Mbit/s, 1 Gbit/s or to nothing.
First each method trains a little on the loopback: what it sends is recorded, and what it computes is timed. Then the
paths are measured with bare messages. From these two igrad.simulate predicts every step time, and the predictions are
written before the table is measured. Exit code 1 when a claim fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
import yaml
from tqdm import tqdm

from benchmarks import network
from igrad import compose, profile, simulate
from igrad.collective import wire
from igrad.config import one_line
from igrad.data import Inputs, prepare
from igrad.link import Cluster, Link, fit_link, sent_bytes
from igrad.ranks import RankError

STUDY = "slow_network"  # of the runs on the loopback
WARM_UP_STEPS, TIMED_STEPS = 8, 24  # whole release periods, at least 20 of them timed
TRACE_STEPS, TRACE_WINDOW = 40, 8
BANDWIDTHS = {"100": 100e6, "1000": 1e9, "unlimited": None}  # Mbit/s: bit/s
NUM_RANKS = (2, 4)
PROBES = {  # bytes of the messages by which a path is measured: a vote, sizes, sparse and dense buckets
    "all_reduce": (24, 4_096, 32_768, 262_144, 2_097_152),
    "all_gather": (64, 2_048, 8_192, 32_768, 131_072),
}
NUM_PROBES = 15
NUM_OVERHEAD_PROBES = 200
SHAPING = {  # by which the shaping is checked: kind, bytes, how often in a row
    "all-reduce of 50 MB": ("all_reduce", 50_000_000, 1),
    "100 exchanges of 30 kB": ("all_gather", 30_000, 100),
}
STEPS = Path("docs/results/rq5_target/rq5_target.csv")
OVERHEAD_SHARE, LIMIT_FACTOR = 0.10, 1.15


def methods() -> list[str]:
    """RQ5's, noop first: the others are compared with it. One rank alone has no network."""
    swept = yaml.safe_load((compose.CONF / "rq" / "rq5.yaml").read_text())["hydra"]["sweeper"]["params"]["+method"]
    names = [name for name in swept.split(",") if name != "alone"]
    return sorted(names, key=lambda name: name != "noop")


def overrides(method: str, num_ranks: int) -> list[str]:
    return [f"+method={method}", f"num_processes={num_ranks}", f"steps={TRACE_STEPS}", f"log_every={TRACE_WINDOW}",
            "eval_windows=8", f"eval_every={TRACE_STEPS}", f"study={STUDY}", "tracking=none"]  # fmt: skip


# ------------------------------------------------------------------------------------------ on the loopback


def record_traces(names: list[str], num_ranks: tuple[int, ...]) -> None:
    """Run every method on the loopback, anew: a run of other code is no trace of this one."""
    told = overrides(",".join(names), num_ranks[0])
    told[1] = f"num_processes={','.join(map(str, num_ranks))}"
    command = [sys.executable, "run.py", *told, "rerun=true", "-m"]
    print(f"traces on the loopback: {len(names)} methods, N = {', '.join(map(str, num_ranks))}", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RankError(done.stderr.strip().splitlines()[-1], compose.OUTPUTS / STUDY)


def planned(method: str, num_ranks: int) -> tuple[compose.Point, Inputs]:
    """A point as `record_traces` ran it, with its profile, which is there."""
    [point] = compose.points(overrides(method, num_ranks))
    inputs = prepare(point.cfg)

    def missing(*_: Any) -> None:
        raise ValueError(f"no profile for {method}: its trace was not recorded here")

    return point, replace(inputs, profile=profile.resolve(point.cfg, inputs, missing))


# ----------------------------------------------------------------------------------------------- on a rank


def train(rank: int, point: compose.Point, inputs: Inputs) -> dict[str, Any]:
    """Time the steps of a run; everything per step, this rank's."""
    from igrad.train import Run

    run = Run(point.cfg, point.directory, inputs, torch.device("cpu"), time.time())
    for step in range(WARM_UP_STEPS):
        run.optimizer_step(step)
    run.timer.drain()
    wire.take_messages()
    dist.barrier()
    before, wire_bytes, seconds = network.carried(), 0, []
    for step in range(WARM_UP_STEPS, WARM_UP_STEPS + TIMED_STEPS):
        start = time.perf_counter()
        _, stats = run.optimizer_step(step)
        seconds.append(time.perf_counter() - start)
        wire_bytes += stats.wire_bytes
    dist.barrier()
    after = network.carried()
    phases = {f"{phase}_ms": ms / TIMED_STEPS for phase, ms in run.timer.drain().items()}
    kinds = [message.kind for message in wire.take_messages()]
    return {
        "step_ms": 1e3 * statistics.mean(seconds), **phases,
        "wire_bytes": wire_bytes, "interface_bytes": after - before,
        "num_messages": {kind: kinds.count(kind) for kind in set(kinds)},
    }  # fmt: skip


def send(kind: str, num_bytes: int) -> None:
    """One message of bare bytes."""
    mine = torch.zeros(num_bytes // 4)
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
                send(kind, num_bytes)
                times_us.append(1e6 * (time.perf_counter() - start))
            samples.append((kind, num_bytes, dist.get_world_size(), statistics.median(times_us)))
    return samples


def overhead(rank: int) -> dict[str, float]:
    """Bytes beside the headers that a message of each kind costs this rank over what it carries; `barrier`: the frame.

    From messages so small that hardly anything but overhead is sent.
    """

    def sent(kind: str | None, times: int) -> int:
        dist.barrier()
        before = network.carried()
        for _ in range(times):
            send(kind, 64)
        dist.barrier()
        return network.carried() - before

    frame = statistics.median(sent(None, 0) for _ in range(9))
    per_message = {
        kind: (sent(kind, NUM_OVERHEAD_PROBES) - frame) / NUM_OVERHEAD_PROBES
        - sent_bytes(kind, 64, dist.get_world_size())
        for kind in PROBES
    }  # fmt: skip
    return {"barrier": frame, **per_message}


def shaping(rank: int) -> tuple[float, ...]:
    """Seconds of each in SHAPING, after one message that does not count."""
    seconds = []
    for kind, num_bytes, times in SHAPING.values():
        send(kind, 30_000)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(times):
            send(kind, num_bytes)
        seconds.append(time.perf_counter() - start)
    return tuple(seconds)


# ------------------------------------------------------------------------------------------------ all ranks


def mean_of(ranks: list[dict[str, Any]], name: str) -> float:
    return statistics.mean(rank[name] for rank in ranks)


def cell(net: network.Network, method: str, point: compose.Point, inputs: Inputs, extra: dict) -> dict[str, Any]:
    """One method on one network: a row of the table as measured. Means over ranks; bytes per rank and step."""
    ranks = net.on_ranks(train, point, inputs)
    per_message = {kind: num_bytes for kind, num_bytes in extra.items() if kind != "barrier"}
    beside = [sum(per_message[kind] * n for kind, n in rank["num_messages"].items()) for rank in ranks]
    interface_bytes = sum(rank["interface_bytes"] - extra["barrier"] for rank in ranks) - sum(beside)
    times = {name: mean_of(ranks, name) for name in ("step_ms", "compute_ms", "select_ms", "pack_ms", "exchange_ms",
                                                     "unpack_ms")}  # fmt: skip
    steps = len(ranks) * TIMED_STEPS
    wire_bytes = sum(rank["wire_bytes"] for rank in ranks)
    return {"method": method, **times, "wire_bytes": wire_bytes / steps, "interface_bytes": interface_bytes / steps,
            "num_messages": sum(ranks[0]["num_messages"].values()) / TIMED_STEPS}  # fmt: skip


def averaged(ranks: list[dict[str, float]]) -> dict[str, float]:
    return {name: mean_of(ranks, name) for name in ranks[0]}


def check_shaping(
    ranks: list[tuple[float, float]], free: list[float], num_ranks: int, bandwidth: str
) -> list[dict[str, Any]]:
    """What a large all-reduce and many small exchanges took, beside the arithmetic; nothing where nothing is shaped.

    Arithmetic: the bytes in full packets at the rate, headers and an acknowledgement per two packets included; and
    what the same takes where nothing is shaped, since a ring waits for its neighbour.
    """
    bits_per_s = BANDWIDTHS[bandwidth]
    if bits_per_s is None:
        return []
    per_byte = (network.MTU_BYTES + 14 + network.HEADER_BYTES / 2) / (network.MTU_BYTES - 52)  # 52: IP and TCP
    rows = []
    for i, (what, (kind, num_bytes, times)) in enumerate(SHAPING.items()):
        seconds = max(rank[i] for rank in ranks)
        arithmetic_s = 8 * per_byte * times * sent_bytes(kind, num_bytes, num_ranks) / bits_per_s + free[i]
        rows.append({"num_ranks": num_ranks, "bandwidth": bandwidth, "what": what, "seconds": seconds,
                     "free_s": free[i],
                     "arithmetic_s": arithmetic_s, "ratio": seconds / arithmetic_s})  # fmt: skip
    return rows


# ------------------------------------------------------------------------------------------------- the table


def compared(rows: list[dict[str, Any]], predictions: list[dict[str, Any]], steps: dict[str, float]) -> pd.DataFrame:
    """The measured rows beside the limit, the prediction, and what it takes to a target loss.

    `limit_ms`: the step of noop, and the wire bytes at the bandwidth. `overhead_ms`: what a step takes beyond noop's,
    selection and the exchange. `to_target_s`: `steps` that a method needs to the target loss, at this step time.
    """
    table = pd.DataFrame(rows)
    where = ["num_ranks", "bandwidth"]
    noop = table[table["method"] == "noop"].set_index(where)["step_ms"]
    table["noop_ms"] = noop.loc[pd.MultiIndex.from_frame(table[where])].to_numpy()
    bits_per_ms = table["bandwidth"].map(lambda name: (BANDWIDTHS[name] or float("inf")) / 1e3)
    table["bytes_ms"] = 8 * table["wire_bytes"] / bits_per_ms
    table["limit_ms"] = table["noop_ms"] + table["bytes_ms"]
    table["over_limit"] = table["step_ms"] / table["limit_ms"]
    table["overhead_ms"] = table["step_ms"] - table["noop_ms"] - table["select_ms"] - table["exchange_ms"]
    table["overhead_share"] = table["overhead_ms"] / table["noop_ms"]
    table["bytes_ratio"] = table["wire_bytes"] / table["interface_bytes"]
    table = table.merge(pd.DataFrame(predictions)[[*where, "method", "predicted_ms"]], on=[*where, "method"])
    table["prediction_ratio"] = table["predicted_ms"] / table["step_ms"]
    table["to_target_steps"] = table["method"].map(steps)
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
        off = (values - (least + most) / 2).abs()
        names = frame[["method", "what"] if "what" in frame else ["method"]] if "method" in frame else frame[["what"]]
        at = off.idxmax()
        holds = bool(((values >= least) & (values <= most)).all())
        num_held = int(((values >= least) & (values <= most)).sum())
        where = f"N = {frame.loc[at, 'num_ranks']}, {frame.loc[at, 'bandwidth']}: {' '.join(names.loc[at])}"
        return holds, f"{num_held} of {len(values)}; worst {values[at]:.3f} ({where})"

    shaped = shaped[shaped["bandwidth"] != "unlimited"]
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
        noop = rows["noop_ms"].iloc[0]
        parts.append(f"\nN = {num_ranks}, {where}; noop step {noop:.1f} ms\n{shown.to_string(index=False)}")
    return "\n".join(parts)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    told = arguments().parse_args(argv)
    torch.set_num_threads(1)  # ranks are forked
    try:
        names = chosen("--methods", told.methods, methods())
        names = ["noop", *(name for name in names if name != "noop")]
        bandwidths = chosen("--bandwidth", told.bandwidth, list(BANDWIDTHS))
        num_ranks = tuple(int(n) for n in chosen("--num-ranks", told.num_ranks, ["2", "3", "4"]))
        steps = read_steps(told.steps)
        if not os.environ.get(network.INSIDE):
            network.unshare()  # or nothing here can be measured
            record_traces(names, num_ranks)
        network.enter_own_namespaces("benchmarks.slow_network", argv)
        return measure(names, bandwidths, num_ranks, steps, told.out)
    except (ValueError, OSError, RankError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_network", description=__doc__)
    parser.add_argument("--methods", default=",".join(methods()), help="of RQ5 (all); noop is always among them")
    parser.add_argument("--bandwidth", default=",".join(BANDWIDTHS), help="Mbit/s, of 100,1000,unlimited (all)")
    parser.add_argument("--num-ranks", default=",".join(map(str, NUM_RANKS)), help="of 2,3,4 (2,4)")
    parser.add_argument("--steps", type=Path, default=STEPS, help="csv with the columns method, to_target_steps: what "
                        "a method needs to the target loss (that of the study rq5_target)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("outputs/benchmarks/slow_network.json"), help="JSON, rows too")
    return parser


def chosen(flag: str, text: str, known: list[str]) -> list[str]:
    """The words of a comma list, each a known one."""
    words = [word for word in text.split(",") if word]
    wrong = [word for word in words if word not in known]
    if wrong or not words:
        raise ValueError(f"{flag} must be of {', '.join(known)}, got '{wrong[0] if wrong else text}'")
    return words


def read_steps(path: Path) -> dict[str, float]:
    """Steps to the target loss by method."""
    try:
        table = pd.read_csv(path)
        return dict(zip(table["method"], table["to_target_steps"], strict=True))
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"--steps: {path} is no csv with the columns method, to_target_steps: {error}") from error


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
    table, shaped = compared(rows, predictions, steps), pd.DataFrame(shaped)
    found = claims(table, shaped)
    write(out, {
        "rows": json.loads(for_figures(table).to_json(orient="records")),
        "shaping": json.loads(shaped.to_json(orient="records")),
        "claims": [{"claim": text, "holds": holds, "by": by} for text, holds, by in found],
        "timed_steps": TIMED_STEPS, "torch": torch.__version__,
    })  # fmt: skip
    print(printed(table))
    print()
    print(shaped.round(3).to_string(index=False))
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
