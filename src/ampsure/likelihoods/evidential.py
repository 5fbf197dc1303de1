"""Evidential regression: a Gaussian whose mean and variance are drawn from a learned normal-inverse-gamma density."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ampsure.errors import AmpsureError

from .base import LOG_2PI, Likelihood, bounded

__all__ = ["Evidential", "log_gamma_ratio", "log_scale_squared", "student_t_nll", "student_t_slope"]


def log_gamma_ratio(alpha: Tensor) -> Tensor:
    r"""log Gamma(alpha + 1/2) - log Gamma(alpha) - log(alpha)/2, about -1/(8 alpha), for alpha >= 1 of any shape.

    A difference of two log Gamma loses its gradient in float32 long before alpha = 1e5. Here nothing cancels: eight
    steps of Gamma(x + 1) = x Gamma(x), then the asymptotic series (DLMF 5.11.8), good to 2e-13 for all alpha >= 1.

    >>> log_gamma_ratio(torch.tensor([1.0, 1e8]))
    tensor([-1.2078e-01, -1.2500e-09])
    """
    halves = torch.arange(8, dtype=alpha.dtype, device=alpha.device) + 0.5
    steps = 0.5 * torch.log1p(-0.25 / (alpha[..., None] + halves).square()).sum(-1)
    x = 1 / (alpha + 8)
    x2 = x.square()
    return steps - x * (1 / 8 - x2 * (1 / 192 - x2 * (1 / 640 - x2 * (17 / 14336 - x2 * 31 / 18432))))


def log_scale_squared(log_var: Tensor, log_excess: Tensor, log_v: Tensor) -> Tensor:
    """log of beta (1 + v)/(v alpha), the squared scale of the Student-t density, from log(beta/(alpha - 1)),
    log(alpha - 1) and log v; any shapes that broadcast.
    """
    return bounded(log_var + logsigmoid(log_excess) - logsigmoid(log_v))


def student_t_nll(residual: Tensor, log_scale2: Tensor, log_excess: Tensor) -> Tensor:
    """-log of the Student-t density with squared scale exp(log_scale2) and 2 alpha degrees of freedom,
    log_excess = log(alpha - 1); any shapes that broadcast.

    With z = residual/scale and u = z^2/(2 alpha), the body of the density is (alpha + 1/2) log(1 + u). For small u its
    gradient by alpha is a small difference of large numbers, so there log(1 + u)/u is summed as a series.
    """
    inverse_alpha = torch.sigmoid(-log_excess)
    half_z2 = 0.5 * residual.square() * torch.exp(-log_scale2)
    u = half_z2 * inverse_alpha
    near = half_z2 * (1 + 0.5 * inverse_alpha) * _log1p_over(u.clamp(max=0.25))
    far = (1 / inverse_alpha + 0.5) * torch.log1p(u)
    body = torch.where(u < 0.25, near, far)
    return body + 0.5 * (log_scale2 + LOG_2PI) - log_gamma_ratio(1 / inverse_alpha)


def student_t_slope(residual: Tensor, log_scale2: Tensor, log_excess: Tensor) -> Tensor:
    """Derivative of the Student-t log-density by the residual; arguments as for `student_t_nll`."""
    inverse_alpha = torch.sigmoid(-log_excess)
    precision = torch.exp(-log_scale2)
    return -residual * precision * (1 + 0.5 * inverse_alpha) / (1 + 0.5 * residual.square() * precision * inverse_alpha)


def _log1p_over(u: Tensor) -> Tensor:
    """log(1 + u)/u for 0 <= u <= 1/4, by log(1 + u) = 2 artanh(s) with s = u/(2 + u)."""
    s2 = (u / (2 + u)).square()
    series = torch.full_like(u, 1 / 17)
    for odd in range(15, 0, -2):
        series = 1 / odd + s2 * series
    return 2 / (2 + u) * series


@dataclass
class Evidential(Likelihood):
    r"""Student-t likelihood of evidential regression (Amini et al., arXiv:1910.02600), eq. (loss_evi_nll) of the paper.

    The normal-inverse-gamma density has four parameters gamma, v, alpha, beta; the likelihood depends on three. What
    breaks the tie is the `variant`:

    * "constrained" (Meinert and Lavin, arXiv:2104.06135) sets v = 2 alpha/r. Outputs: gamma, log sigma_syst^2,
      log(alpha - 1);
    * "regularised" has log v as fourth output and adds `weight` |y - gamma| (2 v + alpha) to the loss.

    All positive parameters are logarithms: sigma_syst^2 = beta/(alpha - 1) and the squared scale of the Student-t
    density within e^(+-50), alpha - 1 and a learned v within e^(+-25).

    >>> out = torch.tensor([[[1.0, 0.0, 0.0]]])
    >>> Evidential().variance_syst(out), Evidential().variance_stat(out)
    (tensor([[1.]]), tensor([[0.2500]]))
    """

    name = "evidential"
    variant: Literal["constrained", "regularised"] = "constrained"
    r: float = 1.0
    weight: float = 0.01

    def __post_init__(self) -> None:
        if self.variant not in ("constrained", "regularised"):
            raise AmpsureError(f"The evidential variant is 'constrained' or 'regularised', not {self.variant!r}.")
        if not 0 < self.r < math.inf:
            raise AmpsureError(f"The ratio r of an evidential likelihood must be positive, not {self.r}.")
        if not 0 <= self.weight < math.inf:
            raise AmpsureError(f"The weight of the evidential regularisation must not be negative: {self.weight}.")
        self.n_outputs = 3 if self.variant == "constrained" else 4

    def nll(self, out: Tensor, y: Tensor) -> Tensor:
        gamma, log_var, log_excess, log_v = self._split(out)
        return student_t_nll(y - gamma, log_scale_squared(log_var, log_excess, log_v), log_excess)

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        if self.variant == "constrained":
            return self.nll(out, y)
        gamma, v, alpha, _ = self.parameters(out)
        return self.nll(out, y) + self.weight * (y - gamma).abs() * (2 * v + alpha)

    def initial_bias(self) -> tuple[float, ...]:
        """A learned v starts large: the likelihood does not fix it, the regularisation only lowers it."""
        return (0.0, 0.0, 0.0) if self.variant == "constrained" else (0.0, 0.0, 0.0, 4.0)

    def mean(self, out: Tensor) -> Tensor:
        return out[..., 0]

    def variance_syst(self, out: Tensor) -> Tensor:
        return torch.exp(self._split(out)[1])

    def variance_stat(self, out: Tensor) -> Tensor:
        _, log_var, _, log_v = self._split(out)
        return torch.exp(log_var - log_v)

    def parameters(self, out: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """gamma, v, alpha, beta of the normal-inverse-gamma density, each (E, B)."""
        gamma, log_var, log_excess, log_v = self._split(out)
        return gamma, torch.exp(log_v), 1 + torch.exp(log_excess), torch.exp(log_var + log_excess)

    def _split(self, out: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """gamma, log sigma_syst^2, log(alpha - 1), log v, each (E, B)."""
        log_excess = bounded(out[..., 2], 25)
        log_v = constrained_log_v(log_excess, self.r) if self.variant == "constrained" else bounded(out[..., 3], 25)
        return out[..., 0], bounded(out[..., 1]), log_excess, log_v


def constrained_log_v(log_excess: Tensor, r: float) -> Tensor:
    """log v for v = 2 alpha/r, from log(alpha - 1), any shape."""
    return math.log(2 / r) - logsigmoid(-log_excess)
