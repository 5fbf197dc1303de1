"""Squared error, heteroscedastic and natural likelihood, fig. (natural_het_benchmark), without and with 5 % noise."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ampsure.disturbances import UniformSmearing
from ampsure.report.style import panels

from .curves import draw_deviation, draw_shares, finish
from .measure import DEVIATION_EDGES, standard
from .presets import Preset
from .study import Case, Check, Claim, Results, Study, ratio

METHODS = ("mse", "heteroscedastic", "natural")
NOISES = (0.0, 0.05)


def grid(preset: Preset, methods: Sequence[str] = METHODS) -> list[Case]:
    """Methods without and with noise everywhere."""
    return [
        Case(
            {"method": method, "noise": noise, "run": run},
            preset.config(method, run=run),
            (UniformSmearing(noise),) if noise else (),
        )
        for noise in NOISES
        for method in methods
        for run in range(preset.runs)
    ]


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    for k, method in enumerate(METHODS):
        measured = next(results.where(method=method, noise=0.0))
        draw_deviation(axes[0, 0], measured, k, label=method)
        if method != "mse":
            draw_shares(axes[0, 1], measured["sigmas"]["systematic"], DEVIATION_EDGES, k, label=method)
    axes[0, 1].set(xlabel=r"$\log_{10} \sigma_\mathrm{syst}/A$", ylabel="normalised")
    finish(*axes[0])
    return drawn


def deviations(results: Results, above: str, below: str, noise: float, low: float, high: float) -> Check:
    """Ratio of the mean |Delta| of two methods."""
    found = [results.estimate("accuracy.mean", method=method, noise=noise) for method in (above, below)]
    return Check(f"mean |Δ| of {above} / {below} at {noise:.0%} noise", ratio(*found), low, high)


def order(results: Results) -> list[Check]:
    return [
        deviations(results, "heteroscedastic", "mse", 0.0, 0, 1),
        deviations(results, "mse", "natural", 0.0, 0, 1),
    ]


def narrower(results: Results) -> list[Check]:
    spreads = [results.estimate("sigma.systematic.spread", method=m, noise=0.0) for m in ("natural", "heteroscedastic")]
    return [Check("spread of log σ, natural / heteroscedastic", ratio(*spreads), 0, 0.5)]


def alike(results: Results) -> list[Check]:
    return [
        deviations(results, "natural", "heteroscedastic", 0.05, 0.8, 1.25),
        deviations(results, "heteroscedastic", "mse", 0.05, 0, 1),
    ]


STUDY = Study(
    name="likelihoods",
    label="fig:natural_het_benchmark",
    title="Squared error against heteroscedastic and natural likelihood",
    grid=grid,
    measure=standard,
    figure=figure,
    claims=(
        Claim("L1", "Zero noise: heteroscedastic is more accurate than MSE, MSE more than natural.", order),
        Claim("L2", "The natural parametrisation gives a much narrower distribution of σ.", narrower),
        Claim("L3", "5 % noise: heteroscedastic and natural perform alike, MSE is worse.", alike),
    ),
)
