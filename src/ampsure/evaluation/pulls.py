"""Whether uncertainties are as large as the errors: section "Accuracy, calibration, and pulls" of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = ["PullSummary", "pull_stat", "pull_syst", "pull_tot", "summarise_pull"]

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
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # a vanishing sigma has an infinite pull
        pull: Floats = (prediction - reference) / sigma
    return pull


@dataclass(frozen=True)
class PullSummary:
    """What is left of a pull; the values of a unit Gaussian in brackets.

    Args:
        mean, width: and standard deviation [0, 1].
        core: half-width of the central interval with 68.27 % of the pulls around zero [1]; blind to the tails.
        kurtosis: fourth central moment over the squared variance [3].
        ks, ks_significance: Kolmogorov-Smirnov distance to the unit Gaussian, and the probability of a larger one.
        within_quarter, coverage68, coverage95, coverage99: P(|t| < 1/4, 1, 2, 3) [0.1974, 0.6827, 0.9545, 0.9973].
    """

    mean: float
    width: float
    core: float
    kurtosis: float
    ks: float
    ks_significance: float
    within_quarter: float
    coverage68: float
    coverage95: float
    coverage99: float


@np.errstate(invalid="ignore")
def summarise_pull(pull: Floats) -> PullSummary:
    """Summary of pulls (N,); mean, width and kurtosis mean nothing if one of them is infinite.

    >>> summary = summarise_pull(stats.norm.ppf((np.arange(1000) + 0.5) / 1000))
    >>> round(summary.width, 2), round(summary.kurtosis, 1), round(summary.ks, 4)
    (1.0, 3.0, 0.0005)
    """
    size, mean, width = np.abs(pull), pull.mean(), pull.std()
    test = stats.kstest(pull, "norm", method="asymp" if len(pull) > 10_000 else "auto")
    within = [float(np.mean(size < limit)) for limit in (0.25, 1, 2, 3)]
    return PullSummary(
        mean=float(mean),
        width=float(width),
        core=float(np.quantile(size, 0.6826895)),
        kurtosis=float(np.mean(((pull - mean) / width) ** 4)) if width else float("nan"),
        ks=float(test.statistic),
        ks_significance=float(test.pvalue),
        within_quarter=within[0],
        coverage68=within[1],
        coverage95=within[2],
        coverage99=within[3],
    )
