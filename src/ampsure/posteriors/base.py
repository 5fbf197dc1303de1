"""What training and prediction ask of a posterior, and the simplest one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ampsure.networks import StackedMLP
from ampsure.networks.mlp import Linear

__all__ = ["Point", "Posterior"]


class Posterior(nn.Module):
    """An approximation q(theta) to the distribution of the weights given the data.

    It may stand for G trainings side by side (`ampsure.training.fleet`), their members one after the other: parameters
    have a leading axis for the member, buffers one for the training or for the member.

    Args:
        network: the stacked network whose weights it distributes.
    """

    def __init__(self, network: StackedMLP) -> None:
        super().__init__()
        self.network = network
        self.generators: list[torch.Generator | None] = [None]  # of the noise in training, one a training of a stack
        self.is_repulsive = False  # whether the penalty depends on what all members predict

    def forward(self, x: Tensor, detached: slice | None = None) -> Tensor:
        """Outputs (E, B, n_outputs) of a training step, for inputs (B, F) or (E, B, F)."""
        out: Tensor = self.network(x, detached=detached)
        return out

    def expected(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """The same without the noise of training, of all members or, for inputs (R, B, F), of some."""
        out: Tensor = self.network(x, linear=None if rows is None else chosen(self.network, rows))
        return out

    def penalty(self, prediction: Tensor, n_train: Tensor, everyone: Tensor | None = None) -> Tensor | None:
        """The posterior's own term of every member's loss, (E,), or None.

        Args:
            prediction: (E, B) what the members predict for one batch, common to all of a training.
            n_train: (G,) number of training events N; the term is of order 1/N.
            everyone: the same, fixed, of all members, where these are only some of them.
        """
        return None

    def decay(self, n_train: Tensor) -> Tensor | None:
        """Derivative of -log(prior)/N by a weight, over that weight: (E,) for a Gaussian prior, None without one.

        A penalty like any other, but so simple that automatic derivatives would take longer than the rest of it.
        """
        return None

    def terms(self) -> tuple[bool, ...]:
        """Which terms the penalty has: equal for posteriors that can be trained side by side."""
        return ()

    def members(self) -> StackedMLP:
        """The networks that a prediction averages over."""
        return self.network


def chosen(network: StackedMLP, rows: Tensor) -> Linear:
    """The affine maps of some members (R,) of a stack."""
    return lambda k, h: torch.baddbmm(network.biases[k][rows], h, network.weights[k][rows])


class Point(Posterior):
    """All probability on one network: no statistical uncertainty of its own."""
