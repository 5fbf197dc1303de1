"""What is measured of a surrogate in all studies, as JSON values from which figures can be drawn again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampsure.errors import AmpsureError
from ampsure.evaluation import accuracy, as_json, bias, binned, pulls_of, relative_deviation, summarise_pull
from ampsure.events import Events
from ampsure.prediction import Prediction
from ampsure.surrogate import Surrogate

from .study import Case

__all__ = ["DEVIATION_EDGES", "MASS_EDGES", "PULL_EDGES", "THRESHOLD", "against_mass", "inside", "overview", "standard"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

THRESHOLD = 200.0  # GeV
DEVIATION_EDGES = np.linspace(-9, 2, 111)  # of log10 |Delta| and log10 sigma/A
PULL_EDGES = np.linspace(-5, 5, 101)
MASS_EDGES = np.concatenate([np.arange(100, 180, 10), np.arange(180, 220, 2), np.arange(220, 351, 10)]).astype(float)


def overview(prediction: Prediction, events: Events) -> dict[str, Any]:
    """Accuracy, bias, pulls and sigmas, with histograms."""
    if not len(events):
        raise AmpsureError("No test event is where the study looks: give it more events.")
    p = prediction
    delta = relative_deviation(p.amplitude, events.truth)
    sigmas = {
        name: sigma / p.amplitude
        for name, sigma in (("systematic", p.sigma_syst), ("statistical", p.sigma_stat))
        if (sigma > 0).all()
    }
    pulls = pulls_of(p, events)
    found = {
        "events": len(events),
        "accuracy": accuracy(p.amplitude, events.truth),
        "bias": bias(delta),
        "deviation": shares(np.log10(np.abs(delta) + 1e-300), DEVIATION_EDGES),
        "pulls": {name: summarise_pull(pull) for name, pull in pulls.items()},
        "pull": {name: shares(pull, PULL_EDGES) for name, pull in pulls.items()},
        "sigma": {
            name: {"mean": sigma.mean(), "median": np.median(sigma), "spread": np.log10(sigma).std()}
            for name, sigma in sigmas.items()
        },
        "sigmas": {name: shares(np.log10(sigma), DEVIATION_EDGES) for name, sigma in sigmas.items()},
    }
    result: dict[str, Any] = as_json(found)
    return result


def shares(values: Floats, edges: Floats) -> Floats:
    """Share of values in each bin, the outer bins with all that is further out."""
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    result: Floats = counts / len(values)
    return result


def standard(surrogate: Surrogate, events: Events, case: Case) -> dict[str, Any]:
    """The overview of all test events."""
    return overview(surrogate.predict(events.momenta), events)


def inside(events: Events, width: float) -> Mask:
    """(N,) events within a distance of the threshold, in GeV."""
    mask: Mask = np.abs(events.final_state_mass - THRESHOLD) < width
    return mask


def against_mass(prediction: Prediction, events: Events, edges: Floats = MASS_EDGES) -> dict[str, Any]:
    """Median sigmas and |Delta| in bins of the mass of the final state."""
    p, mass = prediction, events.final_state_mass
    values = {
        "systematic": p.sigma_syst / p.amplitude,
        "statistical": p.sigma_stat / p.amplitude,
        "deviation": np.abs(relative_deviation(p.amplitude, events.truth)),
    }
    result: dict[str, Any] = as_json({name: binned(mass, v, edges, bootstrap=50) for name, v in values.items()})
    return result
