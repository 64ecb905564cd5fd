"""How long a cross-rank operation takes and how much it sends: latency and bandwidth, no more (the α–β model).

Rings for all-reduce and all-gather, a binomial tree for the broadcast, one partner after the other for all-to-all:
what gloo does. Costs, those of other algorithms too, are of Thakur, Rabenseifner and Gropp (2005,
doi:10.1177/1094342005051521). Reductions are free. Nothing overlaps, nothing is congested, all ranks start at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

KINDS = ("all_reduce", "all_gather", "broadcast", "all_to_all")  # of igrad.collective.wire.Message

Sample = tuple[str, float, int, float]  # kind, bytes of a message, ranks, microseconds


@dataclass(frozen=True)
class Link:
    """What every round of an operation costs, whatever its size, and what every byte does."""

    latency_us: float | Mapping[str, float]  # of a round, at least 0; by kind where they differ
    bytes_per_us: float  # above 0; 125 is 1 Gbit/s

    def __post_init__(self) -> None:
        latencies = self.latency_us.values() if isinstance(self.latency_us, Mapping) else [self.latency_us]
        if min(latencies) < 0:
            raise ValueError(f"latency_us must be at least 0, got {min(latencies)}")
        if not self.bytes_per_us > 0:
            raise ValueError(f"bytes_per_us must be above 0, got {self.bytes_per_us}")

    def latency(self, kind: str) -> float:
        """Of a kind that is not named: the largest of those that are."""
        if not isinstance(self.latency_us, Mapping):
            return self.latency_us
        return self.latency_us.get(kind, max(self.latency_us.values()))


def operation_us(kind: str, num_bytes: Any, num_ranks: int, link: Link, trees: bool = False) -> Any:
    """Time of an operation whose Message has `num_bytes` (a number or an array) among ranks with one link each.

    With `trees` the better of that and of what takes log2 N rounds, or twice as many: recursive halving and doubling,
    the hypercube's all-to-all, a broadcast as scatter and all-gather. Other libraries choose so, gloo does not.
    """
    ring, tree = num_ranks - 1, (num_ranks - 1).bit_length()
    rounds, carried_bytes = {  # in one round after the other, by a rank
        "all_reduce": (2 * ring, 2 * ring * num_bytes / num_ranks),
        "all_gather": (ring, ring * num_bytes),
        "broadcast": (tree, tree * num_bytes),
        "all_to_all": (ring, num_bytes * min(1, ring)),
    }[kind]
    us = rounds * link.latency(kind) + carried_bytes / link.bytes_per_us
    if not trees:
        return us
    rounds, carried_bytes = {
        "all_reduce": (2 * tree, 2 * ring * num_bytes / num_ranks),
        "all_gather": (tree, ring * num_bytes),
        "broadcast": (2 * tree, 2 * ring * num_bytes / num_ranks),
        "all_to_all": (tree, tree * num_bytes * num_ranks / (2 * max(1, ring))),
    }[kind]
    return np.minimum(us, rounds * link.latency(kind) + carried_bytes / link.bytes_per_us)


def sent_bytes(kind: str, num_bytes: Any, num_ranks: int) -> Any:
    """What a rank sends in it; of a broadcast, the mean over who leads."""
    others = num_ranks - 1
    share = {"all_reduce": 2 * others / num_ranks, "all_gather": others, "broadcast": others / num_ranks}
    return num_bytes * share.get(kind, 1)


@dataclass(frozen=True)
class Cluster:
    """Ranks on nodes: within a node a link for every rank, between nodes one that its ranks share.

    An operation goes level by level, one rank of each node with its like on the others: an all-reduce as
    reduce-scatter inside, all-reduce across, all-gather inside (Mikami et al. 2018, arXiv:1811.05233), an all-to-all in
    two hops (Rajbhandari et al. 2022, arXiv:2201.05596), an all-gather first across, then inside, a broadcast down a
    tree of nodes, then one of ranks. One rank per node: the plain formulas over `outer`.
    """

    num_ranks: int  # at least 1
    ranks_per_node: int  # a divisor of num_ranks; where it is not below, all ranks are on one node
    inner: Link
    outer: Link
    trees: bool = False  # see operation_us

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or self.ranks_per_node < 1:
            raise ValueError(
                f"num_ranks and ranks_per_node must be at least 1, got {self.num_ranks} and {self.ranks_per_node}"
            )
        if self.num_ranks % min(self.ranks_per_node, self.num_ranks):
            raise ValueError(
                f"num_ranks must be a multiple of ranks_per_node {self.ranks_per_node}, got {self.num_ranks}"
            )

    @property
    def on_node(self) -> int:
        return min(self.ranks_per_node, self.num_ranks)

    @property
    def num_nodes(self) -> int:
        return self.num_ranks // self.on_node

    def levels(self, kind: str, num_bytes: Any) -> tuple[Any, Any]:
        """`num_bytes` of the same kind of operation inside a node, and of the one across nodes on the shared link."""
        inside, across = self.on_node, self.num_nodes
        if kind == "all_gather":
            return across * num_bytes, inside * num_bytes
        if kind == "all_to_all":
            held = num_bytes * self.num_ranks / max(1, self.num_ranks - 1)  # with the part that stays
            return held * (inside - 1) / inside, inside * held * (across - 1) / across
        return num_bytes, num_bytes  # a rank's n-th of an all-reduce crosses, n at a time

    def us(self, kind: str, num_bytes: Any) -> Any:
        """Time of an operation whose Message has `num_bytes`."""
        inside, across = self.levels(kind, num_bytes)
        within = operation_us(kind, inside, self.on_node, self.inner, self.trees)
        return within + operation_us(kind, across, self.num_nodes, self.outer, self.trees)

    def outer_bytes(self, kind: str, num_bytes: Any) -> Any:
        """What a node sends to others in it."""
        return sent_bytes(kind, self.levels(kind, num_bytes)[1], self.num_nodes)


def fit_link(samples: Sequence[Sample]) -> Link:
    """Least squares of relative errors in a latency per kind and the inverse bandwidth, none of them negative."""
    from scipy.optimize import nnls  # comes with scikit-learn; takes a while

    kinds = sorted({kind for kind, *_ in samples})
    if not kinds:
        raise ValueError("no samples to fit a link to")
    times_us = np.array([us for *_, us in samples])
    # The model is linear: with one of latency and inverse bandwidth at one and the other at zero it is a column.
    columns = [
        [operation_us(kind, 0.0, n, Link(1.0, np.inf)) * (kind == of) for kind, _, n, _ in samples] for of in kinds
    ]
    columns.append([operation_us(kind, num_bytes, n, Link(0.0, 1.0)) for kind, num_bytes, n, _ in samples])
    relative = np.array(columns).T / times_us[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1
    found, _ = nnls(relative / scale, np.ones(len(samples)))
    *latencies, us_per_byte = (found / scale).tolist()
    return Link(dict(zip(kinds, latencies, strict=True)), 1 / us_per_byte if us_per_byte else float("inf"))
