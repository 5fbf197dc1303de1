"""Bayesian networks: a Gaussian over every weight, learned by variational inference."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor, nn

from ampsure.networks import StackedMLP
from ampsure.networks.mlp import member_generator

from .base import Posterior

__all__ = ["Variational"]


class Variational(Posterior):
    """Mean-field Gaussian q(theta) = N(mean, sigma^2), trained with local reparametrisation and KL/N.

    Blundell et al., arXiv:1505.05424; Kingma, Salimans, Welling, arXiv:1506.02557.

    Args:
        network: a stack of one; its weights are the means.
        prior_width: of the Gaussian prior of every weight.
        initial_width: sigma of every weight at the start.
        samples: networks drawn for a prediction.
        seed: of the samples.
    """

    prior_width: Tensor  # (G,)

    def __init__(
        self,
        network: StackedMLP,
        *,
        prior_width: float = 1.0,
        initial_width: float = 1e-3,
        samples: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(network)
        self.samples, self.seed = samples, seed
        self.register_buffer("prior_width", network.weights[0].detach().new_tensor([prior_width]), persistent=False)
        self.log_sigma = nn.ParameterList(
            nn.Parameter(torch.full_like(p, log(initial_width))) for p in (*network.weights, *network.biases)
        )

    def _linear(self, layer: int, x: Tensor) -> Tensor:
        """The output of a layer is Gaussian: draw it, instead of the weights, and every event has noise of its own."""
        n = len(self.network.weights)
        variances = (torch.exp(2 * self.log_sigma[k]) for k in (n + layer, layer))
        bias_variance, weight_variance = variances
        mean = self.network.linear(layer, x)
        variance = torch.baddbmm(bias_variance, x.square(), weight_variance)
        return mean + variance.sqrt() * self._noise(mean)

    def _noise(self, like: Tensor) -> Tensor:
        """Standard normal numbers (E, B, out), those of every training from its own generator."""
        shape = (len(like) // len(self.generators), *like.shape[1:])
        parts = [torch.randn(shape, generator=g, dtype=like.dtype, device=like.device) for g in self.generators]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def forward(self, x: Tensor, detached: slice | None = None) -> Tensor:
        out: Tensor = self.network(x, linear=self._linear, detached=detached)
        return out

    def penalty(self, prediction: Tensor, n_train: Tensor, everyone: Tensor | None = None) -> Tensor:
        """KL(q, prior)/N."""
        divergence = torch.zeros_like(prediction[:, 0])
        prior = self.prior_width.repeat_interleave(len(divergence) // len(self.prior_width))[:, None]  # (E, 1)
        for mean, log_sigma in zip((*self.network.weights, *self.network.biases), self.log_sigma, strict=True):
            mean, log_sigma = mean.flatten(1), log_sigma.flatten(1)
            spread = (torch.exp(2 * log_sigma) + mean.square()) / (2 * prior**2)
            divergence = divergence + (prior.log() - log_sigma + spread - 0.5).sum(1)
        return divergence / n_train.repeat_interleave(len(divergence) // len(n_train))

    def members(self, samples: int | None = None, seed: int | None = None) -> StackedMLP:
        """A stack of networks drawn from the posterior; the same for the same seed, by default its own."""
        source = self.network
        samples, seed = self.samples if samples is None else samples, self.seed if seed is None else seed
        drawn = source.reshaped(members=samples)
        generators = [member_generator(seed, member) for member in range(samples)]
        means, sigmas = (*source.weights, *source.biases), self.log_sigma
        with torch.no_grad():
            for target, mean, log_sigma in zip((*drawn.weights, *drawn.biases), means, sigmas, strict=True):
                noise = torch.stack([torch.randn(mean.shape[1:], generator=g, dtype=torch.float64) for g in generators])
                target.copy_(mean + torch.exp(log_sigma) * noise.to(mean))
        return drawn
