"""Accuracy against the time of training: the paper's recipe and the recommended method."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ampsure.config import resolve
from ampsure.events import Events
from ampsure.report.style import colour, panels
from ampsure.surrogate import Surrogate

from .curves import finish
from .measure import overview
from .presets import Preset
from .study import Case, Check, Claim, Estimate, Results, Study, Table

PAPER, RECOMMENDED = "paper", "recommended"
EPOCHS: dict[str, dict[str, tuple[int, ...]]] = {
    "smoke": {PAPER: (2, 6), RECOMMENDED: (1, 3)},
    "laptop": {PAPER: (4, 15), RECOMMENDED: (2, 8)},
    "full": {PAPER: (7, 72, 720), RECOMMENDED: (4, 33, 330, 2200)},  # 1, 10, 100 and 600 s of an H200
    "paper-short": {PAPER: (7, 72), RECOMMENDED: (4, 33)},
    "paper": {PAPER: (7, 72, 720, 7200), RECOMMENDED: (4, 33, 330, 3300)},
}


def grid(preset: Preset) -> list[Case]:
    size = {"network": {"hidden": preset.hidden}}
    batch = {PAPER: min(preset.batch_size, 1024), RECOMMENDED: preset.batch_size}
    recipes = {PAPER: ("heteroscedastic", "paper"), RECOMMENDED: ("recommended", "accurate")}
    return [
        Case(
            {"recipe": name, "epochs": epochs, "run": 0},
            resolve(*recipes[name], size, epochs=epochs, batch_size=batch[name], seed=0),
        )
        for name, numbers in EPOCHS[preset.name].items()
        for epochs in numbers
    ]


def measure(surrogate: Surrogate, events: Events, case: Case) -> dict[str, Any]:
    seconds = surrogate.provenance["seconds"]
    return {"seconds": seconds, **overview(surrogate.predict(events.momenta), events)}


def tables(results: Results) -> list[Table]:
    header = ["recipe", "epochs", "seconds", "mean |Δ|", "median |Δ|", "99 % of |Δ|", "pull width", "68 %", "KS"]
    rows = []
    for name in (PAPER, RECOMMENDED):
        for epochs in results.labels("epochs", recipe=name):
            m = next(results.where(recipe=name, epochs=epochs))
            accuracy = [f"{m['accuracy'][k]:.2e}" for k in ("mean", "median", "quantile99")]
            pull = m["pulls"]["total"]
            shape = [f"{pull['width']:.3f}", f"{pull['coverage68']:.1%}", f"{pull['ks']:.4f}"]
            rows.append([name, str(epochs), f"{m['seconds']:.1f}", *accuracy, *shape])
    return [Table(header, rows)]


def figure(results: Results) -> Figure:
    drawn, axes = panels()
    panel = axes[0, 0]
    for k, name in enumerate((PAPER, RECOMMENDED)):
        seconds = results.values("seconds", recipe=name)
        for statistic, marker in (("mean", "o-"), ("median", "s:")):
            values = results.values(f"accuracy.{statistic}", recipe=name)
            style = {**colour(k), "linestyle": marker[1], "marker": marker[0]}
            panel.plot(seconds, values, **style, label=f"{name}, {statistic}")
    panel.set(xscale="log", yscale="log", xlabel="training time / s", ylabel=r"$|\Delta|$")
    finish(panel)
    return drawn


def gain(results: Results) -> list[Check]:
    paper = max(results.where(recipe=PAPER), key=lambda m: m["seconds"])
    ours = min(results.where(recipe=RECOMMENDED), key=lambda m: abs(m["seconds"] - paper["seconds"]))
    gained = paper["accuracy"]["mean"] / ours["accuracy"]["mean"]
    # one run each; runs differ by some ten per cent
    return [
        Check("mean |Δ|, paper / recommended, longest training of paper", Estimate(gained, 0.2 * gained), 10.0),
        Check("seconds of it, recommended / paper", Estimate(ours["seconds"] / paper["seconds"], 0.05), 0.0, 1.2),
    ]


STUDY = Study(
    name="accuracy-cost",
    label="ours",
    title="Accuracy against the time of training",
    grid=grid,
    measure=measure,
    figure=figure,
    tables=tables,
    claims=(Claim("O1", "For the same time of training, ten times the accuracy of the paper's recipe.", gain),),
)
