"""Parton densities x f(x, Q): two gluons in closed form, and any LHAPDF grid file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ampsure.errors import AmpsureError

__all__ = ["EMBEDDED", "cteq5l_gluon", "get_density", "grv94lo_gluon"]

Floats = NDArray[np.float64]
Density = Callable[[Floats, float], Floats]
"""x f(x, Q) of momentum fractions x (N,) at the scale Q in GeV."""


def grv94lo_gluon(x: Floats, q: float) -> Floats:
    """GRV94 LO gluon (Glueck, Reya, Vogt, Z. Phys. C67 (1995) 433): (N,) -> (N,).

    >>> round(float(grv94lo_gluon(np.array(0.1), 91.188)), 10)
    0.8711784818
    """
    mu2, lambda2 = 0.23, 0.2322**2
    s = np.log(np.log(q**2 / lambda2) / np.log(mu2 / lambda2))
    log = np.log(1 / x)
    valence = x ** (1.742 - 0.930 * s) * (
        7.486 - 2.185 * s + (16.69 - 22.74 * s + 5.779 * s**2) * x + (-25.59 + 29.71 * s - 7.296 * s**2) * x**2
    )
    rise = np.sqrt((3.841 + 0.316 * s) * s**1.088 * log) - (0.807 + 2.005 * s)
    fall = (1 - x) ** (2.792 + 2.215 * s + 0.422 * s**2 - 0.104 * s**3)
    density: Floats = (valence * log ** (-0.399 * s**2) + s**0.524 * np.exp(rise)) * fall
    return density


_CTEQ5L = np.array(
    [
        (119.3572, -3.886845, -1.133965),
        (-94.21449, 3.995885, 1.607363),
        (4.206383, 0.2485954, 0.2497468),
        (121.0557, -3.015765, -1.423651),
        (-101.3897, -0.7113478, 0.2621865),
        (-1.312404, -0.9297691, -0.1562531),
        (1.627137, 0.4954111, -0.6387009),
        (0.1537698, -0.2487878, 0.8305947),
        (0.02496448, 0.002457823, 0.0008234276),
    ]
)


def cteq5l_gluon(x: Floats, q: float) -> Floats:
    """CTEQ5L gluon (Lai et al., Eur. Phys. J. C12 (2000) 375), 1e-6 < x < 1, 1.1 GeV < Q < 10 TeV: (N,) -> (N,).

    >>> round(float(cteq5l_gluon(np.array(0.1), 91.188)), 10)
    0.7870514399
    """
    t = np.log(np.log(q / 0.4491863)) - 1.2
    f = _CTEQ5L @ np.array([1.0, t, t * t])
    y, u, z = -np.log(x), np.log(x / 1e-5), 1 - x
    exponent = f[1] * y ** (1 + 0.01 * f[4]) * (1 + f[8] * u) + f[0] * z + f[3] * x
    exponent = exponent + x * z * (f[5] + f[6] * z + f[7] * x * z) + (-0.4656819 + f[2]) * np.log(z)
    density: Floats = x**2 * np.exp(exponent)
    return density


EMBEDDED: dict[str, tuple[Density, tuple[float, float]]] = {
    "grv94lo": (grv94lo_gluon, (0.64, 1000.0)),
    "cteq5l": (cteq5l_gluon, (1.1, 10_000.0)),
}
"""The gluon densities that need no file, and the scales in GeV they were made for."""


def get_density(name: str, pdg_id: int, q: float) -> Density:
    """The density of a parton.

    Args:
        name: one of `EMBEDDED` (gluons only), or the path of an LHAPDF grid file (`..._0000.dat`).
        q: scale at which it will be asked for, in GeV.
    """
    if name in EMBEDDED:
        if pdg_id != 21:
            raise AmpsureError(f"The density {name!r} has gluons only; give an LHAPDF grid file for parton {pdg_id}.")
        density, (low, high) = EMBEDDED[name]
        _check_scale(name, q, low, high)
        return density
    if not Path(name).is_file():
        raise AmpsureError(
            f"No parton density {name!r}: it is neither one of {', '.join(EMBEDDED)} nor the path of a grid file."
        )
    grid = _GridDensity(name, pdg_id)
    _check_scale(name, q, *grid.scales)
    return grid


def _check_scale(name: str, q: float, low: float, high: float) -> None:
    if not low <= q <= high:
        raise AmpsureError(f"The density {name!r} is for scales of {low:g} to {high:g} GeV, not {q:g} GeV.")


class _GridDensity:
    """x f(x, Q) interpolated in an LHAPDF grid by madspace."""

    def __init__(self, path: str, pdg_id: int) -> None:
        import madspace

        try:
            grid = madspace.PdfGrid(path)
        except Exception as error:  # madspace raises what its C++ parser meets
            raise AmpsureError(f"{path} is not a readable LHAPDF grid file ({error}).") from error
        if not grid.pids:
            raise AmpsureError(f"{path} is not a readable LHAPDF grid file: it names no partons.")
        if pdg_id not in grid.pids:
            raise AmpsureError(f"{path} has no parton {pdg_id}; its partons are {sorted(grid.pids)}.")
        self._x, self.scales, self._path = (min(grid.x), max(grid.x)), (min(grid.q), max(grid.q)), path
        self._context = madspace.Context(1)
        grid.initialize_globals(self._context)
        self._runtime = madspace.FunctionRuntime(madspace.PartonDensity(grid, [pdg_id]).function(), self._context)

    def __call__(self, x: Floats, q: float) -> Floats:
        if x.size and not (self._x[0] <= x.min() and x.max() <= self._x[1]):
            low, high = self._x
            raise AmpsureError(
                f"x from {x.min():.3g} to {x.max():.3g} leaves the grid {self._path}, {low:g} to {high:g}."
            )
        values: Floats = self._runtime.call([x, np.full_like(x, q)])[0].numpy().reshape(x.shape)
        return values
