"""Uncertainties in a region without training events, fig. (threshold_gap_mse)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ampsure.report.style import panels

from . import gap_accuracy
from .curves import draw_curve, finish
from .gap_accuracy import BAYESIAN, ENSEMBLE, EVIDENTIAL, HALF_WIDTH
from .measure import THRESHOLD
from .study import Check, Claim, Estimate, Results, Study, estimate, ratio


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    for panel, name in zip(axes[0], ("statistical", "systematic"), strict=True):
        for k, (method, gap) in enumerate((m, g) for m in (ENSEMBLE, BAYESIAN) for g in (False, True)):
            measured = next(results.where(method=method, gap=gap))
            words = "with gap" if gap else "full data"
            draw_curve(panel, measured["mass"][name], k, label=f"{method}, {words}")
        for edge in (THRESHOLD - HALF_WIDTH, THRESHOLD + HALF_WIDTH):
            panel.axvline(edge, color="0.6", linestyle="--", linewidth=0.8)
        symbol = rf"median $\sigma_\mathrm{{{name[:4]}}}/A$"
        panel.set(yscale="log", xlabel=r"$m_{\gamma\gamma g}$ / GeV", ylabel=symbol)
    finish(*axes[0])
    return drawn


def rise(results: Results, method: str, name: str, where: str) -> Estimate:
    """Median sigma/A of the training with gap over that on full data: in the gap, or outside of it."""
    path = f"gap.sigma.{name}.median" if where == "in the gap" else f"outside.{name}"
    return ratio(*(results.estimate(path, method=method, gap=gap) for gap in (True, False)))


def true_rise(results: Results, method: str) -> Check:
    """Not a claim of the paper: what the error itself does, without which a rise of sigma means nothing."""
    found = ratio(*(results.estimate("gap.accuracy.median", method=method, gap=gap) for gap in (True, False)))
    return Check(f"rise of the true error in the gap, {method}", found)


def statistical(results: Results) -> list[Check]:
    return [
        Check("rise of σ_stat in the gap, ensemble", rise(results, ENSEMBLE, "statistical", "in the gap"), 1.1, np.inf),
        Check("rise of σ_stat outside, ensemble", rise(results, ENSEMBLE, "statistical", "outside"), 0.8, 1.25),
        Check("rise of σ_stat in the gap, BNN", rise(results, BAYESIAN, "statistical", "in the gap"), 1.1, np.inf),
        Check("rise of σ_stat outside, BNN", rise(results, BAYESIAN, "statistical", "outside"), 1.1, np.inf),
        true_rise(results, ENSEMBLE),
        true_rise(results, BAYESIAN),
    ]


def systematic(results: Results) -> list[Check]:
    medians = {
        (m, s): results.estimate(f"all.sigma.{s}.median", method=m, gap=True)
        for m in (ENSEMBLE, BAYESIAN)
        for s in ("statistical", "systematic")
    }
    return [
        *(
            Check(f"rise of σ_syst in the gap, {m}", rise(results, m, "systematic", "in the gap"), 1.05, np.inf)
            for m in (ENSEMBLE, BAYESIAN)
        ),
        Check(
            "σ_syst, BNN / ensemble", ratio(medians[BAYESIAN, "systematic"], medians[ENSEMBLE, "systematic"]), 1, np.inf
        ),
        Check(
            "σ_stat, ensemble / BNN",
            ratio(medians[ENSEMBLE, "statistical"], medians[BAYESIAN, "statistical"]),
            1,
            np.inf,
        ),
    ]


def flat(results: Results) -> list[Check]:
    """Inside over outside, with gap over without: one if the gap leaves no trace."""
    checks = []
    for name in ("statistical", "systematic"):
        values = [results.values(f"ratio.{name}.value", method=EVIDENTIAL, gap=gap) for gap in (True, False)]
        checks.append(Check(f"trace of the gap in σ_{name[:4]}, evidential", estimate(values[0] / values[1]), 0.9, 1.1))
    return checks


STUDY = Study(
    name="gap-uncertainty",
    label="fig:threshold_gap_mse",
    title="Uncertainties in a region without training events",
    grid=gap_accuracy.grid,
    measure=gap_accuracy.measure,
    figure=figure,
    claims=(
        Claim("G3", "σ_stat of the ensemble rises inside the gap only, of the BNN everywhere.", statistical),
        Claim("G4", "σ_syst rises in the gap for both; BNN larger σ_syst, ensemble larger σ_stat.", systematic),
        Claim("G5", "Evidential regression: both uncertainties flat across the gap.", flat),
    ),
)
