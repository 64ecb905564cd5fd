"""How what a rank sends grows with the number of ranks, when no two of them select the same entries.

Bytes are per rank and bucket, as the interface of an own loopback counts them less the protocol's overhead (from the
same messages with one entry). A union grows as N - 1; what all ranks agree on, as 2 (N - 1) / N. Exit code 1 when a
claim fails.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from igrad.command_line import Parser, output_file
from tests.test_bytes import GROWTH, MOST_RANKS, bytes_apart

TOLERANCE = 0.15  # relative, of growth to its law
SAID_TOLERANCE = 0.05  # of what ranks say to what the interface counts
NUM_RANKS = (2, 4, 8)
NUM_ENTRIES = 200_000  # of each rank: at least a megabyte of its bucket is sent
NUM_EXCHANGES = 5


def measure() -> list[dict]:
    found = {num_ranks: bytes_apart(num_ranks, NUM_ENTRIES, NUM_EXCHANGES) for num_ranks in NUM_RANKS}
    fewest = NUM_RANKS[0]
    rows = []
    for option, law in GROWTH.items():
        for num_ranks in NUM_RANKS:
            interface, said = found[num_ranks][option]
            predicted, measured = law(num_ranks) / law(fewest), interface / found[fewest][option][0]
            holds = abs(measured / predicted - 1) <= TOLERANCE and abs(said / interface - 1) <= SAID_TOLERANCE
            rows.append(
                {
                    "collective": option,
                    "num_ranks": num_ranks,
                    "measured_bytes": round(interface),
                    "said_bytes": round(said),
                    "predicted_growth": predicted,
                    "measured_growth": measured,
                    "ok": holds,
                }
            )
    return rows


def printed(rows: list[dict]) -> str:
    frame = pd.DataFrame(rows)
    for name in ("measured_bytes", "said_bytes"):
        frame[name] = frame[name].map("{:,}".format)
    for name in ("predicted_growth", "measured_growth"):
        frame[name] = frame[name].map("{:.2f}".format)
    frame["ok"] = frame["ok"].map({True: "pass", False: "FAIL"})
    frame["collective"] = frame["collective"].str.ljust(frame["collective"].str.len().max())
    frame = frame.rename(columns={"num_ranks": "ranks", "ok": ""})
    return frame.rename(columns=lambda name: name.replace("_", " ")).to_string(index=False)


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.growth", description=__doc__)
    default = Path("outputs/benchmarks/growth.json")
    parser.add_argument("--out", type=Path, default=default, help="JSON with the same rows")
    torch.set_num_threads(1)  # ranks are forked
    try:
        told = parser.parse_args(argv)
        output_file(told.out)
        rows = measure()
    except (ValueError, pytest.skip.Exception) as error:  # skip: no loopback of one's own to be had
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(printed(rows))
    document = {"rows": rows, "num_entries": NUM_ENTRIES, "numel": MOST_RANKS * NUM_ENTRIES, "within": TOLERANCE}
    told.out.write_text(json.dumps({**document, "torch": torch.__version__}, indent=1) + "\n")
    failed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} claims hold; {told.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
