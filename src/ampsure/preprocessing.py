r"""From momenta and amplitudes to what a network sees, and back with the errors propagated.

All of it in float64; statistics come from the training events alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ampsure.errors import AmpsureError
from ampsure.processes import Process
from ampsure.scratch import Column, parts, sample

__all__ = [
    "FEATURES",
    "AsinhTarget",
    "LogTarget",
    "Moments",
    "Standardization",
    "Target",
    "get_target",
    "invariants",
    "register_features",
]

Features = Callable[[Tensor, Process], Tensor]
"""Momenta (N, n, 4) of a process -> features (N, F), float64."""


def invariants(momenta: Tensor, process: Process) -> Tensor:
    r"""z_ij = log(p_i.p_j) of all pairs of legs: (N, n, 4) -> (N, n (n-1)/2).

    The product is taken from the angle between the legs, so that nothing cancels when they are nearly collinear:
    p.q = (E_p E_q - |p||q|) + |p||q| (1 - cos), with the first term from the masses.
    """
    vector = momenta[..., 1:]
    magnitude = vector.norm(dim=-1)
    direction = vector / magnitude.clamp_min(torch.finfo(momenta.dtype).tiny)[..., None]
    i, j = (list(legs) for legs in zip(*combinations(range(momenta.shape[1]), 2), strict=True))
    both = magnitude[:, i] * magnitude[:, j]
    product = both * (direction[:, i] - direction[:, j]).square().sum(-1) / 2
    if any(process.masses):
        mass2 = momenta.new_tensor(process.masses).square()
        energy = torch.sqrt(magnitude.square() + mass2)
        massive = mass2[i] * energy[:, j].square() + mass2[j] * magnitude[:, i].square()
        product = product + massive / (energy[:, i] * energy[:, j] + both)
    return torch.log(product)


def folded_invariants(momenta: Tensor, process: Process) -> Tensor:
    """Log invariants of legs in an order of their own: (N, n, 4) -> (N, n (n-1)/2).

    If the process is `symmetric`, identical particles are sorted, outgoing ones by their energy in the rest frame of
    the collision, two identical incoming ones such that the first outgoing leg is nearer to the second. So events that
    differ by an exchange are one to the network, which has a fraction of the space to learn, as full of events as it
    would be with all exchanges. For all other processes these are the plain invariants.
    """
    return invariants(_folded(momenta, process), process)


def _folded(momenta: Tensor, process: Process) -> Tensor:
    if not process.symmetric:
        return momenta
    signs = momenta.new_tensor([1.0, -1.0, -1.0, -1.0])
    total = momenta[:, : process.n_incoming].sum(1) * signs
    legs, places = [momenta], list(range(momenta.shape[1]))
    for group in process.identical:
        alike = momenta[:, list(group)]
        order = (alike * total[:, None]).sum(-1).argsort(dim=1, descending=True, stable=True)
        for k, leg in enumerate(group):
            places[leg] = sum(part.shape[1] for part in legs) + k
        legs.append(alike.gather(1, order[..., None].expand_as(alike)))
    momenta = torch.cat(legs, dim=1)[:, places]
    if process.n_incoming == 2 and process.pdg_ids[0] == process.pdg_ids[1] != 0:
        towards = (momenta[:, :2] * (momenta[:, 2] * signs)[:, None]).sum(-1)  # small along that leg
        exchanged = momenta[:, [1, 0, *range(2, momenta.shape[1])]]
        momenta = torch.where((towards[:, 0] < towards[:, 1])[:, None, None], exchanged, momenta)
    return momenta


def momenta_only(momenta: Tensor, process: Process) -> Tensor:
    """The four-vectors themselves: (N, n, 4) -> (N, 4 n)."""
    return momenta.flatten(1)


def momenta_and_invariants(momenta: Tensor, process: Process) -> Tensor:
    """Four-vectors and all log invariants, the inputs of the paper."""
    return torch.cat([momenta_only(momenta, process), invariants(momenta, process)], dim=1)


FEATURES: dict[str, Features] = {
    "invariants": invariants,
    "folded": folded_invariants,
    "momenta": momenta_only,
    "momenta+invariants": momenta_and_invariants,
}
"""Known features by name; `register_features` adds to them."""


def register_features(name: str, function: Features) -> None:
    """Make features of the user's own known by name; a saved surrogate finds them again by it.

    >>> register_features("energies", lambda momenta, process: momenta[..., 0].log())
    """
    if name in _BUILT_IN:
        raise AmpsureError(f"The features {name!r} are built in; choose another name.")
    FEATURES[name] = function


_BUILT_IN = frozenset(FEATURES)


def get_features(name: str) -> Features:
    """Features by name."""
    if name not in FEATURES:
        close = get_close_matches(name, FEATURES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AmpsureError(f"Unknown features {name!r}; known are {', '.join(FEATURES)}{hint}")
    return FEATURES[name]


@dataclass(frozen=True)
class Standardization:
    """Columns brought to mean zero and unit variance; constant columns are left out.

    Args:
        columns: (F,) indices of the columns kept.
        mean, scale: (F,) float64.
        low, high: (F_raw,) range of all columns seen in training, the constant ones included.
        holes: (M, 3) ranges without events in the middle of many: column, low, high.
    """

    columns: Tensor
    mean: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    holes: Tensor

    @staticmethod
    def fit(raw: Column) -> Standardization:
        """Statistics of the training features (N, F_raw); holes are looked for in a `sample` of them."""
        if not all(torch.isfinite(part).all() for part in parts(raw)):
            raise AmpsureError("The features of the training events are not finite: two legs may be exactly collinear.")
        mean, scale = _mean_and_scale(parts(raw), len(raw))
        bounds = [(part.amin(0), part.amax(0)) for part in parts(raw)]
        low, high = (torch.stack(ends) for ends in zip(*bounds, strict=True))
        low, high = low.amin(0), high.amax(0)
        columns = (scale > 1e-9 * torch.maximum(low.abs(), high.abs())).nonzero().squeeze(1)
        if len(columns) == 0:
            raise AmpsureError("All features of the training events are constant: there is nothing to learn from.")
        return Standardization(columns, mean[columns], scale[columns], low, high, _holes(sample(raw)))

    def __call__(self, raw: Tensor) -> Tensor:
        """(N, F_raw) -> (N, F)."""
        return (raw[:, self.columns] - self.mean) / self.scale

    def inside(self, raw: Tensor) -> Tensor:
        """Where all features lie in the range seen in training, but for rounding: (N, F_raw) -> (N,)."""
        low, high, holes = self.bounds()
        inside = ((raw >= low) & (raw <= high)).all(1)
        for column, begin, end in holes:  # few, mostly none
            inside = inside & ~((raw[:, column] > begin) & (raw[:, column] < end))
        return inside

    def bounds(self) -> tuple[Tensor, Tensor, list[tuple[int, float, float]]]:
        """Range of all columns (F_raw,), wider by rounding, and holes (column, low, high), narrower by it."""
        rounding = 1e-9 * torch.maximum(self.low.abs(), self.high.abs())
        holes = [(int(c), a + 1e-9 * abs(a), b - 1e-9 * abs(b)) for c, a, b in self.holes.tolist()]
        return self.low - rounding, self.high + rounding, holes

    def to(self, device: torch.device) -> Standardization:
        return Standardization(*(t.to(device) for t in self.tensors().values()))

    def tensors(self) -> dict[str, Tensor]:
        """What has to be saved."""
        return {name: getattr(self, name) for name in ("columns", "mean", "scale", "low", "high", "holes")}


def _holes(raw: Tensor, neighbours: int = 64, ratio: float = 40.0) -> Tensor:
    """Ranges of single columns (N, F) without events: (M, 3), column, low, high.

    A hole is a distance between two neighbouring values that is `ratio` times the mean distance of the values to its
    left, and of those to its right; by chance that happens with probability exp(-ratio). Values that repeat count once.
    """
    found = [raw.new_zeros(0, 3)]
    for column, values in enumerate(map(torch.unique, raw.unbind(1))):  # sorted
        if len(values) > 4 * neighbours:
            reach = (values[neighbours:] - values[:-neighbours]) / neighbours  # mean distance over a window
            widest = torch.maximum(reach[: -neighbours - 1], reach[neighbours + 1 :])
            low, high = values[neighbours : -neighbours - 1], values[neighbours + 1 : -neighbours]
            hole = high - low > ratio * widest
            found.append(torch.stack([torch.full_like(low[hole], column), low[hole], high[hole]], dim=1))
    return torch.cat(found)


class Moments(NamedTuple):
    """An amplitude with its uncertainties, each (N,) float64.

    sigma_tot^2 = sigma_syst^2 + sigma_stat^2 + an interaction of second order (appendix A of the paper).
    """

    amplitude: Tensor
    sigma_syst: Tensor
    sigma_stat: Tensor
    sigma_tot: Tensor


class Target:
    """A transformation of the amplitude, then standardisation: y = (t(A) - mean)/scale."""

    name: str
    mean: float
    scale: float

    def transform(self, amplitude: Tensor) -> Tensor:
        """Amplitudes (N,) -> standardised targets (N,)."""
        return (self._forward(amplitude) - self.mean) / self.scale

    def inverse(self, y: Tensor) -> Tensor:
        """Standardised targets (N,) -> amplitudes (N,)."""
        return self._linear(self.mean + self.scale * y.double(), y.new_zeros(1), y.new_zeros(1)).amplitude

    def moments(self, y: Tensor, variance_syst: Tensor, variance_stat: Tensor, *, linear: bool = False) -> Moments:
        """Back to amplitudes: standardised mean and variances (N,) -> `Moments`.

        Args:
            linear: first-order error propagation, instead of the exact moments of a Gaussian y.
        """
        z = self.mean + self.scale * y.double()
        v_syst, v_stat = (self.scale**2 * v.double() for v in (variance_syst, variance_stat))
        return self._linear(z, v_syst, v_stat) if linear else self._exact(z, v_syst, v_stat)

    def slope(self, amplitude: Tensor) -> Tensor:
        """dA/dy of amplitudes (N,)."""
        raise NotImplementedError

    def parameters(self) -> dict[str, float]:
        """What has to be saved."""
        raise NotImplementedError

    def _forward(self, amplitude: Tensor) -> Tensor:
        raise NotImplementedError

    def _exact(self, z: Tensor, v_syst: Tensor, v_stat: Tensor) -> Moments:
        raise NotImplementedError

    def _linear(self, z: Tensor, v_syst: Tensor, v_stat: Tensor) -> Moments:
        raise NotImplementedError


@dataclass(frozen=True)
class LogTarget(Target):
    r"""y = (log A - mean)/scale, for positive amplitudes; appendix A of the paper.

    For log A ~ N(z, v): A_NN = exp(z + v/2), sigma^2 = A_NN^2 (exp(v) - 1), and with v = v_syst + v_stat the total is
    sigma_syst^2 + sigma_stat^2 + sigma_syst^2 sigma_stat^2/A_NN^2.
    """

    mean: float
    scale: float
    name = "log"

    @staticmethod
    def fit(amplitude: Column) -> LogTarget:
        """Statistics of the training amplitudes (N,)."""
        if not all((part > 0).all() for part in parts(amplitude)):
            raise AmpsureError(
                "The logarithm needs positive amplitudes: use the target 'asinh' for those that change sign."
            )
        return LogTarget(*_statistics(torch.log, amplitude))

    def slope(self, amplitude: Tensor) -> Tensor:
        return self.scale * amplitude

    def parameters(self) -> dict[str, float]:
        return {"mean": self.mean, "scale": self.scale}

    def _forward(self, amplitude: Tensor) -> Tensor:
        return amplitude.log()

    def _exact(self, z: Tensor, v_syst: Tensor, v_stat: Tensor) -> Moments:
        amplitude = torch.exp(z + (v_syst + v_stat) / 2)
        return Moments(amplitude, *(amplitude * torch.expm1(torch.stack([v_syst, v_stat, v_syst + v_stat])).sqrt()))

    def _linear(self, z: Tensor, v_syst: Tensor, v_stat: Tensor) -> Moments:
        amplitude = torch.exp(z)
        return Moments(amplitude, *(amplitude * v.sqrt() for v in (v_syst, v_stat, v_syst + v_stat)))


@dataclass(frozen=True)
class AsinhTarget(Target):
    r"""y = (asinh(A/unit) - mean)/scale, for amplitudes that change sign.

    For asinh(A/unit) ~ N(z, v): A_NN = unit exp(v/2) sinh z, sigma^2 = unit^2/2 (e^v - 1)(e^v cosh 2z + 1).
    """

    mean: float
    scale: float
    unit: float
    name = "asinh"

    @staticmethod
    def fit(amplitude: Column) -> AsinhTarget:
        """Statistics of the training amplitudes (N,); the unit is the median of |A| (of a `sample`)."""
        unit = float(sample(amplitude).abs().median())
        if unit == 0:
            raise AmpsureError("More than half of the training amplitudes are zero: there is nothing to learn from.")
        return AsinhTarget(*_statistics(lambda a: torch.asinh(a / unit), amplitude), unit)

    def slope(self, amplitude: Tensor) -> Tensor:
        return self.scale * torch.hypot(amplitude, amplitude.new_tensor(self.unit))

    def parameters(self) -> dict[str, float]:
        return {"mean": self.mean, "scale": self.scale, "unit": self.unit}

    def _forward(self, amplitude: Tensor) -> Tensor:
        return torch.asinh(amplitude / self.unit)

    def _exact(self, z: Tensor, v_syst: Tensor, v_stat: Tensor) -> Moments:
        v_tot = v_syst + v_stat
        amplitude = self.unit * torch.exp(v_tot / 2) * torch.sinh(z)
        v = torch.stack([v_syst, v_stat, v_tot])
        return Moments(amplitude, *(self.unit * (torch.expm1(v) * (torch.exp(v) * torch.cosh(2 * z) + 1) / 2).sqrt()))

    def _linear(self, z: Tensor, v_syst: Tensor, v_stat: Tensor) -> Moments:
        slope = self.unit * torch.cosh(z)
        return Moments(self.unit * torch.sinh(z), *(slope * v.sqrt() for v in (v_syst, v_stat, v_syst + v_stat)))


def _statistics(function: Callable[[Tensor], Tensor], amplitude: Column) -> tuple[float, float]:
    """Mean and standard deviation of a function of amplitudes (N,)."""
    mean, scale = _mean_and_scale(map(function, parts(amplitude)), len(amplitude))
    if not scale > 1e-13 * abs(mean):  # of equal ones, rounding may be left
        raise AmpsureError("All training amplitudes are equal: there is nothing to learn.")
    return float(mean), float(scale)


def _mean_and_scale(given: Iterable[Tensor], n: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over n rows (n, ...) that come in parts; of one part those of torch, to the bit."""
    found = [(len(part) / n, part.mean(0), part.std(0, correction=0)) for part in given]
    mean = torch.stack([share * part for share, part, _ in found]).sum(0)
    squares = [share * (scale.square() + (part - mean).square()) for share, part, scale in found]
    return mean, torch.stack(squares).sum(0).sqrt()


TARGETS: dict[str, type[LogTarget] | type[AsinhTarget]] = {"log": LogTarget, "asinh": AsinhTarget}


def get_target(name: str) -> type[LogTarget] | type[AsinhTarget]:
    """A target by name."""
    if name not in TARGETS:
        raise AmpsureError(f"Unknown target {name!r}; known are {', '.join(TARGETS)}.")
    return TARGETS[name]


def describe(target: LogTarget | AsinhTarget) -> dict[str, Any]:
    """A target as JSON values."""
    return {"name": target.name, **target.parameters()}
