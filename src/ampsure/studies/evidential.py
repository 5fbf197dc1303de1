"""Evidential regression, regularised and constrained, fig. (evidential), and with 5 % noise."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ampsure.report.style import panels

from . import likelihoods
from .curves import draw_deviation, draw_pull, draw_shares, finish
from .measure import DEVIATION_EDGES, standard
from .presets import Preset
from .study import Case, Check, Claim, Results, Study, ratio

VARIANTS = ("evidential", "evidential-regularised")


def grid(preset: Preset) -> list[Case]:
    return likelihoods.grid(preset, (*VARIANTS, "heteroscedastic"))


def figure(results: Results) -> Figure:
    drawn, axes = panels(2, 2)
    for k, method in enumerate(VARIANTS):
        measured = next(results.where(method=method, noise=0.0))
        draw_deviation(axes[0, 0], measured, k, label=method)
        draw_pull(axes[0, 1], measured, "systematic", k, label=method)
        draw_shares(axes[1, 0], measured["sigmas"]["systematic"], DEVIATION_EDGES, k, label=method)
        draw_pull(axes[1, 1], measured, "statistical", k, label=method)
    axes[1, 0].set(xlabel=r"$\log_{10} \sigma_\mathrm{syst}/A$", ylabel="normalised")
    finish(*axes.flat, gaussian=(axes[0, 1], axes[1, 1]))
    return drawn


def accurate(results: Results) -> list[Check]:
    means = {m: results.estimate("accuracy.mean", method=m, noise=0.0) for m in (*VARIANTS, "heteroscedastic")}
    return [
        Check("mean |Δ|, regularised / constrained", ratio(means[VARIANTS[1]], means[VARIANTS[0]]), 0.8, 1.25),
        Check(
            "mean |Δ|, constrained / heteroscedastic", ratio(means[VARIANTS[0]], means["heteroscedastic"]), 0.67, 1.5
        ),
    ]


def uncertainties(results: Results) -> list[Check]:
    checks = []
    for method in VARIANTS:
        stat, syst = (
            results.estimate(f"sigma.{s}.median", method=method, noise=0.0) for s in ("statistical", "systematic")
        )
        checks += [
            Check(
                f"width of t_syst, {method}",
                results.estimate("pulls.systematic.width", method=method, noise=0.0),
                0.95,
                1.05,
            ),
            Check(f"median σ_stat / σ_syst, {method}", ratio(stat, syst), 0, 0.3),
            Check(
                f"width of t_stat, {method}",
                results.estimate("pulls.statistical.width", method=method, noise=0.0),
                2,
                np.inf,
            ),
        ]
    stats = [results.estimate("sigma.statistical.median", method=method, noise=0.0) for method in VARIANTS]
    return [*checks, Check("median σ_stat, constrained / regularised", ratio(*stats), 0, 1)]


def smeared(results: Results) -> list[Check]:
    return [
        Check(f"width of t, {m}, 5 % noise", results.estimate("pulls.total.width", method=m, noise=0.05), 0.95, 1.05)
        for m in VARIANTS
    ]


STUDY = Study(
    name="evidential",
    label="fig:evidential",
    title="Evidential regression, regularised and constrained",
    grid=grid,
    measure=standard,
    figure=figure,
    claims=(
        Claim("E1", "Both variants reach the same mean |Δ|, comparable to the other methods.", accurate),
        Claim(
            "E2",
            "Systematic pulls calibrated; σ_stat much smaller than σ_syst; statistical pull broad; "
            "the constraint gives the smaller σ_stat.",
            uncertainties,
        ),
        Claim("E3", "Universal smearing of all data: calibrated.", smeared),
    ),
)
