"""A Gaussian with learned mean and variance."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, log1p, pi
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ampsure.errors import AmpsureError

from .base import LOG_2PI, Likelihood, bounded, lift

__all__ = ["AmplitudeMean", "Gaussian", "gaussian_nll"]

_WIDER = 10.0  # the distribution of wrong amplitudes


def gaussian_nll(residual: Tensor, log_var: Tensor) -> Tensor:
    """-log N(residual | 0, exp(log_var)); any shapes that broadcast. It can be differentiated once."""
    nll: Tensor = _GaussianNLL.apply(residual, log_var)  # type: ignore[no-untyped-call]
    return nll


class _GaussianNLL(torch.autograd.Function):
    """With derivatives written out: a training step of one network is bound by the number of calls on a GPU."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, log_var: Tensor) -> Tensor:
        weighted = residual * torch.exp(-log_var)
        ctx.save_for_backward(residual, weighted)
        ctx.shapes = residual.shape, log_var.shape
        twice = torch.addcmul(log_var, residual, weighted)
        return torch.rsub(twice, 0.5 * LOG_2PI, alpha=-0.5)  # a sum in one call; not in place: graphs are made of it

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        residual, weighted = ctx.saved_tensors
        by_residual = gradient * weighted
        by_log_var = None
        if ctx.needs_input_grad[1]:
            by_log_var = torch.addcmul(gradient, by_residual, residual, value=-1).mul_(0.5).sum_to_size(ctx.shapes[1])
        return by_residual.sum_to_size(ctx.shapes[0]) if ctx.needs_input_grad[0] else None, by_log_var


@dataclass
class Gaussian(Likelihood):
    r"""The heteroscedastic likelihood, eq. (het_loss) of the paper. Outputs: mean, log variance.

    The plain likelihood hardly looks at the mean of points with a large variance. Two remedies change the loss alone:

    * `beta` weighs each point with variance^beta, without gradient (Seitzer et al., arXiv:2203.09168): 0 is the plain
      likelihood, 1 gives the mean the gradients of the squared error;
    * `faithful` trains the mean by the squared error, and the variance for that mean on features it cannot change
      (Stirn et al., arXiv:2212.09184).

    `outliers` is the share of events that may be wrong by anything: a mixture with a Cauchy density ten times as wide
    as the Gaussian. An event many standard deviations off then has hardly any weight in the mean, and one vote for a
    larger sigma, however far off it is.

    >>> out, y = torch.tensor([[[1.0, -2.0]]]), torch.tensor([1.5])
    >>> Gaussian().nll(out, y)
    tensor([[0.8426]])
    """

    name = "gaussian"
    n_outputs = 2
    beta: float = 0.0
    faithful: bool = False
    outliers: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.outliers < 0.5:
            raise AmpsureError(
                f"The option outliers of the likelihood 'gaussian' is a share below one half, not {self.outliers}."
            )
        if not 0 <= self.beta <= 1:
            raise AmpsureError(f"The option beta of the likelihood 'gaussian' lies between 0 and 1, not {self.beta}.")
        if self.faithful and (self.beta or self.outliers):
            raise AmpsureError("A faithful mean does not see the variance: choose it, or beta and outliers.")
        self.detached = slice(1, 2) if self.faithful else None

    def nll(self, out: Tensor, y: Tensor) -> Tensor:
        mean, log_var = out.unbind(-1)
        return self._nll(mean - y, bounded(log_var))

    def _nll(self, residual: Tensor, log_var: Tensor) -> Tensor:
        if not self.outliers:
            return gaussian_nll(residual, log_var)
        return -torch.logaddexp(*self._components(residual, log_var))

    def _components(self, residual: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the weighted densities of right and wrong amplitudes."""
        square = residual.square() * torch.exp(-log_var)
        right = log1p(-self.outliers) - 0.5 * (square.clamp_max(1e4) + log_var + LOG_2PI)  # further out, no gradient
        wrong = log(self.outliers / pi / _WIDER) - 0.5 * log_var - torch.log1p(square / _WIDER**2)
        return right, wrong

    def wrong(self, residual: Tensor, variance: Tensor) -> Tensor:
        if not self.outliers:
            return super().wrong(residual, variance)
        right, wrong = self._components(residual, variance.log())
        return torch.sigmoid(wrong - right)

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        if self.faithful:
            residual = y - self.mean(out)
            return 0.5 * residual.square() + gaussian_nll(residual.detach(), bounded(out[..., 1]))
        if not self.beta:
            return self.nll(out, y)
        return self.variance_syst(out).detach() ** self.beta * self.nll(out, y)

    def validation_loss(self, out: Tensor, y: Tensor) -> Tensor:
        return self.nll(out, y) if self.beta else self.loss(out, y)  # weights of beta-NLL differ from epoch to epoch

    def mean(self, out: Tensor) -> Tensor:
        return out[..., 0]

    def variance_syst(self, out: Tensor) -> Tensor:
        return torch.exp(bounded(out[..., 1]))


@dataclass(eq=False)
class AmplitudeMean(Likelihood):
    """A Gaussian y whose mean is learned by its `lift`: as the logarithm of the mean amplitude.

    Noise with sharp edges leaves edges in the mean of the logarithm, too, which no network follows; the mean amplitude
    is as smooth as it was. The variance does not see this. y is (B, 2): the target, and the exponent, which differs
    from training to training.
    """

    gaussian: Gaussian

    name = "amplitude-mean"
    n_outputs = 2

    def __post_init__(self) -> None:
        self.detached = self.gaussian.detached

    def _lifted(self, out: Tensor, y: Tensor) -> Tensor:  # (E, B, 2), (B, 2) -> (E, B)
        return y[..., 0] + lift(self.variance_syst(out).detach(), y[..., 1])

    def nll(self, out: Tensor, y: Tensor) -> Tensor:
        return self.gaussian.nll(out, self._lifted(out, y))

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return self.gaussian.loss(out, self._lifted(out, y))

    def validation_loss(self, out: Tensor, y: Tensor) -> Tensor:
        return self.gaussian.validation_loss(out, self._lifted(out, y))

    def mean(self, out: Tensor) -> Tensor:
        return self.gaussian.mean(out)

    def variance_syst(self, out: Tensor) -> Tensor:
        return self.gaussian.variance_syst(out)
