"""How far predictions are off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Accuracy", "accuracy", "relative_deviation"]

Floats = NDArray[np.float64]


def relative_deviation(prediction: Floats, truth: Floats) -> Floats:
    """Delta = (A_NN - A_true)/A_true: (N,), (N,) -> (N,).

    >>> relative_deviation(np.array([1.1]), np.array([1.0])).round(12)
    array([0.1])
    """
    delta: Floats = (prediction - truth) / truth
    return delta


@dataclass(frozen=True)
class Accuracy:
    """Summary of Delta.

    Args:
        mean, median, quantile99: of |Delta|.
        bias, bias_error: mean of Delta and its standard error.
    """

    mean: float
    median: float
    quantile99: float
    bias: float
    bias_error: float


def accuracy(prediction: Floats, truth: Floats) -> Accuracy:
    """Accuracy of predictions (N,) of the truth (N,)."""
    delta = relative_deviation(prediction, truth)
    size = np.abs(delta)
    return Accuracy(
        mean=float(size.mean()),
        median=float(np.median(size)),
        quantile99=float(np.quantile(size, 0.99)),
        bias=float(delta.mean()),
        bias_error=float(delta.std() / np.sqrt(len(delta))),
    )
