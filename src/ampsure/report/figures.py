"""Figures, drawn without a display."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsure.events import Events
from ampsure.kinematics import pseudorapidity, transverse_momentum

from .style import colour, legend, panels

__all__ = ["event_overview"]

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
