"""Statistics in bins of an observable, and inside against outside of a region."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ampsure.errors import AmpsureError

__all__ = ["Binned", "Ratio", "bin_edges", "binned", "median", "region_ratio"]

Floats = NDArray[np.float64]
Statistic = Callable[..., Floats]
"""Maps values to one number along an axis: `statistic(values, axis=...)`, such as `numpy.mean`."""

median: Statistic = np.median


@dataclass(frozen=True)
class Binned:
    """A statistic in K bins, with a band of bootstrap quantiles; nan where a bin is empty.

    Args:
        edges: (K + 1,).
        value, low, high, count: (K,).
    """

    edges: Floats
    value: Floats
    low: Floats
    high: Floats
    count: NDArray[np.int64]

    @property
    def centres(self) -> Floats:
        return 0.5 * (self.edges[1:] + self.edges[:-1])


def bin_edges(observable: Floats, bins: int = 40, *, logarithmic: bool = False, tail: float = 1e-3) -> Floats:
    """(bins + 1,) edges of equal width, in the observable or its logarithm, over all but a share `tail` at each end.

    >>> bin_edges(np.array([1.0, 10.0, 100.0]), 2, logarithmic=True, tail=0.0)
    array([  1.,  10., 100.])
    """
    low, high = np.quantile(observable, (tail, 1 - tail))
    if not high > low:
        high = low + max(abs(low), 1.0) * 1e-6
    if logarithmic and not low > 0:
        raise AmpsureError(f"Logarithmic bins need a positive observable, but it goes down to {low:.3g}.")
    return np.geomspace(low, high, bins + 1) if logarithmic else np.linspace(low, high, bins + 1)


def binned(
    observable: Floats,
    values: Floats,
    edges: Floats,
    statistic: Statistic = median,
    *,
    bootstrap: int = 100,
    level: float = 0.6827,
    seed: int = 0,
) -> Binned:
    """A statistic of values (N,) in bins of an observable (N,), the last of which is closed, as in numpy.histogram.

    Args:
        bootstrap: number of resampled bins the band is taken from; 0 for no band.
        level: probability inside the band.
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(observable, kind="stable")
    limits = np.searchsorted(observable[order], edges)
    limits[-1] = np.searchsorted(observable[order], edges[-1], side="right")
    value, low, high = np.full((3, len(edges) - 1), np.nan)
    for k, (start, stop) in enumerate(pairwise(limits)):
        inside = values[order[start:stop]]
        n = len(inside)
        if n:
            value[k] = low[k] = high[k] = statistic(inside, axis=0)
        if n and bootstrap:
            step = max(10**6 // n, 1)  # about a million numbers at a time
            sizes = [min(step, bootstrap - done) for done in range(0, bootstrap, step)]
            draws = np.concatenate([statistic(inside[rng.integers(n, size=(m, n))], axis=1) for m in sizes])
            low[k], high[k] = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2))
    return Binned(edges, value, low, high, np.diff(limits))


@dataclass(frozen=True)
class Ratio:
    """A number with its standard error."""

    value: float
    error: float


@np.errstate(divide="ignore", invalid="ignore")
def region_ratio(
    values: Floats, inside: NDArray[np.bool_], statistic: Statistic = median, *, bootstrap: int = 200, seed: int = 0
) -> Ratio:
    """The statistic of values (N,) inside a region over that outside of it, with its bootstrap error.

    Taken of |Delta| it is the true-error ratio: a rise of sigma_stat in a gap means something next to it alone.

    >>> region_ratio(np.array([2.0, 2.0, 1.0, 1.0]), np.array([True, True, False, False]))
    Ratio(value=2.0, error=0.0)
    """
    if inside.all() or not inside.any():
        where = "inside" if inside.any() else "outside"
        raise AmpsureError(f"All {len(values)} events are {where} of the region: there is nothing to compare with.")
    rng = np.random.default_rng(seed)
    parts = values[inside], values[~inside]
    value = float(statistic(parts[0], axis=0) / statistic(parts[1], axis=0))
    draws = [
        np.array([statistic(part[rng.integers(len(part), size=len(part))], axis=0) for _ in range(bootstrap)])
        for part in parts
    ]
    return Ratio(value, float(np.std(draws[0] / draws[1])))
