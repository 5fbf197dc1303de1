"""`audit` finds amplitudes of a data set that do not agree with all the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special, stats

from ampsure.config import DEFAULT_METHOD, Config, resolve
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.fitting import fit_many
from ampsure.training import Progress

__all__ = ["Audit", "audit"]

Floats = NDArray[np.float64]

_LARGEST = 40.0  # of a wrong residual, in standard deviations of all log amplitudes: seventeen orders of magnitude
_CERTAIN = 0.95  # probability of being wrong: of twenty suspects one may be right
_FEWEST = 3.0  # degrees of freedom of pulls that are right: heavier tails would explain any error


@dataclass(frozen=True)
class Audit:
    """What the other amplitudes say about each one, (N,) each.

    Args:
        probability: of being wrong.
        amplitude, sigma: predicted from the other events.
        pull: standard deviations between the two.
        share: of amplitudes that are wrong, in all.
    """

    probability: Floats
    amplitude: Floats
    sigma: Floats
    pull: Floats
    share: float

    @property
    def suspects(self) -> NDArray[np.int64]:
        """Indices of events that are almost certainly wrong, those furthest off first."""
        found = np.flatnonzero(self.probability > _CERTAIN)
        return found[np.argsort(-np.abs(self.pull[found]), kind="stable")]


def audit(
    events: Events,
    config: Config | None = None,
    *,
    folds: int = 4,
    checkpoint: str | os.PathLike[str] | None = None,
    report: Callable[[int, str, Progress], None] | None = None,
) -> Audit:
    """The probability of every amplitude to be wrong, given all the others.

    Each part of the events is predicted by a surrogate that has not seen it, so that no amplitude vouches for itself.
    Residuals are then a mixture of right amplitudes, as far off as sigma_tot says, with tails, and of wrong ones, off
    by any order of magnitude; tails and shares are fitted to all residuals.

    Args:
        config: of the surrogates; by default the recommended method. It must allow for outliers.
        folds: parts of the events.
        checkpoint: folder for the state of the trainings; the same call resumes from it.
        report: called with (number of the fold, stage, Progress) after every epoch.
    """
    config = config or resolve(DEFAULT_METHOD)
    if folds < 2 or len(events) < 20 * folds:
        raise AmpsureError(f"An audit needs at least two parts of 20 events each, not {folds} of {len(events)} events.")
    if not config.likelihood.options.get("outliers"):
        raise AmpsureError("An audit trains on amplitudes that may be wrong: set likelihood.outliers to their share.")
    part = np.random.default_rng(config.training.seed).permutation(len(events)) % folds
    data = config.data.model_copy(update={"fractions": (0.9, 0.1, 0.0)})
    config = config.model_copy(update={"data": data})
    jobs = [(replace(events, trainable=events.trainable & (part != k)), config) for k in range(folds)]
    residual, variance = np.empty(len(events)), np.empty(len(events))
    amplitude, sigma = np.empty(len(events)), np.empty(len(events))
    for k, surrogate in enumerate(fit_many(jobs, checkpoint=checkpoint, report=report)):
        unseen = part == k
        p = surrogate.predict(events.momenta[unseen], linear=True)
        seen, predicted = (torch.from_numpy(a) for a in (events.amplitude[unseen], p.amplitude))
        target = surrogate.target
        residual[unseen] = (target.transform(seen) - target.transform(predicted)).numpy()
        variance[unseen] = (torch.from_numpy(p.sigma_tot) / target.slope(predicted)).square().numpy()
        amplitude[unseen], sigma[unseen] = p.amplitude, p.sigma_tot
    probability, share = _wrong(residual, variance)
    return Audit(probability, amplitude, sigma, residual / np.sqrt(variance), share)


def _wrong(residual: Floats, variance: Floats) -> tuple[Floats, float]:
    """Probability of each residual (N,) to be wrong, and their share, by the likelihood of all.

    Right ones have a Student-t distribution of their pull, since no calibration is perfect; wrong ones are larger than
    sigma, and no size of theirs is likelier than another: their logarithm is uniform up to `_LARGEST`.
    """
    sigma = np.sqrt(variance)
    pull = residual / sigma
    with np.errstate(divide="ignore"):
        log_size = np.log(np.abs(pull))
    log_wrong = np.where(log_size > 0, -log_size - np.log(2 * np.log(np.maximum(_LARGEST / sigma, 2.0))), -np.inf)

    def parts(theta: Floats) -> tuple[Floats, Floats]:
        """Logs of the densities of the pull, each times the share of its kind: (N,) right, (N,) wrong."""
        odds, scale, freedom = theta
        log_right = stats.t.logpdf(pull / np.exp(scale), _FEWEST + np.exp(freedom)) - scale
        return log_right - np.logaddexp(0.0, odds), log_wrong - np.logaddexp(0.0, -odds)

    def loss(theta: Floats) -> float:
        return -float(np.logaddexp(*parts(theta)).mean())

    found = optimize.minimize(loss, np.array([-4.0, 0.0, 3.0]), method="Nelder-Mead")
    right, wrong = parts(found.x)
    probability = np.exp(wrong - np.logaddexp(right, wrong))
    return probability, float(special.expit(found.x[0]))
