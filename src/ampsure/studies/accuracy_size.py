"""Accuracy against the number of training events: its exponent, and the floor that the length of a training sets."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import curve_fit

from ampsure.config import resolve
from ampsure.report.style import colour, panels

from .curves import finish
from .measure import standard
from .presets import Preset
from .study import Case, Check, Claim, Estimate, Results, Study, Table

RECIPES = ("paper", "accurate")
SHARES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.8)
LENGTH, LONGEST = 3, 3000  # of a training: times that of the preset, and epochs


def grid(preset: Preset) -> list[Case]:
    """Single networks; all see the same number of batches, but in at most some thousand epochs."""
    shares = {"smoke": (0.1, 0.3, 0.8), "laptop": SHARES[1:]}.get(preset.name, SHARES)
    return [
        Case(
            {"recipe": recipe, "events": round(share * preset.events), "run": run},
            resolve(
                "heteroscedastic",
                recipe,
                {"network": {"hidden": preset.hidden}, "data": {"fractions": (share, 0.1, 0.9 - share)}},
                epochs=min(round(LENGTH * preset.epochs * 0.8 / share), LONGEST),
                batch_size=min(preset.batch_size, 1024) if recipe == "paper" else preset.batch_size,
                seed=run,
            ),
            test_share=0.1,
        )
        for recipe in RECIPES
        for share in shares
        for run in range(preset.runs)
    ]


def _law(log_size: ArrayLike, log_scale: float, power: float, log_floor: float) -> NDArray[np.float64]:
    """Logarithm of s (N/1000)^-p + c."""
    law: NDArray[np.float64] = np.logaddexp(log_scale - power * (np.asarray(log_size) - np.log(1000)), log_floor)
    return law


def fit(results: Results, recipe: str) -> tuple[NDArray[np.float64], Estimate]:
    """Parameters of mean |Delta| = s (N/1000)^-p + c in `_law`, and p with its error, from all runs."""
    sizes = results.labels("events", recipe=recipe)
    points = [(n, value) for n in sizes for value in results.values("accuracy.mean", recipe=recipe, events=n)]
    size, mean = np.log(np.array(points)).T
    lowest, highest = mean.min(), mean.max()
    limits = ([-np.inf, 0, lowest - 5], [np.inf, 5, highest])  # far below all errors, a floor is none
    found, covariance = curve_fit(_law, size, mean, (highest, 1, lowest - 0.1), bounds=limits)
    return found, Estimate(found[1], np.sqrt(covariance[1, 1]))


def figure(results: Results) -> Figure:
    drawn, axes = panels()
    panel = axes[0, 0]
    for k, recipe in enumerate(RECIPES):
        sizes = results.labels("events", recipe=recipe)
        found = [results.values("accuracy.mean", recipe=recipe, events=n) for n in sizes]
        law, power = fit(results, recipe)
        label = rf"{recipe}: $N^{{-{power.value:.2f} \pm {power.error:.2f}}} + ${np.exp(law[2]):.1e}"
        means, errors = ([f(values) for values in found] for f in (np.mean, np.std))
        panel.errorbar(sizes, means, errors, **{**colour(k), "marker": "os"[k], "linestyle": "none"}, capsize=3)
        line = np.geomspace(min(sizes), max(sizes), 100)
        panel.plot(line, np.exp(_law(np.log(line), *law)), **colour(k), label=label)
    panel.set(xscale="log", yscale="log", xlabel="training events", ylabel=r"$\langle|\Delta|\rangle$")
    finish(panel)
    return drawn


def tables(results: Results) -> list[Table]:
    rows = []
    for recipe in RECIPES:
        for n in results.labels("events", recipe=recipe):
            found = [results.estimate(f"accuracy.{k}", recipe=recipe, events=n).value for k in ("mean", "median")]
            rows.append([recipe, str(n), *(f"{value:.2e}" for value in found)])
    return [Table(["recipe", "training events", "mean |Δ|", "median |Δ|"], rows)]


def scaling(results: Results) -> list[Check]:
    powers = {recipe: fit(results, recipe)[1] for recipe in RECIPES}
    return [Check(f"p of mean |Δ| ~ N^-p + floor, {recipe}", power, 0.5) for recipe, power in powers.items()]


STUDY = Study(
    name="accuracy-size",
    label="ours",
    title="Accuracy against the number of training events",
    grid=grid,
    measure=standard,
    figure=figure,
    tables=tables,
    claims=(
        Claim(
            "O2",
            "The error falls faster than the inverse square root of the training events, down to a floor.",
            scaling,
        ),
    ),
)
