"""From random numbers to momenta and differential cross sections, on madspace's mappings."""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, log, pi, prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ampsure.errors import AmpsureError
from ampsure.processes import Process

from .densities import Density, get_density
from .settings import Settings

__all__ = ["ChiliSpace", "CrossSection", "PhaseSpace", "RamboSpace"]

Floats = NDArray[np.float64]

GEV2_TO_PB = 0.3893793721e9


class PhaseSpace(Protocol):
    """A map of the unit cube (N, dimension) to momenta (N, n, 4) in the laboratory and weights (N,)."""

    dimension: int

    def __call__(self, random: Floats) -> tuple[Floats, Floats]: ...


def _call(runtime: Any, *arguments: Floats) -> list[Floats]:
    """Evaluate a madspace function on a batch."""
    return [output.numpy() for output in runtime.call([np.ascontiguousarray(a) for a in arguments])]


class ChiliSpace:
    """Collider coordinates (Bothmann et al., arXiv:2302.10449): pT, rapidity and azimuth; beams included.

    The last leg recoils against the others; it is one with the largest threshold, for there the integrand is smoothest.
    The random numbers are the pT of all legs but the last, the rapidities of all, the azimuths of all but the last.
    """

    def __init__(self, process: Process, settings: Settings) -> None:
        import madspace

        n_out = process.n_legs - process.n_incoming
        if n_out < 2:
            raise AmpsureError(f"Process {process.name!r} cannot be generated: it needs two or more outgoing legs.")
        pt_min, eta_max = settings.cuts.pt_min(process), settings.cuts.eta_max(process)
        order = sorted(range(n_out), key=lambda i: pt_min[i])
        lightest = [max(pt_min[i], process.masses[process.n_incoming + i]) for i in order]
        _check_threshold(process, min(lightest))
        reach = [log(settings.energy / transverse_mass) for transverse_mass in lightest]
        y_max = [min(eta_max[i], y) for i, y in zip(order, reach, strict=True)]
        mapping = madspace.ChiliMapping(n_out, y_max, [pt_min[i] for i in order])
        self.dimension = mapping.random_dim()
        self.rapidities = slice(n_out - 1, 2 * n_out - 1)
        self.overall_azimuth = 2 * n_out - 1
        self.azimuths = slice(2 * n_out, self.dimension)
        self._energy = settings.energy
        self._masses = [process.masses[process.n_incoming + i] for i in order]
        self._legs = [0, 1, *(2 + order.index(i) for i in range(n_out))]
        self._runtime = madspace.FunctionRuntime(mapping.forward_function())

    def __call__(self, random: Floats) -> tuple[Floats, Floats]:
        conditions = [np.full(len(random), value) for value in (self._energy, *self._masses)]
        *momenta, weight = _call(self._runtime, *random.T, *conditions)
        return np.stack(momenta, 1)[:, self._legs], weight


class RamboSpace:
    """Flat phase space (RAMBO) of the partons, with log-uniform momentum fractions if there are densities."""

    def __init__(self, process: Process, settings: Settings) -> None:
        import madspace

        masses = process.masses[process.n_incoming :]
        if not 3 <= len(masses) <= 12:
            raise AmpsureError(f"Flat sampling is for 3 to 12 outgoing legs, not {len(masses)} as in {process.name!r}.")
        self._masses = masses if any(masses) else ()
        mapping = madspace.FastRamboMapping(len(masses), not self._masses)
        self._runtime = madspace.FunctionRuntime(mapping.forward_function())
        self._fractions = settings.density is not None
        self._energy = settings.energy
        threshold = max(sum(masses), sum(settings.cuts.pt_min(process)))
        if self._fractions:
            _check_threshold(process, threshold)
        self._log_tau = 2 * log(min(threshold / settings.energy, 1.0)) if threshold else 0.0
        self.dimension = mapping.random_dim() + 2 * self._fractions

    def __call__(self, random: Floats) -> tuple[Floats, Floats]:
        n = len(random)
        x1, x2, weight = np.ones(n), np.ones(n), np.ones(n)
        if self._fractions:
            tau = np.exp(self._log_tau * random[:, 0])
            rapidity = 0.5 * np.log(tau) * (2 * random[:, 1] - 1)
            x1, x2 = np.sqrt(tau) * np.exp(rapidity), np.sqrt(tau) * np.exp(-rapidity)
            weight = tau * self._log_tau * np.log(tau)  # dx1 dx2 = dtau dy
            random = random[:, 2:]
        root = np.sqrt(x1 * x2) * self._energy
        *outgoing, flat = _call(self._runtime, *random.T, root, *(np.full(n, m) for m in self._masses))
        beams = np.zeros((n, 2, 4))
        beams[:, 0, 0] = beams[:, 0, 3] = x1 * self._energy / 2
        beams[:, 1, 0], beams[:, 1, 3] = x2 * self._energy / 2, -x2 * self._energy / 2
        p = np.stack(outgoing, 1)
        cosh, sinh = ((x1 + s * x2) / (2 * np.sqrt(x1 * x2)) for s in (1, -1))
        energy, pz = p[..., 0].copy(), p[..., 3].copy()
        p[..., 0] = cosh[:, None] * energy + sinh[:, None] * pz
        p[..., 3] = sinh[:, None] * energy + cosh[:, None] * pz
        return np.concatenate([beams, p], 1), weight * flat


