"""How far predictions are off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Accuracy", "Bias", "accuracy", "bias", "relative_deviation"]

Floats = NDArray[np.float64]


@np.errstate(divide="ignore", invalid="ignore")
def relative_deviation(prediction: Floats, truth: Floats) -> Floats:
    """Delta = (A_NN - A_true)/A_true: (N,), (N,) -> (N,); not finite where the truth is zero.

    >>> relative_deviation(np.array([1.1]), np.array([1.0])).round(12)
    array([0.1])
    """
    delta: Floats = (prediction - truth) / truth
    return delta


@dataclass(frozen=True)
class Accuracy:
    """Summary of Delta.

    Args:
        mean, median, quantile90, quantile99, maximum: of |Delta|.
        bias, bias_error: mean of Delta and its standard error, which one event alone does not have (nan).
    """

    mean: float
    median: float
    quantile90: float
    quantile99: float
    maximum: float
    bias: float
    bias_error: float


@np.errstate(invalid="ignore")
def accuracy(prediction: Floats, truth: Floats) -> Accuracy:
    """Accuracy of predictions (N,) of the truth (N,)."""
    delta = relative_deviation(prediction, truth)
    size = np.abs(delta)
    median, quantile90, quantile99 = (float(q) for q in np.quantile(size, (0.5, 0.9, 0.99)))
    return Accuracy(
        mean=float(size.mean()),
        median=median,
        quantile90=quantile90,
        quantile99=quantile99,
        maximum=float(size.max()),
        bias=float(delta.mean()),
        bias_error=float(delta.std(ddof=1) / np.sqrt(len(delta))) if len(delta) > 1 else float("nan"),
    )


@dataclass(frozen=True)
class Bias:
    """Underestimates and overestimates apart: the columns of table (tab:delta_bias) of the paper.

    Args:
        share_negative, share_positive: of all events; exact hits are in neither.
        sum_negative, sum_positive: of Delta.
    """

    share_negative: float
    sum_negative: float
    share_positive: float
    sum_positive: float


def bias(delta: Floats) -> Bias:
    """Bias of deviations (N,).

    >>> bias(np.array([-0.5, 0.25, 0.25, 0.0]))
    Bias(share_negative=0.25, sum_negative=-0.5, share_positive=0.5, sum_positive=0.5)
    """
    negative, positive = delta[delta < 0], delta[delta > 0]
    n = len(delta)
    return Bias(len(negative) / n, float(negative.sum()), len(positive) / n, float(positive.sum()))
