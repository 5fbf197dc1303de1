"""`Events`: phase-space points with the amplitude seen in training and the truth behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ampsure.errors import AmpsureError, InvalidEventsError
from ampsure.kinematics import TOLERANCE, find_invalid
from ampsure.processes import Process

__all__ = ["COLUMNS", "Events", "guess_process", "split_indices"]

Floats = NDArray[np.float64]

COLUMNS = ("amplitude", "truth", "noise", "weights", "trainable")
"""The arrays of `Events` with one number an event, besides the momenta."""


@dataclass(eq=False)
class Events:
    """N events of one process.

    Args:
        momenta: (N, n, 4) float64, (E, px, py, pz) in GeV, incoming legs first.
        amplitude: (N,) the squared amplitude a network may see, possibly disturbed.
        process: legs, masses and identical particles; if left out, two legs come in and masses are read off.
        truth: (N,) the amplitude before any disturbance; by default the amplitude itself.
        noise: (N,) standard deviation of the Gaussian that noise was drawn from; by default zero.
        weights: (N,) event weights; by default one.
        trainable: (N,) bool, False for events left to tests alone (see `ampsure.disturbances.Gap`); by default True.
        provenance: where the events come from, as JSON values.

    >>> point = [[[14, 0, 0, 14], [33, 0, 0, -33], [9, 1, 4, 8], [7, -6, 2, 3], [31, 5, -6, -30]]]
    >>> events = Events(point, [8.96e-4])
    >>> len(events), events.process.masses
    (1, (0.0, 0.0, 0.0, 0.0, 0.0))
    """

    momenta: Floats
    amplitude: Floats
    process: Process = None  # type: ignore[assignment]  # __post_init__ fills it in
    truth: Floats = None  # type: ignore[assignment]
    noise: Floats = None  # type: ignore[assignment]
    weights: Floats = None  # type: ignore[assignment]
    trainable: NDArray[np.bool_] = None  # type: ignore[assignment]
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.momenta = _floats(self.momenta, "momenta")
        if self.momenta.ndim != 3 or self.momenta.shape[2] != 4 or self.momenta.shape[1] < 3:
            raise InvalidEventsError(f"The momenta must have shape (N, n, 4) with n >= 3, not {self.momenta.shape}.")
        n = len(self.momenta)
        if self.process is None:
            self.process = guess_process(self.momenta)
        if (n_legs := self.momenta.shape[1]) != self.process.n_legs:
            name, expected = self.process.name, self.process.n_legs
            raise InvalidEventsError(f"Process {name!r} has {expected} legs, but the momenta have {n_legs}.")
        self.amplitude = _floats(self.amplitude, "amplitude")
        self.truth = self.amplitude.copy() if self.truth is None else _floats(self.truth, "truth")
        self.noise = np.zeros(n) if self.noise is None else _floats(self.noise, "noise")
        self.weights = np.ones(n) if self.weights is None else _floats(self.weights, "weights")
        self.trainable = np.ones(n, bool) if self.trainable is None else np.asarray(self.trainable, bool)
        for name in COLUMNS:
            if getattr(self, name).shape != (n,):
                raise InvalidEventsError(f"{name} must have shape ({n},), not {getattr(self, name).shape}.")

    def __len__(self) -> int:
        return len(self.momenta)

    def __getitem__(self, index: slice | NDArray[Any]) -> Self:
        """A subset, by slice, mask or indices."""
        if not isinstance(index, slice) and np.ndim(index) != 1:
            raise TypeError("Events are selected by a slice, a mask or a list of indices.")
        arrays: dict[str, Any] = {f: getattr(self, f)[index] for f in ("momenta", *COLUMNS)}
        return replace(self, provenance=dict(self.provenance), **arrays)

    @property
    def final_state_mass(self) -> Floats:
        """Invariant mass of the final state, (N,)."""
        mass: Floats = self.process.final_state_mass(self.momenta)
        return mass

    @property
    def effective_size(self) -> float:
        """Kish's effective number of events, (sum w)^2 / sum w^2."""
        square = float(np.square(self.weights).sum())
        return float(self.weights.sum()) ** 2 / square if square else 0.0

    def find_invalid(self, *, signed: bool = False) -> tuple[NDArray[np.bool_], list[tuple[NDArray[np.bool_], str]]]:
        """(N,) mask of events that cannot be right, and (mask, reason) for every reason.

        Args:
            signed: allow amplitudes that are zero or negative, e.g. interference terms.
        """
        p = self.process
        bad, reasons = find_invalid(self.momenta, p.masses, p.n_incoming, beams_along_z=True)
        finite = np.isfinite(self.amplitude) & np.isfinite(self.truth)
        reasons.append((~finite, "the amplitude is not finite"))
        if not signed:
            reasons.append((finite & ((self.amplitude <= 0) | (self.truth <= 0)), "the amplitude is not positive"))
        reasons.append((~np.isfinite(self.weights), "the weight is not finite"))
        reasons.append((~(np.isfinite(self.noise) & (self.noise >= 0)), "the noise level is negative or not finite"))
        for mask, _ in reasons:
            bad = bad | mask
        return bad, reasons

    def validated(self, *, invalid: str = "error", signed: bool = False, source: str = "the events") -> Self:
        """These events, all of them valid.

        Args:
            invalid: "error" to raise on the first invalid event, "drop" to leave invalid ones out; their number and
                reasons are then in `provenance["dropped"]`.
            source: named in the error.
        """
        if invalid not in ("error", "drop"):
            raise AmpsureError(f"invalid must be 'error' or 'drop', not {invalid!r}.")
        bad, reasons = self.find_invalid(signed=signed)
        if not bad.any():
            provenance = {k: v for k, v in self.provenance.items() if k != "dropped"}  # this time, none was
            return self if "dropped" not in self.provenance else replace(self, provenance=provenance)
        if invalid == "error":
            first = int(np.flatnonzero(bad)[0])
            reason = next(reason for mask, reason in reasons if mask[first])
            hint = "drop such events (invalid='drop', or --invalid drop)"
            if reason == "the amplitude is not positive":
                hint += ", or allow amplitudes that change sign (signed=True, or --signed)"
            raise InvalidEventsError(
                f"Event {first} of {source} is invalid: {reason} ({int(bad.sum())} of {len(self)} events are); {hint}."
            )
        dropped = {reason: int(mask.sum()) for mask, reason in reasons if mask.any()}
        kept = self[~bad]
        kept.provenance = {**self.provenance, "dropped": {"events": int(bad.sum()), "reasons": dropped}}
        return kept

    def split(self, seed: int, fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)) -> tuple[Self, Self, Self]:
        """Training, validation and test events, drawn at random; only the test has events that are not trainable."""
        train, validation, test = self.split_indices(seed, fractions)
        return self[train], self[validation], self[test]

    def split_indices(
        self, seed: int, fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The indices of the events in `split`."""
        return split_indices(self.trainable, seed, fractions)

    @staticmethod
    def concatenate(parts: Iterable[Events]) -> Events:
        """All events of all parts; process and provenance of the first."""
        parts = list(parts)
        if not parts:
            raise AmpsureError("There are no events to put together.")
        if any(part.process != parts[0].process for part in parts):
            raise AmpsureError("Events of different processes cannot be put together.")
        arrays: dict[str, Any] = {f: np.concatenate([getattr(p, f) for p in parts]) for f in ("momenta", *COLUMNS)}
        return replace(parts[0], **arrays)


def split_indices(
    trainable: NDArray[np.bool_], seed: int, fractions: tuple[float, float, float]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Training, validation and test events by index, each in random order; `trainable` (N,) as in `Events`."""
    if len(fractions) != 3 or not (min(fractions) >= 0 and abs(sum(fractions) - 1) < 1e-9):
        raise AmpsureError(f"The fractions of a split must be three, positive and add up to one, not {fractions}.")
    order = np.random.default_rng(seed).permutation(len(trainable))
    cuts = np.rint(np.cumsum(fractions[:2]) * len(trainable)).astype(int)
    train, validation, test = np.split(order, cuts)
    return train[trainable[train]], validation[trainable[validation]], test


def guess_process(momenta: Floats, n_incoming: int = 2) -> Process:
    """A nameless process with masses read off the momenta: medians over events, zero where they are rounding."""
    sample = momenta[:1000]
    sample = sample[(np.abs(sample) < 1e150).all((1, 2))]
    if len(sample) == 0:
        return Process("unknown", (0,) * momenta.shape[1], (0.0,) * momenta.shape[1], n_incoming)
    square = sample[..., 0] ** 2 - np.square(sample[..., 1:]).sum(-1)
    massive = np.median(square - TOLERANCE * np.square(sample[..., 0]), axis=0) > 0
    mass = np.sqrt(np.where(massive, np.median(square, axis=0), 0.0))
    return Process("unknown", (0,) * momenta.shape[1], tuple(float(m) for m in mass), n_incoming)


def _floats(values: ArrayLike, name: str) -> Floats:
    try:
        return np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidEventsError(f"{name} must be an array of numbers.") from error


assert set(COLUMNS) < {f.name for f in fields(Events)}
