"""A profile as it lies on disk, read without torch: per step of the window and component, what scores are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MEASURES = (
    "retained",  # ||retained entries||_2 / sqrt(numel): the paper's activity
    "gradient",  # ||gradient||_2 / sqrt(numel)
    "saliency",  # mean of |weight * gradient|
)


def load(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, int], dict[str, Any]]:
    """(measure -> float64 [steps, components], component -> elements, provenance).

    ValueError where the file is missing or something else.
    """
    if not Path(path).is_file():
        raise ValueError(f"profile '{path}' does not exist; profile=auto makes one")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError):
        raise ValueError(f"profile '{path}' is not a parquet file; profile=auto makes one") from None
    missing = {"step", "component", "numel", *MEASURES} - set(table.column_names)
    if missing:
        raise ValueError(f"profile '{path}' lacks the column {min(missing)}; profile=auto makes one")
    rows = table.to_pandas()
    numel = dict(zip(rows["component"], rows["numel"].astype(int), strict=True))
    trace = {measure: rows[measure].to_numpy(np.float64).reshape(-1, len(numel)) for measure in MEASURES}
    return trace, numel, json.loads((table.schema.metadata or {}).get(b"igrad", b"{}"))
