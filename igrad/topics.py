"""Which windows are about the same things: the order that gives every rank texts of its own."""

from __future__ import annotations

import numpy as np


def by_topic(input_ids: np.ndarray) -> np.ndarray:
    """Windows ordered by topic: input_ids int [num_windows, sequence_length] -> order int64 [num_windows].

    The order is along the first principal component of the windows' token counts, weighted by tf-idf (Spärck Jones,
    1972) and scaled to length 1. The counts are centred, else the first axis would be the mean text and not what sets
    texts apart. The axis is solved to machine precision and signed by its largest loading, so that the order follows
    from the windows alone; equals stay in their order. At least two different windows.
    """
    from scipy.sparse import csr_matrix
    from sklearn.decomposition import PCA  # takes seconds
    from sklearn.feature_extraction.text import TfidfTransformer

    num_windows, length = input_ids.shape
    places = np.arange(num_windows).repeat(length), input_ids.ravel()
    counts = csr_matrix((np.ones(input_ids.size), places))  # adds up what falls on one place
    weighted = TfidfTransformer().fit_transform(counts)
    position = PCA(1, svd_solver="arpack", random_state=0).fit_transform(weighted)[:, 0]
    return np.argsort(position, kind="stable")


def part(order: np.ndarray, rank: int, num_ranks: int) -> np.ndarray:
    """A rank's windows: its piece of an order cut into `num_ranks` pieces, int64, equal in size up to one window.

    Ascending, so that the place in a part says nothing of the topic: ranks that permute their parts alike do not pair
    like with like, and one rank's part is all windows as they stand.
    """
    return np.sort(np.array_split(order, num_ranks)[rank])
