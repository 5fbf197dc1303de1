"""Whether uncertainties are as large as the errors: section "Accuracy, calibration, and pulls" of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["PullSummary", "coverage", "pull_stat", "pull_syst", "pull_tot", "summarise_pull"]

Floats = NDArray[np.float64]


def pull_tot(prediction: Floats, sigma_tot: Floats, seen: Floats) -> Floats:
    """t = (A_NN - A_train)/sigma_tot, against the amplitudes seen in training: (N,) each."""
    return _pull(prediction, sigma_tot, seen)


def pull_syst(prediction: Floats, sigma_syst: Floats, seen: Floats) -> Floats:
    """t_syst = (A_NN - A_train)/sigma_syst, against the amplitudes seen in training: (N,) each."""
    return _pull(prediction, sigma_syst, seen)


def pull_stat(prediction: Floats, sigma_stat: Floats, truth: Floats) -> Floats:
    """t_stat = (A_NN - A_true)/sigma_stat, against the noise-free truth: (N,) each."""
    return _pull(prediction, sigma_stat, truth)


def _pull(prediction: Floats, sigma: Floats, reference: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):  # a vanishing sigma has an infinite pull
        pull: Floats = (prediction - reference) / sigma
    return pull


def coverage(pull: Floats, level: float) -> float:
    """Share of pulls (N,) inside the central interval of a unit Gaussian with this probability.

    >>> coverage(np.array([-0.5, 0.9, 1.1, 3.0]), 0.6827)
    0.5
    """
    from statistics import NormalDist

    half_width = NormalDist().inv_cdf((1 + level) / 2)
    return float(np.mean(np.abs(pull) < half_width))


@dataclass(frozen=True)
class PullSummary:
    """Mean and width of a pull, and its coverage at one and two standard deviations."""

    mean: float
    width: float
    coverage68: float
    coverage95: float


def summarise_pull(pull: Floats) -> PullSummary:
    """Summary of pulls (N,); a calibrated one has 0, 1, 0.683 and 0.954."""
    return PullSummary(float(pull.mean()), float(pull.std()), coverage(pull, 0.6826895), coverage(pull, 0.9544997))
