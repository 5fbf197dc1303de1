"""What a network learns from another surrogate instead of amplitudes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ampsure.errors import AmpsureError

from .base import Likelihood, bounded
from .gaussian import gaussian_nll

__all__ = ["Distilled"]


@dataclass
class Distilled(Likelihood):
    r"""Mean, systematic and statistical uncertainty of a teacher. Outputs: mean, log variances.

    y is (B, 3): the teacher's mean m and variances v_syst, v_stat. The loss is the cross entropy of Gaussians,
    <-log N(t | mean, variance_syst)> over t ~ N(m, v_syst), and the same of the statistical one around zero. At its
    minimum variance_syst = v_syst + (m - mean)^2: what the network did not learn of the mean is part of its sigma_syst.

    >>> out, y = torch.tensor([[[1.0, 0.0, 0.0]]]), torch.tensor([[1.0, 1.0, 1.0]])
    >>> Distilled().nll(out, y)
    tensor([[2.8379]])
    """

    name = "distilled"
    n_outputs = 3

    def nll(self, out: Tensor, y: Tensor) -> Tensor:  # (E, B, 3), (B, 3) -> (E, B)
        if y.ndim < 2 or y.shape[-1] != 3:
            raise AmpsureError("The likelihood 'distilled' learns from a surrogate: use ampsure.deploy.distill.")
        mean, log_syst, log_stat = out.unbind(-1)
        m, v_syst, v_stat = y.unbind(-1)
        size = ((m - mean).square() + v_syst).sqrt()
        return gaussian_nll(size, bounded(log_syst)) + gaussian_nll(v_stat.sqrt(), bounded(log_stat))

    def mean(self, out: Tensor) -> Tensor:
        return out[..., 0]

    def variance_syst(self, out: Tensor) -> Tensor:
        return torch.exp(bounded(out[..., 1]))

    def variance_stat(self, out: Tensor) -> Tensor:
        return torch.exp(bounded(out[..., 2]))
