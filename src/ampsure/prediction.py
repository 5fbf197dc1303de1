"""`Prediction`: what a surrogate answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import ndtri
from torch import Tensor

from ampsure.calibration import conformal_reach
from ampsure.errors import AmpsureError
from ampsure.kinematics import Array
from ampsure.preprocessing import AsinhTarget, LogTarget

__all__ = ["Intervals", "Prediction"]


@dataclass(frozen=True)
class Intervals:
    """Intervals of predictions, central in the transformed amplitude: a level -> lower and upper ends, (N,) each.

    Args:
        centre, sigma: (N,) mean and total sigma of the standardised target.
        scores, count: of a `Calibration`: pulls of held-out events say how many sigma it takes. Without, pulls are
            Gaussian.
    """

    centre: Array
    sigma: Array
    target: LogTarget | AsinhTarget
    scores: Tensor
    count: int

    def __call__(self, level: float) -> tuple[Array, Array]:
        reach = conformal_reach(self.scores, self.count, level) if self.count else float(ndtri((1 + level) / 2))
        ends = (self.target.inverse(torch.as_tensor(self.centre + s * reach * self.sigma)) for s in (-1, 1))
        low, high = (end if isinstance(self.centre, Tensor) else end.numpy() for end in ends)
        return low, high


@dataclass(frozen=True)
class Prediction:
    """Amplitudes with uncertainties, each (N,) float64.

    Args:
        sigma_tot: sigma_syst and sigma_stat combined, with their interaction (appendix A of the paper).
        in_domain: False where the surrogate has to extrapolate.
        members: (E, N) standardised prediction of every member, if asked for.
        parameters: (E, N, n_outputs) outputs of every member, if asked for.
        interval_of: what `interval` asks.
    """

    amplitude: Array
    sigma_syst: Array
    sigma_stat: Array
    sigma_tot: Array
    in_domain: Array
    members: Array | None = None
    parameters: Array | None = None
    interval_of: Callable[[float], tuple[Array, Array]] | None = None

    def interval(self, level: float) -> tuple[Array, Array]:
        """Lower and upper end, (N,) each, of intervals that hold the amplitude with probability `level`.

        Central in the transformed amplitude. If held-out events have calibrated the surrogate, their pulls say how many
        sigma_tot it takes, and the share of all events inside is at least `level`; otherwise pulls are Gaussian.
        """
        if not 0 < level < 1:
            raise AmpsureError(f"The level of an interval is a probability between 0 and 1, not {level}.")
        if self.interval_of is None:
            raise AmpsureError("These predictions do not come from a surrogate: they have no intervals.")
        return self.interval_of(level)
