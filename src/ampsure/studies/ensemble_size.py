"""Accuracy against the number of members, fig. (RE_deltaabs)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsure.disturbances import UniformSmearing
from ampsure.events import Events
from ampsure.report.style import colour, panels
from ampsure.surrogate import Surrogate

from .curves import draw_deviation, finish
from .measure import overview
from .presets import Preset
from .study import Case, Check, Claim, Estimate, Results, Study, estimate, ratio

Floats = NDArray[np.float64]

VARIANTS = ("averaged", "inverse-variance", "global")


def grid(preset: Preset, noise: float = 0.0) -> list[Case]:
    return [
        Case(
            {"members": members, "noise": noise, "run": run},
            preset.config("repulsive-global", {"posterior": {"members": members}}, run=run),
            (UniformSmearing(noise),) if noise else (),
        )
        for members in preset.ensembles
        for run in range(preset.runs)
    ]


def measure(surrogate: Surrogate, events: Events, case: Case) -> dict[str, Any]:
    """The overview for each way to combine the members' uncertainties: all from one training."""
    return {name: overview(_variant(surrogate, name).predict(events.momenta), events) for name in VARIANTS}


def _variant(surrogate: Surrogate, systematic: str) -> Surrogate:
    section = surrogate.config.posterior.model_copy(update={"systematic": systematic})
    config = surrogate.config.model_copy(update={"posterior": section})
    return replace(surrogate, config=config, sigma_network=surrogate.sigma_network if systematic == "global" else None)


def scaling(results: Results, runs: list[int]) -> tuple[float, float, float]:
    """a, c and the largest relative residual of mean |Delta| = a/sqrt(N) + c, fitted with relative weights."""
    sizes = np.array(results.labels("members"), dtype=np.float64)
    y = np.array([np.mean([results.first("global.accuracy.mean", members=int(n), run=r) for r in runs]) for n in sizes])
    design = np.stack([1 / np.sqrt(sizes), np.ones_like(sizes)], 1) / y[:, None]
    (a, c), *_ = np.linalg.lstsq(design, np.ones_like(y), rcond=None)
    return float(a), float(c), float(np.abs(design @ [a, c] - 1).max())


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    sizes = results.labels("members")
    shown = sizes[:: max(len(sizes) // 4, 1)]
    for k, members in enumerate(shown):
        draw_deviation(axes[0, 0], next(results.where(members=members))["global"], k, label=f"$N_{{ens}}={members}$")
    draw_deviation(
        axes[0, 0], next(results.where(members=sizes[-1]))["averaged"], len(shown), label="averaged", linestyle=":"
    )
    found = [results.values("global.accuracy.mean", members=members) for members in sizes]
    axes[0, 1].errorbar(
        sizes, np.mean(found, 1), np.std(found, 1), marker="o", capsize=3, **{**colour(0), "linestyle": "none"}
    )
    a, c, _ = scaling(results, results.labels("run"))
    dense = np.geomspace(sizes[0], sizes[-1], 50)
    axes[0, 1].plot(dense, a / np.sqrt(dense) + c, **colour(1), label=f"{a:.2g}/√N + {c:.2g}")
    axes[0, 1].set_xscale("log", base=2)
    axes[0, 1].set(xlabel=r"$N_\mathrm{ens}$", ylabel=r"$\langle|\Delta|\rangle$")
    finish(*axes[0])
    return drawn


def inverse_root(results: Results) -> list[Check]:
    runs = results.labels("run")
    fits = [
        scaling(results, [r for r in runs if r != out]) if len(runs) > 1 else scaling(results, runs) for out in runs
    ]
    widen = (len(runs) - 1) / np.sqrt(len(runs)) if len(runs) > 1 else np.inf  # errors from runs left out
    floor = Estimate(scaling(results, runs)[1], float(widen * np.std([c for _, c, _ in fits])))
    misfit = Estimate(scaling(results, runs)[2], float(widen * np.std([m for _, _, m in fits])))
    largest = results.labels("members")[-1]
    variants = [results.estimate(f"{v}.accuracy.mean", members=largest) for v in ("averaged", "global")]
    averaged, learned = (results.values(f"{v}.accuracy.mean", members=largest) for v in ("averaged", "global"))
    return [
        Check("largest relative misfit of a/√N + c", misfit, 0, 0.1),
        Check("floor c", floor, 3e-5, 8e-5),
        Check(
            "mean |Δ|, averaged / global σ",
            Estimate(ratio(*variants).value, estimate(averaged / learned).error),
            0.98,
            1.02,
        ),
    ]


STUDY = Study(
    name="ensemble-size",
    label="fig:RE_deltaabs",
    title="Accuracy against the number of members",
    grid=grid,
    measure=measure,
    figure=figure,
    claims=(
        Claim(
            "R7",
            "Mean |Δ| follows a/√N_ens + c with c about 5e-5; σ variants leave accuracy unchanged.",
            inverse_root,
        ),
    ),
)
