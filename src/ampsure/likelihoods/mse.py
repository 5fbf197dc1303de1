"""Mean squared error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ampsure.errors import AmpsureError

from .base import LOG_2PI, Likelihood

__all__ = ["MSE"]


@dataclass
class MSE(Likelihood):
    """A mean and one variance for all points; training minimises the squared error.

    The variance plays no part in training. It is set afterwards, from residuals of validation points.

    >>> likelihood = MSE(variance=0.25)
    >>> out, y = torch.tensor([[[1.0]]]), torch.tensor([2.0])
    >>> likelihood.loss(out, y), likelihood.nll(out, y)
    (tensor([[0.5000]]), tensor([[2.2258]]))
    """

    name = "mse"
    n_outputs = 1
    variance: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.variance < math.inf:
            raise AmpsureError(f"The variance of the likelihood 'mse' must be positive, not {self.variance}.")

    def nll(self, out: Tensor, y: Tensor) -> Tensor:
        return self.loss(out, y) / self.variance + 0.5 * (LOG_2PI + math.log(self.variance))

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (y - self.mean(out)).square()

    def mean(self, out: Tensor) -> Tensor:
        return out[..., 0]

    def variance_syst(self, out: Tensor) -> Tensor:
        return torch.full_like(out[..., 0], self.variance)
