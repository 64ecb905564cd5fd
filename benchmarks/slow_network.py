"""What a step of each method takes on a slow network, beside what arithmetic and a model say it should.

Ranks of this machine on a network of their own (benchmarks/network.py), held to 100 Mbit/s, 1 Gbit/s or to nothing.
First each method trains a little where nothing is held: what it sends is recorded, and what it computes is timed. Then
each network is measured with bare messages. From these two, and from steps of noop alone, igrad.simulate predicts every
step time; a prediction is written before the first step that it is compared with, at the speed that noop has beside
that step. Exit code 1 when a claim fails.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
import yaml
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from benchmarks import network
from benchmarks.paths import SHAPED, beside_bytes, check_shaping, kind_of, overhead, path, shaping
from benchmarks.slow_table import BANDWIDTHS, as_foretold, claims, compared, first_to_target, for_figures, printed
from igrad import compose, profile, simulate
from igrad.collective import wire
from igrad.command_line import Parser, output_file, words
from igrad.config import one_line, plain
from igrad.data import Inputs, prepare
from igrad.link import Cluster, Link
from igrad.metrics import PHASES
from igrad.ranks import PRELOAD, redirect

STUDY = "slow_network"  # of the traces
BLOCK_STEPS, NUM_BLOCKS = 8, {"100": 3, "1000": 3, "unlimited": 5}  # timed steps; whole release periods
ALONE_BLOCKS = 3  # of noop, which say how fast the machine is
TRACE_STEPS, TRACE_WINDOW = 40, 8
NUM_RANKS = (2, 4)
WORK = ("select_ms", "pack_ms", "unpack_ms")  # of a trace: what a faster processor does sooner
STEPS = {  # to the target loss, by the number of ranks with which they were found: more ranks see more data
    2: Path("docs/results/rq5_target/rq5_target.csv"),
    4: Path("docs/results/rq5_target_4/rq5_target.csv"),
}


def methods() -> list[str]:
    """RQ5's, noop first: the others are compared with it. One rank alone has no network."""
    swept = yaml.safe_load((compose.CONF / "rq" / "rq5.yaml").read_text())["hydra"]["sweeper"]["params"]["+method"]
    names = [name for name in swept.split(",") if name != "alone"]
    return sorted(names, key=lambda name: name != "noop")


def overrides(method: str, num_ranks: int | str) -> list[str]:
    return [f"+method={method}", f"num_processes={num_ranks}", f"steps={TRACE_STEPS}", f"log_every={TRACE_WINDOW}",
            "eval_windows=8", f"eval_every={TRACE_STEPS}", f"study={STUDY}", "tracking=none"]  # fmt: skip


def planned(method: str, num_ranks: int) -> tuple[compose.Point, Inputs]:
    """A point, with its model and windows: made where they are not there yet, for which no rank has a network."""
    [point] = compose.points(overrides(method, num_ranks))
    return point, prepare(point.cfg)


# ----------------------------------------------------------------------------------------------- on a rank


def record(rank: int, cfg: DictConfig, directory: Path, inputs: Inputs) -> None:
    """A run from its beginning to its end, which leaves a trace."""
    from igrad.train import Run

    redirect(directory / f"rank{rank}.log")
    Run(cfg, directory, inputs, torch.device("cpu"), time.time()).train()


def train(
    rank: int, point: compose.Point, inputs: Inputs, num_blocks: int, foretell: Callable[[float], dict[str, Any]]
) -> dict[str, Any]:
    """Time a run's steps and noop's in turn, now one first, now the other: what differs between minutes is in both.

    `steps`: in blocks of steps, what a step took (`step`), the noop beside it, and the phases, all in milliseconds, and
    `num_messages`, how many it sent. What was sent in a block that was not timed, by kind. Before the first timed step
    rank 0 lets `foretell` predict, from the milliseconds of a noop step: on this machine they change by the minute.
    """
    from igrad.synchronizer.noop import Noop
    from igrad.train import Run

    run = Run(point.cfg, point.directory, inputs, torch.device("cpu"), time.time())
    synchronizers, steps = {"step": run.synchronizer, "noop": Noop()}, itertools.count()

    def sent_in_a_block() -> int:
        return sum(run.optimizer_step(step)[1].wire_bytes for step in itertools.islice(steps, BLOCK_STEPS))

    def timed(name: str, step: int) -> dict[str, float]:
        """From when all ranks are there."""
        run.synchronizer = synchronizers[name]
        dist.barrier()
        wire.take_messages()
        run.timer.drain()
        start = time.perf_counter()
        run.optimizer_step(step)
        took_ms = 1e3 * (time.perf_counter() - start)
        return {"step": took_ms, **run.timer.drain(), "num_messages": len(wire.take_messages())}

    def both(step: int) -> dict[str, float]:
        order = ("noop", "step") if (step + step // BLOCK_STEPS) % 2 else ("step", "noop")
        took = {name: timed(name, step) for name in order}
        return {**took["step"], "noop": took["noop"]["step"]}

    sent_in_a_block()  # caches, allocators, PowerSGD's first steps
    wire.take_messages()
    dist.barrier()
    before = network.carried()
    wire_bytes = sent_in_a_block()
    dist.barrier()
    interface_bytes = network.carried() - before
    num_messages = dict(Counter(kind_of(message) for message in wire.take_messages()))
    alone = [[{"noop": timed("noop", step)["step"]} for step in itertools.islice(steps, BLOCK_STEPS)]
             for _ in range(ALONE_BLOCKS)]  # fmt: skip
    every = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, {"steps": alone})
    prediction = foretell(typical(slowest(every, "noop"), itemgetter("noop"))) if rank == 0 else None
    blocks = [[both(step) for step in itertools.islice(steps, BLOCK_STEPS)] for _ in range(num_blocks)]
    return {"wire_bytes": wire_bytes, "interface_bytes": interface_bytes, "num_messages": num_messages,
            "steps": blocks, "prediction": prediction}  # fmt: skip


