"""The mass spectrum made with a surrogate that has not seen part of it, fig. (threshold_gap_minv)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ampsure.report.style import colour, panels

from . import gap_accuracy
from .curves import as_binned, draw_curve, finish
from .gap_accuracy import BAYESIAN, ENSEMBLE, HALF_WIDTH
from .measure import THRESHOLD
from .presets import Preset
from .study import Case, Check, Claim, Results, Study, estimate

LEAST_EVENTS = 100  # in a bin that counts


def grid(preset: Preset) -> list[Case]:
    return [case for case in gap_accuracy.grid(preset) if case.labels["method"] in (ENSEMBLE, BAYESIAN)]


def figure(results: Results) -> Figure:
    drawn, axes = panels(2, 2, heights=(2, 1), sharex="col")
    for column, method in zip(axes.T, (ENSEMBLE, BAYESIAN), strict=True):
        for k, gap in enumerate((False, True)):
            measured = next(results.where(method=method, gap=gap))
            shift, band = as_binned(measured["shift"]), as_binned(measured["band"])
            density = shift.count / np.diff(shift.edges)
            if k == 0:
                column[0].stairs(density, shift.edges, color="0.5", linewidth=3, label="truth")
            words = "with gap" if gap else "full data"
            column[0].stairs(density * (1 + shift.value), shift.edges, **colour(k), label=words)
            draw_curve(column[1], measured["shift"], k, label=words)
            limit = np.append(band.value, band.value[-1])
            column[1].fill_between(
                band.edges, -limit, limit, step="post", alpha=0.12, color=colour(k)["color"], linewidth=0
            )
        for edge in (THRESHOLD - HALF_WIDTH, THRESHOLD + HALF_WIDTH):
            for panel in column:
                panel.axvline(edge, color="0.6", linestyle="--", linewidth=0.8)
        column[0].set(yscale="log", ylabel="events / GeV", title=method)
        column[1].set(xlabel=r"$m_{\gamma\gamma g}$ / GeV", ylabel=r"$A_\mathrm{NN}/A_\mathrm{true} - 1$")
        finish(column[0])
    return drawn


def overlap(results: Results) -> list[Check]:
    checks = []
    for method in (ENSEMBLE, BAYESIAN):
        largest, covered = [], []
        for measured in results.where(method=method, gap=True):
            shift, band = as_binned(measured["shift"]), as_binned(measured["band"])
            filled = shift.count >= min(LEAST_EVENTS, shift.count.max())
            largest.append(np.abs(shift.value[filled]).max())
            covered.append(np.mean(np.abs(shift.value[filled]) < band.value[filled]))
        checks += [
            Check(f"largest deviation of the spectrum in a bin, {method}", estimate(largest), 0, 1e-4),
            Check(f"share of bins with a band larger than the deviation, {method}", estimate(covered), 0.9, 1),
        ]
    return checks


STUDY = Study(
    name="gap-spectrum",
    label="fig:threshold_gap_minv",
    title="The mass spectrum made with a surrogate that has not seen part of it",
    grid=grid,
    measure=gap_accuracy.measure,
    figure=figure,
    claims=(
        Claim("G2", "The weighted spectrum overlaps the truth; deviation below 1e-4, bands larger than it.", overlap),
    ),
)
