"""Weights of events by a surrogate, with variations by its uncertainties."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.io import check_target, lhe, replacing, stream
from ampsure.surrogate import Surrogate

__all__ = ["Reweighting", "member_amplitudes", "reweight", "surrogate_weights"]

Floats = NDArray[np.float64]


@torch.no_grad()
def member_amplitudes(surrogate: Surrogate, momenta: Floats) -> Floats:
    """Amplitudes of every member, (N, n, 4) -> (E, N); E = 1 where there are no members to compare.

    Their mean is the amplitude and their spread sigma_stat: where the statistical uncertainty is that of the members'
    mean, or has parts the members know by themselves, deviations from the mean are scaled to it, point by point. What
    is kept is how the deviations of one member at different points hang together.
    """
    mean, syst, stat, members = surrogate.standardised(torch.from_numpy(np.ascontiguousarray(momenta, np.float64)))
    deviation = members - members.mean(0)
    spread = deviation.square().mean(0)
    deviation = deviation * (stat / spread.clamp_min(1e-300)).sqrt().where(spread > 0, torch.zeros_like(spread))
    nothing = torch.zeros_like(mean)
    rows = [surrogate.target.moments(mean + d, syst, nothing).amplitude for d in deviation]
    return torch.stack(rows).cpu().numpy()


def surrogate_weights(
    surrogate: Surrogate, events: Events, *, name: str = "surrogate", members: bool = False, outside: str = "reference"
) -> dict[str, Floats]:
    """Weights of events by the surrogate, (N,) each: w A/A_ref, where w is their weight and A_ref their amplitude.

    `NAME`, `NAME_syst_up`, `NAME_syst_down`, `NAME_stat_up`, `NAME_stat_down`, `NAME_member_0`, ..., `NAME_in_domain`.
    Up and down are one sigma: A e^(+-s) with s^2 = log(1 + sigma^2/A^2) for positive amplitudes, else A +- sigma.

    Args:
        name: of the weight, and the beginning of the others.
        members: give one weight a member too.
        outside: weights of events outside the surrogate's domain, whose `NAME_in_domain` is 0: "reference" keeps the
            weight they have, without variations, "surrogate" extrapolates.
    """
    if outside not in ("reference", "surrogate"):
        raise AmpsureError(f"Events outside the domain keep the 'reference' or get the 'surrogate', not {outside!r}.")
    if members and surrogate.network.members == 1:
        raise AmpsureError("The surrogate has one network, so there are no members to give weights for.")
    if not events.truth.all():
        raise AmpsureError("Some events have an amplitude of zero, which cannot be replaced by another one.")
    p = surrogate.predict(events.momenta)
    amplitudes = {name: p.amplitude}
    for kind, sigma in (("syst", p.sigma_syst), ("stat", p.sigma_stat)):
        for word, sign in (("up", 1), ("down", -1)):
            varied = p.amplitude + sign * sigma
            if surrogate.target.name == "log":
                varied = p.amplitude * np.exp(sign * np.sqrt(np.log1p(np.square(sigma / p.amplitude))))
            amplitudes[f"{name}_{kind}_{word}"] = varied
    if members:
        amplitudes |= {f"{name}_member_{k}": a for k, a in enumerate(member_amplitudes(surrogate, events.momenta))}
    rate = events.weights / events.truth
    kept = ~p.in_domain & (outside == "reference")
    weights = {key: np.where(kept, events.weights, rate * a) for key, a in amplitudes.items()}
    if not all(np.isfinite(w).all() for w in weights.values()):
        raise AmpsureError("The surrogate is not finite for some events: let those outside the domain keep theirs.")
    return weights | {f"{name}_in_domain": p.in_domain.astype(np.float64)}


@dataclass(frozen=True)
class Reweighting:
    """What a reweighting did.

    Args:
        events, outside: their number, and how many lie outside the domain.
        total: sum of weights before.
        weights: name -> sum of the new weights.
    """

    events: int
    outside: int
    total: float
    weights: dict[str, float]


def reweight(
    source: str | os.PathLike[str],
    surrogate: Surrogate,
    target: str | os.PathLike[str],
    *,
    name: str = "surrogate",
    members: bool = False,
    outside: str = "reference",
) -> Reweighting:
    """Copy an LHE file and add the weights of `surrogate_weights` to its events; all else stays as it is.

    The reference amplitude is the weight "amplitude" (or "truth") of the file if there is one, else the exact amplitude
    of the process: it has to be what the weights XWGTUP were made with.
    """
    source, target = Path(source), Path(target)
    for path in (source, target):
        if not path.name.lower().endswith((".lhe", ".lhe.gz")):
            raise AmpsureError(f"Named weights are for LHE files (.lhe, .lhe.gz), not {path.name!r}.")
    check_target(target)
    count = surrogate.network.members if members else 0
    groups = _groups(name, count)
    parts = stream(source, 10_000, process=surrogate.process, signed=True)
    sums: dict[str, float] = {}
    n = outside_domain = 0
    total = 0.0

    def rows() -> Iterator[dict[str, float]]:
        nonlocal n, outside_domain, total
        for part in parts:
            weights = surrogate_weights(surrogate, part, name=name, members=members, outside=outside)
            n, total = n + len(part), total + float(part.weights.sum())
            outside_domain += int((weights[f"{name}_in_domain"] == 0).sum())
            for key, column in weights.items():
                sums[key] = sums.get(key, 0.0) + float(column.sum())
            table = np.stack(list(weights.values()), axis=1)
            yield from (dict(zip(weights, row, strict=True)) for row in table.tolist())

    taken = lhe.declared_weights(source) & {key for group in groups for key in group.weights}
    if taken:
        raise AmpsureError(f"{source.name} already has a weight {min(taken)!r}: give the new ones another name.")
    with replacing(target) as temporary:
        lhe.with_weights(source, temporary, groups, rows())
    sums.pop(f"{name}_in_domain")
    return Reweighting(n, outside_domain, total, sums)


def _groups(name: str, members: int) -> list[lhe.WeightGroup]:
    if not name.isidentifier() or not name.isascii():
        raise AmpsureError(f"The name of a weight is made of letters, digits and underscores, not {name!r}.")
    flag = {f"{name}_in_domain": "1 inside the domain of the surrogate, 0 where it would extrapolate"}
    groups = [lhe.WeightGroup(name, "none", {name: "weight with the amplitude of the surrogate", **flag})]
    for kind, words in (("syst", "systematic"), ("stat", "statistical")):
        both = {f"{name}_{kind}_{w}": f"{words} uncertainty of the surrogate, one sigma {w}" for w in ("up", "down")}
        groups.append(lhe.WeightGroup(f"{name}_{words}", "envelope", both))
    if members:
        each = {f"{name}_member_{k}": f"member {k} of the surrogate" for k in range(members)}
        groups.append(lhe.WeightGroup(f"{name}_members", "gaussian", each))
    return groups
