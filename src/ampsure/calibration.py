"""`Calibration`: what events that were kept from the members tell about their uncertainties."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, inf, log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from ampsure.errors import AmpsureError
from ampsure.likelihoods import Likelihood
from ampsure.likelihoods.base import LOG_2PI, bounded, lift
from ampsure.networks import StackedMLP
from ampsure.preprocessing import Standardization

__all__ = ["REVISION", "Calibration", "VarianceCorrection", "calibration_inputs", "conformal_rank", "conformal_reach"]

REVISION = 4
"""Of how a calibration, and what it calibrates, is learned: what was begun with an earlier one starts again."""

_ONE_SIGMA = 0.6826894921  # of a Gaussian
_SCORES = 4096  # kept for intervals
_ENOUGH = 20  # pulls, to learn a shift and a scale from them
_LARGEST = 20.0  # pull of an amplitude that is wrong, but not by so much that it was called so
_FEWEST, _MOST = -9.0, 0.0  # logarithm of the odds of being wrong


class VarianceCorrection(Likelihood):
    """The network gives the log of a factor to a variance.

    y is (B, 4): residual, that variance, one besides it, and the exponent if the residual is below a `lift`, or 0.

    Its second output is the log of the odds that an amplitude is wrong, by too little to be called so: such amplitudes
    would otherwise make the variance too large, and most where it is smallest. Residuals of the others are Gaussian,
    and of wrong ones no size is likelier than another, from about one standard deviation up to `_LARGEST`.
    """

    name = "variance-correction"
    n_outputs = 2

    def nll(self, out: Tensor, y: Tensor) -> Tensor:  # (E, B, 2), (B, 4) -> (E, B)
        return -torch.logaddexp(*self._components(out, y))

    def right(self, out: Tensor, y: Tensor) -> Tensor:
        """Probability of not being wrong: (E, B, 2), (B, 4) -> (E, B)."""
        right, wrong = self._components(out, y)
        return torch.sigmoid(right - wrong)

    def pull(self, out: Tensor, y: Tensor) -> Tensor:
        """Residual in units of the corrected standard deviation: (E, B, 2), (B, 4) -> (E, B)."""
        variance = self._variance(out, y)
        return (y[..., 0] + lift(variance, y[..., 3])) * torch.exp(-0.5 * variance.log())

    def exponent(self, out: Tensor, y: Tensor) -> Tensor:
        """The exponent for the pull in place of the residual: (E, B, 2), (B, 4) -> (E, B)."""
        return y[..., 3] * self._variance(out, y).sqrt()

    def _variance(self, out: Tensor, y: Tensor) -> Tensor:
        return bounded(out[..., 0]).exp() * y[..., 1] + y[..., 2]

    def _components(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the weighted densities of right and wrong amplitudes."""
        log_var, odds = self._variance(out, y).log(), out[..., 1].clamp(_FEWEST, _MOST)
        pull = self.pull(out, y).abs()
        right = -0.5 * (pull.square() + LOG_2PI) - softplus(odds)
        wrong = -torch.log1p(pull) - log(2 * log(1 + _LARGEST)) - softplus(-odds)
        return right - 0.5 * log_var, wrong - 0.5 * log_var

    def mean(self, out: Tensor) -> Tensor:
        return torch.zeros_like(out[..., 0])


def calibration_inputs(x: Tensor, variance_syst: Tensor, variance_stat: Tensor) -> Tensor:
    """What the networks of a calibration see, not yet standardised: (B, F), (B,), (B,) -> (B, F + 2)."""
    logs = torch.stack([variance_syst, variance_stat], dim=1).clamp_min(1e-30).log()
    return torch.cat([x.double(), logs.double()], dim=1)


def conformal_rank(count: int, level: float) -> int | None:
    """Which of `count` sorted scores holds the next one with probability `level`, from zero; None if it takes more."""
    needed = ceil((count + 1) * level - 1e-9) - 1  # the one to come is one of count + 1
    return needed if needed < count else None


def _quantile(values: Tensor, weight: Tensor, level: float) -> float:
    """Of weighted values (N,), interpolated."""
    value, order = values.sort()
    share = (weight[order].cumsum(0) - 0.5 * weight[order]) / weight.sum()
    return float(np.interp(level, share.cpu().numpy(), value.cpu().numpy()))


def _ranks(count: int) -> NDArray[np.int64]:
    """Which of so many order statistics are kept, counted from zero."""
    return np.unique(np.linspace(0, count - 1, min(count, _SCORES)).astype(np.int64))


def conformal_reach(scores: Tensor, count: int, level: float) -> float:
    """How far the next of `count` scores, some of which are kept, lies with probability `level`, or more."""
    rank = conformal_rank(count, level)
    return inf if rank is None else float(scores[np.searchsorted(_ranks(count), rank)])


