"""What the questions that compare times share."""

from __future__ import annotations

PHASES = ("compute", "select", "pack", "exchange", "unpack")  # the recorder's
PHASES_MS = tuple(f"{phase}_ms" for phase in PHASES)
INDICATIVE = "Each row is of runs of its own, at other times: times and their ratios are indicative only."
