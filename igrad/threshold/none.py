"""Nothing is important: every view waits for its release, those of no component included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NoneImportant:
    """With `deferral: local` and whole views this is local SGD."""

    needs_scores = False

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        return np.inf, np.zeros(len(scores), dtype=bool)
