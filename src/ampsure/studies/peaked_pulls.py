"""Pulls near the threshold under peaked smearing, fig. (threshold_peaked_smearing_pull)."""

from __future__ import annotations

from matplotlib.figure import Figure

from ampsure.report.style import panels

from . import peaked_smearing
from .box_smearing import BAYESIAN, EVIDENTIAL, METHODS
from .curves import draw_pull, finish
from .presets import Preset
from .study import Case, Check, Claim, Results, Study


def grid(preset: Preset) -> list[Case]:
    return [case for case in peaked_smearing.grid(preset) if case.labels["method"] in METHODS]


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, len(METHODS))
    for panel, method in zip(axes[0], METHODS, strict=True):
        for k, epsilon in enumerate(results.labels("epsilon", method=method)):
            measured = next(results.where(method=method, epsilon=epsilon))["near"]
            draw_pull(panel, measured, "systematic", k, label=rf"$\epsilon={epsilon:g}$" if epsilon else "no smearing")
        panel.set_title(method, fontsize=11)
    finish(*axes[0], gaussian=tuple(axes[0]))
    return drawn


def overestimated(results: Results) -> list[Check]:
    def width(method: str, epsilon: float, low: float, high: float) -> Check:
        # the noise has no upper limit: a few events next to the threshold would decide a standard deviation
        found = results.estimate("near.pulls.systematic.core", method=method, epsilon=epsilon)
        return Check(f"|t_syst| that holds 68 %, {method}, ε = {epsilon:g}", found, low, high)

    epsilons = [e for e in results.labels("epsilon") if e]
    return [
        *(width(method, epsilon, 0, 0.95) for method in METHODS for epsilon in epsilons),
        *(width(method, 0.0, 0.9, 1.1) for method in (EVIDENTIAL, BAYESIAN)),
    ]


STUDY = Study(
    name="peaked-pulls",
    label="fig:threshold_peaked_smearing_pull",
    title="Pulls near the threshold under peaked smearing",
    grid=grid,
    measure=peaked_smearing.measure,
    figure=figure,
    claims=(
        Claim(
            "P4",
            "195 < m < 205 GeV: uncertainties overestimated by all three under smearing, calibrated without (ER, BNN).",
            overestimated,
        ),
    ),
)
