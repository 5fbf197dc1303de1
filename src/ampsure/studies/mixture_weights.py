"""How many Gaussians the likelihood needs, fig. (GMM_alpha_mix)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ampsure.evaluation import as_json
from ampsure.events import Events
from ampsure.likelihoods.mixture import Mixture
from ampsure.report.style import panels
from ampsure.surrogate import Surrogate

from .curves import draw_shares, finish
from .measure import overview, shares
from .presets import Preset
from .study import Case, Check, Claim, Results, Study

WEIGHT_EDGES = np.linspace(0, 1, 51)
MEASURED_EVENTS = 20_000  # weights of every member and mode are many numbers


def grid(preset: Preset) -> list[Case]:
    return [
        Case({"members": n, "run": run}, preset.config("mixture", {"posterior": {"members": n}}, run=run))
        for n in (preset.ensembles[-3], preset.ensembles[-1])
        for run in range(preset.runs)
    ]


def measure(surrogate: Surrogate, events: Events, case: Case) -> dict[str, Any]:
    """The weights of both modes of every member, the larger one on average first."""
    part = events[:MEASURED_EVENTS]
    prediction = surrogate.predict(part.momenta, parameters=True)
    assert isinstance(surrogate.likelihood, Mixture)
    assert prediction.parameters is not None
    weights = surrogate.likelihood.log_weights(torch.from_numpy(prediction.parameters)).exp().numpy()  # (E, N, K)
    order = np.argsort(-weights.mean(1), axis=1)
    weights = np.take_along_axis(weights, order[:, None, :], axis=2)
    found = {
        **overview(prediction, part),
        "weights": [[shares(w[:, k], WEIGHT_EDGES) for k in range(2)] for w in weights[:32]],
        "mean_weights": [shares(weights[..., k].mean(0), WEIGHT_EDGES) for k in range(2)],
        "separation": (weights[..., 0] - weights[..., 1]).mean(),
        "dominated": (weights.max(-1) > 0.9).mean(),
    }
    result: dict[str, Any] = as_json(found)
    return result


def figure(results: Results) -> Figure:
    sizes = results.labels("members")
    drawn, axes = panels(1, len(sizes))
    for panel, members in zip(axes[0], sizes, strict=True):
        measured = next(results.where(members=members))
        for k in range(2):
            for member in measured["weights"]:
                thin = {"linewidth": 0.5, "alpha": 0.3, "linestyle": "-"}
                draw_shares(panel, member[k], WEIGHT_EDGES, k, bounded=True, **thin)
            thick: dict[str, Any] = {"linewidth": 2.5, "label": f"mode {k + 1}"}
            draw_shares(panel, measured["mean_weights"][k], WEIGHT_EDGES, k, bounded=True, **thick)
        highest = 1 / np.diff(WEIGHT_EDGES).min()
        panel.set(yscale="log", ylim=(1e-5 * highest, 3 * highest), xlabel=r"weight $\omega_k$", ylabel="normalised")
        panel.set_title(f"{members} members")
    finish(*axes[0])
    return drawn


def separate(results: Results) -> list[Check]:
    return [
        Check(f"mean ω₁ - mean ω₂, {n} members", results.estimate("separation", members=n), 0.5, 1.0)
        for n in results.labels("members")
    ]


STUDY = Study(
    name="mixture-weights",
    label="fig:GMM_alpha_mix",
    title="How many Gaussians the likelihood needs",
    grid=grid,
    measure=measure,
    figure=figure,
    claims=(Claim("R11", "The weights of the two modes separate: one Gaussian is enough.", separate),),
)