def _check_threshold(process: Process, threshold: float) -> None:
    if not threshold > 0:
        raise AmpsureError(f"Process {process.name!r} with these cuts has no threshold: cut on pT, or give masses.")


class CrossSection:
    """Differential cross section in pb over the unit cube, with exact amplitudes and parton densities.

    Calling it with random numbers (N, dimension) gives weights (N,), zero outside the cuts, whose average is the cross
    section, together with momenta (M, n, 4) and amplitudes (M,) of the M points with positive weight, in order.
    """

    def __init__(self, process: Process, settings: Settings, space: PhaseSpace) -> None:
        if process.n_incoming != 2 or any(process.masses[:2]):
            raise AmpsureError(f"Process {process.name!r} cannot be generated: it needs two massless incoming partons.")
        self.process, self.settings, self.space = process, settings, space
        n_out = process.n_legs - 2
        symmetry = prod(factorial(len(group)) for group in process.identical)
        self._constant = GEV2_TO_PB / symmetry * (2 * pi) ** (4 - 3 * n_out)
        self._densities: list[Density] = []
        if settings.density is not None:
            q = settings.factorization_scale
            self._densities = [get_density(settings.density, i, q) for i in process.pdg_ids[:2]]

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again in another process: what madspace has compiled does not travel."""
        return _cross_section, (self.process, self.settings, type(self.space))

    def __call__(self, random: Floats) -> tuple[Floats, Floats, Floats]:
        momenta, phase_space = self.space(random)
        x = momenta[:, :2, 0] * (2 / self.settings.energy)
        inside = (
            (phase_space > 0) & np.isfinite(phase_space) & ((x > 0) & (x < 1 + 1e-12 * (not self._densities))).all(1)
        )
        inside[inside] = self.settings.cuts.passed(momenta[inside], self.process)
        momenta, x = momenta[inside], x[inside]
        amplitude = self._amplitude(momenta)
        s_hat = x[:, 0] * x[:, 1] * self.settings.energy**2
        weight = phase_space[inside] * amplitude * self._constant / (2 * s_hat)
        for k, density in enumerate(self._densities):
            weight = weight * density(x[:, k], self.settings.factorization_scale) / x[:, k]
        if not np.isfinite(weight).all():
            raise AmpsureError("The cross section is not finite: check energy, scale and couplings.")
        weights = np.zeros(len(random))
        weights[inside] = weight
        positive = weight > 0
        return weights, momenta[positive], amplitude[positive]

    def _amplitude(self, momenta: Floats) -> Floats:
        """The exact amplitude, (M, n, 4) -> (M,), of which any callable may be the author."""
        try:
            amplitude = np.asarray(self.process.amplitude(momenta, **self.settings.couplings), np.float64)
        except OverflowError as error:
            raise AmpsureError("The couplings are too large for the amplitude to be a number.") from error
        if amplitude.shape != (len(momenta),) or not np.isfinite(amplitude).all() or (amplitude < 0).any():
            name = self.process.name
            raise AmpsureError(f"The amplitude of {name!r} must give one finite, non-negative number for every event.")
        return amplitude


def _cross_section(
    process: Process, settings: Settings, space: Callable[[Process, Settings], PhaseSpace]
) -> CrossSection:
    return CrossSection(process, settings, space(process, settings))
