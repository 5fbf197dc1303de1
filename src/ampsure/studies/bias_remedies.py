"""The bias of large amplitudes with likelihoods that give them more weight."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ampsure.report.style import panels

from .bias_table import measure
from .curves import draw_curve, finish
from .presets import Preset
from .study import Case, Check, Claim, Results, Study, Table, estimate

REMEDIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "beta 0.5": {"beta": 0.5},
    "beta 1": {"beta": 1.0},
    "faithful": {"faithful": True},
}
NETWORKS = {"1x32": (32,), "full": None}


def grid(preset: Preset) -> list[Case]:
    return [
        Case(
            {"network": name, "remedy": remedy, "run": run},
            preset.config(
                "heteroscedastic",
                {"network": {"hidden": hidden or preset.hidden}, "likelihood": {"name": "gaussian", **options}},
                run=run,
            ),
        )
        for name, hidden in NETWORKS.items()
        for remedy, options in REMEDIES.items()
        for run in range(preset.runs)
    ]


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    for panel, network in zip(axes[0], NETWORKS, strict=True):
        for k, remedy in enumerate(REMEDIES):
            draw_curve(panel, next(results.where(network=network, remedy=remedy))["binned"], k, label=remedy)
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set(xscale="log", xlabel=r"$A_\mathrm{true}$", ylabel=r"$\langle\Delta\rangle$", title=network)
        panel.set_yscale("symlog", linthresh=1e-3 if network == "1x32" else 1e-5)
    finish(*axes[0])
    return drawn


def tables(results: Results) -> list[Table]:
    paths = ("largest", "bias.share_positive", "accuracy.mean", "accuracy.median", "accuracy.quantile99")
    rows = [
        [network, remedy, *(f"{results.estimate(path, network=network, remedy=remedy).value:.2e}" for path in paths)]
        for network in NETWORKS
        for remedy in REMEDIES
    ]
    header = ["network", "loss", "<Δ>, largest 0.1 %", "share Δ > 0", "mean |Δ|", "median |Δ|", "99 % of |Δ|"]
    return [Table(header, rows)]


def cured(results: Results) -> list[Check]:
    checks = []
    for network in NETWORKS:
        sizes = {r: np.abs(results.values("largest", network=network, remedy=r)) for r in ("plain", "beta 0.5")}
        gained = estimate(sizes["plain"] / sizes["beta 0.5"])
        checks.append(Check(f"|<Δ>| of the largest 0.1 %, plain / beta 0.5, {network}", gained, 1.0))
    return checks


STUDY = Study(
    name="bias-remedies",
    label="ours",
    title="The bias of large amplitudes, with and without remedies",
    grid=grid,
    measure=measure,
    figure=figure,
    tables=tables,
    claims=(Claim("O3", "Weighing events by sigma lowers the bias of large amplitudes.", cured),),
)
