r"""(Repulsive) ensembles, eq. (loss_re) of the paper."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from ampsure.networks import StackedMLP

from .base import Posterior

__all__ = ["Ensemble", "inverse_variance_mean", "repulsion"]


def repulsion(f: Tensor, everyone: Tensor | None = None) -> Tensor:
    r"""sum_j K(f_i, \hat f_j) / sum_j K(\hat f_i, \hat f_j) of members: (..., E, B) -> (..., E); 1, gradient apart.

    K is a Gaussian of the distance over the batch with median bandwidth; the hat stops gradients. Distances are taken
    after subtracting the ensemble mean: members agree to many digits, and squares of what they share would cancel.

    D'Angelo, Fortuin, "Repulsive deep ensembles are Bayesian", arXiv:2106.11642.

    Args:
        everyone: the sum over j and the bandwidth are over these members, those of f among them; by default over f.

    >>> repulsion(torch.randn(4, 10)).shape
    torch.Size([4])
    """
    fixed = f.detach() if everyone is None else everyone
    n = fixed.shape[-2]
    centre = fixed.mean(-2, keepdim=True)
    f, fixed = f - centre, fixed - centre
    distance = _squared_distances(fixed, fixed)
    above = torch.triu_indices(n, n, offset=1, device=f.device)
    pairs = distance[..., above[0], above[1]] if n > 1 else torch.ones_like(distance[..., 0])
    bandwidth = pairs.median(-1).values[..., None, None] / log(n + 1)
    bandwidth = bandwidth.clamp_min(torch.finfo(f.dtype).tiny)
    kernel = torch.exp(-_squared_distances(f, fixed) / bandwidth).sum(-1)
    return kernel / kernel.detach()


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """(..., E, B), (..., E, B) -> (..., E, E)."""
    squares = a.square().sum(-1)[..., :, None] + b.square().sum(-1)[..., None, :]
    return squares - 2 * (a @ b.mT)


def inverse_variance_mean(prediction: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of the members weighted with their precision, and its variance, eq. (ensemble_output2).

    Args:
        prediction, variance: (..., E, B); the results are (..., B).

    >>> inverse_variance_mean(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [3.0]]))
    (tensor([0.2500]), tensor([0.7500]))
    """
    combined = 1 / (1 / variance).sum(-2)
    return combined * (prediction / variance).sum(-2), combined


class Ensemble(Posterior):
    """N members, each a sample of the posterior.

    Args:
        beta: strength of the repulsion; zero is a plain deep ensemble.
        prior_width: of the Gaussian prior of every weight; infinite for none.
        prior_scale: of the randomized priors (Osband et al., arXiv:1806.03335): to the outputs of every member those of
            a random network, which does not learn, are added, times this number. Where there are events, the member
            learns to cancel them; elsewhere members differ by them.
        seed: of these networks.
    """

    beta: Tensor  # (G,)
    precision: Tensor  # (G,) of the prior

    def __init__(
        self,
        network: StackedMLP,
        beta: float = 1.0,
        prior_width: float = 1.0,
        *,
        prior_scale: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(network)
        like = network.weights[0].detach()
        self.register_buffer("beta", like.new_tensor([beta]), persistent=False)
        self.register_buffer("precision", like.new_tensor([prior_width**-2]), persistent=False)
        self.is_repulsive, self.has_prior, self.is_randomized = beta > 0, prior_width < float("inf"), prior_scale > 0
        if self.is_randomized:
            random = network.reshaped(seed=seed).requires_grad_(False)
            for layer in (random.weights[-1], random.biases[-1]):
                layer.mul_(prior_scale)
            for k, both in enumerate(zip(random.weights, random.biases, strict=True)):
                for name, value in zip(("weight", "bias"), both, strict=True):
                    self.register_buffer(f"random_{name}_{k}", value.detach(), persistent=False)  # (G E, in, out)

    def forward(self, x: Tensor, detached: slice | None = None) -> Tensor:
        out = super().forward(x, detached)
        return out + self._random(x) if self.is_randomized else out

    def expected(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        out = super().expected(x, rows)
        return out + self._random(x, rows) if self.is_randomized else out

    @torch.no_grad()
    def _random(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Outputs of the random networks, of all or some members."""

        def linear(k: int, h: Tensor) -> Tensor:
            weight, bias = (self.get_buffer(f"random_{name}_{k}") for name in ("weight", "bias"))
            return torch.baddbmm(bias, h, weight) if rows is None else torch.baddbmm(bias[rows], h, weight[rows])

        out: Tensor = self.network(x, linear=linear)
        return out

    def members(self) -> StackedMLP:
        """With a random network, one twice as wide does what both do."""
        if not self.is_randomized:
            return super().members()
        random = self.network.reshaped()
        for name, layers in (("weight", random.weights), ("bias", random.biases)):
            for k, layer in enumerate(layers):
                layer.data.copy_(self.get_buffer(f"random_{name}_{k}"))
        return self.network.plus(random)

    def terms(self) -> tuple[bool, ...]:
        return self.is_repulsive, self.has_prior, self.is_randomized

    def penalty(self, prediction: Tensor, n_train: Tensor, everyone: Tensor | None = None) -> Tensor | None:
        """Repulsion; the prior is in `decay`."""
        if not self.is_repulsive:
            return None
        everyone = prediction.detach() if everyone is None else everyone
        groups = (f.unflatten(0, (len(self.beta), -1)) for f in (prediction, everyone))  # (G, E/G, B)
        return ((self.beta / n_train)[:, None] * repulsion(*groups)).flatten()

    def decay(self, n_train: Tensor) -> Tensor | None:
        if not self.has_prior:
            return None
        return (self.precision / n_train).repeat_interleave(self.network.members // len(self.precision))
