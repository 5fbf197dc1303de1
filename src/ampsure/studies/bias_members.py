"""The bias of every member of an ensemble and of their mean, fig. (ens_member100)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ampsure.report.style import panels

from . import bias_table
from .curves import draw_deviation, draw_shares, finish
from .presets import Preset
from .study import Case, Check, Claim, Results, Study, estimate

NETWORK = "1x32 short"


def grid(preset: Preset) -> list[Case]:
    return [case for case in bias_table.grid(preset) if case.labels["network"] == NETWORK]


def figure(results: Results) -> Figure:
    drawn, axes = panels(1, 2)
    measured = next(results.where())
    for values in measured["member_deltas"]:
        draw_shares(axes[0, 0], values, bias_table.DELTA_EDGES, 0, color="0.75", linestyle="-", linewidth=0.8)
    draw_shares(axes[0, 0], measured["delta"], bias_table.DELTA_EDGES, 1, label="mean of all members")
    axes[0, 0].axvline(0, color="black", linestyle="--", linewidth=0.8)
    axes[0, 0].set(xlabel=r"$\Delta$", ylabel="normalised")
    draw_deviation(axes[0, 1], measured, 1, label="mean of all members")
    finish(*axes[0])
    return drawn


def same(results: Results) -> list[Check]:
    gaps, signs = [], []
    for measured in results.where():
        shares = np.array([member["share_positive"] for member in measured["members"]])
        gaps.append(shares.mean() - measured["bias"]["share_positive"])
        signs.append(np.mean((shares > 0.5) == (measured["bias"]["share_positive"] > 0.5)))
    return [
        Check("positive Δ, average of members minus mean", estimate(gaps), -0.02, 0.02),
        Check("share of members biased as the mean is", estimate(signs), 0.9, 1.0),
    ]


STUDY = Study(
    name="bias-members",
    label="fig:ens_member100",
    title="The bias of every member and of their mean",
    grid=grid,
    measure=bias_table.measure,
    figure=figure,
    claims=(Claim("R4", "The bias is the same in each member and in the mean.", same),),
)
