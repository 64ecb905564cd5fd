"""What selecting costs beside the fastest plain way to the same guarantee, at a density of 1 % on one thread.

The ways take turns in one process; times are processor time, a ratio is the median over repetitions. Gradients are
normal noise. And how often views are selected from under error feedback: low ones only when they are due. Exit code 1
when a claim fails.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from igrad.command_line import Parser, output_file
from igrad.interfaces import Sparsifier, View
from tests.ranks import on_ranks
from tests.strategies import make
from tests.test_bytes import KNEE, llama_views
from tests.test_laws import build

DENSITY = 0.01
MOST = 1.2  # times as long as the fastest other way
PERIOD = 4
RESULT = {True: "pass", False: "FAIL"}

Gradients = dict[View, Tensor]
Way = Callable[[Tensor], Tensor | None]  # a gradient, to flat indices or None for all


# ------------------------------------------------------------------------------ the plain ways, in torch


def count(gradient: Tensor) -> int:
    return max(1, round(DENSITY * gradient.numel()))


def flat_topk(gradient: Tensor) -> Tensor:
    return gradient.view(-1).abs().topk(count(gradient), sorted=False).indices


def row_topk(gradient: Tensor) -> Tensor | None:
    if gradient.dim() != 2:
        return None
    rows, columns = gradient.shape
    chosen = gradient.abs().topk(max(1, int(DENSITY * columns)), dim=1, sorted=False).indices
    return (chosen + torch.arange(0, rows * columns, columns).unsqueeze(1)).view(-1)


def sampled(gradient: Tensor, num_errors: float = 0) -> Tensor:
    """Threshold from a sample, mask, nonzero."""
    magnitudes = gradient.view(-1).abs()
    sample = magnitudes[:: max(16, magnitudes.numel() >> 16) | 1]
    expected = DENSITY * sample.numel()
    rank = min(sample.numel(), math.ceil(expected + num_errors * math.sqrt(expected)))
    return (magnitudes > sample.topk(rank, sorted=False).values.min()).nonzero().view(-1)


def sampled_topk(gradient: Tensor) -> Tensor:
    """The same four standard errors lower, then Top-k of what passed; of all where too few did."""
    passed, k = sampled(gradient, num_errors=4), count(gradient)
    if passed.numel() < k:
        return flat_topk(gradient)
    return passed[gradient.view(-1)[passed].abs().topk(k, sorted=False).indices]


@dataclass(frozen=True)
class Claim:
    """A sparsifier takes at most MOST times as long as any other way to its guarantee."""

    sparsifier: str
    guarantee: str
    others: dict[str, Way]
    num_turns: int = 1  # selections per repetition, for one that is not alike at every turn


CLAIMS = (
    Claim("topk", "the k largest", {"flat topk": flat_topk, "sampled threshold + nonzero + topk": sampled_topk}),
    Claim("adtopk", "the k largest of each row", {"row-wise topk": row_topk}),
    Claim("threshold", "about k", {"flat topk": flat_topk, "sampled threshold + nonzero": sampled}, num_turns=10),
)


# ------------------------------------------------------------------------------------------------ measuring


def milliseconds(work: Callable[[], None]) -> float:
    """Of this thread on a processor: what others make it wait does not count."""
    start = time.thread_time()
    work()
    return 1e3 * (time.thread_time() - start)


def measure(claim: Claim, name: str, gradients: Gradients, repetitions: int) -> dict:
    sparsifier = make("sparsifier", claim.sparsifier, density=DENSITY)

    def ours() -> None:
        for turn in range(claim.num_turns):
            for view, gradient in gradients.items():
                sparsifier.select(gradient, view, turn)

    def plain(way: Way) -> None:
        for gradient in gradients.values():
            way(gradient)

    own: list[float] = []
    others: dict[str, list[float]] = {other: [] for other in claim.others}
    for repetition in range(1 + repetitions):
        mine = milliseconds(ours) / claim.num_turns
        theirs = {other: milliseconds(lambda way=way: plain(way)) for other, way in claim.others.items()}
        if repetition:  # the first warms up
            own.append(mine)
            for other, ms in theirs.items():
                others[other].append(ms)
    ratios = {other: statistics.median(a / b for a, b in zip(own, ms, strict=True)) for other, ms in others.items()}
    fastest = max(ratios, key=lambda other: ratios[other])
    return {
        "gradients": name,
        "sparsifier": claim.sparsifier,
        "guarantee": claim.guarantee,
        "select_ms": statistics.median(own),
        "fastest": fastest,
        "fastest_ms": statistics.median(others[fastest]),
        "ratio": ratios[fastest],
        "ok": ratios[fastest] <= MOST,
    }


@dataclass
class Counting:
    """A sparsifier that counts its selections by view."""

    sparsifier: Sparsifier
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def varies(self) -> bool:
        return self.sparsifier.varies

    def select(self, gradient: Tensor, view: View, turn: int, share: float = 1.0) -> Tensor | None:
        self.calls[view.name] += 1
        return self.sparsifier.select(gradient, view, turn, share)


def selections(rank: int) -> dict[str, list[int]]:
    """How often a view is selected from in one step of two periods under error feedback: the numbers that occur."""
    gradients = noise(llama_views())
    parts = {"sparsifier": "topk", "residual": "full", "release": "periodic", "packing": "greedy",
             "collective": "allgather"}  # fmt: skip
    synchronizer = build(parts, density=DENSITY, release_period=PERIOD)
    synchronizer.sparsifier = counting = Counting(synchronizer.sparsifier)
    synchronizer.prepare(gradients, KNEE | {None})
    found: dict[str, set[int]] = {"due": set(), "not due": set()}
    for step in range(2 * PERIOD):
        counting.calls.clear()
        stats = synchronizer.synchronize({view: gradient.clone() for view, gradient in gradients.items()}, step)
        for view in gradients:
            found["not due" if view.name in stats.deferred else "due"].add(counting.calls[view.name])
    return {kind: sorted(numbers) for kind, numbers in found.items()}


def noise(views: list[View]) -> Gradients:
    generator = torch.Generator().manual_seed(0)
    return {view: torch.randn(view.shape, generator=generator) for view in views}


def printed(rows: list[dict]) -> str:
    frame = pd.DataFrame(rows)
    for name in ("select_ms", "fastest_ms", "ratio"):
        frame[name] = frame[name].map("{:.2f}".format)
    frame["ok"] = frame["ok"].map(RESULT)
    for name in ("gradients", "sparsifier", "guarantee", "fastest"):
        frame[name] = frame[name].str.ljust(max(frame[name].str.len().max(), len(name)))
    return frame.rename(columns={"fastest": "fastest other way", "ok": ""}).to_string(index=False)


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.selection", description=__doc__)
    default = Path("outputs/benchmarks/selection.json")
    parser.add_argument("--out", type=Path, default=default, help="JSON with the same rows")
    try:
        told = parser.parse_args(argv)
        output_file(told.out)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    side = 4096
    cases = (
        ("default model", noise(llama_views()), 51),
        (f"{side} x {side}", noise([View("w", "0.q", "w", (side, side))]), 7),
    )
    rows = [measure(claim, name, gradients, number) for name, gradients, number in cases for claim in CLAIMS]
    [counted] = on_ranks(1, selections)
    only_when_due = counted == {"due": [1], "not due": [0]}
    print(printed(rows))
    said = ", ".join(f"{kind} {' or '.join(map(str, numbers))}" for kind, numbers in counted.items())
    print(f"selections of a view in a step, residual full, R = {PERIOD}: {said}  {RESULT[only_when_due]}")
    results = [*(row["ok"] for row in rows), only_when_due]
    document = {"rows": rows, "at_most": MOST, "selections": counted, "torch": torch.__version__}
    told.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{told.out}: {sum(results)} of {len(results)} claims hold")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
