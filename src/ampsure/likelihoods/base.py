"""The interface of all likelihoods, and the two things they share."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor

__all__ = ["LARGEST_NOISE", "LOG_2PI", "Likelihood", "bounded", "lift"]

LOG_2PI = math.log(2 * math.pi)
LARGEST_NOISE = 0.25  # variance of the logarithm of an amplitude that noise is known to lower: sigma is half of it


class Likelihood:
    """A density of the standardised log-amplitude y, given the outputs of a network.

    In every method `out` is (E, B, n_outputs) for E members and B points, `y` is (B,) or (E, B), results are (E, B).
    Subclasses are dataclasses: their fields are the options.
    """

    name: ClassVar[str]
    n_outputs: int
    detached: slice | None = None
    """Outputs whose gradient must not reach the features they share with the others."""
    outliers: float = 0.0
    """Share of amplitudes that may be wrong by anything."""

    def nll(self, out: Tensor, y: Tensor) -> Tensor:
        """Negative log-likelihood, normalised: constants included, so that likelihoods can be compared."""
        raise NotImplementedError

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """What training minimises."""
        return self.nll(out, y)

    def validation_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """What ranks epochs."""
        return self.loss(out, y)

    def mean(self, out: Tensor) -> Tensor:
        """Mean of the density."""
        raise NotImplementedError

    def variance_syst(self, out: Tensor) -> Tensor:
        """Variance that stays with more data."""
        raise NotImplementedError

    def variance_stat(self, out: Tensor) -> Tensor:
        """Variance that goes away with more data, as far as one member knows it."""
        return torch.zeros_like(out[..., 0])

    def prediction(self, out: Tensor) -> Tensor:
        """Point estimate of one member."""
        return self.mean(out)

    def wrong(self, residual: Tensor, variance: Tensor) -> Tensor:
        """Probability that an amplitude is one of the `outliers`: residuals and variances of one shape."""
        return torch.zeros_like(residual)

    def initial_bias(self) -> tuple[float, ...]:
        """Where the last layer's bias starts, one number an output."""
        return (0.0,) * self.n_outputs

    def options(self) -> dict[str, Any]:
        """Everything needed to build the same likelihood again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


def bounded(x: Tensor, limit: float = 50.0) -> Tensor:
    """The logarithm x (any shape) held within +-limit so that its exponential stays finite in float32.

    The gradient passes as if nothing had happened, taken at the limit: an output that ran away is called back.
    The default keeps standard deviations between e^-25 and e^25, far outside of what float32 can tell apart from zero.

    >>> bounded(torch.tensor([-200.0, 3.0]))
    tensor([-50.,   3.])
    """
    held: Tensor = _Held.apply(x, limit)  # type: ignore[no-untyped-call]
    return held


class _Held(torch.autograd.Function):
    """A clamp whose gradient is one: two calls fewer on a GPU than if it were written as a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def lift(variance: Tensor, exponent: Tensor | float) -> Tensor:
    """How far the logarithm of the mean of exp(k y), over the exponent k, lies above the mean of a Gaussian y.

    k variance/2: by so much noise without a bias lowers the mean of a logarithm. Variances count up to `LARGEST_NOISE`
    of the exponential: a sigma that is still being learned must not move the mean at will.

    >>> lift(torch.tensor(0.01), 1.0)
    tensor(0.0050)
    """
    return 0.5 * exponent * variance.clamp_max(LARGEST_NOISE * exponent**-2)
