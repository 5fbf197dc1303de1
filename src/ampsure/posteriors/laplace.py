"""Laplace approximation: a Gaussian around trained weights, as wide as the data leave room for."""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor

from ampsure.likelihoods import Likelihood
from ampsure.networks import StackedMLP
from ampsure.networks.mlp import member_generator
from ampsure.scratch import Column

__all__ = ["STEP", "Structure", "laplace_covariance", "neighbours", "variance_of_neighbours"]

Structure = Literal["last-layer", "kfac"]
Block = tuple[Tensor, Tensor, Tensor]
"""Of a layer: axes of its inputs (E, in + 1, in + 1), of its outputs (E, out, out), and widths (E, in + 1, out)."""

STEP = 0.1  # standard deviations to a neighbour: near enough to be linear, far enough for float32
_CHUNK = 4096  # events at a time
_ITERATIONS = 100  # for the precision of the prior


def neighbours(
    network: StackedMLP,
    likelihood: Likelihood,
    x: Column,
    *,
    structure: Structure = "last-layer",
    samples: int = 32,
    seed: int = 0,
) -> StackedMLP:
    """Networks drawn close to trained ones, in pairs to both sides of one: `variance_of_neighbours` is what they tell.

    Draws of the Laplace posterior itself are of no use: some directions in the space of weights are so wide that the
    network is another function there, and the mean of all draws moves by more than its error. What is wanted is the
    linearised prediction (Immer et al., arXiv:2008.08400), and a small step in a random direction has its derivative.

    Args:
        network: one or more trained networks; each has a posterior of its own.
        x: (N, F) training features.
        structure: weights of the last layer alone, or of all layers, each independent of the others.
        samples: networks drawn around each, an even number.
        seed: of the draws.

    Returns:
        A stack in float64: first all of one side, then all of the other.
    """
    blocks = laplace_covariance(network, likelihood, x, structure)
    pairs = samples // 2
    generators = [member_generator(seed, pair) for pair in range(network.members * pairs)]
    drawn = network.reshaped(members=2 * len(generators), dtype=torch.float64)
    with torch.no_grad():
        for k, both in enumerate(zip(network.weights, network.biases, strict=True)):
            theta = torch.cat(both, dim=1).double().repeat_interleave(pairs, dim=0)  # (E pairs, in + 1, out)
            step = torch.zeros_like(theta)
            if k in blocks:
                inputs, outputs, widths = (part.repeat_interleave(pairs, dim=0) for part in blocks[k])
                noise = torch.stack([torch.randn(theta.shape[1:], generator=g, dtype=step.dtype) for g in generators])
                step = STEP * inputs @ (widths * noise.to(widths)) @ outputs.mT
            sides = torch.cat([theta + step, theta - step])
            drawn.weights[k].copy_(sides[:, :-1])
            drawn.biases[k].copy_(sides[:, -1:])
    return drawn


def variance_of_neighbours(prediction: Tensor) -> Tensor:
    """Statistical variance of the linearised prediction, from that of neighbours: (S, B) -> (B,)."""
    pairs = len(prediction) // 2
    return ((prediction[:pairs] - prediction[pairs:]) / (2 * STEP)).square().mean(0)


@torch.no_grad()
def laplace_covariance(
    network: StackedMLP, likelihood: Likelihood, x: Column, structure: Structure
) -> dict[int, Block]:
    r"""The posterior of the weights of layers by number: W ~ N(trained, (A x G + prior)^-1), in eigenvectors of both.

    The curvature is the generalised Gauss-Newton matrix of the mean f, every event n with its precision
    w_n = 1/sigma_syst^2: for a layer with inputs a (the last one is 1, for the bias) and g = df/d(W^T a), it is
    sum_n w_n (a a^T) x (g g^T). K-FAC takes the averages of the two factors apart, each weighted with w (Martens,
    Grosse, arXiv:1503.05671; Ritter et al., ICLR 2018). In the last layer of most likelihoods g is the same for all
    events, and nothing is lost by that. The prior of a layer has the precision that maximises the marginal likelihood.

    Args:
        x: (N, F) training features.
    """
    network = deepcopy(network).double()
    last = len(network.weights) - 1
    blocks: dict[int, Block] = {}
    sums: dict[int, tuple[Tensor, Tensor]] = {}
    total = torch.zeros(network.members, dtype=torch.float64, device=x.device)
    for chunk in x.to(torch.float64).split(_CHUNK):
        inputs, gradients, weights = _derivatives(network, likelihood, chunk)
        total += weights.sum(1)
        for k in range(last if structure == "last-layer" else 0, last + 1):
            a = torch.cat([inputs[k], torch.ones_like(inputs[k][..., :1])], dim=-1)
            parts = [(weights[..., None] * values).mT @ values for values in (a, gradients[k])]
            sums[k] = (sums[k][0] + parts[0], sums[k][1] + parts[1]) if k in sums else (parts[0], parts[1])
    for k, factors in sums.items():
        (along_a, inputs_k), (along_g, outputs_k) = (torch.linalg.eigh(factor) for factor in factors)
        curvature = along_a.clamp_min(0)[..., :, None] * along_g.clamp_min(0)[..., None, :] / total[:, None, None]
        theta = torch.cat([network.weights[k], network.biases[k]], dim=1)
        prior = _prior_precision(curvature, theta.square().sum((1, 2)))
        blocks[k] = inputs_k, outputs_k, (curvature + prior[:, None, None]).rsqrt()
    return blocks


def _derivatives(
    network: StackedMLP, likelihood: Likelihood, x: Tensor
) -> tuple[list[Tensor], tuple[Tensor, ...], Tensor]:
    """Of events (B, F): inputs (E, B, in) of every layer, derivatives of the mean by its outputs (E, B, out), and the
    precision of every event (E, B).
    """
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def linear(layer: int, h: Tensor) -> Tensor:
        inputs.append(h.detach())
        outputs.append(network.linear(layer, h))
        return outputs[-1]

    with torch.enable_grad():
        out = network.requires_grad_(True)(x, linear=linear)
        gradients = torch.autograd.grad(likelihood.mean(out).sum(), outputs)
    return inputs, gradients, 1 / likelihood.variance_syst(out.detach())


def _prior_precision(curvature: Tensor, square: Tensor) -> Tensor:
    """The precision (E,) of a Gaussian prior that maximises the marginal likelihood (MacKay, 1992), by iteration:
    the number of weights the data determine over the sum of the squares of all.

    Args:
        curvature: (E, in + 1, out) of the directions.
        square: (E,) sum of the squares of the weights.
    """
    precision = torch.ones_like(square)
    for _ in range(_ITERATIONS):
        precision = (curvature / (curvature + precision[:, None, None])).sum((1, 2)) / square
    return precision
