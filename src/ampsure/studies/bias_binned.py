"""The bias in bins of the true amplitude, fig. (delta_bias)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ampsure.report.style import panels

from . import bias_table
from .bias_members import NETWORK
from .curves import draw_curve, finish
from .study import Check, Claim, Estimate, Results, Study, estimate


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    edges = bias_table.AMPLITUDE_EDGES
    measured = next(results.where(network=NETWORK))
    for values in measured["member_binned"]:
        steps = np.array([np.nan if v is None else v for v in values])
        axes[0, 0].stairs(steps, edges, color="0.75", linewidth=0.8, baseline=None)
    draw_curve(axes[0, 0], measured["binned"], 1, label="mean of all members")
    for k, network in enumerate(results.labels("network")):
        draw_curve(axes[0, 1], next(results.where(network=network))["binned"], k, label=network)
    for panel in axes[0]:
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set(xscale="log", xlabel=r"$A_\mathrm{true}$", ylabel=r"$\langle\Delta\rangle$")
        panel.set_yscale("symlog", linthresh=1e-3)
    finish(*axes[0])
    return drawn


def capacity(results: Results) -> list[Check]:
    small, large = (results.values("largest", network=n) for n in ("1x32", "3x128"))
    overall = results.values("accuracy.bias", network="1x32")
    reduction = np.log10(np.abs(small[:, None] / large[None, :]))  # every pair of runs
    error = float(np.hypot(estimate(reduction.mean(1)).error, estimate(reduction.mean(0)).error))
    return [
        Check("<Δ> of the largest 0.1 % of amplitudes, 1x32", estimate(small), 0.0),
        Check("the same over |<Δ>| of all", estimate(small / np.abs(overall)), 3.0),
        Check("decades gained by 3x128 there", Estimate(float(np.median(reduction)), error), 0.7, 3.0),
    ]


def logarithm(results: Results) -> list[Check]:
    shares = [results.values(f"{path}.share_positive", network="1x32") for path in ("bias_log", "bias")]
    largest = results.values("largest_log", network="1x32"), np.log1p(results.values("largest", network="1x32"))
    return [
        Check("positive share in log space minus that of Δ, 1x32", estimate(shares[0] - shares[1]), -0.02, 0.02),
        Check("<log A_NN/A> / log(1 + <Δ>) of the largest 0.1 %, 1x32", estimate(largest[0] / largest[1]), 0.5, 1.5),
    ]


STUDY = Study(
    name="bias-binned",
    label="fig:delta_bias",
    title="The bias in bins of the true amplitude",
    grid=bias_table.grid,
    measure=bias_table.measure,
    figure=figure,
    claims=(
        Claim(
            "R5",
            "The small network strongly overestimates large amplitudes; capacity reduces it by up to two decades.",
            capacity,
        ),
        Claim("R6", "The same bias is there in log space: the exponential is not its origin.", logarithm),
    ),
)
