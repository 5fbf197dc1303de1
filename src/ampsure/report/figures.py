"""Figures, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from ampsure.evaluation import Binned, Coverage, Observable
from ampsure.events import Events
from ampsure.kinematics import pseudorapidity, transverse_momentum

from .style import colour, curve, exponents, histogram, legend, literal, panels, unit_gaussian

__all__ = [
    "across",
    "coverage_curves",
    "deviation_sizes",
    "deviations",
    "event_overview",
    "pull_distributions",
    "reliability",
    "training_history",
]

Floats = NDArray[np.float64]


def event_overview(events: Events) -> Figure:
    """Amplitudes, mass of the final state, transverse momenta and pseudorapidities of a data set."""
    figure, axes = panels(2, 2)
    process, outgoing = events.process, range(events.process.n_incoming, events.process.n_legs)
    names = process.label.split(" > ")[1].split()
    unit = f" / {process.unit}" if process.unit else ""

    amplitudes = {"training": events.amplitude}
    if not np.array_equal(events.amplitude, events.truth):
        amplitudes["truth"] = events.truth
    series = [
        (np.log10(a[a > 0]), events.weights[a > 0], label if len(amplitudes) > 1 else None)
        for label, a in amplitudes.items()
    ]
    _histogram(axes[0, 0], series)
    axes[0, 0].set_xlabel(f"log₁₀ (squared amplitude{unit})", parse_math=False)
    _histogram(axes[0, 1], [(events.final_state_mass, events.weights, None)])
    axes[0, 1].set_xlabel(f"mass of {' '.join(names)} / GeV", parse_math=False)

    legs = [(events.momenta[:, i], f"{name} (leg {i + 1})") for i, name in zip(outgoing, names, strict=True)]
    _histogram(axes[1, 0], [(transverse_momentum(p), events.weights, label) for p, label in legs])
    axes[1, 0].set_xlabel("$p_T$ / GeV")
    for panel in (axes[0, 0], axes[0, 1], axes[1, 0]):
        panel.set_yscale("log" if any(p.get_data().values.max() > 0 for p in panel.patches) else "linear")
    _histogram(axes[1, 1], [(pseudorapidity(p), events.weights, label) for p, label in legs])
    axes[1, 1].set(xlabel="$\\eta$")
    figure.suptitle(f"{process.name}: {process.label} ({len(events):,} events)", parse_math=False)
    return figure


def _histogram(axes: Axes, series: list[tuple[Floats, Floats, str | None]], bins: int = 60) -> None:
    """Weighted histograms of several (values, weights, label) in common bins."""
    finite = np.concatenate([values[np.isfinite(values)] for values, _, _ in series])
    low, high = np.quantile(finite, [0.0, 0.9999]) if len(finite) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    for k, (values, weights, label) in enumerate(series):
        counts, _ = np.histogram(values, edges, weights=weights)
        axes.stairs(counts, edges, label=label, **colour(k))
    axes.set(ylabel="events per bin", xlim=(edges[0], edges[-1]))
    if any(label for _, _, label in series):
        legend(axes)


def deviation_sizes(series: Mapping[str, Floats], bins: int = 80) -> Figure:
    """Distributions of relative sizes (N,) over many orders of magnitude, such as |Delta| and sigma/A."""
    figure, ((axes,),) = panels()
    logs = {label: np.log10(values[np.isfinite(values) & (values > 0)]) for label, values in series.items()}
    low, high = np.quantile(np.concatenate(list(logs.values())), (2e-4, 1))
    edges = np.linspace(low, max(high, low + 0.1), bins + 1)
    for k, (label, values) in enumerate(logs.items()):
        counts, _ = np.histogram(values, edges)
        axes.stairs(counts / len(series[label]), 10**edges, label=label, **colour(k))
    axes.set(xscale="log", xlabel=r"$|\Delta|$", ylabel="share of events per bin", xlim=(10**low, 10 ** edges[-1]))
    legend(axes)
    return figure


def deviations(series: Mapping[str, Floats], bins: int = 80) -> Figure:
    """Distributions of Delta (N,) with their signs; the largest 1 % are not shown."""
    figure, ((axes,),) = panels()
    limit = max(float(np.quantile(np.abs(values[np.isfinite(values)]), 0.99)) for values in series.values()) or 1e-12
    edges = np.linspace(-limit, limit, bins + 1)
    for k, (label, values) in enumerate(series.items()):
        histogram(axes, values, edges, k, label=label)
    axes.axvline(0, color="0.7", linewidth=1, zorder=0)
    axes.set(xlabel=r"$\Delta$", ylabel="density", xlim=(-limit, limit), yscale="log")
    legend(axes)
    return figure


def pull_distributions(series: Mapping[str, Floats], reach: float = 5, bins: int = 80) -> Figure:
    """Pulls (N,) against the unit Gaussian: the core above, the tails below on a logarithmic axis."""
    figure, axes = panels(2, 1, heights=(3, 2), sharex=True)
    edges = np.linspace(-reach, reach, bins + 1)
    for panel in axes[:, 0]:
        unit_gaussian(panel, -reach, reach)
        for k, (label, pull) in enumerate(series.items()):
            histogram(panel, pull, edges, k, label=label if panel is axes[0, 0] else None)
    axes[1, 0].get_lines()[0].set_label("_said above")
    smallest = min(1 / len(pull) for pull in series.values()) / (edges[1] - edges[0])
    axes[1, 0].set(yscale="log", ylim=(max(0.5 * smallest, 1e-6), 2), xlabel="pull $t$", ylabel="density")
    axes[0, 0].set(ylabel="density", xlim=(-reach, reach))
    legend(axes[0, 0])
    return figure


def coverage_curves(series: Mapping[str, Coverage]) -> Figure:
    """Share of events in central intervals against their nominal probability, and the difference below."""
    figure, axes = panels(2, 1, heights=(3, 1.2), sharex=True)
    top, bottom = axes[:, 0]
    for k, (label, found) in enumerate(series.items()):
        top.plot(found.levels, found.shares, label=label, **colour(k))
        bottom.plot(found.levels, found.shares - found.levels, label=f"{label}: difference", **colour(k))
    widest = max(series.values(), key=lambda found: float(found.errors.max()))
    for panel, centre in ((top, widest.levels), (bottom, np.zeros_like(widest.levels))):
        for n, shade in ((2, "0.92"), (1, "0.82")):
            low, high = centre - n * widest.errors, centre + n * widest.errors
            name = f"chance, {n}σ" if panel is top else None
            panel.fill_between(widest.levels, low, high, color=shade, linewidth=0, zorder=0, label=name)
        panel.plot(widest.levels, centre, color="0.5", linewidth=1, zorder=0.5)
    top.set(ylabel="share of events found", ylim=(0, 1), xlim=(0, 1))
    bottom.set(xlabel="nominal probability", ylabel="difference")
    legend(top)
    return figure


def across(
    observable: Observable, curves: Mapping[str, Binned], cores: Mapping[str, Binned], ylabel: str = "relative size"
) -> Figure:
    """Relative sizes in bins of an observable; below the core of the pull: 1 is calibrated, +-10 % is grey."""
    figure, axes = panels(2, 1, heights=(3, 1.2), sharex=True) if cores else panels()
    top, bottom = axes[0, 0], axes[-1, 0]
    for k, (label, data) in enumerate(curves.items()):
        curve(top, data, k, label=label)
    top.set(yscale="log", ylabel=ylabel)
    legend(top)
    edges = next(iter(curves.values())).edges
    if cores:
        bottom.axhspan(0.9, 1.1, color="0.9", linewidth=0, zorder=0)
        bottom.axhline(1, color="0.5", linewidth=1, zorder=0.5)
        look: dict[str, Any] = {"color": "0.15", "linestyle": "-"} if len(cores) == 1 else {}
        for k, (label, data) in enumerate(cores.items()):
            curve(bottom, data, k, label=label, **look)
        found = np.concatenate([data.value[np.isfinite(data.value)] for data in cores.values()])
        bottom.set(ylabel="core of pull", ylim=(min(0.75, found.min() - 0.1), min(max(1.25, found.max() + 0.1), 3)))
    bottom.set(xlabel=exponents(literal(observable.label)), xlim=(edges[0], edges[-1]))
    if observable.logarithmic:
        _logarithmic(bottom)
    return figure


def reliability(series: Mapping[str, tuple[Binned, Binned]]) -> Figure:
    """Root mean square of the residuals against that of sigma, in bins of sigma: (expected, found); ratio below."""
    figure, axes = panels(2, 1, heights=(3, 1.2), sharex=True)
    top, bottom = axes[:, 0]
    for k, (label, (expected, found)) in enumerate(series.items()):
        for panel, scale, name in ((top, 1, label), (bottom, expected.value, f"{label}: ratio")):
            low, high = found.low / scale, found.high / scale
            (line,) = panel.plot(expected.value, found.value / scale, marker="o", markersize=4, label=name, **colour(k))
            vars(line)["band"] = low, high
            panel.fill_between(expected.value, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    ends = np.array([min(e.value.min() for e, _ in series.values()), max(e.value.max() for e, _ in series.values())])
    top.plot(ends, ends, color="0.5", linewidth=1, zorder=0.5)
    bottom.axhspan(0.9, 1.1, color="0.9", linewidth=0, zorder=0)
    bottom.axhline(1, color="0.5", linewidth=1, zorder=0.5)
    top.set(yscale="log", ylabel="rms residual")
    _logarithmic(bottom)
    bottom.set(xlabel=r"rms $\sigma_\mathrm{tot}/A$", ylabel="ratio")
    legend(top)
    return figure


def training_history(epochs: Sequence[Mapping[str, float]]) -> Figure:
    """Losses of every epoch, and the learning rate below."""
    figure, axes = panels(2, 1, heights=(3, 1), sharex=True)
    top, bottom = axes[:, 0]
    x = [entry["epoch"] for entry in epochs]
    losses = {name: np.array([entry[f"{name}_loss"] for entry in epochs]) for name in ("training", "validation")}
    for k, (name, loss) in enumerate(losses.items()):
        top.plot(x, loss, label=name, **colour(k))
    if all((loss > 0).all() for loss in losses.values()):
        top.set_yscale("log")
    bottom.plot(x, [entry["learning_rate"] for entry in epochs], color="0.3", label="learning rate")
    top.set(ylabel="loss")
    bottom.set(xlabel="epoch", ylabel="learning rate", yscale="log")
    legend(top)
    return figure


def _logarithmic(axes: Axes) -> None:
    """A logarithmic x axis that is labelled at 1, 2 and 5 where it has few powers of ten."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 50 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
