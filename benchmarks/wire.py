"""What codecs and delays save on the wire: two ranks on a loopback of their own, the embedded default model's shapes.

Bytes are per rank and step, as the interface counts them less the protocol's overhead (from the same messages with next
to nothing in them), over whole release periods. Exit code 1 when a claim fails.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import torch

from igrad.command_line import Parser, output_file
from igrad.sparsifier.topk import count
from tests.strategies import make, options
from tests.test_bytes import (
    BF16_GAP8,
    FEW,
    FP32_INT32,
    KNEE,
    Case,
    coded_bytes,
    components,
    llama_views,
    on_the_interface,
    share_of,
    share_of_every_step,
)

TOLERANCE = 0.05  # relative: of what ranks say to what the interface counts, and of the arithmetic to the ratio
PERIODS = (4, 8, 16)
NUM_STEPS = 8  # where everything is sent every step


@dataclass(frozen=True)
class Row:
    """A case, what it is compared with and what it is claimed to take."""

    name: str
    case: Case
    predicted_ratio: float
    most: float | None = None  # the ratio is claimed not to exceed it

    @property
    def claim(self) -> str:
        return f"± {TOLERANCE:.0%}" + (f", at most {self.most}" if self.most else "")

    def measured(self, interface: float, said: float, reference: float, to: str) -> dict:
        ratio = interface / reference
        near = abs(ratio / self.predicted_ratio - 1) <= TOLERANCE and abs(said / interface - 1) <= TOLERANCE
        return {
            "name": self.name,
            "measured_bytes": round(interface),
            "said_bytes": round(said),
            "ratio_to": to,
            "predicted": round(self.predicted_ratio, 4),
            "measured": round(ratio, 4),
            "claim": self.claim,
            "ok": near and (self.most is None or ratio <= self.most),
            **self.case._asdict(),
            "important": sorted(self.case.important),
        }


def codec_rows() -> list[Row]:
    """Top-k at 1 %, every view every step; the first is what the others are compared with."""
    views = llama_views()
    every = components(views)
    pairs = [dict(zip(FP32_INT32, pair, strict=True)) for pair in product(*map(options, FP32_INT32))]
    pairs.sort(key=lambda codecs: codecs != FP32_INT32)

    def expected(codecs: dict[str, str]) -> float:
        collective = make("collective", "allgather", **codecs)
        return sum(collective.cost_bytes(view.numel, count(view.numel, 0.01)) for view in views)

    return [
        Row(
            " + ".join(codecs.values()),
            Case("topk", codecs, every, num_periods=NUM_STEPS),
            predicted_ratio=expected(codecs) / expected(FP32_INT32),
            most=0.45 if codecs == BF16_GAP8 else None,
        )
        for codecs in pairs
    ]


def delay_rows() -> list[Row]:
    """ADTopk at 1 % with embeddings as components, every view every step, and ImportanceGradient beside it."""
    views = llama_views(embeddings=True)
    always = Case("adtopk", BF16_GAP8, components(views), num_periods=NUM_STEPS)
    sizes = coded_bytes(views, always)
    rows = [Row("ADTopk every step", always, 1.0)]
    for important, period in product((KNEE, FEW), PERIODS):
        name = f"R = {period}, {share_of(important, sizes):.0%} important"
        case = Case("adtopk", BF16_GAP8, important, period)
        most = 0.25 if (important, period) == (FEW, 16) else None
        rows.append(Row(name, case, share_of_every_step(sizes, important, period), most))
    return rows


def measure(views: list, rows: list[Row]) -> list[dict]:
    found = on_the_interface(views, [row.case for row in rows])
    reference, to = found[0][0], rows[0].name
    return [row.measured(*each, reference, to) for row, each in zip(rows, found, strict=True)]


def printed(rows: list[dict]) -> str:
    frame = pd.DataFrame(rows)
    for name in ("measured_bytes", "said_bytes"):
        frame[name] = frame[name].map("{:,}".format)
    for name in ("predicted", "measured"):
        frame[name] = frame[name].map("{:.3f}".format)
    frame["ok"] = frame["ok"].map({True: "pass", False: "FAIL"})
    frame["name"] = frame["name"].str.ljust(frame["name"].str.len().max())
    frame = frame.loc[:, :"ok"].rename(columns={"name": "", "ok": ""})
    return frame.rename(columns=lambda name: name.replace("_", " ")).to_string(index=False)


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.wire", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/benchmarks/wire.json"), help="JSON with the same rows"
    )
    torch.set_num_threads(1)  # ranks are forked
    try:
        told = parser.parse_args(argv)
        output_file(told.out)
        rows = measure(llama_views(), codec_rows()) + measure(llama_views(embeddings=True), delay_rows())
    except (ValueError, pytest.skip.Exception) as error:  # skip: no loopback of one's own to be had
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(printed(rows))
    told.out.write_text(json.dumps({"rows": rows, "torch": torch.__version__}, indent=1) + "\n")
    failed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} claims hold; {told.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
