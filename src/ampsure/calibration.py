"""`Calibration`: what events that were kept from the members tell about their uncertainties."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi

import torch
from torch import Tensor

from ampsure.likelihoods import Likelihood
from ampsure.likelihoods.base import bounded
from ampsure.networks import StackedMLP
from ampsure.preprocessing import Standardization

__all__ = ["Calibration", "VarianceCorrection", "calibration_inputs"]


class VarianceCorrection(Likelihood):
    """The network gives the log of a factor to a variance; y is (B, 3): residual, that variance, and one besides it."""

    name = "variance-correction"
    n_outputs = 1

    def nll(self, out: Tensor, y: Tensor) -> Tensor:  # (E, B, 1), (B, 3) -> (E, B)
        residual, corrected, added = y.unbind(-1)
        variance = bounded(out[..., 0]).exp() * corrected + added
        return 0.5 * (residual.square() / variance + variance.log() + log(2 * pi))

    def mean(self, out: Tensor) -> Tensor:
        return torch.zeros_like(out[..., 0])


def calibration_inputs(x: Tensor, variance_syst: Tensor, variance_stat: Tensor) -> Tensor:
    """What the networks of a calibration see, not yet standardised: (B, F), (B,), (B,) -> (B, F + 2)."""
    logs = torch.stack([variance_syst, variance_stat], dim=1).clamp_min(1e-30).log()
    return torch.cat([x.double(), logs.double()], dim=1)


@dataclass(frozen=True)
class Calibration:
    """Corrects the systematic variance that members have learned together with their mean.

    The variance learned in the same training lags behind the mean, and is too small where the mean has learned the
    training events by heart. Small networks, each trained without another part of the held-out events, give the log of
    a factor to it; they see the features, and both variances, no further than in the held-out events. Their harmonic
    mean is used: then the mean squared pull is the average of theirs, which is one on the events each has not seen.

    Args:
        networks: one member a part of the events left out.
        standardization: of what they see.
        shift: mean pull of the held-out events: the mean moves by this many sigma_tot.
    """

    networks: StackedMLP
    standardization: Standardization
    shift: float

    def __call__(self, x: Tensor, variance_syst: Tensor, variance_stat: Tensor) -> tuple[Tensor, Tensor]:
        """Correction of the mean and systematic variance: (B, F), (B,), (B,) -> 2 x (B,)."""
        seen = self.inputs(x, variance_syst, variance_stat).to(self.networks.weights[0].dtype)
        logs = bounded(self.networks(seen)[..., 0].double())  # (K, B)
        corrected = variance_syst / torch.exp(-logs).mean(0)
        return self.shift * (corrected + variance_stat).sqrt(), corrected

    def inputs(self, x: Tensor, variance_syst: Tensor, variance_stat: Tensor) -> Tensor:
        """What the networks see: (B, F + 2), or less where that is the same for all events."""
        raw, n = calibration_inputs(x, variance_syst, variance_stat), x.shape[1]
        low, high = self.standardization.low[n:], self.standardization.high[n:]
        return self.standardization(torch.cat([raw[:, :n], raw[:, n:].clamp(low, high)], dim=1))
