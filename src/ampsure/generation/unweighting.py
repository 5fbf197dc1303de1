"""Unweighting that says what it does to the tail of the weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["maximum_weight", "unweighting_efficiency"]

Floats = NDArray[np.float64]


def maximum_weight(weights: Floats, excess: float, multiplicity: Floats | None = None) -> float:
    """The smallest maximum that weights (N,) exceed by no more than `excess` in sum.

    Args:
        multiplicity: (N,) how often each weight counts; by default once.

    >>> maximum_weight(np.array([1.0, 1.0, 2.0, 5.0]), 4.0)
    1.5
    >>> maximum_weight(np.array([1.0, 2.0, 5.0]), 4.0, np.array([2.0, 1.0, 1.0]))
    1.5
    """
    if len(weights) == 0:
        return 0.0
    order = np.argsort(weights)[::-1]
    descending = weights[order]
    counts = np.ones(len(weights)) if multiplicity is None else multiplicity[order]
    rank, total = np.cumsum(counts), np.cumsum(counts * descending)
    above = total - rank * descending  # the excess if the maximum were the weight of this rank
    k = int(np.searchsorted(above, excess, side="right"))  # so many weights lie above the maximum
    return float((total[k - 1] - excess) / rank[k - 1])


def unweighting_efficiency(weights: Floats, maximum: float) -> float:
    """Expected share of points (N,) that survive rejection against the maximum."""
    return float(np.minimum(weights / maximum, 1.0).mean())
