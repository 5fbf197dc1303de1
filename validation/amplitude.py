"""The exact amplitude of g g > a a g against everything that is known about it: one line a source."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure.processes.gg_yyg import HELICITIES, amplitude, helicity_squares
from validation import oracle

Floats = NDArray[np.float64]

REFERENCE = Path(__file__).parent / "reference"
EPSILON = float(np.finfo(float).eps)


class SkippedError(Exception):
    """A source that is not at hand, and why."""


@dataclass(frozen=True)
class Agreement:
    """Worst relative deviation of a number of points from a source, and the largest allowed."""

    points: int
    deviation: float
    limit: float


def _worst(value: Floats, reference: Floats) -> float:
    return float(np.max(np.abs(np.asarray(value) / np.asarray(reference) - 1)))


def _exact_points() -> tuple[Floats, list[dict[str, str]], Floats]:
    points = json.loads((REFERENCE / "exact_points.json").read_text())["points"]
    squared = np.array([float(p["squared_amplitude"]) for p in points])
    return np.array([p["momenta"] for p in points], float), [p["helicities"] for p in points], squared


def exact_points() -> Agreement:
    """Integer momenta, evaluated to 18 digits."""
    momenta, _, squared = _exact_points()
    return Agreement(len(squared), _worst(amplitude(momenta, alpha=1 / 132.507), squared), 1e-13)


def exact_helicities() -> Agreement:
    """The same, helicity by helicity."""
    momenta, helicities, _ = _exact_points()
    reference = np.array([[float(h[name]) for name in HELICITIES] for h in helicities])
    return Agreement(reference.size, _worst(helicity_squares(momenta), reference), 1e-12)


def njet() -> Agreement:
    """NJet, the program the paper took its amplitudes from."""
    folder = os.environ.get("AMPSURE_REFERENCE")
    if not folder:
        raise SkippedError(
            "set AMPSURE_REFERENCE to the folder with njet_points.json, which is not ours to redistribute"
        )
    file = Path(folder) / "njet_points.json"
    if not file.is_file():
        raise SkippedError(f"AMPSURE_REFERENCE names {folder}, which has no njet_points.json")
    points = json.loads(file.read_text())
    squared = np.array(points["msq"], float)
    return Agreement(len(squared), _worst(amplitude(np.array(points["momenta"], float)), squared), 2e-10)


def madgraph() -> Agreement:
    """MadGraph5_aMC@NLO 3.6.0 with COLLIER, where its own accuracy estimate is better than the limit."""
    with np.load(REFERENCE / "madgraph_points.npz", allow_pickle=False) as points:
        good = points["accuracy"] < 1e-8
        couplings = {"alpha_s": float(points["alpha_s"]), "alpha": float(points["alpha_qed"])}
        value = amplitude(points["momenta"][good], identical=True, **couplings)
        return Agreement(int(good.sum()), _worst(value, points["msq"][good]), 1e-8)


def benchmark_points(n: int, seed: int) -> Floats:
    """Momenta inside the cuts of the benchmark, (n, 5, 4)."""
    return ampsure.generate("gg_yyg", n, seed=seed, sampling="rambo").momenta


def against_oracle(momenta: Floats, digits: int = 50) -> Floats:
    """Relative deviation from the literal formulas in many digits, at the nearest exactly balanced momenta, (N,)."""
    exact = [oracle.balance(p[2:, 1:].tolist(), digits=digits) for p in momenta]
    reference = [float(oracle.squared_amplitude(p, digits=digits)) for p in exact]
    rounded = np.array([[[float(x) for x in leg] for leg in p] for p in exact])
    deviation: Floats = np.abs(amplitude(rounded) / np.array(reference) - 1)
    return deviation


def mpmath_points() -> Agreement:
    """The literal formulas of hep-ph/9302280 in 50 digits, inside the cuts."""
    deviation = against_oracle(benchmark_points(100, seed=11))
    return Agreement(len(deviation), float(deviation.max()), 1e-12)


def invariances() -> Agreement:
    """Boosts, rotations, exchange of the photons, exchange of the gluons."""
    momenta = benchmark_points(2000, seed=12)
    rng = np.random.default_rng(12)
    reference = amplitude(momenta)
    turned = momenta @ lorentz_transformations(rng, len(momenta)).transpose(0, 2, 1)
    others = (turned, momenta[:, [0, 1, 3, 2, 4]], momenta[:, [1, 0, 2, 3, 4]])
    return Agreement(len(others) * len(momenta), max(_worst(amplitude(p), reference) for p in others), 1e-11)


def lorentz_transformations(rng: np.random.Generator, n: int, largest_rapidity: float = 1.0) -> Floats:
    """Random rotations times random boosts, (n, 4, 4)."""
    rotation = np.linalg.qr(rng.standard_normal((n, 3, 3)))[0]
    rotation *= np.linalg.det(rotation)[:, None, None]
    direction = rng.standard_normal((n, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    rapidity = rng.uniform(0, largest_rapidity, n)
    boost = np.zeros((n, 4, 4))
    boost[:, 0, 0] = np.cosh(rapidity)
    boost[:, 0, 1:] = boost[:, 1:, 0] = np.sinh(rapidity)[:, None] * direction
    projector = direction[:, :, None] * direction[:, None, :]
    boost[:, 1:, 1:] = np.eye(3) + (np.cosh(rapidity) - 1)[:, None, None] * projector
    turn = np.zeros((n, 4, 4))
    turn[:, 0, 0] = 1
    turn[:, 1:, 1:] = rotation
    product: Floats = turn @ boost
    return product


def _direction(theta: float, phi: float) -> Floats:
    return np.array([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)])


def _event(*outgoing: Floats) -> Floats:
    """Five massless momenta from the outgoing three-momenta; beams along z."""
    energies = [float(np.linalg.norm(p)) for p in outgoing]
    total, pz = sum(energies), sum(p[2] for p in outgoing)
    beams = [[(total + pz) / 2, 0, 0, (total + pz) / 2], [(total - pz) / 2, 0, 0, -(total - pz) / 2]]
    return np.array([*beams, *([e, *p] for e, p in zip(energies, outgoing, strict=True))])


def _recoiling(p: Floats, q: Floats, pz: float) -> Floats:
    return np.array([-p[0] - q[0], -p[1] - q[1], pz])


LIMITS: dict[str, tuple[Callable[[float, float], Floats], bool]] = {}
"""Events at a distance x from a limit (rotated by phi), and whether the rounding error may grow like 1/x there."""


def _limit(name: str, grows: bool) -> Callable[[Callable[[float, float], Floats]], Callable[[float, float], Floats]]:
    def register(make: Callable[[float, float], Floats]) -> Callable[[float, float], Floats]:
        LIMITS[name] = make, grows
        return make

    return register


@_limit("photon along photon", grows=True)
def _(x: float, phi: float) -> Floats:
    p3, p4 = 120 * _direction(1.1, phi), 70 * _direction(1.1 + x, phi)
    return _event(p3, p4, _recoiling(p3, p4, 45.0))


@_limit("photon along gluon", grows=True)
def _(x: float, phi: float) -> Floats:
    p4, p5 = 120 * _direction(1.1, phi), 70 * _direction(1.1 + x, phi)
    return _event(_recoiling(p4, p5, 45.0), p4, p5)


@_limit("photon along beam", grows=True)
def _(x: float, phi: float) -> Floats:
    p3, p4 = 120 * _direction(1.1, phi), 150 * _direction(x, phi + 1.0)
    return _event(p3, p4, _recoiling(p3, p4, 45.0))


@_limit("soft photon", grows=True)
def _(x: float, phi: float) -> Floats:
    p3, p4 = 120 * _direction(1.1, phi), 120 * x * _direction(2.0, phi + 1.0)
    return _event(p3, p4, _recoiling(p3, p4, 45.0))


@_limit("soft gluon", grows=False)
def _(x: float, phi: float) -> Floats:
    p3, p5 = 120 * _direction(1.1, phi), 120 * x * _direction(2.0, phi + 1.0)
    return _event(p3, _recoiling(p3, p5, 45.0), p5)


@_limit("gluon along beam", grows=False)
def _(x: float, phi: float) -> Floats:
    p3, p5 = 120 * _direction(1.1, phi), 150 * _direction(x, phi + 1.0)
    return _event(p3, _recoiling(p3, p5, 45.0), p5)


def near_limit(name: str, distances: tuple[float, ...] = (1e-2, 1e-4, 1e-6), angles: int = 3) -> Iterator[Agreement]:
    """Deviation from the oracle at each distance. The error may grow as epsilon/x, times a constant of order 100."""
    make, grows = LIMITS[name]
    for x in distances:
        momenta = np.array([make(x, 0.3 + 1.7 * k) for k in range(angles)])
        worst = float(against_oracle(momenta, digits=80).max())
        yield Agreement(angles, worst, 100 * EPSILON / x if grows else 1e-12)


SOURCES: dict[str, Callable[[], Agreement]] = {
    "two exact points": exact_points,
    "their 32 helicities": exact_helicities,
    "NJet": njet,
    "MadGraph5_aMC@NLO, COLLIER": madgraph,
    "mpmath, 50 digits, inside the cuts": mpmath_points,
    "boosts, rotations, exchanges": invariances,
}


def main() -> int:
    table = Table("source", "points", "worst deviation", "limit", "", title="Squared amplitude of g g > a a g")
    failed = False

    def add(name: str, agreement: Agreement) -> None:
        nonlocal failed
        good = agreement.deviation <= agreement.limit
        failed |= not good
        row = (
            name,
            str(agreement.points),
            f"{agreement.deviation:.1e}",
            f"{agreement.limit:.1e}",
            "ok" if good else "FAIL",
        )
        table.add_row(*row)

    for name, check in SOURCES.items():
        try:
            add(name, check())
        except SkippedError as reason:
            table.add_row(name, "0", "skipped", "", str(reason))
    for name in LIMITS:
        for x, agreement in zip((1e-2, 1e-4, 1e-6), near_limit(name), strict=True):
            add(f"{name}, distance {x:g}", agreement)
    Console(width=140).print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
