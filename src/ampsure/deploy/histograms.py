"""Histograms of a surrogate's cross section, with what its uncertainties do to them."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsure.errors import AmpsureError
from ampsure.evaluation import Observable, bin_edges, observables
from ampsure.events import Events
from ampsure.io import replacing
from ampsure.report.style import exponents, legend, literal, panels, save_figure
from ampsure.surrogate import Surrogate

from .reweight import member_amplitudes

__all__ = ["UncertainHistogram", "draw", "histogram", "save_histogram"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class UncertainHistogram:
    """A differential cross section in K bins, with its uncertainties; all (K,), per unit of the observable.

    Args:
        edges: (K + 1,).
        value: sum over events of rate times A, over the width of the bin.
        monte_carlo: statistical error of the number of events.
        syst_independent: sigma_syst of each event on its own: the smallest effect it can have.
        syst_correlated: sigma_syst of all events up or down together: the largest.
        stat: spread of the members' histograms, so correlated between events as the members are; where there are no
            members to compare, sigma_stat of all events together.
        outside: share of the value from events outside the domain of the surrogate.
        unit: of the cross section, e.g. "pb".
    """

    observable: Observable
    edges: Floats
    value: Floats
    monte_carlo: Floats
    syst_independent: Floats
    syst_correlated: Floats
    stat: Floats
    outside: Floats
    unit: str

    @property
    def errors(self) -> dict[str, Floats]:
        """All uncertainties by name, for files."""
        return {
            "Monte Carlo": self.monte_carlo,
            "surrogate, systematic, independent": self.syst_independent,
            "surrogate, systematic, correlated": self.syst_correlated,
            "surrogate, statistical": self.stat,
        }

    @property
    def units(self) -> str:
        return f"{self.unit}/{self.observable.unit}" if self.observable.unit else self.unit


def histogram(
    surrogate: Surrogate,
    events: Events,
    observable: str | Observable = "mass",
    *,
    edges: Floats | None = None,
    bins: int = 30,
) -> UncertainHistogram:
    """The cross section of the surrogate in bins of an observable.

    The events stand for the phase space: an event of weight w and amplitude A_ref has the rate w/A_ref, and contributes
    rate times A. Their sum of weights is the cross section they were generated with, or one if that is not known.

    Args:
        observable: a name as in `ampsure.evaluation.observables`, e.g. "mass" or "pt5", or values of one's own.
        edges: of the bins; by default `bins` of equal width over all but the outermost events.
    """
    if not len(events):
        raise AmpsureError("There are no events to fill a histogram with.")
    if isinstance(observable, str):
        known = {o.name: o for o in observables(events)}
        if observable not in known:
            names = ", ".join(known) or "none"
            raise AmpsureError(f"Unknown observable {observable!r}; those that differ between these events: {names}.")
        observable = known[observable]
    if observable.values.shape != (len(events),):
        raise AmpsureError(f"{len(events)} events need so many values, not {observable.values.shape}.")
    if not events.weights.sum():
        raise AmpsureError("The weights of the events add up to zero: there is no cross section to share out.")
    if not events.truth.all():
        raise AmpsureError("Some events have an amplitude of zero: their rate is not known.")
    if edges is None:
        edges = bin_edges(observable.values, bins, logarithmic=observable.logarithmic)
    edges = np.asarray(edges, np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not ((np.diff(edges) > 0).all() and np.isfinite(edges).all()):
        raise AmpsureError("The edges of bins must be two or more finite numbers that increase.")
    try:
        total, unit = float(events.provenance["generation"]["cross_section"]), "pb"
    except (KeyError, OverflowError, TypeError, ValueError):  # provenance is free in form
        total, unit = 1.0, "1"
    rate = events.weights / events.truth * (total / events.weights.sum())
    p = surrogate.predict(events.momenta)
    widths = np.diff(edges)

    def summed(values: Floats) -> Floats:
        result: Floats = np.histogram(observable.values, edges, weights=values)[0] / widths
        return result

    def in_quadrature(values: Floats) -> Floats:
        return np.sqrt(summed(values**2) / widths)

    value = summed(rate * p.amplitude)
    members = member_amplitudes(surrogate, events.momenta)
    if len(members) > 1:
        stat = np.stack([summed(rate * amplitude) for amplitude in members]).std(0)
    else:
        stat = np.abs(summed(rate * p.sigma_stat))
    with np.errstate(divide="ignore", invalid="ignore"):
        outside = np.nan_to_num(summed(rate * p.amplitude * ~p.in_domain) / value)
    return UncertainHistogram(
        observable,
        edges,
        value,
        monte_carlo=in_quadrature(rate * p.amplitude),
        syst_independent=in_quadrature(rate * p.sigma_syst),
        syst_correlated=summed(np.abs(rate) * p.sigma_syst),
        stat=stat,
        outside=outside,
        unit=unit,
    )


def draw(h: UncertainHistogram) -> Figure:
    """The distribution, and its uncertainties relative to it below."""
    figure, axes = panels(2, 1, heights=(3, 1.6), sharex=True)
    top, bottom = axes[:, 0]
    low, high = h.value - h.monte_carlo, h.value + h.monte_carlo
    top.stairs(high, h.edges, baseline=low, fill=True, color="0.8", label="Monte Carlo error")
    top.stairs(h.value, h.edges, color="0.15", label="surrogate", zorder=3)
    size = np.where(h.value == 0, np.nan, np.abs(h.value))
    relative = {name: 100 * error / size for name, error in h.errors.items()}
    looks = (("0.6", "-"), ("#0072B2", ":"), ("#0072B2", "-"), ("#D55E00", "--"))
    for (name, error), (colour, line) in zip(relative.items(), looks, strict=True):
        bottom.stairs(error, h.edges, label=name.removeprefix("surrogate, "), color=colour, linestyle=line)
    filled = h.value[h.value != 0]
    top.set(
        ylabel=f"cross section / ({literal(h.units)})",
        yscale="log" if len(filled) and filled.max() > 30 * filled.min() > 0 else "linear",
    )
    shown = np.concatenate([error[np.isfinite(error) & (error > 0)] for error in relative.values()])
    reach = (0.5 * shown.min(), 30 * shown.max()) if len(shown) else (0.1, 10)  # room for the legend
    bottom.set(ylabel="error / %", ylim=reach, yscale="log", xlim=(h.edges[0], h.edges[-1]))
    bottom.set_xlabel(exponents(literal(h.observable.label)))
    if h.observable.logarithmic:
        bottom.set_xscale("log")
    legend(top)
    legend(bottom, fontsize=7, ncols=2)
    return figure


def save_histogram(h: UncertainHistogram, stem: Path) -> list[Path]:
    """Write a table for HEPData (.yaml), the same as .csv, and the figure as .pdf and .png."""
    rows = list(zip(h.edges[:-1].tolist(), h.edges[1:].tolist(), strict=True))
    header = {"name": f"dsigma/d{h.observable.symbol}", "units": h.units}
    columns = {name: error.tolist() for name, error in h.errors.items()}
    values: list[dict[str, Any]] = [
        {"value": value, "errors": [{"symerror": column[k], "label": name} for name, column in columns.items()]}
        for k, value in enumerate(h.value.tolist())
    ]
    table = {
        "independent_variables": [
            {
                "header": {"name": h.observable.symbol, "units": h.observable.unit},
                "values": [{"low": low, "high": high} for low, high in rows],
            }
        ],
        "dependent_variables": [{"header": header, "qualifiers": [], "values": values}],
    }
    yaml, text = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("yaml", "csv"))
    with replacing(yaml) as temporary:
        temporary.write_text(json.dumps(table, indent=1) + "\n")  # JSON is YAML
    with replacing(text) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        names = [name.replace("surrogate, ", "").replace(", ", "_").replace(" ", "_").lower() for name in columns]
        writer.writerow(["low", "high", "value", *names, "share_outside_domain"])
        writer.writerows(
            [*row, *numbers]
            for row, *numbers in zip(rows, h.value.tolist(), *columns.values(), h.outside.tolist(), strict=True)
        )
    return [yaml, text, *save_figure(draw(h), stem)]
