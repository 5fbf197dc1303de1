"""Intervals that hold as many amplitudes as they say, in every bin of an observable."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from ampsure.calibration import conformal_rank
from ampsure.errors import AmpsureError

__all__ = ["BinnedReach"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BinnedReach:
    """How many sigma around a prediction hold the amplitude, bin by bin.

    Split-conformal prediction for each bin alone ("Mondrian", Vovk et al., 2005): if the events it was made from are
    drawn as those to come, and neither training nor calibration has seen them, the share of amplitudes inside is at
    least as promised in every bin, whatever the shape of the pulls.

    Args:
        edges: (K - 1,) between K bins; the outer bins are open.
        scores: K arrays of |pull|, sorted.
    """

    edges: Floats
    scores: tuple[Floats, ...]

    @classmethod
    def of(cls, pull: Floats, observable: Floats, edges: Floats) -> BinnedReach:
        """From pulls (N,) of held-out events, the observable (N,) of the same, and edges (K - 1,) between bins."""
        edges = np.asarray(edges, dtype=np.float64)
        if not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
            raise AmpsureError("Edges of bins must be finite and grow.")
        if np.isnan(pull).any() or np.isnan(observable).any() or len(pull) != len(observable):
            raise AmpsureError("Pulls and observable must be numbers, one each for every event.")
        where = np.digitize(observable, edges)
        return cls(edges, tuple(np.sort(np.abs(pull[where == k])) for k in range(len(edges) + 1)))

    def __call__(self, observable: Floats, level: float) -> Floats:
        """How many sigma it takes for each of the events (N,); infinite where a bin had too few to tell."""
        if not 0 < level < 1:
            raise AmpsureError(f"The level of an interval is a probability between 0 and 1, not {level}.")
        ranks = [conformal_rank(len(scores), level) for scores in self.scores]
        reach = np.array([inf if k is None else s[k] for k, s in zip(ranks, self.scores, strict=True)])
        found: Floats = reach[np.digitize(observable, self.edges)]
        return found
