"""Observables of momenta (..., n, 4) = (E, px, py, pz), and the checks every momentum has to pass.

Pure functions of arrays: each works alike on numpy arrays and torch tensors, and keeps their type.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import pi
from typing import Any

import numpy as np
import torch

__all__ = [
    "TOLERANCE",
    "azimuth",
    "delta_r",
    "find_collinear",
    "find_invalid",
    "invariant_mass",
    "minkowski",
    "pseudorapidity",
    "separated",
    "transverse_momentum",
]

Array = Any
"""numpy.ndarray or torch.Tensor, the same in and out."""

TOLERANCE = 1e-6
"""Largest deviation from mass shell and balance that is taken for rounding, relative to the incoming energy."""


def minkowski(p: Array, q: Array) -> Array:
    """Product p.q with signature (+, -, -, -): (..., 4), (..., 4) -> (...).

    >>> minkowski(np.array([5.0, 0, 0, 3]), np.array([5.0, 0, 0, 3])).item()
    16.0
    """
    return p[..., 0] * q[..., 0] - (p[..., 1:] * q[..., 1:]).sum(-1)


def transverse_momentum(p: Array) -> Array:
    """pT: (..., 4) -> (...)."""
    return (p[..., 1] ** 2 + p[..., 2] ** 2) ** 0.5


def azimuth(p: Array) -> Array:
    """phi in (-pi, pi]: (..., 4) -> (...)."""
    return _module(p).arctan2(p[..., 2], p[..., 1])


def pseudorapidity(p: Array) -> Array:
    """eta, infinite along the beam: (..., 4) -> (...)."""
    with np.errstate(divide="ignore"):
        return _module(p).arcsinh(p[..., 3] / transverse_momentum(p))


def delta_r(p: Array, q: Array) -> Array:
    """Distance in pseudorapidity and azimuth: (..., 4), (..., 4) -> (...)."""
    delta_phi = abs(azimuth(p) - azimuth(q))
    delta_phi = _module(p).minimum(delta_phi, 2 * pi - delta_phi)
    return ((pseudorapidity(p) - pseudorapidity(q)) ** 2 + delta_phi**2) ** 0.5


def separated(p: Array, radius: float) -> Array:
    """Whether no two of n momenta have a `delta_r` up to a radius: (..., n, 4) -> (...).

    The azimuth enters by the chord between the directions, so that no arctangent is needed: exported graphs have none
    in float64.

    >>> separated(np.array([[5.0, 3, 4, 0], [5.0, 4, 3, 0]]), 0.28).item()
    True
    """
    i, j = (list(k) for k in zip(*combinations(range(p.shape[-2]), 2), strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        eta, direction = pseudorapidity(p), p[..., 1:3] / transverse_momentum(p)[..., None]
        left = radius**2 - (eta[..., i] - eta[..., j]) ** 2  # for the square of the difference in azimuth
        chord2 = ((direction[..., i, :] - direction[..., j, :]) ** 2).sum(-1)
        apart = (left < 0) | (chord2 > 4 * _module(p).sin(left.clip(0, pi**2) ** 0.5 / 2) ** 2)
    return apart.all(-1)


def invariant_mass(p: Array) -> Array:
    """Mass of a group of particles: (..., k, 4) -> (...).

    >>> invariant_mass(np.array([[5.0, 0, 0, 5], [5, 0, 0, -5]])).item()
    10.0
    """
    total = p.sum(-2)
    square = minkowski(total, total)
    return (square * (square > 0)) ** 0.5


def find_invalid(
    momenta: Array,
    masses: Sequence[float],
    n_incoming: int = 2,
    *,
    beams_along_z: bool = False,
    tolerance: float = TOLERANCE,
) -> tuple[Array, list[tuple[Array, str]]]:
    """Events that are no physical momenta: (N,) mask of the bad ones, and (mask, reason) for every reason.

    Args:
        momenta: (N, n, 4).
        masses: of the n legs.
    """
    xp = _module(momenta)
    finite = (abs(momenta) < 1e150).all(-1).all(-1)  # so that squares are finite too; not a number is not less
    p = xp.where(finite[:, None, None], momenta, 1.0)
    energy, square = p[..., 0], (p[..., 1:] ** 2).sum(-1)
    scale = energy[:, :n_incoming].sum(-1)
    mass = xp.asarray(masses, dtype=p.dtype, **({} if xp is np else {"device": p.device}))
    off_shell = abs(energy - (square + mass**2) ** 0.5).max(-1)
    off_shell = off_shell if xp is np else off_shell.values
    missing = abs(p[:, :n_incoming].sum(-2) - p[:, n_incoming:].sum(-2))
    missing = missing.max(-1) if xp is np else missing.max(-1).values
    reasons = [
        (~finite, "a momentum is not finite"),
        (finite & (energy <= 0).any(-1), "an energy is not positive"),
        (finite & ~(off_shell <= tolerance * scale), f"a leg is off its mass shell (masses {list(masses)})"),
        (finite & ~(missing <= tolerance * scale), "incoming and outgoing momenta do not balance"),
    ]
    if beams_along_z:
        transverse = transverse_momentum(p[:, :n_incoming]).sum(-1)
        reasons.append((finite & ~(transverse <= tolerance * scale), "the beams are not along the z axis"))
    bad = reasons[0][0]
    for mask, _ in reasons[1:]:
        bad = bad | mask
    return bad, reasons


def find_collinear(momenta: Array) -> Array:
    """(N,) mask of events in which two legs are exactly parallel (or one is zero), so that p_i.p_j = 0."""
    p = momenta
    bad = (p[..., 0] == 0).any(1)
    for i, j in combinations(range(p.shape[1]), 2):
        cross = _module(p).stack(
            [p[:, i, a] * p[:, j, b] - p[:, i, b] * p[:, j, a] for a, b in ((1, 2), (2, 3), (3, 1))]
        )
        along = (p[:, i, 1:] * p[:, j, 1:]).sum(-1) > 0
        bad = bad | ((cross == 0).all(0) & along)
    return bad


def _module(array: Array) -> Any:
    return torch if isinstance(array, torch.Tensor) else np
