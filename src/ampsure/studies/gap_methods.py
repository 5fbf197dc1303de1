"""Who knows where there was no data: sigma_stat of all posteriors against the true error, in gaps of several widths."""

from __future__ import annotations

from itertools import product
from math import inf
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from ampsure.disturbances import Gap
from ampsure.evaluation import accuracy, as_json, relative_deviation
from ampsure.events import Events
from ampsure.preprocessing import get_features
from ampsure.report.style import colour, panels
from ampsure.surrogate import Surrogate

from .measure import THRESHOLD
from .presets import Preset
from .study import Case, Check, Claim, Estimate, Results, Study, Table

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

WIDTHS = (20.0, 40.0, 80.0)  # GeV, half of each
EVIDENTIAL, DENSITY, RECOMMENDED = "evidential", "evidential, density", "recommended"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "heteroscedastic": ("heteroscedastic", {}),
    EVIDENTIAL: ("evidential", {}),
    "bayesian": ("bayesian", {}),
    "Laplace, last layer": ("heteroscedastic", {"name": "laplace", "structure": "last-layer"}),
    "Laplace, K-FAC": ("heteroscedastic", {"name": "laplace", "structure": "kfac"}),
    "repulsive": ("repulsive", {}),
    "randomized priors": ("repulsive", {"beta": 0.0, "prior_scale": 3.0}),
}
MEMBERS = (1, 4, 8)  # of the recommended method
EPOCHS = {"laptop": 15}  # thirty trainings in ten minutes of one core
NEAREST, DIMENSION = 16, 5  # events that tell a density; independent invariants of 2 -> 3 legs


def grid(preset: Preset) -> list[Case]:
    smoke, epochs = preset.name == "smoke", EPOCHS.get(preset.name, preset.epochs)
    methods = {name: (method, {"posterior": section}) for name, (method, section) in METHODS.items()}
    for members in MEMBERS[:2] if smoke else MEMBERS:
        methods[f"{RECOMMENDED}, {members}"] = (RECOMMENDED, {"posterior": {"members": members}})
    return [
        Case({"method": name, "gap": width, "run": 0}, preset.config(method, sections, epochs=epochs), (Gap(width),))
        for name, (method, sections) in methods.items()
        for width in (WIDTHS[1:2] if smoke else WIDTHS)
    ]


def measure(surrogate: Surrogate, events: Events, case: Case) -> dict[str, Any]:
    """Errors and both sigmas, in the gap and on both sides of it."""
    p = surrogate.predict(events.momenta)
    gap = ~events.trainable
    beside = ~gap & (np.abs(events.final_state_mass - THRESHOLD) < 120)
    error = np.abs(p.amplitude - events.truth)
    delta = np.abs(relative_deviation(p.amplitude, events.truth))
    places = {"inside": gap, "outside": beside}

    def told(stat: Floats, total: Floats) -> dict[str, Any]:
        sigma = {name: np.median((stat / p.amplitude)[place]) for name, place in places.items()}
        return {
            "sigma": sigma,
            "sigma_ratio": sigma["inside"] / max(sigma["outside"], 1e-300),
            "covered": {name: np.mean(error[place] <= stat[place]) for name, place in places.items()},
            "covered_total": {name: np.mean(error[place] <= total[place]) for name, place in places.items()},
        }

    found: dict[str, Any] = {
        "events": {name: place.sum() for name, place in places.items()},
        "accuracy": {name: accuracy(p.amplitude[place], events.truth[place]) for name, place in places.items()},
        "error_ratio": np.median(delta[gap]) / np.median(delta[beside]),
        "told": told(p.sigma_stat, p.sigma_tot),
        "seconds": surrogate.provenance["seconds"],
    }
    if case.labels["method"] == EVIDENTIAL:
        stat = p.sigma_stat * density_factor(surrogate, events)
        found["told_with_density"] = told(stat, np.hypot(p.sigma_syst, stat))
    result: dict[str, Any] = as_json(found)
    return result


