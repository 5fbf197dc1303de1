"""Exact against linear error propagation, appendix A."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ampsure.disturbances import UniformSmearing
from ampsure.evaluation import as_json
from ampsure.events import Events
from ampsure.report.style import panels
from ampsure.surrogate import Surrogate

from .curves import draw_shares, finish
from .measure import shares
from .presets import Preset
from .study import Case, Check, Claim, Results, Study

NOISES = (0.0, 0.05)
EDGES = np.linspace(-16, 0, 81)  # of log10


def grid(preset: Preset) -> list[Case]:
    """Trained by the studies of gaps and noise too; the noisy case shows where the linear formula ends."""
    return [
        Case(
            {"noise": noise, "run": run},
            preset.config("repulsive", run=run),
            (UniformSmearing(noise),) if noise else (),
        )
        for noise in NOISES
        for run in range(preset.runs)
    ]


def measure(surrogate: Surrogate, events: Events, case: Case) -> dict[str, Any]:
    """Differences of the amplitude, in units of its uncertainty, and of the uncertainties, relative."""
    exact, linear = (surrogate.predict(events.momenta, linear=choice) for choice in (False, True))
    shift = np.abs(exact.amplitude - linear.amplitude) / exact.sigma_tot
    relative = np.abs(linear.sigma_tot / exact.sigma_tot - 1)
    found = {
        "shift": {"median": np.median(shift), "largest": shift.max()},
        "relative": {"median": np.median(relative), "largest": relative.max()},
        "shifts": shares(np.log10(shift + 1e-300), EDGES),
        "relatives": shares(np.log10(relative + 1e-300), EDGES),
        "variance": np.median(np.square(linear.sigma_tot / linear.amplitude)),
    }
    result: dict[str, Any] = as_json(found)
    return result


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    for k, noise in enumerate(results.labels("noise")):
        measured = next(results.where(noise=noise))
        label = f"{noise:.0%} noise" if noise else "no noise"
        draw_shares(axes[0, 0], measured["relatives"], EDGES, k, label=label)
        draw_shares(axes[0, 1], measured["shifts"], EDGES, k, label=label)
    axes[0, 0].set(xlabel=r"$\log_{10} |\sigma_\mathrm{linear}/\sigma_\mathrm{exact} - 1|$", ylabel="normalised")
    axes[0, 1].set(xlabel=r"$\log_{10} |A_\mathrm{linear} - A_\mathrm{exact}|/\sigma$", ylabel="normalised")
    finish(*axes[0])
    return drawn


def negligible(results: Results) -> list[Check]:
    return [
        Check("median relative difference of σ", results.estimate("relative.median", noise=0.0), 0, 1e-3),
        Check("median difference of A in units of σ", results.estimate("shift.median", noise=0.0), 0, 1e-2),
    ]


STUDY = Study(
    name="error-propagation",
    label="app:error_prop",
    title="Exact against linear error propagation",
    grid=grid,
    measure=measure,
    figure=figure,
    claims=(Claim("A1", "Exact log-normal and linear propagation differ negligibly at these precisions.", negligible),),
)
