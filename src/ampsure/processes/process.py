"""What is known about a scattering process before any event is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np

from ampsure.errors import AmpsureError
from ampsure.kinematics import Array, invariant_mass

__all__ = ["Process", "get_process", "list_processes", "register_process"]

_MOST_LEGS = 100  # features grow with their square: a file must not ask for more


@dataclass(frozen=True)
class Process:
    """Legs, masses and, if known, the exact squared amplitude.

    Args:
        name: how files and commands refer to it.
        pdg_ids: one per leg, incoming first; 0 where unknown. Outgoing legs with equal ids are identical particles.
        masses: one per leg, in GeV.
        n_incoming: number of incoming legs.
        exact: squared amplitude of momenta (N, n, 4) -> (N,), called with the options of `amplitude`.
        unit: of the squared amplitude.
        symmetric: the amplitude does not change when identical particles are exchanged, two incoming ones among
            themselves or outgoing ones. True of sums over helicities and colours, not of single ones.

    >>> top = Process("gg_tt", pdg_ids=(21, 21, 6, -6), masses=(0, 0, 173.0, 173.0))
    >>> top.n_legs, top.label
    (4, 'g g > t t~')
    """

    name: str
    pdg_ids: tuple[int, ...]
    masses: tuple[float, ...]
    n_incoming: int = 2
    exact: Callable[..., Array] | None = field(default=None, compare=False, repr=False)
    unit: str = ""
    symmetric: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pdg_ids", tuple(int(i) for i in self.pdg_ids))
        object.__setattr__(self, "masses", tuple(float(m) for m in self.masses))
        try:
            f"{self.name} {self.unit}".encode()
        except UnicodeEncodeError as error:  # JSON may hold what no terminal and no font can show
            raise AmpsureError(f"Process {self.name!r} has a name or a unit that is not text: {error}.") from error
        if len(self.pdg_ids) != len(self.masses):
            counts = f"{len(self.pdg_ids)} PDG ids and {len(self.masses)} masses"
            raise AmpsureError(f"Process {self.name!r} has {counts}: give each leg one.")
        if self.n_legs > _MOST_LEGS:
            raise AmpsureError(f"Process {self.name!r} has {self.n_legs} legs: there can be {_MOST_LEGS} at most.")
        if not 0 < self.n_incoming < self.n_legs:
            raise AmpsureError(
                f"Process {self.name!r} needs incoming and outgoing legs, not {self.n_incoming} of {self.n_legs}."
            )
        if not all(np.isfinite(self.masses)) or min(self.masses) < 0:
            raise AmpsureError(f"Process {self.name!r} has a negative or infinite mass: {self.masses}.")

    @property
    def n_legs(self) -> int:
        return len(self.pdg_ids)

    @property
    def identical(self) -> tuple[tuple[int, ...], ...]:
        """Groups of outgoing legs that are identical particles."""
        counts = Counter(self.pdg_ids[self.n_incoming :])
        outgoing = range(self.n_incoming, self.n_legs)
        groups = (tuple(i for i in outgoing if self.pdg_ids[i] == k) for k, n in counts.items() if k and n > 1)
        return tuple(groups)

    @property
    def label(self) -> str:
        """The process in words, e.g. 'g g > a a g'."""
        names = [_particle_name(i) for i in self.pdg_ids]
        return f"{' '.join(names[: self.n_incoming])} > {' '.join(names[self.n_incoming :])}"

    @property
    def options(self) -> dict[str, Any]:
        """Options of the exact amplitude and their defaults."""
        if self.exact is None:
            return {}
        parameters = list(signature(self.exact).parameters.values())[1:]
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    def amplitude(self, momenta: Array, **options: Any) -> Array:
        """Exact squared amplitude: (N, n, 4) float64 array or tensor -> (N,)."""
        if self.exact is None:
            raise AmpsureError(
                f"No exact amplitude is known for process {self.name!r}; register one with ampsure.register_process."
            )
        return self.exact(momenta, **options)

    def final_state_mass(self, momenta: Array) -> Array:
        """Invariant mass of all outgoing legs, e.g. m_yyg: (N, n, 4) -> (N,)."""
        return invariant_mass(momenta[:, self.n_incoming :])

    def to_dict(self) -> dict[str, Any]:
        """What a file keeps of the process; the exact amplitude is found again by name."""
        return {
            "name": self.name,
            "pdg_ids": list(self.pdg_ids),
            "masses": list(self.masses),
            "n_incoming": self.n_incoming,
            "unit": self.unit,
            "symmetric": self.symmetric,
        }

    @staticmethod
    def from_dict(description: dict[str, Any]) -> Process:
        """The registered process if the description fits it, a process without exact amplitude otherwise."""
        process = Process(
            name=str(description["name"]),
            pdg_ids=tuple(description["pdg_ids"]),
            masses=tuple(description["masses"]),
            n_incoming=int(description["n_incoming"]),
            unit=str(description.get("unit", "")),
            symmetric=bool(description.get("symmetric", False)),
        )
        known = _REGISTRY.get(process.name)
        return known if known == process else process


_REGISTRY: dict[str, Process] = {}


def register_process(process: Process) -> Process:
    """Make a process known by name, so that files and commands find its exact amplitude."""
    known = _REGISTRY.get(process.name)
    if known is not None and known != process:
        raise AmpsureError(f"Another process is already registered as {process.name!r}; choose another name.")
    if known is not None and process.exact is None:
        return known
    _REGISTRY[process.name] = process
    return process


def get_process(name: str) -> Process:
    """A registered process by name.

    >>> get_process("gg_yyg").label
    'g g > a a g'
    """
    if name not in _REGISTRY:
        raise AmpsureError(f"Unknown process {name!r}; known are {', '.join(list_processes())}.")
    return _REGISTRY[name]


def list_processes() -> list[str]:
    """Names of all registered processes."""
    return sorted(_REGISTRY)


_NAMES = {
    1: "d", 2: "u", 3: "s", 4: "c", 5: "b", 6: "t", 11: "e-", 12: "ve", 13: "mu-", 14: "vm", 15: "ta-", 16: "vt",
    21: "g", 22: "a", 23: "z", 24: "w+", 25: "h",
}  # fmt: skip


def _particle_name(pdg_id: int) -> str:
    if pdg_id == 0:
        return "?"
    name = _NAMES.get(abs(pdg_id), str(abs(pdg_id)))
    if pdg_id > 0:
        return name
    swapped = name.translate(str.maketrans("+-", "-+"))
    return swapped if swapped != name else f"{name}~"
