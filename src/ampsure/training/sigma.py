r"""One network for the systematic uncertainty of an ensemble's mean, eq. (het-RE-loss-new) of the paper."""

from __future__ import annotations

from math import log, pi

import torch
from torch import Tensor, nn

from ampsure.likelihoods import Likelihood
from ampsure.likelihoods.base import bounded
from ampsure.networks import StackedMLP

__all__ = ["ResidualVariance", "SigmaCompanion"]


class ResidualVariance(Likelihood):
    """Residuals are Gaussian around zero; the network gives their log variance."""

    name = "residual-variance"
    n_outputs = 1

    def nll(self, out: Tensor, y: Tensor) -> Tensor:  # (E, B, 1), (B,) -> (E, B)
        log_variance = bounded(out[..., 0])
        return 0.5 * (y.square() * torch.exp(-log_variance) + log_variance + log(2 * pi))

    def mean(self, out: Tensor) -> Tensor:
        return torch.zeros_like(out[..., 0])

    def variance_syst(self, out: Tensor) -> Tensor:
        return bounded(out[..., 0]).exp()


class SigmaCompanion(nn.Module):
    """The same, trained jointly with the ensemble: lambda_sigma L_sigma."""

    weight: Tensor  # (G,)

    def __init__(self, network: StackedMLP, weight: float) -> None:
        super().__init__()
        self.network, self._likelihood = network, ResidualVariance()
        self.register_buffer("weight", network.weights[0].detach().new_tensor([weight]), persistent=False)

    def loss(self, x: Tensor, residual: Tensor) -> Tensor:
        """Loss of a batch (G,): features (G, B, F), residuals y - mean (G, B)."""
        return self.weight * self._likelihood.nll(self.network(x), residual).mean(1)
