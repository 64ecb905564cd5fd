"""Threshold: entries above a magnitude that is estimated now and then."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from igrad.interfaces import View
from igrad.sparsifier.topk import above, check_density, count, largest, sampled_threshold

SAMPLE = 1 << 14  # entries, about: the count is off by a tenth (one standard error) at a density of 1 %


@dataclass(frozen=True)
class Threshold:
    """Entries with |g| > t; t is estimated from a sample so that about k pass, and stays for `every` selections.

    k is Top-k's count. Where fewer than k / 2 or more than 2k pass, t is found exactly and the selection repeated;
    where ties leave fewer than k / 2 even then, the k largest are taken. So the count is k within a factor of two
    whatever the gradients do, and a t left behind by a non-finite gradient lasts until the next selection. A view has
    one t for what is sent every step and one for its releases, whichever part of it these are of.

    Reads counts from the device: it waits for the backward pass there. The sampled threshold is that of Deep Gradient
    Compression (Lin et al. 2018, arXiv:1712.01887), its reuse that of Ok-Topk (Li and Hoefler 2022, arXiv:2201.07598).
    """

    density: float  # fraction kept, about, in (0, 1]; lower = less traffic, more left to the residual
    every: int  # selections of a view, at least 1; higher = cheaper, the count drifts further from k in between
    state: dict[str, Tensor] = field(default_factory=dict, init=False)  # t, 0-dim, by view and kind of turn
    varies = True

    def __post_init__(self) -> None:
        check_density(self.density)
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")

    def select(self, gradient: Tensor, view: View, turn: int, share: float = 1.0) -> Tensor | None:
        flat = gradient.reshape(-1)
        k = count(flat.numel(), self.density, share)
        if k == flat.numel():
            return None
        kind, number = ("release", -1 - turn) if turn < 0 else ("step", turn)
        key = f"{view.name}/{kind}"
        if number % self.every == 0 or key not in self.state:
            self.keep(key, sampled_threshold(flat, k, flat.numel() // SAMPLE))
        chosen = above(flat, self.state[key])
        if k <= 2 * chosen.numel() <= 4 * k:
            return chosen
        best = largest(flat, k + 1)
        self.keep(key, flat[best].abs().min())
        chosen = above(flat, self.state[key])
        return chosen if k <= 2 * chosen.numel() <= 4 * k else best[largest(flat[best], k)]

    def keep(self, key: str, threshold: Tensor) -> None:
        """NaN as infinity: nothing finite passes, so that the next selection notices."""
        self.state[key] = threshold.nan_to_num(math.inf, math.inf)
