"""What the controls share: they rearrange the scores within each kind of component."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np


def kind(component: str) -> str:
    """A component's name without its layer: `3.q` -> `q`, `encoder.3.cross.q` -> `encoder.cross.q`.

    The layer is the last number: one before it is a stage, whose components have a size of their own.
    """
    words = component.split(".")
    numbers = [position for position, word in enumerate(words) if word.isdigit()]
    return ".".join(word for position, word in enumerate(words) if position not in numbers[-1:])


def check_policy(policy: object) -> None:
    if not callable(policy):
        raise ValueError(f"policy must be a threshold policy, got {policy!r}; set threshold.policy._target_=...")


def rearranged(
    scores: np.ndarray, components: Sequence[str], rearrange: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Scores with those of each kind passed through `rearrange`, in the order of the names; ties too go by name.

    A policy that looks at the scores alone then finds as many important components of every kind as before, hence
    the same bytes. ValueError unless every score has a name.
    """
    if len(components) != len(scores):
        raise ValueError(
            f"scores are rearranged within kinds, which takes the names of all {len(scores)} components, "
            f"got {len(components)}"
        )
    members = defaultdict(list)
    for position in sorted(range(len(components)), key=components.__getitem__):
        members[kind(components[position])].append(position)
    result = np.array(scores, dtype=np.float64)
    for _, positions in sorted(members.items()):
        result[positions] = rearrange(result[positions])
    return result
