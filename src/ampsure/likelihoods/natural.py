"""A Gaussian in its natural parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import LOG_2PI, Likelihood, bounded

__all__ = ["Natural", "natural_nll"]


def natural_nll(eta1: Tensor, eta2: Tensor, y: Tensor) -> Tensor:
    """-log N(y) with mean -eta1/(2 eta2) and variance -1/(2 eta2), eta2 < 0; any shapes that broadcast."""
    return _nll(eta1, torch.log(-2 * eta2), y)


def _nll(eta1: Tensor, log_precision: Tensor, y: Tensor) -> Tensor:
    pull = y * torch.exp(0.5 * log_precision) - eta1 * torch.exp(-0.5 * log_precision)  # mean^2 could overflow
    return 0.5 * (pull.square() - log_precision + LOG_2PI)


@dataclass
class Natural(Likelihood):
    r"""The heteroscedastic likelihood in natural parameters (Immer et al., NeurIPS 2023). Outputs: eta1, log precision.

    eta1 is mean/variance and eta2 = -1/(2 variance) = -exp(log precision)/2. With respect to eta1 and eta2 the
    gradients are (mean - y) and (variance + mean^2 - y^2): no point is weighted with its precision.

    >>> out = torch.tensor([[[3.0, 0.0]]])
    >>> Natural().mean(out), Natural().variance_syst(out)
    (tensor([[3.]]), tensor([[1.]]))
    """

    name = "natural"
    n_outputs = 2

    def nll(self, out: Tensor, y: Tensor) -> Tensor:
        return _nll(out[..., 0], bounded(out[..., 1]), y)

    def mean(self, out: Tensor) -> Tensor:
        return out[..., 0] * self.variance_syst(out)

    def variance_syst(self, out: Tensor) -> Tensor:
        return torch.exp(-bounded(out[..., 1]))
