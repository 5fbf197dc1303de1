"""What the strength of the repulsion changes, fig. (rep_test)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from ampsure.report.style import colour, panels

from .curves import finish
from .measure import standard
from .presets import Preset
from .study import Case, Check, Claim, Estimate, Results, Study, estimate

BETAS = (0.0, 1e-5, 0.01, 1.0, 10.0)
SHARES = (0.012, 0.034, 0.103, 0.305, 0.8)
TEST_SHARE = 0.1


def grid(preset: Preset) -> list[Case]:
    betas, shares = {"smoke": (BETAS[::3], SHARES[2::2]), "laptop": (BETAS, SHARES[::2])}.get(
        preset.name, (BETAS, SHARES)
    )
    return [
        Case(
            {"beta": beta, "share": share, "run": run},
            preset.config(
                "repulsive",
                {"posterior": {"beta": beta}, "data": {"fractions": (share, 0.1, 0.9 - share)}},
                run=run,
            ),
            test_share=TEST_SHARE,
        )
        for share in shares
        for beta in betas
        for run in range(preset.runs)
    ]


QUANTITIES = {
    "sigma.systematic.mean": r"$\langle\sigma_\mathrm{syst}/A\rangle$",
    "sigma.statistical.mean": r"$\langle\sigma_\mathrm{stat}/A\rangle$",
    "accuracy.bias": r"$\langle\Delta\rangle$",
    "pulls.systematic.mean": r"$\langle t_\mathrm{syst}\rangle$",
}


def figure(results: Results) -> Figure:
    drawn, axes = panels(2, 2)
    shares = np.array(results.labels("share"))
    for panel, (path, symbol) in zip(axes.flat, QUANTITIES.items(), strict=True):
        for k, beta in enumerate(results.labels("beta")):
            found = [results.values(path, beta=beta, share=share) for share in shares]
            shift = 1 + 0.04 * (k - 2)  # so that error bars do not hide each other
            panel.errorbar(
                shift * shares, np.mean(found, 1), np.std(found, 1), capsize=2, **colour(k), label=f"$\\beta={beta:g}$"
            )
        panel.set(xscale="log", xlabel="share of the events used for training", ylabel=symbol)
    for panel in axes[0]:
        panel.set_yscale("log")
    finish(axes[0, 0])
    return drawn


def spread(results: Results, path: str, share: float) -> Estimate:
    """Standard deviation over beta of the means over runs, relative to their mean; its error from runs left out."""
    betas, runs = results.labels("beta"), results.labels("run")
    values = np.array([results.values(path, beta=beta, share=share) for beta in betas])  # (beta, run)

    def relative(chosen: list[int]) -> float:
        means = values[:, chosen].mean(1)
        return float(means.std(ddof=1) / abs(means.mean()))

    full = relative(list(runs))
    if len(runs) < 2:
        return Estimate(full, np.inf)
    left_out = [relative([r for r in runs if r != out]) for out in runs]
    return Estimate(full, float(np.sqrt((len(runs) - 1) / len(runs) * np.square(np.array(left_out) - full).sum())))


def vanishes(results: Results) -> list[Check]:
    largest = max(results.labels("share"))
    return [
        Check(f"relative spread of {name} over β, {largest:.0%} of the events", spread(results, path, largest), 0, 0.05)
        for name, path in (("σ_syst/A", "sigma.systematic.mean"), ("σ_stat/A", "sigma.statistical.mean"))
    ]


def significance(samples: Sequence[NDArray[np.float64]]) -> Estimate:
    """How far the samples (R,) are from a mean of zero: that of the farthest, as if a Gaussian were, trials counted.

    Student's t of few runs has long tails, and the largest of many is large by chance.
    """
    if len(samples[0]) < 2:
        return Estimate(0.0, np.inf)
    smallest = min(float(stats.ttest_1samp(sample, 0.0).pvalue) for sample in samples)
    return Estimate(float(stats.norm.isf(min(smallest * len(samples), 1.0) / 2)), 0.5)


def unbiased(results: Results) -> list[Check]:
    betas, shares = results.labels("beta"), results.labels("share")
    biases = [results.values("accuracy.bias", beta=b, share=s) for b in betas for s in shares]
    wide = {b: estimate([results.values("accuracy.bias", beta=b, share=s).std() for s in shares]) for b in betas}
    sharpest = min(e.value for b, e in wide.items() if b)
    narrowing = wide[0.0].value / sharpest
    settling = np.divide(*(results.values("pulls.systematic.mean", share=s).std() for s in (max(shares), min(shares))))
    relative = 1 / np.sqrt(len(results.labels("run")) * len(shares))  # of a standard deviation, and of two
    return [
        Check(f"most significant <Δ> of {len(biases)}, in Gaussian standard errors", significance(biases), high=2),
        Check("spread of <Δ> at β = 0 / smallest of the others", Estimate(narrowing, narrowing * relative), 0, 1),
        Check(
            "spread of <t_syst> at the largest / smallest training set",
            Estimate(float(settling), float(settling) / np.sqrt(len(results.labels("run")) * len(betas))),
            0,
            1,
        ),
    ]


STUDY = Study(
    name="repulsion",
    label="fig:rep_test",
    title="What the strength of the repulsion changes",
    grid=grid,
    measure=standard,
    figure=figure,
    claims=(
        Claim("R1", "The spread of σ_syst/A and of σ_stat/A over β vanishes for large training sets.", vanishes),
        Claim("R2", "<Δ> agrees with zero, its spread is smallest for β = 0, and the mean pull settles.", unbiased),
    ),
)
