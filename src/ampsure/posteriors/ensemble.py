r"""(Repulsive) ensembles, eq. (loss_re) of the paper."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from ampsure.networks import StackedMLP

from .base import Posterior

__all__ = ["Ensemble", "inverse_variance_mean", "repulsion"]


def repulsion(f: Tensor) -> Tensor:
    r"""sum_j K(f_i, \hat f_j) / sum_j K(\hat f_i, \hat f_j) of members: (E, B) -> (E,); value 1, gradient apart.

    K is a Gaussian of the distance over the batch with median bandwidth; the hat stops gradients. Distances are taken
    after subtracting the ensemble mean: members agree to many digits, and squares of what they share would cancel.

    D'Angelo, Fortuin, "Repulsive deep ensembles are Bayesian", arXiv:2106.11642.

    >>> repulsion(torch.randn(4, 10)).shape
    torch.Size([4])
    """
    n = len(f)
    fixed = f.detach()
    centre = fixed.mean(0)
    f, fixed = f - centre, fixed - centre
    distance = _squared_distances(fixed, fixed)
    above = torch.triu_indices(n, n, offset=1, device=f.device)
    bandwidth = distance[above[0], above[1]].median() / log(n + 1) if n > 1 else distance.new_ones(())
    bandwidth = bandwidth.clamp_min(torch.finfo(f.dtype).tiny)
    kernel = torch.exp(-_squared_distances(f, fixed) / bandwidth).sum(1)
    return kernel / torch.exp(-distance / bandwidth).sum(1)


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """(E, B), (E, B) -> (E, E)."""
    squares = a.square().sum(1)[:, None] + b.square().sum(1)
    return torch.addmm(squares, a, b.T, alpha=-2)


def inverse_variance_mean(prediction: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the members weighted with their precision, and its variance, eq. (ensemble_output2): 2 x (E, B) -> (B,).

    >>> inverse_variance_mean(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [3.0]]))
    (tensor([0.2500]), tensor([0.7500]))
    """
    combined = 1 / (1 / variance).sum(0)
    return combined * (prediction / variance).sum(0), combined


class Ensemble(Posterior):
    """N members, each a sample of the posterior.

    Args:
        beta: strength of the repulsion; zero is a plain deep ensemble.
        prior_width: of the Gaussian prior of every weight; infinite for none.
    """

    def __init__(self, network: StackedMLP, beta: float = 1.0, prior_width: float = 1.0) -> None:
        super().__init__(network)
        self.beta, self.prior_width = beta, prior_width

    def penalty(self, prediction: Tensor, n_train: int) -> Tensor:
        penalty = super().penalty(prediction, n_train)
        if self.beta:
            penalty = penalty + self.beta / n_train * repulsion(prediction)
        if self.prior_width < float("inf"):
            squares = sum(p.square().flatten(1).sum(1) for p in self.network.parameters())
            penalty = penalty + squares / (2 * n_train * self.prior_width**2)
        return penalty
