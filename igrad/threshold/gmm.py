"""GMM: the upper of two Gaussians is important."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from igrad.threshold.cut import cut


def first_important(curve: np.ndarray, num_starts: int) -> int:
    """Position in an ascending curve of the first score above the lower mean that is likelier in the upper group.

    The wider Gaussian wins both tails, so a group by likelihood alone may have a hole. Between the two means the
    upper group's share only grows: that crossing is the cut. 0 where there is none, hence no second group.
    """
    from sklearn.mixture import GaussianMixture  # takes seconds

    mixture = GaussianMixture(2, n_init=num_starts, max_iter=1000, random_state=0).fit(curve[:, None])
    lower, upper = np.argsort(mixture.means_[:, 0])
    above = (mixture.predict(curve[:, None]) == upper) & (curve > mixture.means_[lower, 0])
    return int(np.argmax(above))


@dataclass(frozen=True)
class GMM:
    """tau is the lowest score of the upper group; everything is important where the fit knows one group only.

    The random state is fixed: equal scores give equal sets. The library adds 1e-6 to the variances, on scores scaled to
    [0, 1], which keeps a group of equal scores from collapsing.
    """

    num_starts: int  # of which the likeliest is kept, at least 1; more = rarely a local optimum
    needs_scores = True

    def __post_init__(self) -> None:
        if self.num_starts < 1:
            raise ValueError(f"num_starts must be at least 1, got {self.num_starts}")

    def __call__(self, scores: np.ndarray, components: Sequence[str] = ()) -> tuple[float, np.ndarray]:
        return cut(scores, lambda curve: first_important(curve, self.num_starts))
