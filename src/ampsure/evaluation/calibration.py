"""Scores of uncertainties that take all of the distribution into account."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

__all__ = ["Coverage", "calibration_error", "coverage", "crps", "negative_log_likelihood"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Coverage:
    """Share of events in central intervals of nominal probability `levels`, with binomial errors; (K,) each.

    The errors are those of a calibrated sample, sqrt(p (1 - p)/N): how far a share may be off by chance.
    """

    levels: Floats
    shares: Floats
    errors: Floats


def coverage(pull: Floats, levels: ArrayLike) -> Coverage:
    """Coverage of pulls (N,) at nominal probabilities (K,).

    >>> coverage(np.array([-0.5, 0.9, 1.1, 3.0]), [0.6827]).shares
    array([0.5])
    """
    levels = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    half_widths = special.ndtri((1 + levels) / 2)
    shares = np.searchsorted(np.sort(np.abs(pull)), half_widths) / len(pull)
    return Coverage(levels, shares, np.sqrt(levels * (1 - levels) / len(pull)))


def calibration_error(residual: Floats, sigma: Floats, bins: int = 20) -> float:
    """Expected normalised calibration error of residuals (N,) with uncertainties (N,), in bins of equal size in sigma.

    Mean over bins of |rms sigma - rms residual|/rms sigma; Levi et al., "Evaluating and calibrating uncertainty
    prediction in regression tasks", arXiv:1905.11659. Chance alone gives about 0.56 sqrt(bins/N).
    """
    order = np.argsort(sigma, kind="stable")
    parts = np.array_split(order, min(bins, len(order)))
    expected, found = (np.array([_rms(values[part]) for part in parts]) for values in (sigma, residual))
    return float(np.mean(np.abs(expected - found) / expected))


def negative_log_likelihood(residual: Floats, sigma: Floats) -> float:
    """Mean of -log N(residual; 0, sigma^2), (N,) each."""
    return float(np.mean(0.5 * np.square(residual / sigma) + np.log(sigma)) + 0.5 * log(2 * pi))


def crps(residual: Floats, sigma: Floats) -> float:
    """Mean continuous ranked probability score of N(0, sigma^2), (N,) each.

    Gneiting, Raftery, "Strictly proper scoring rules, prediction, and estimation", JASA 102 (2007) 359, eq. (21).
    """
    z = residual / sigma
    density = np.exp(-0.5 * np.square(z)) / sqrt(2 * pi)
    return float(np.mean(sigma * (z * (2 * special.ndtr(z) - 1) + 2 * density - 1 / sqrt(pi))))


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
