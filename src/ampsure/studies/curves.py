"""Figures from measurements: what several studies draw alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from ampsure.evaluation import Binned
from ampsure.report.style import colour, curve, legend, unit_gaussian

from .measure import DEVIATION_EDGES, PULL_EDGES

Floats = NDArray[np.float64]

__all__ = ["as_binned", "draw_curve", "draw_deviation", "draw_pull", "draw_shares", "finish"]


def as_binned(stored: dict[str, Any]) -> Binned:
    """A binned statistic read back from JSON."""
    arrays = {k: np.array([np.nan if x is None else x for x in v], dtype=np.float64) for k, v in stored.items()}
    return Binned(**{**arrays, "count": arrays["count"].astype(np.int64)})  # type: ignore[arg-type]


def draw_shares(axes: Axes, shares: ArrayLike, edges: Floats, k: int, *, bounded: bool = False, **options: Any) -> None:
    """A stored histogram as a normalised density, without its outer bins, which hold what is further out.

    Args:
        bounded: nothing can be further out, so that the outer bins are like the others.
    """
    density = np.asarray(shares, dtype=np.float64) / np.diff(edges)
    if bounded:
        axes.stairs(density, edges, **{**colour(k), **options})
    else:
        _draw_steps(axes, density, edges, k, **options)


def draw_deviation(axes: Axes, measured: dict[str, Any], k: int, **options: Any) -> None:
    """Distribution of |Delta|."""
    density = np.asarray(measured["deviation"], dtype=np.float64) / np.diff(DEVIATION_EDGES)
    _draw_steps(axes, density, 10**DEVIATION_EDGES, k, **options)
    axes.set(xscale="log", xlabel=r"$|\Delta|$", ylabel=r"normalised, per unit of $\log_{10}$")


def _draw_steps(axes: Axes, density: Floats, edges: Floats, k: int, **options: Any) -> None:
    """From the first filled bin to the last, so that the axis ends where the data do."""
    filled = np.flatnonzero(density[1:-1]) + 1
    first, last = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (1, 2)
    axes.stairs(density[first:last], edges[first : last + 1], **{**colour(k), **options})


def draw_pull(axes: Axes, measured: dict[str, Any], kind: str, k: int, **options: Any) -> None:
    """Distribution of a pull."""
    draw_shares(axes, measured["pull"][kind], PULL_EDGES, k, **options)
    symbol = {"total": r"t", "systematic": r"t_\mathrm{syst}", "statistical": r"t_\mathrm{stat}"}[kind]
    axes.set(xlabel=f"${symbol}$", ylabel="normalised", xlim=(-4.5, 4.5))


def draw_curve(axes: Axes, stored: dict[str, Any], k: int, **options: Any) -> None:
    """A stored binned statistic with its band."""
    curve(axes, as_binned(stored), k, **options)


def finish(*axes: Axes, gaussian: tuple[Axes, ...] = ()) -> None:
    """Legends for all, and the unit Gaussian for those with pulls."""
    for panel in gaussian:
        unit_gaussian(panel)
    for panel in axes:
        legend(panel)
