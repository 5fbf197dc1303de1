"""Three ways to combine the systematic uncertainties of an ensemble, fig. (re_sig_ensemble)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ampsure.report.style import panels

from . import ensemble_size
from .curves import draw_pull, finish
from .measure import PULL_EDGES
from .presets import Preset
from .study import Case, Check, Claim, Estimate, Results, Study, estimate

NOISES = (0.0, 0.05)
LARGE = 100  # members from which on the paper sees two peaks


def grid(preset: Preset) -> list[Case]:
    """The largest ensemble and one a quarter as large; without noise all sizes, shared with the study of them."""
    shown = preset.ensembles[-1], preset.ensembles[-3]
    return ensemble_size.grid(preset) + [
        case for case in ensemble_size.grid(preset, NOISES[1]) if case.labels["members"] in shown
    ]


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    for panel, noise in zip(axes[0], NOISES, strict=True):
        sizes = results.labels("members", noise=0.05)
        for k, (members, variant) in enumerate((m, v) for m in sizes for v in ("averaged", "global")):
            measured = next(results.where(members=members, noise=noise))[variant]
            draw_pull(panel, measured, "systematic", k, label=f"{variant}, $N_{{ens}}={members}$")
        panel.set_title("no noise" if noise == 0 else f"{noise:.0%} noise", fontsize=11)
    finish(*axes[0], gaussian=tuple(axes[0]))
    return drawn


def width(results: Results, variant: str, noise: float, low: float, high: float) -> Check:
    members = max(results.labels("members", noise=noise))
    found = results.estimate(f"{variant}.pulls.systematic.width", members=members, noise=noise)
    return Check(f"width of t_syst, {variant}, N_ens = {members}, {noise:.0%} noise", found, low, high)


def without_noise(results: Results) -> list[Check]:
    return [
        width(results, "averaged", 0.0, 0, 0.9),
        width(results, "inverse-variance", 0.0, 1.1, np.inf),
        width(results, "global", 0.0, 0.95, 1.05),
    ]


def two_peaks(results: Results) -> list[Check]:
    """Density of the pull at zero over that at one: 1.65 for a Gaussian, less than one between two peaks."""
    members = max(results.labels("members"))
    centres = 0.5 * (PULL_EDGES[1:] + PULL_EDGES[:-1])
    middle, sides = np.abs(centres) < 0.25, np.abs(np.abs(centres) - 1) < 0.25
    densities = [np.array(m["global"]["pull"]["systematic"]) for m in results.where(members=members, noise=0.0)]
    found = estimate([d[middle].mean() / d[sides].mean() for d in densities])
    if members < LARGE:  # the claim is about larger ensembles: neither right nor wrong
        found = Estimate(found.value, np.inf)
    return [Check(f"density of t_syst at 0 / at ±1, N_ens = {members}", found, 0, 1)]


def with_noise(results: Results) -> list[Check]:
    return [width(results, variant, NOISES[1], 0.95, 1.05) for variant in ("averaged", "global")]


STUDY = Study(
    name="ensemble-sigma",
    label="fig:re_sig_ensemble",
    title="Three ways to combine the systematic uncertainties of an ensemble",
    grid=grid,
    measure=ensemble_size.measure,
    figure=figure,
    claims=(
        Claim(
            "R8",
            "Zero noise: averaged σ_syst too large, inverse-variance too small, global calibrated.",
            without_noise,
        ),
        Claim("R9", "For N_ens ≳ 100 the pull of the global σ shows two peaks near ±1.", two_peaks),
        Claim("R10", "Noisy data: averaged and global σ both calibrated.", with_noise),
    ),
)