# ------------------------------------------------------------------------------------------------ all ranks


def traced(net: network.Network, point: compose.Point, inputs: Inputs) -> tuple[compose.Point, Inputs]:
    """Run a point on the network as it is, anew: a run of other code is no trace of this one. The point, profiled."""

    def run_ranks(cfg: DictConfig, directory: Path, inputs: Inputs) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        OmegaConf.save(OmegaConf.create(plain(cfg)), directory / "config.yaml")
        net.on_ranks(record, cfg, directory, inputs)

    inputs = replace(inputs, profile=profile.resolve(point.cfg, inputs, run_ranks))
    run_ranks(point.cfg, point.directory, inputs)
    return point, inputs


def typical(blocks: list[list[dict[str, float]]], value: Callable[[dict[str, float]], float]) -> float:
    """Of the steps of a block, which are not alike, the mean; of each the median over blocks, which are."""
    return statistics.mean(statistics.median(map(value, alike)) for alike in zip(*blocks, strict=True))


def slowest(ranks: list[dict[str, Any]], name: str) -> list[list[dict[str, float]]]:
    """Of each step, the one of the rank that took longest."""
    blocks = zip(*(rank["steps"] for rank in ranks), strict=True)
    return [[max(step, key=itemgetter(name)) for step in zip(*block, strict=True)] for block in blocks]


def beyond(step: dict[str, float]) -> float:
    """What a step takes besides compute, selection and the exchange."""
    return step["step"] - step["noop"] - step["select"] - step["exchange"]


def row(method: str, ranks: list[dict[str, Any]], overhead_bytes: dict[str, float]) -> dict[str, Any]:
    """One method on one network, as measured: means over ranks, but a step and noop's last until the last rank is done.

    All ranks begin a step together; without communication, too, it is over when the slowest is. Bytes are per rank and
    step.
    """
    times = {name: [typical(rank["steps"], itemgetter(name)) for rank in ranks] for name in ("noop", *PHASES)}
    last = {name: typical(slowest(ranks, name), itemgetter(name)) for name in ("step", "noop")}
    overhead_ms = [typical(rank["steps"], beyond) for rank in ranks]
    num_messages = [step["num_messages"] for block in ranks[0]["steps"] for step in block]
    usual = typical(ranks[0]["steps"], itemgetter("num_messages"))
    carried = sum(rank["interface_bytes"] - overhead_bytes["barrier"] for rank in ranks)
    carried -= sum(beside_bytes(rank["num_messages"], overhead_bytes) for rank in ranks)
    steps = len(ranks) * BLOCK_STEPS
    return {
        "method": method, "step_ms": last["step"], "noop_ms": last["noop"],
        "noop_mean_ms": statistics.mean(times["noop"]), "overhead_ms": statistics.mean(overhead_ms),
        "overhead_share": statistics.mean(ms / noop for ms, noop in zip(overhead_ms, times["noop"], strict=True)),
        **{f"{phase}_ms": statistics.mean(times[phase]) for phase in PHASES},
        "wire_bytes": sum(rank["wire_bytes"] for rank in ranks) / steps, "interface_bytes": carried / steps,
        "num_messages": statistics.mean(num_messages),
        "extra_messages": statistics.mean(num_messages) - usual,  # of rare steps, which are no typical ones
    }  # fmt: skip


@dataclass
class Foreseen:
    """What is known before it is measured; `path` has it by then."""

    path: Path
    constants: list[dict[str, Any]] = field(default_factory=list)  # of each network
    rows: list[dict[str, Any]] = field(default_factory=list)  # a prediction each
    shaping: list[dict[str, Any]] = field(default_factory=list)


