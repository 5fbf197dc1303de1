"""A mixture of Gaussians."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ampsure.errors import AmpsureError

from .base import Likelihood, bounded
from .gaussian import gaussian_nll
from .modes import highest_mode

__all__ = ["Mixture"]


@dataclass
class Mixture(Likelihood):
    r"""K Gaussians with learned weights, eq. (gmm_likelihood) of the paper.

    Outputs: K means, K log variances, K logits of the weights.
    The prediction is the highest mode (eq. gmm_map): the mean may lie where there is hardly any density.

    >>> out = torch.tensor([[[0.0, 4.0, 0.0, 0.0, 0.0, 1.0]]])
    >>> Mixture(k=2).mean(out), Mixture(k=2).map(out)
    (tensor([[2.9242]]), tensor([[3.9995]]))
    """

    name = "mixture"
    k: int = 2
    _outputs_each = 3

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 1:
            raise AmpsureError(
                f"The likelihood {self.name!r} needs a number k of components, 1 or more, not {self.k!r}."
            )
        self.n_outputs = self._outputs_each * self.k

    def nll(self, out: Tensor, y: Tensor) -> Tensor:
        return -torch.logsumexp(self.log_weights(out) - self.component_nll(out, y), dim=-1)

    def mean(self, out: Tensor) -> Tensor:
        return self._average(out, self._split(out)[0])

    def variance_syst(self, out: Tensor) -> Tensor:
        between = (self._split(out)[0] - self.mean(out)[..., None]).square()
        return self._average(out, self.component_variance_syst(out) + between)

    def prediction(self, out: Tensor) -> Tensor:
        return self.map(out)

    def map(self, out: Tensor) -> Tensor:
        """Position of the highest mode, found in float64; no gradient."""
        wide = out.detach().double()
        points = wide[..., None, :]  # every point of the search sees the same outputs

        def slope(x: Tensor) -> Tensor:
            parts = self.log_weights(points) - self.component_nll(points, x)
            return (torch.softmax(parts, -1) * self.component_slope(points, x)).sum(-1)

        centres = self._split(wide)[0]
        return highest_mode(lambda x: -self.nll(points, x), slope, centres, self.component_scale(wide)).to(out.dtype)

    def initial_bias(self) -> tuple[float, ...]:
        """Means spread between -1/2 and 1/2, since components that start equal stay equal."""
        means = ((i + 0.5) / self.k - 0.5 for i in range(self.k))
        return (*means, *(0.0,) * (self.n_outputs - self.k))

    def log_weights(self, out: Tensor) -> Tensor:
        """Logarithms of the weights of the components: (E, B, n_outputs) -> (E, B, K)."""
        return torch.log_softmax(self._split(out)[-1], -1)

    def component_nll(self, out: Tensor, y: Tensor) -> Tensor:
        """Negative log-likelihood of each component: (E, B, n_outputs), (B,) or (E, B) -> (E, B, K)."""
        means, log_var, _ = self._split(out)
        return gaussian_nll(y[..., None] - means, bounded(log_var))

    def component_slope(self, out: Tensor, y: Tensor) -> Tensor:
        """Derivative of each component's log-density by y, shapes as for `component_nll`."""
        means, log_var, _ = self._split(out)
        return (means - y[..., None]) * torch.exp(-bounded(log_var))

    def component_scale(self, out: Tensor) -> Tensor:
        """Distance within which each component is concave: (E, B, n_outputs) -> (E, B, K)."""
        return self.component_variance_syst(out).sqrt()

    def component_variance_syst(self, out: Tensor) -> Tensor:
        """Systematic variance of each component: (E, B, n_outputs) -> (E, B, K)."""
        return torch.exp(bounded(self._split(out)[1]))

    def _average(self, out: Tensor, values: Tensor) -> Tensor:
        return (torch.softmax(self._split(out)[-1], -1) * values).sum(-1)

    def _split(self, out: Tensor) -> tuple[Tensor, ...]:
        """The outputs by meaning, each (E, B, K): first the means, second log variances, last the logits."""
        return torch.unbind(out.unflatten(-1, (self._outputs_each, self.k)), -2)
