"""`GatedAmplitude`: a surrogate where it is sure of itself, the exact amplitude elsewhere."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from ampsure import io
from ampsure.errors import AmpsureError
from ampsure.events import Events, guess_process
from ampsure.kinematics import Array
from ampsure.processes import Process

from .amplitudes import Exact, Floats, Predicts, evaluate, to_numpy

__all__ = ["GateCounts", "GateLog", "GatedAmplitude"]


@dataclass
class GateCounts:
    """What a gate has seen so far.

    Args:
        points: in all.
        uncertain: gated because sigma_tot/A is too large, in the domain.
        outside: gated because the surrogate would have to extrapolate.
        surrogate_seconds, exact_seconds: spent in either.
    """

    points: int = 0
    uncertain: int = 0
    outside: int = 0
    surrogate_seconds: float = 0.0
    exact_seconds: float = 0.0

    @property
    def gated(self) -> int:
        return self.uncertain + self.outside

    @property
    def gated_share(self) -> float:
        return self.gated / max(self.points, 1)


@dataclass
class GateLog:
    """Gated points: momenta (M, n, 4), and (M,) each of exact amplitude, surrogate amplitude, its sigma_tot, reason."""

    momenta: Floats
    exact: Floats
    surrogate: Floats
    sigma_tot: Floats
    outside: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.momenta)

    def events(self, process: Process | None = None) -> Events:
        """The points as events with exact amplitudes, to train on."""
        process = process or guess_process(self.momenta)
        return Events(self.momenta, self.exact, process, provenance={"source": "points gated from a surrogate"})

    def save(self, path: str | os.PathLike[str], process: Process | None = None) -> None:
        """Write .h5 or .npz: events that `ampsure.load` reads, and besides them `surrogate`, `sigma_tot`, `outside`."""
        name = os.fspath(path)
        if not name.endswith((".h5", ".hdf5", ".npz")):
            raise AmpsureError(f"A log of gated points is written as .h5 or .npz, not {os.path.basename(name)!r}.")
        if not len(self):
            raise AmpsureError(f"No points were gated, so there is nothing to write to {os.path.basename(name)}.")
        extra = {"surrogate": self.surrogate, "sigma_tot": self.sigma_tot, "outside": self.outside}
        with io.replacing(path) as temporary:
            io.save(self.events(process), temporary)
            if name.endswith(".npz"):
                with np.load(temporary) as stored:
                    arrays = {**stored, **extra}
                np.savez(temporary, **arrays)
            else:
                image = BytesIO(temporary.read_bytes())  # HDF5 itself does not survive a full disk
                with h5py.File(image, "r+") as file:
                    for key, column in extra.items():
                        file.create_dataset(key, data=column)
                temporary.write_bytes(image.getbuffer())


@dataclass(eq=False)
class GatedAmplitude:
    """An amplitude of momenta (N, n, 4), numpy or torch: the surrogate's where it is good enough, else the exact one.

    A point is gated if it lies outside the surrogate's domain or if sigma_tot/A there exceeds the tolerance. All points
    go through the surrogate at once, all gated ones through the exact amplitude at once. It can be called from several
    threads if the exact amplitude can, and be the `exact` of a `Process`.

    Args:
        surrogate: anything that predicts as a `Surrogate`.
        exact: momenta (N, n, 4) -> (N,): a Python function, or one of `ampsure.deploy.amplitudes`.
        tolerance: largest sigma_tot/A that is accepted.
        keep: most gated points to keep in `log`.
    """

    surrogate: Predicts
    exact: Exact
    tolerance: float
    keep: int = 0
    counts: GateCounts = field(default_factory=GateCounts, init=False)
    _parts: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False)
    _room: int = field(init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.tolerance >= 0:
            raise AmpsureError(f"The tolerance of a gate is a relative error, not {self.tolerance}.")
        self._room = max(self.keep, 0)

    def __call__(self, momenta: Array) -> Array:
        """Amplitudes (N,) of momenta (N, n, 4), of the same kind."""
        started = time.perf_counter()
        p = self.surrogate.predict(momenta)
        amplitude, sigma, inside = (to_numpy(values) for values in (p.amplitude, p.sigma_tot, p.in_domain))
        amplitude, inside = amplitude.copy(), inside & np.isfinite(amplitude) & np.isfinite(sigma)
        sure = inside & (sigma <= self.tolerance * np.abs(amplitude))
        between = time.perf_counter()
        gated = np.flatnonzero(~sure)
        points = to_numpy(momenta)[gated]
        guessed = amplitude[gated]
        amplitude[gated] = evaluate(self.exact, points)
        ended = time.perf_counter()
        with self._lock:
            c = self.counts
            c.points += len(amplitude)
            c.outside += int((~inside).sum())
            c.uncertain += int((inside & ~sure).sum())
            c.surrogate_seconds += between - started
            c.exact_seconds += ended - between if len(gated) else 0.0
            if self._room and len(gated):
                found = {"momenta": points, "exact": amplitude[gated], "surrogate": guessed}
                found |= {"sigma_tot": sigma[gated], "outside": ~inside[gated]}
                self._parts.append({key: column[: self._room].copy() for key, column in found.items()})
                self._room -= len(self._parts[-1]["exact"])
        if isinstance(momenta, torch.Tensor):
            return torch.from_numpy(amplitude).to(momenta.device)
        return amplitude

    @property
    def log(self) -> GateLog:
        """What was gated so far, the first `keep` points of it."""
        with self._lock:
            if not self._parts:
                raise AmpsureError("This gate has kept no points: give keep=NUMBER, and call it until it gates some.")
            columns = {key: np.concatenate([part[key] for part in self._parts]) for key in self._parts[0]}
        return GateLog(**columns)
