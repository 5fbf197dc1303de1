"""Whether something is left in the residuals that a network could have learned."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampsure.config import TrainingConfig
from ampsure.errors import AmpsureError
from ampsure.likelihoods.mse import MSE
from ampsure.networks import StackedMLP
from ampsure.posteriors import Point
from ampsure.training import Engine, Training, TrainingData

from .binned import Ratio

__all__ = ["predictability"]

Floats = NDArray[np.float64]


def predictability(
    features: Tensor, residual: Floats, *, hidden: tuple[int, ...] = (64, 64), epochs: int = 30, seed: int = 0
) -> Ratio:
    """R^2 of a small network that predicts the residual: 0 if there is nothing to learn, 1 if all of it is a bias.

    It learns from two fifths of the events, chooses its best epoch on one tenth, and is judged on the other half. A
    predictable residual is the mark of a network that is too small, and makes pulls with two peaks.

    Args:
        features: (N, F) standardised.
        residual: (N,) best taken in units of sigma, so that every event counts.
    """
    n = len(residual)
    if n < 10 or not residual.any():
        raise AmpsureError(f"Predictability needs ten residuals or more that are not all zero, not {n}.")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    x = features.detach().float().cpu()[order]
    scaled = torch.from_numpy(residual / np.sqrt(np.mean(np.square(residual)))).float()[order]
    train, stop = 2 * n // 5, n // 2
    network = StackedMLP(x.shape[1], 1, hidden=hidden, seed=seed)
    data = TrainingData(x[:train], scaled[:train], x[train:stop], scaled[train:stop])
    batch = min(512, max(train // 32, 1))  # few events need as many steps
    config = TrainingConfig(epochs=epochs, batch_size=batch, seed=seed, device="cpu")
    Engine(Training(Point(network), MSE(), data, config)).run()
    with torch.no_grad():
        guess = torch.cat([network(part)[0, :, 0] for part in x[stop:].split(8192)]).double().numpy()
    y = scaled[stop:].double().numpy()
    gain = np.square(y) - np.square(y - guess)  # 1 - R^2 is a ratio of means: its error by the delta method
    square = np.square(y)
    r2 = float(gain.mean() / square.mean())
    return Ratio(r2, float(np.std(gain - r2 * square) / square.mean() / np.sqrt(len(y))))
