"""What events are sorted by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ampsure.events import Events
from ampsure.kinematics import transverse_momentum

__all__ = ["Observable", "observables"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Observable:
    """A number an event, how to write it, and how to draw it.

    Args:
        name: for files, e.g. "mass".
        symbol: in words, e.g. "m(a a g)".
        unit: e.g. "GeV", or empty.
        values: (N,).
        logarithmic: drawn on a logarithmic axis.
    """

    name: str
    symbol: str
    unit: str
    values: Floats
    logarithmic: bool = False

    @property
    def label(self) -> str:
        return f"{self.symbol} / {self.unit}" if self.unit else self.symbol


def observables(events: Events) -> list[Observable]:
    """True amplitude, mass of the final state, and transverse momenta of the outgoing legs that are not at rest."""
    process = events.process
    names = process.label.split(" > ")[1].split()
    positive = bool((events.truth > 0).all())
    found = [
        Observable("amplitude", "A", process.unit, events.truth, logarithmic=positive),
        Observable("mass", f"m({' '.join(names)})", "GeV", events.final_state_mass),
    ]
    for leg, name in enumerate(names, start=process.n_incoming):
        pt: Floats = transverse_momentum(events.momenta[:, leg])
        found.append(Observable(f"pt{leg + 1}", f"pT({name}, leg {leg + 1})", "GeV", pt, bool(pt.min() > 0)))
    return [o for o in found if np.ptp(o.values) > 1e-9 * np.abs(o.values).max()]