@dataclass(frozen=True)
class Pulls:
    """Pulls from networks of a calibration alone, which are a little wider than those from all of them together.

    Args:
        pull: (M,) of the events they were trained on, each from the network that has not seen it.
        alone: (K, N) of the last events, which none has seen, from each network.
        right: (N + M,) probability of each amplitude, the last ones first, not to be wrong.
    """

    pull: Tensor
    alone: Tensor
    right: Tensor


@dataclass(frozen=True)
class Calibration:
    """Corrects the uncertainties that members have learned together with their mean.

    The variance learned in the same training lags behind the mean, and is too small where the mean has learned the
    training events by heart. Small networks, each trained without another part of the held-out events, give the log of
    a factor to it; they see the features, and both variances, no further than in the held-out events. Their harmonic
    mean is used: then the mean squared pull is the average of theirs, which is one on the events each has not seen.

    A shift and a scale come from all these events, each seen by the network that was trained without it; the intervals
    from those alone that no network has seen: split-conformal prediction with |pull| as its score (Vovk et al., 2005;
    Lei et al., arXiv:1604.04173).

    Args:
        networks: one member a part of the events left out.
        standardization: of what they see.
        shift: mean pull: the mean moves by this many sigma_tot.
        scale: of both sigmas, so that 68.27 % of the events are within one.
        scores: (S,) order statistics of |pull| after that, evenly spread over all `count` of the last events.
    """

    networks: StackedMLP
    standardization: Standardization
    shift: float = 0.0
    scale: float = 1.0
    scores: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    count: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.scores.shape != (min(self.count, _SCORES),):
            raise AmpsureError(f"A calibration has {self.count} pulls, but other scores: train the surrogate again.")

    def __call__(self, x: Tensor, variance_syst: Tensor, variance_stat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Correction of the mean, systematic and statistical variance: (B, F), (B,), (B,) -> 3 x (B,)."""
        seen = self.inputs(x, variance_syst, variance_stat).to(self.networks.weights[0].dtype)
        logs = bounded(self.networks(seen)[..., 0].double())  # (K, B)
        corrected = variance_syst / torch.exp(-logs).mean(0)
        square = self.scale**2
        return self.shift * (corrected + variance_stat).sqrt(), square * corrected, square * variance_stat

    def settled(self, pull: Tensor, crossed: Pulls | None = None, exponent: Tensor | None = None) -> Calibration:
        """With shift, scale and scores from pulls (N,) of events that neither networks nor members have seen.

        A pull is measured from the mean of all others, as the one to come will be. Few pulls teach no shift or scale.
        With exponents (N,) they have a `lift`, which the scale will change.
        """
        count, shift, scale, size = len(pull), 0.0, 1.0, pull.double().abs()
        known = pull.double() if crossed is None else torch.cat([pull, crossed.pull]).double()
        if len(known) >= _ENOUGH:
            weight = torch.ones_like(known) if crossed is None else crossed.right.double()
            shift = float((weight * known).sum() / weight.sum())
            size = (pull.double() - shift).abs() * len(known) / (len(known) - 1)

            def one_sigma(pulls: Tensor, weight: Tensor) -> float:
                return _quantile((pulls.double() - shift).abs(), weight, _ONE_SIGMA)

            scale = one_sigma(pull, weight[:count])
            if crossed is not None:
                others = one_sigma(crossed.pull, weight[count:])
                alone = np.exp(np.mean([np.log(one_sigma(each, weight[:count])) for each in crossed.alone]))
                scale *= float(others / alone) ** (len(crossed.pull) / len(known))
            if exponent is not None:
                lifted = [lift(torch.full_like(exponent, v), exponent) for v in (1.0, scale**2)]
                size = (pull - lifted[0] + lifted[1] - shift).double().abs() * len(known) / (len(known) - 1)
        scores = size.sort().values.cpu()[torch.from_numpy(_ranks(count))] / scale
        return replace(self, shift=shift, scale=scale, scores=scores, count=count)

    def reach(self, level: float) -> float:
        """How many sigma_tot around the mean hold a share `level` of all events, never less; infinite if unknown."""
        return conformal_reach(self.scores, self.count, level)

    def inputs(self, x: Tensor, variance_syst: Tensor, variance_stat: Tensor) -> Tensor:
        """What the networks see: (B, F + 2), or less where that is the same for all events."""
        raw, n = calibration_inputs(x, variance_syst, variance_stat), x.shape[1]
        low, high = self.standardization.low[n:], self.standardization.high[n:]
        return self.standardization(torch.cat([raw[:, :n], raw[:, n:].clamp(low, high)], dim=1))
