"""Unweighting that says what it does to the tail of the weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["maximum_weight", "unweighting_efficiency"]

Floats = NDArray[np.float64]


def maximum_weight(weights: Floats, excess: float) -> float:
    """The smallest maximum that weights (N,) exceed by no more than `excess` in sum.

    >>> maximum_weight(np.array([1.0, 1.0, 2.0, 5.0]), 4.0)
    1.5
    """
    if len(weights) == 0:
        return 0.0
    descending = np.sort(weights)[::-1]
    rank = np.arange(1, len(descending) + 1)
    above = np.cumsum(descending) - rank * descending  # the excess if the maximum were the weight of this rank
    k = int(np.searchsorted(above, excess, side="right"))  # so many weights lie above the maximum
    return float((descending[:k].sum() - excess) / k)


def unweighting_efficiency(weights: Floats, maximum: float) -> float:
    """Expected share of points (N,) that survive rejection against the maximum."""
    return float(np.minimum(weights / maximum, 1.0).mean())
