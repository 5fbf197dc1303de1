"""Accuracy in a region without training events, fig. (threshold_gap2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ampsure.disturbances import Gap
from ampsure.evaluation import as_json, binned, region_ratio, relative_deviation
from ampsure.events import Events
from ampsure.report.style import panels
from ampsure.surrogate import Surrogate

from .curves import draw_deviation, finish
from .measure import MASS_EDGES, against_mass, inside, overview
from .presets import Preset
from .study import Case, Check, Claim, Results, Study, ratio

ENSEMBLE, BAYESIAN, EVIDENTIAL = "repulsive", "bayesian", "evidential"
METHODS = (ENSEMBLE, BAYESIAN, EVIDENTIAL)
HALF_WIDTH = 40.0


def grid(preset: Preset) -> list[Case]:
    return [
        Case(
            {"method": method, "gap": gap, "run": run},
            preset.config(method, run=run),
            (Gap(HALF_WIDTH),) if gap else (),
        )
        for method in METHODS
        for gap in (False, True)
        for run in range(preset.runs)
    ]


def measure(surrogate: Surrogate, events: Events, case: Case) -> dict[str, Any]:
    """All events, those in the gap, everything against the mass, and ratios inside over outside."""
    prediction = surrogate.predict(events.momenta)
    gap, mass = inside(events, HALF_WIDTH), events.final_state_mass
    delta = relative_deviation(prediction.amplitude, events.truth)
    found = {
        "all": overview(prediction, events),
        "gap": overview(surrogate.predict(events.momenta[gap]), events[gap]),
        "mass": against_mass(prediction, events),
        "shift": binned(mass, delta, MASS_EDGES, np.mean),  # of the spectrum weighted with A_NN/A_true
        "band": binned(mass, prediction.sigma_tot / prediction.amplitude, MASS_EDGES, np.mean, bootstrap=0),
        "true_error_ratio": region_ratio(np.abs(delta), gap),
        "ratio": {
            name: region_ratio(sigma / prediction.amplitude, gap)
            for name, sigma in (("statistical", prediction.sigma_stat), ("systematic", prediction.sigma_syst))
        },
        "outside": {
            name: np.median((sigma / prediction.amplitude)[~gap])
            for name, sigma in (("statistical", prediction.sigma_stat), ("systematic", prediction.sigma_syst))
        },
    }
    result: dict[str, Any] = as_json(found)
    return result


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    for panel, method in zip(axes[0], (ENSEMBLE, BAYESIAN), strict=True):
        for k, gap in enumerate((False, True)):
            measured = next(results.where(method=method, gap=gap))
            words = "with gap" if gap else "full data"
            draw_deviation(panel, measured["all"], k, label=words, linestyle="-")
            draw_deviation(panel, measured["gap"], k, label=f"{words}, events in the gap", linestyle="--")
        panel.set_title(method, fontsize=11)
    finish(*axes[0])
    return drawn


def modest(results: Results) -> list[Check]:
    checks = []
    for method in (ENSEMBLE, BAYESIAN):
        with_gap, full = (results.estimate("gap.accuracy.median", method=method, gap=gap) for gap in (True, False))
        overall = results.estimate("all.accuracy.median", method=method, gap=True)
        checks += [
            Check(f"median |Δ| in the gap, trained with gap / on full data, {method}", ratio(with_gap, full), 1, 2),
            Check(f"median |Δ|, in the gap / of all events, {method}", ratio(with_gap, overall), 0, 2),
        ]
    return checks


STUDY = Study(
    name="gap-accuracy",
    label="fig:threshold_gap2",
    title="Accuracy in a region without training events",
    grid=grid,
    measure=measure,
    figure=figure,
    claims=(Claim("G1", "Accuracy in the gap is only modestly worse.", modest),),
)
