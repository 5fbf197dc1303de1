"""What defines a sample: beams, couplings, scales, density and cuts; two presets."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import combinations
from math import sinh
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ampsure.errors import AmpsureError
from ampsure.kinematics import Array, separated, transverse_momentum
from ampsure.processes import Process

__all__ = ["PRESETS", "Cuts", "Settings", "get_settings"]

_JETS = {1, 2, 3, 4, 5, 21}
_PHOTON = 22


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Cuts(_Strict):
    """Acceptance of the final state; momenta in GeV. Jets are light partons; other particles are not cut."""

    pt_jet: float = Field(20.0, ge=0)
    eta_jet: float = Field(5.0, gt=0)
    pt_photon: tuple[Annotated[float, Field(ge=0)], ...] = (
        40.0,
        30.0,
    )  # leading, subleading, ...; the last holds for all further photons
    eta_photon: float = Field(2.37, gt=0)
    delta_r: float = Field(0.4, ge=0)  # between any two jets or photons

    def legs(self, process: Process) -> tuple[list[int], list[int]]:
        """Outgoing jets and photons, as leg numbers."""
        outgoing = range(process.n_incoming, process.n_legs)
        jets = [i for i in outgoing if abs(process.pdg_ids[i]) in _JETS]
        return jets, [i for i in outgoing if process.pdg_ids[i] == _PHOTON]

    def pt_min(self, process: Process) -> list[float]:
        """Smallest transverse momentum of every outgoing leg."""
        jets, photons = self.legs(process)
        outgoing = range(process.n_incoming, process.n_legs)
        softest = min(self._photon_thresholds(len(photons)), default=0.0)
        return [self.pt_jet if i in jets else softest if i in photons else 0.0 for i in outgoing]

    def eta_max(self, process: Process) -> list[float]:
        """Largest pseudorapidity of every outgoing leg; infinite where it is free."""
        jets, photons = self.legs(process)
        outgoing = range(process.n_incoming, process.n_legs)
        return [self.eta_jet if i in jets else self.eta_photon if i in photons else np.inf for i in outgoing]

    def _photon_thresholds(self, n: int) -> list[float]:
        return [self.pt_photon[min(k, len(self.pt_photon) - 1)] for k in range(n)] if self.pt_photon else [0.0] * n

    def passed(self, momenta: Array, process: Process) -> Array:
        """(N, n, 4) -> (N,), numpy or torch."""
        jets, photons = self.legs(process)
        pt, pz = transverse_momentum(momenta), abs(momenta[..., 3])
        ok = pt[:, 0] >= 0
        for legs, eta_max in ((jets, self.eta_jet), (photons, self.eta_photon)):
            if legs:
                ok = ok & (pz[:, legs] < pt[:, legs] * sinh(eta_max)).all(1)
        if jets:
            ok = ok & (pt[:, jets] > self.pt_jet).all(1)
        for k, threshold in enumerate(self._photon_thresholds(len(photons))):
            ok = ok & ((pt[:, photons] > threshold).sum(1) > k)
        if pairs := list(combinations(jets + photons, 2)):
            first, second = (momenta[:, list(legs)] for legs in zip(*pairs, strict=True))
            ok = ok & separated(first, second, self.delta_r).all(1)
        return ok


class Settings(_Strict):
    """A sample of events.

    Args:
        energy: of the collision in GeV; of the hadrons, or of the partons where `density` is None.
        density: an embedded gluon density, the path of an LHAPDF grid file, or None for fixed partonic energy.
        factorization_scale: at which the density is taken, in GeV.
        couplings: options of the process's exact amplitude that differ from its defaults, e.g. `{"alpha_s": 0.12}`.
    """

    energy: float = Field(1000.0, gt=0, le=1e9)
    density: str | None = "grv94lo"
    factorization_scale: float = Field(91.188, gt=0)
    couplings: dict[str, bool | int | float] = Field(default_factory=dict)
    cuts: Cuts = Cuts()


PRESETS: dict[str, Settings] = {
    "benchmark": Settings(),
    "lhc": Settings(energy=13000.0, density="cteq5l"),
}
"""`benchmark`: the paper's sample, p p at 1 TeV. `lhc`: the same at 13 TeV with another density."""


def get_settings(preset: str = "benchmark", **overrides: Any) -> Settings:
    """A preset with some settings changed; `cuts` may be a dictionary of the cuts to change.

    >>> get_settings("lhc", cuts={"pt_jet": 30}).cuts.pt_jet
    30.0
    """
    if preset not in PRESETS:
        raise AmpsureError(f"Unknown preset {preset!r}; known are {', '.join(PRESETS)}.")
    values = PRESETS[preset].model_dump()
    if isinstance(overrides.get("cuts"), dict):
        overrides["cuts"] = {**values["cuts"], **overrides["cuts"]}
    try:
        return Settings(**{**values, **overrides})
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        known = [*Settings.model_fields, *(f"cuts.{name}" for name in Cuts.model_fields)]
        close = get_close_matches(where, known, n=1) if problem["type"] == "extra_forbidden" else []
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AmpsureError(f"Setting {where!r}: {problem['msg']}{hint}") from error