def density_factor(surrogate: Surrogate, events: Events) -> Floats:
    """(N,) what the density of the features makes of an evidential sigma_stat: the number of virtual observations is
    proportional to the density of training events, as in natural posterior networks (Charpentier et al.,
    arXiv:2105.04471), here told by the distance to the nearest test events outside the gap.
    """
    raw = get_features(surrogate.config.features.inputs)(torch.from_numpy(events.momenta), events.process)
    x, seen = surrogate.standardization(raw).numpy(), events.trainable
    distance = np.asarray(cKDTree(x[seen]).query(x, k=NEAREST + 1)[0])
    nearest: Floats = np.where(seen, distance[:, -1], distance[:, -2])  # an event is not its own neighbour
    result: Floats = (nearest / np.median(nearest[seen])) ** (DIMENSION / 2)
    return result


def rows_of(results: Results, width: float) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Method, all that was measured of it, and what its sigmas say."""
    rows = []
    for method in results.labels("method", gap=width):
        m = next(results.where(method=method, gap=width))
        rows.append((method, m, m["told"]))
        if "told_with_density" in m:
            rows.append((DENSITY, m, m["told_with_density"]))
    return rows


def tables(results: Results) -> list[Table]:
    header = ["gap / GeV", "method", "mean |Δ| inside", "outside", "error ratio", "σ_stat ratio"]
    header += ["|err| < σ_stat inside", "outside", "|err| < σ_tot inside", "outside", "training / s"]
    rows = []
    for width in results.labels("gap"):
        for method, m, told in rows_of(results, width):
            errors = [f"{m['accuracy'][place]['mean']:.1e}" for place in ("inside", "outside")]
            quiet = not told["sigma"]["outside"]
            ratios = [f"{m['error_ratio']:.1f}", "-" if quiet else f"{told['sigma_ratio']:.1f}"]
            covered = [f"{told[k][place]:.1%}" for k in ("covered", "covered_total") for place in ("inside", "outside")]
            rows.append([f"±{width:g}", method, *errors, *ratios, *covered, f"{m['seconds']:.0f}"])
    return [Table(header, rows)]


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    widths = results.labels("gap")
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for width in widths:
        for method, m, told in rows_of(results, width):
            share = told["covered"]["inside"]
            trace = told["sigma_ratio"] / m["error_ratio"] if told["sigma"]["outside"] else np.nan
            lines.setdefault(method, []).append((width, share, trace))
    for k, (method, points) in enumerate(lines.items()):
        x, share, trace = zip(*points, strict=True)
        ours = method.startswith(RECOMMENDED)  # colours come again
        for panel, y in zip(axes[0], (share, trace), strict=True):
            panel.plot(x, y, **colour(k), marker="s" if ours else "o", linewidth=2.2 if ours else 1.2, label=method)
    axes[0, 0].axhline(0.6827, color="0.6", linewidth=0.8)
    axes[0, 1].axhline(1, color="0.6", linewidth=0.8)
    axes[0, 0].set(ylabel=r"share of $|$error$| < \sigma_\mathrm{stat}$ in the gap", ylim=(0, 1))
    axes[0, 1].set(ylabel=r"$\sigma_\mathrm{stat}$ ratio / true-error ratio", yscale="log")
    for panel in axes[0]:
        panel.set(xlabel="half-width of the gap / GeV", xticks=widths)
    drawn.set_figwidth(12)
    drawn.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return drawn


def _aware(results: Results, members: tuple[int, ...]) -> list[Check]:
    """In the gap and beside it, with the true ratio for comparison."""
    checks = []
    for width, n in product(results.labels("gap"), members):
        for m in results.where(gap=width, method=f"{RECOMMENDED}, {n}"):
            where = f"±{width:g} GeV, members: {n}"
            inside, outside = m["told"]["covered"]["inside"], m["told"]["covered_total"]["outside"]
            checks += [
                Check(f"share of |error| < σ_stat in the gap, {where}", Estimate(inside, 0.01), 0.68),
                Check(f"share of |error| < σ_tot beside it, {where}", Estimate(outside, 0.01), 0.65, 0.72),
                Check(f"true-error ratio, {where}", Estimate(m["error_ratio"], inf)),
            ]
    return checks


def ensembles(results: Results) -> list[Check]:
    return _aware(results, MEMBERS[1:])


def single(results: Results) -> list[Check]:
    return _aware(results, MEMBERS[:1])


STUDY = Study(
    name="gap-methods",
    label="ours",
    title="Who knows where there was no data",
    grid=grid,
    measure=measure,
    figure=figure,
    tables=tables,
    claims=(
        Claim("O6", "In gaps σ_stat of the recommended method covers the error of 68 % of the points.", ensembles),
        Claim("O7", "So does that of a single network.", single),
    ),
)
