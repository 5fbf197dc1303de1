"""How far the amplitudes spread, fig. (true_amps)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ampsure.events import Events
from ampsure.report.style import panels

from .curves import draw_shares
from .measure import shares, standard
from .study import Check, Claim, Estimate, Results, Study

EDGES = np.linspace(-9, -1, 81)  # of log10 A


def measure_data(events: Events) -> dict[str, Any]:
    size = np.sort(np.log10(events.truth))
    return {
        "amplitudes": shares(size, EDGES),
        "decades": size[-1] - size[0],
        "gap": np.hypot(size[-1] - size[-2], size[1] - size[0]),  # how far the ends move if they are left out
        "unit": events.process.unit,
    }


def figure(results: Results) -> Figure:
    drawn, axes = panels()
    draw_shares(axes[0, 0], results.data["amplitudes"], EDGES, 0)
    axes[0, 0].set(yscale="log", xlabel=r"$\log_{10} A$ / " + f"({results.data['unit']})", ylabel="normalised")
    return drawn


def decades(results: Results) -> list[Check]:
    return [
        Check(
            "decades between smallest and largest A", Estimate(results.data["decades"], results.data["gap"]), 4.5, 5.5
        )
    ]


STUDY = Study(
    name="true-amplitudes",
    label="fig:true_amps",
    title="How far the squared amplitudes spread",
    grid=lambda preset: [],
    measure=standard,
    measure_data=measure_data,
    figure=figure,
    claims=(Claim("D1", "Squared amplitudes span about five orders of magnitude.", decades),),
)
