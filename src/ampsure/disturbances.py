r"""Noise and gaps put into a data set on purpose: section "Localized learning challenges" of the paper.

Every disturbance is a small object that maps `Events` to `Events`. The truth stays in `truth`, the standard deviation
of the noise in `noise`, and what was done in `provenance["disturbances"]`.

Smearing draws A_train ~ N(A_true, sigma). Where sigma is not small against A_true (close to a peak, or many standard
deviations out) the draw can be negative, and has no logarithm. `negative` says what happens then: "redraw" draws again
until the amplitude is positive (a Gaussian truncated at zero, the default), "keep" leaves it for training on signed
amplitudes. The number of events concerned is counted either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ampsure.errors import AmpsureError
from ampsure.events import Events

__all__ = ["BoxSmearing", "Disturbance", "Gap", "Outliers", "PeakedSmearing", "UniformSmearing", "disturb"]

Floats = NDArray[np.float64]
Negative = Literal["redraw", "keep"]


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < 1e100:
        raise AmpsureError(f"The {name} must be a positive number, not {value}.")


class Disturbance:
    """Maps Events to Events; `seed` is all that is random about it."""

    def __call__(self, events: Events, seed: int = 0, negative: Negative = "redraw") -> Events:
        """The disturbed events; the given ones are not changed."""
        raise NotImplementedError

    def _recorded(self, events: Events, found: dict[str, Any]) -> dict[str, Any]:
        """The provenance of `events` with this disturbance added."""
        entry = {"kind": type(self).__name__, **asdict(self), **found}  # type: ignore[call-overload]
        return {**events.provenance, "disturbances": [*_earlier(events), entry]}


@dataclass(frozen=True)
class _Smearing(Disturbance):
    epsilon: float

    def __post_init__(self) -> None:
        _check_positive("strength of the smearing", self.epsilon)

    def relative_sigma(self, mass: Floats) -> Floats:
        """Noise over true amplitude, for final states of invariant mass (N,) -> (N,)."""
        raise NotImplementedError

    def __call__(self, events: Events, seed: int = 0, negative: Negative = "redraw") -> Events:
        if negative not in ("redraw", "keep"):
            raise AmpsureError(f"negative must be 'redraw' or 'keep', not {negative!r}.")
        # A stream of its own for every disturbance of a data set, so that noise added twice is independent.
        rng = np.random.default_rng([seed, len(_earlier(events))])
        sigma = self.relative_sigma(events.final_state_mass) * np.abs(events.truth)
        smeared = events.amplitude + sigma * rng.standard_normal(len(events))
        lost = np.flatnonzero((smeared <= 0) & (events.amplitude > 0))
        count = len(lost)
        while negative == "redraw" and len(lost):
            smeared[lost] = events.amplitude[lost] + sigma[lost] * rng.standard_normal(len(lost))
            lost = lost[smeared[lost] <= 0]
        provenance = self._recorded(events, {"seed": seed, "negative": negative, "negative_events": count})
        return replace(events, amplitude=smeared, noise=np.hypot(events.noise, sigma), provenance=provenance)


@dataclass(frozen=True)
class UniformSmearing(_Smearing):
    """sigma = epsilon A everywhere."""

    def relative_sigma(self, mass: Floats) -> Floats:
        return np.full_like(mass, self.epsilon)


@dataclass(frozen=True)
class BoxSmearing(_Smearing):
    """sigma = epsilon A where |m - threshold| < width, zero elsewhere (eq. box_smearing); masses in GeV.

    >>> BoxSmearing(epsilon=0.1, width=20).relative_sigma(np.array([170.0, 181.0, 219.0, 220.0]))
    array([0. , 0.1, 0.1, 0. ])
    """

    width: float = 20.0
    threshold: float = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("width of the box", self.width)
        _check_positive("threshold", self.threshold)

    def relative_sigma(self, mass: Floats) -> Floats:
        return np.where(np.abs(mass - self.threshold) < self.width, self.epsilon, 0.0)


@dataclass(frozen=True)
class PeakedSmearing(_Smearing):
    """sigma = epsilon threshold/|m - threshold| A, ever larger towards the threshold; masses in GeV."""

    threshold: float = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("threshold", self.threshold)

    def relative_sigma(self, mass: Floats) -> Floats:
        # An event exactly at the threshold has the noise of one a rounding error away.
        distance = np.maximum(np.abs(mass - self.threshold), np.finfo(float).eps * self.threshold)
        return self.epsilon * self.threshold / distance


@dataclass(frozen=True)
class Outliers(Disturbance):
    """Amplitudes as a numerical program returns them whose rescue in higher precision is switched off.

    The profile is that of MadGraph with CutTools in double precision on 5700 events of g g -> gamma gamma g: most are
    right to nine digits, one in a hundred is wrong in the third, one in a thousand by a factor of 2000. What is wrong
    is not noise: `Events.noise` stays as it is.

    Args:
        scale: of all relative errors.
    """

    scale: float = 1.0

    QUANTILES: ClassVar = (0.5, 0.9, 0.95, 0.99, 0.999, 1 - 1 / 5700)
    ERRORS: ClassVar = (1e-9, 1.3e-7, 4e-6, 2e-3, 2e3, 5e17)

    def __post_init__(self) -> None:
        _check_positive("scale of the errors", self.scale)

    def relative_error(self, quantile: Floats) -> Floats:
        """Of events (N,) at a quantile of the profile, which is a broken line in logarithms.

        >>> Outliers().relative_error(np.array([0.5, 0.99]))
        array([1.e-09, 2.e-03])
        """
        at, logs = -np.log1p(-np.array(self.QUANTILES)), np.log(self.ERRORS)
        where = np.minimum(-np.log1p(-quantile), at[-1])
        below = logs[0] + (where - at[0]) * (logs[1] - logs[0]) / (at[1] - at[0])
        error: Floats = self.scale * np.exp(np.where(where < at[0], below, np.interp(where, at, logs)))
        return error

    def __call__(self, events: Events, seed: int = 0, negative: Negative = "redraw") -> Events:
        rng = np.random.default_rng([seed, len(_earlier(events))])
        error = self.relative_error(rng.random(len(events))) * rng.choice([-1.0, 1.0], len(events))
        wrong = np.abs(1 + error)  # a squared amplitude stays positive, however wrong
        count = int((np.abs(error) > 1e-3).sum())
        provenance = self._recorded(events, {"seed": seed, "wrong_events": count})
        return replace(events, amplitude=events.amplitude * np.maximum(wrong, 1e-12), provenance=provenance)


@dataclass(frozen=True)
class Gap(Disturbance):
    """No training or validation events where |m - threshold| < half_width; tests still see them. Masses in GeV.

    The events stay in the data set, marked as not `trainable`; `Events.split` leaves them out of the first two parts.
    """

    half_width: float = 40.0
    threshold: float = 200.0

    def __post_init__(self) -> None:
        _check_positive("half-width of the gap", self.half_width)
        _check_positive("threshold", self.threshold)

    def __call__(self, events: Events, seed: int = 0, negative: Negative = "redraw") -> Events:
        inside = np.abs(events.final_state_mass - self.threshold) < self.half_width
        provenance = self._recorded(events, {"events": int(inside.sum())})
        return replace(events, trainable=events.trainable & ~inside, provenance=provenance)


def _earlier(events: Events) -> list[Any]:
    """What was done to the events before; provenance is free in form."""
    found = events.provenance.get("disturbances")
    return found if isinstance(found, list) else []


def disturb(
    events: Events, disturbances: Iterable[Disturbance], seed: int = 0, negative: Negative = "redraw"
) -> Events:
    """Several disturbances, one after the other, each with a random stream of its own."""
    for disturbance in disturbances:
        events = disturbance(events, seed=seed, negative=negative)
    return events
