"""What defines a sample: beams, couplings, scales, density and cuts; two presets."""

from __future__ import annotations

from difflib import get_close_matches
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
        if not (legs := jets + photons):
            return momenta[:, 0, 0] > -np.inf
        p = momenta[:, legs]
        pt, thresholds = transverse_momentum(p), self._photon_thresholds(len(photons))
        pt_min = [self.pt_jet] * len(jets) + [min(thresholds, default=0.0)] * len(photons)
        slope = [sinh(self.eta_jet)] * len(jets) + [sinh(self.eta_photon)] * len(photons)  # of pz against pt
        like = np.asarray if isinstance(momenta, np.ndarray) else momenta.new_tensor
        ok = ((pt > like(pt_min)) & (abs(p[..., 3]) < pt * like(slope))).all(1)
        for k, threshold in enumerate(thresholds):
            if threshold > min(thresholds):
                ok = ok & ((pt[:, len(jets) :] > threshold).sum(1) > k)
        return ok & separated(p, self.delta_r) if len(legs) > 1 else ok


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
