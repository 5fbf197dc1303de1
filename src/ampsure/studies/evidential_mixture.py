"""The mixture of evidential components, which the paper only sketches."""

from __future__ import annotations

from matplotlib.figure import Figure

from ampsure.report.style import panels

from .curves import draw_deviation, draw_pull, finish
from .measure import standard
from .presets import Preset
from .study import Case, Check, Claim, Results, Study, ratio

METHODS = ("evidential-mixture", "evidential")


def grid(preset: Preset) -> list[Case]:
    """The single component is trained by the study of evidential regression too."""
    return [
        Case({"method": method, "run": run}, preset.config(method, run=run))
        for method in METHODS
        for run in range(preset.runs)
    ]


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    for k, method in enumerate(METHODS):
        measured = next(results.where(method=method))
        draw_deviation(axes[0, 0], measured, k, label=method)
        draw_pull(axes[0, 1], measured, "systematic", k, label=method)
    finish(*axes[0], gaussian=(axes[0, 1],))
    return drawn


def similar(results: Results) -> list[Check]:
    means, widths = (
        [results.estimate(path, method=method) for method in METHODS]
        for path in ("accuracy.mean", "pulls.systematic.width")
    )
    return [
        Check("mean |Δ|, mixture / single", ratio(*means), 0.67, 1.5),
        Check("width of t_syst, mixture / single", ratio(*widths), 0.9, 1.1),
    ]


STUDY = Study(
    name="evidential-mixture",
    label="sec:evidential, GMM",
    title="A mixture of evidential components",
    grid=grid,
    measure=standard,
    figure=figure,
    claims=(Claim("E4", "The evidential mixture trains and gives a similar outcome.", similar),),
)