def foretold(
    before: Foreseen, cell: dict[str, Any], trace: simulate.Trace, link: Link, recorded: Link, noop_ms: float
) -> dict[str, Any]:
    """The prediction of a cell, once it is written: a step, given noop's as it is, and what noop's changes of it.

    In a rank's process, which has a copy of `before`.
    """
    ms = predicted(trace, link, recorded, noop_ms)
    per_noop = 1 + sum(getattr(trace, name) for name in WORK) / trace.compute_ms
    row = {**cell, "noop_alone_ms": noop_ms, "foretold_ms": ms, "per_noop": per_noop}
    known = {"constants": before.constants, "rows": [*before.rows, row], "shaping": before.shaping}
    write(before.path, known)
    return row


def averaged(ranks: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.mean(rank[name] for rank in ranks) for name in ranks[0]}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    torch.set_num_threads(1)  # ranks are forked
    try:
        told = arguments().parse_args(argv)
        names = words("--methods", told.methods, methods())
        names = ["noop", *(name for name in names if name != "noop")]
        bandwidths = words("--bandwidth", told.bandwidth, list(BANDWIDTHS))
        num_ranks = tuple(int(n) for n in words("--num-ranks", told.num_ranks, ["2", "3", "4"]))
        steps = {n: simulate.read_steps(STEPS[n]) for n in num_ranks if n in STEPS}
        output_file(told.out)
        if not os.environ.get(network.INSIDE):
            network.unshare()  # or nothing here can be measured
            for n, name in itertools.product(num_ranks, names):
                planned(name, n)
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
    parser.add_argument("--out", type=Path, default=Path("outputs/benchmarks/slow_network.json"), help="JSON, rows too")
    return parser


def measure(
    names: list[str], bandwidths: list[str], num_ranks: tuple[int, ...], steps: dict[int, dict[str, float]], out: Path
) -> int:
    """Within the own namespaces: measure the paths, predict, measure the methods, compare."""
    for module in PRELOAD:
        importlib.import_module(module)  # once, not in every rank: they are forks
    before, rows = Foreseen(out.with_name(f"{out.stem}_predictions.json")), []
    print(f"predictions, each before its method is measured: {before.path}", flush=True)
    runs = len(num_ranks) * len(names) * (1 + len(bandwidths))  # the first are for the traces
    with tqdm(total=runs, desc="methods", unit="run", disable=None) as bar:
        for n in num_ranks:
            with network.Network(n) as net:
                overhead_bytes = averaged(net.on_ranks(overhead))
                recorded = path(net)
                plans = {}
                for name in names:
                    plans[name] = traced(net, *planned(name, n))
                    bar.update()
                for bandwidth in bandwidths:
                    here = {"num_ranks": n, "bandwidth": bandwidth}
                    net.shape(BANDWIDTHS[bandwidth])
                    if bits_per_s := BANDWIDTHS[bandwidth]:
                        before.shaping += check_shaping(net.on_ranks(shaping), bandwidth, bits_per_s)
                    link = path(net)
                    before.constants.append({**here, **asdict(link), "overhead_bytes": overhead_bytes})
                    for name in names:
                        trace = simulate.load(plans[name][0].directory)
                        foretell = partial(foretold, before, {**here, "method": name}, trace, link, recorded)
                        ranks = net.on_ranks(train, *plans[name], NUM_BLOCKS[bandwidth], foretell)
                        before.rows.append(ranks[0]["prediction"])
                        rows.append({**here, **row(name, ranks, overhead_bytes)})
                        bar.update()
    table = compared(rows, before.rows, steps)
    shaped = pd.DataFrame(before.shaping, columns=SHAPED)
    found = claims(table, shaped)
    write(out, {
        "rows": json.loads(for_figures(table).to_json(orient="records")),
        "shaping": json.loads(shaped.to_json(orient="records")),
        "claims": [{"claim": text, "holds": holds, "by": by} for text, holds, by in found],
        "timed_steps": {bandwidth: BLOCK_STEPS * NUM_BLOCKS[bandwidth] for bandwidth in bandwidths},
        "torch": torch.__version__,
    })  # fmt: skip
    print(printed(table))
    if len(shaped):
        print("", shaped.round(3).to_string(index=False), sep="\n")
    print()
    for text, holds, by in found:
        print(f"{'pass' if holds else 'FAIL'}  {text}: {by}")
    for text in (*first_to_target(table), *as_foretold(table)):
        print(text)
    print(f"beside the usual messages, at most {table['extra_messages'].max():.2f} per step: not in its typical time")
    print(f"{sum(holds for _, holds, _ in found)} of {len(found)} claims hold; {out}")
    return 0 if all(holds for _, holds, _ in found) else 1


def predicted(trace: simulate.Trace, link: Link, recorded: Link, noop_ms: float) -> float:
    """Milliseconds of a step, from a trace where nothing was held and what was measured with bare messages and noop.

    What a method works takes as much longer than when it was recorded as noop's step does.
    """
    speed = noop_ms / trace.compute_ms
    work = {name: speed * getattr(trace, name) for name in WORK}
    return simulate.step_ms(replace(trace, **work), Cluster(trace.num_ranks, 1, link, link), noop_ms, recorded)


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
