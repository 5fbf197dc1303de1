"""Underestimates and overestimates of small and large networks, tab. (delta_bias)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampsure.evaluation import as_json, bias, binned, relative_deviation
from ampsure.events import Events
from ampsure.report.style import panels
from ampsure.surrogate import Surrogate

from .curves import finish
from .measure import overview, shares
from .presets import Preset
from .study import Case, Check, Claim, Estimate, Results, Study, Table, estimate

Floats = NDArray[np.float64]

AMPLITUDE_EDGES = np.geomspace(1e-8, 1e-3, 26)
DELTA_EDGES = np.linspace(-0.5, 0.5, 101)
SHOWN_MEMBERS = 16
NETWORKS = {"1x32 short": ((32,), 0.1), "1x32": ((32,), 1.0), "3x128": ((128, 128, 128), 1.0)}
"""Hidden layers and share of the epochs."""


def grid(preset: Preset) -> list[Case]:
    return [
        Case(
            {"network": name, "run": run},
            preset.config(
                "repulsive", {"network": {"hidden": hidden}}, run=run, epochs=max(round(share * preset.epochs), 1)
            ),
        )
        for name, (hidden, share) in NETWORKS.items()
        for run in range(preset.runs)
    ]


def measure(surrogate: Surrogate, events: Events, case: Case) -> dict[str, Any]:
    """Bias, distribution of Delta and <Delta> in bins of A, of the mean and of every member."""
    prediction = surrogate.predict(events.momenta, members=True)
    assert prediction.members is not None
    delta = relative_deviation(prediction.amplitude, events.truth)
    members = [relative_deviation(_amplitude(surrogate, m), events.truth) for m in prediction.members]
    # before the exponential and its mean over the uncertainty
    log_deviation = np.log(_amplitude(surrogate, prediction.members.mean(0)) / events.truth)
    found = {
        **overview(prediction, events),
        "bias_log": bias(log_deviation),
        "members": [bias(d) for d in members],
        "member_means": [d.mean() for d in members],
        "delta": shares(delta, DELTA_EDGES),
        "member_deltas": [shares(d, DELTA_EDGES) for d in members[:SHOWN_MEMBERS]],
        "binned": binned(events.truth, delta, AMPLITUDE_EDGES, np.mean),
        "binned_log": binned(events.truth, log_deviation, AMPLITUDE_EDGES, np.mean),
        "member_binned": [
            binned(events.truth, d, AMPLITUDE_EDGES, np.mean, bootstrap=0).value for d in members[:SHOWN_MEMBERS]
        ],
        "largest": _largest(delta, events.truth),
        "largest_log": _largest(log_deviation, events.truth),
    }
    result: dict[str, Any] = as_json(found)
    return result


def _amplitude(surrogate: Surrogate, member: Floats) -> Floats:
    """Amplitudes of one member's predictions in log space."""
    nothing = torch.zeros(len(member), dtype=torch.float64)
    amplitude: Floats = surrogate.target.moments(torch.from_numpy(member.copy()), nothing, nothing).amplitude.numpy()
    return amplitude


def _largest(delta: Floats, truth: Floats, share: float = 0.001) -> float:
    """<Delta> of the largest amplitudes."""
    return float(delta[truth >= np.quantile(truth, 1 - share)].mean())


def tables(results: Results) -> list[Table]:
    """The rows of the paper's table, means over runs."""
    header = ["network", "of", "neg. Δ", "sum neg. Δ", "pos. Δ", "sum pos. Δ"]
    rows = []
    for name in reversed(results.labels("network")):
        for of, path in (("all", "bias"), ("single", "members.0")):
            columns = ("share_negative", "sum_negative", "share_positive", "sum_positive")
            values = [results.estimate(f"{path}.{column}", network=name).value for column in columns]
            texts = [
                f"{v:.2%}" if column.startswith("share") else f"{v:.2f}"
                for column, v in zip(columns, values, strict=True)
            ]
            rows.append([name, of, *texts])
    return [Table(header, rows)]


def figure(results: Results) -> Figure:
    drawn, axes = panels()
    panel = axes[0, 0]
    names = results.labels("network")
    for k, (of, path) in enumerate((("mean of all members", "bias"), ("one member", "members.0"))):
        found = [100 * results.values(f"{path}.share_positive", network=name) for name in names]
        where = np.arange(len(names)) + 0.2 * (k - 0.5)
        means, errors = ([f(v) for v in found] for f in (np.mean, np.std))
        panel.errorbar(where, means, errors, marker="os"[k], linestyle="none", capsize=3, label=of)
    panel.axhline(50, color="0.6", zorder=0)
    panel.set_xticks(range(len(names)), names)
    panel.set(ylabel="share of overestimated amplitudes / %")
    finish(panel)
    return drawn


def share_positive(results: Results, network: str, path: str = "bias") -> Estimate:
    return results.estimate(f"{path}.share_positive", network=network)


def difference(results: Results, first: tuple[str, str], second: tuple[str, str]) -> Estimate:
    """Of two positive shares, run by run: (network, path) each."""
    a, b = (results.values(f"{path}.share_positive", network=network) for network, path in (first, second))
    return estimate(a - b)


def balanced(results: Results) -> list[Check]:
    return [
        Check("positive Δ of 1x32", share_positive(results, "1x32"), 0.52, 1.0),
        Check("positive Δ of 3x128", share_positive(results, "3x128"), 0.49, 0.51),
        Check(
            "change by ten times the epochs", difference(results, ("1x32", "bias"), ("1x32 short", "bias")), -0.02, 0.02
        ),
        Check(
            "change by averaging members",
            difference(results, ("1x32 short", "bias"), ("1x32 short", "members.0")),
            -0.02,
            0.02,
        ),
    ]


STUDY = Study(
    name="bias-table",
    label="tab:delta_bias",
    title="Underestimates and overestimates of small and large networks",
    grid=grid,
    measure=measure,
    figure=figure,
    tables=tables,
    claims=(
        Claim(
            "R3",
            "Small networks overestimate, 3x128 is balanced, training longer or averaging does not help.",
            balanced,
        ),
    ),
)
