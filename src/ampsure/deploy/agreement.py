"""Whether an exported surrogate predicts what the surrogate does, at random points of phase space."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from ampsure.errors import AmpsureError
from ampsure.likelihoods import Mixture
from ampsure.prediction import Prediction
from ampsure.processes import Process
from ampsure.surrogate import Surrogate

__all__ = ["OUTPUTS", "TOLERANCE", "check", "phase_space_points"]

OUTPUTS = ("amplitude", "sigma_syst", "sigma_stat", "sigma_tot", "in_domain")
TOLERANCE = 1e-6
"""Largest relative difference between an export and `Surrogate.predict`, where nothing is rounded to float32."""

Floats = NDArray[np.float64]


def check(
    predict: Callable[[Floats], Prediction], surrogate: Surrogate, what: str, momenta: Floats | None = None
) -> None:
    """Refuse an export that does not predict what the surrogate does: many points, one and none.

    In float32 it may differ from the surrogate in float64 by ten times what `Surrogate.predict` does. Of mixtures one
    point in a hundred outside the domain may differ by anything: rounding decides there which of two modes is higher.

    Args:
        predict: the export at work.
        surrogate: in the precision of the export.
        what: it is, for the error.
        momenta: (N, n, 4) of events to compare on, besides random points.
    """
    points = phase_space_points(surrogate.process, 2048)
    points = points if momenta is None else np.concatenate([momenta, points])
    exact = surrogate.in_precision("float64").predict(points)
    rounded, found, first, none = surrogate.predict(points), predict(points), predict(points[:1]), predict(points[:0])
    finite = np.logical_and.reduce([np.isfinite(getattr(p, name)) for p in (exact, rounded) for name in OUTPUTS])
    size, single = _size(surrogate, exact), surrogate.network.weights[0].dtype == torch.float32
    floors = (0.5 if single else 1e-9) * size, 1e-9 * size
    likelihoods = [surrogate.likelihood, *(stage.likelihood for stage in surrogate.earlier)]
    share = 0.99 if any(isinstance(likelihood, Mixture) for likelihood in likelihoods) else 1.0
    tolerance = TOLERANCE + 10 * _differences(rounded, exact, floors, finite, share)
    difference = _differences(found, exact, floors, finite, share)
    difference[0] = np.maximum(difference[0], _differences(first, exact, floors, finite[:1], share)[0])
    worst = np.unravel_index((difference / tolerance).argmax(), difference.shape)
    if difference[worst] > tolerance[worst]:
        raise AmpsureError(
            f"The {what} differs from the surrogate's predictions by {difference[worst]:.1e} in "
            f"{OUTPUTS[worst[1]]}, more than {tolerance[worst]:.1e}: it was not written."
        )
    if not finite.any() or len(none.amplitude):
        raise AmpsureError(f"The {what} cannot be compared with the surrogate's predictions: it was not written.")


def _size(surrogate: Surrogate, prediction: Prediction) -> Floats:
    """What an amplitude changes by with the transformed one, (N,): errors of rounding are proportional to it."""
    slope = surrogate.target.slope(torch.from_numpy(prediction.amplitude)) / surrogate.target.scale
    return np.asarray(slope.abs().numpy())


def _differences(
    found: Prediction, expected: Prediction, floors: tuple[Floats, Floats], where: NDArray[np.bool_], share: float
) -> Floats:
    """Largest and median relative difference of all outputs, (2, 5), at those of the first points `where` it is asked.

    The largest is that of a `share` of the points outside the domain, and of all points inside.

    Numbers below the `floors` (N,) of either are compared on that scale: members that agree leave no digits to the
    difference between them, the statistical uncertainty.
    """
    n, result = len(where), np.zeros((2, len(OUTPUTS)))
    inside = np.asarray(expected.in_domain)[:n][where]
    for column, name in enumerate(OUTPUTS):
        a, b = (np.asarray(getattr(p, name), np.float64)[:n][where] for p in (found, expected))
        error = np.nan_to_num(np.abs(a - b), nan=np.inf)
        least = [floor[:n][where].clip(1e-300) if name != "in_domain" else np.ones_like(b) for floor in floors]
        largest, typical = (error / np.maximum(np.abs(b), floor) for floor in least)
        if len(error):
            result[:, column] = largest[inside].max(initial=0.0), np.median(typical)
        if not inside.all():
            result[0, column] = max(result[0, column], np.quantile(largest[~inside], share, method="higher"))
    return result


def phase_space_points(process: Process, n: int, seed: int = 0) -> NDArray[np.float64]:
    """Random momenta (n, legs, 4), balanced and on shell, of collision energies from just above threshold to 10 TeV."""
    rng = np.random.default_rng(seed)
    masses, incoming = np.array(process.masses), process.n_incoming
    threshold = max(masses[:incoming].sum(), masses[incoming:].sum(), 1.0)
    energy = threshold * np.exp(rng.uniform(0.01, np.log(max(10_000 / threshold, 10)), n))
    momenta = np.empty((n, process.n_legs, 4))
    for legs in (slice(0, incoming), slice(incoming, None)):
        m = masses[legs]
        directions = rng.standard_normal((n, len(m), 3)) * ([0, 0, 1] if legs.start == 0 else [1, 1, 1])
        directions -= directions.mean(1, keepdims=True)
        low, high = np.zeros(n), energy / np.linalg.norm(directions, axis=-1).sum(1).clip(1e-300)
        for _ in range(60):  # bisect the size at which the energies add up
            middle = (low + high) / 2
            vectors = middle[:, None, None] * directions
            above = np.sqrt((vectors**2).sum(-1) + m**2).sum(1) > energy
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        momenta[:, legs, 1:] = vectors
        momenta[:, legs, 0] = np.sqrt((vectors**2).sum(-1) + m**2)
    rapidity = rng.uniform(-1, 1, (n, 1))
    e, z = momenta[..., 0].copy(), momenta[..., 3].copy()
    momenta[..., 0] = np.cosh(rapidity) * e + np.sinh(rapidity) * z
    momenta[..., 3] = np.sinh(rapidity) * e + np.cosh(rapidity) * z
    return momenta
