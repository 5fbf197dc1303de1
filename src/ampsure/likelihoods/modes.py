"""The highest mode of a mixture in one dimension."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["highest_mode"]

Density = Callable[[Tensor], Tensor]


@torch.no_grad()
def highest_mode(log_density: Density, slope: Density, centres: Tensor, widths: Tensor) -> Tensor:
    r"""Where a mixture of K symmetric, bell-shaped components is highest: centres (..., K), widths (..., K) -> (...).

    `log_density` and `slope`, its derivative, map points (..., S) to values (..., S).

    At a mode the second derivative of the density is not positive, so at least one component is concave there, and a
    component is concave only between its inflection points, within centre +- width. So a grid over these K intervals
    covers all modes. Neighbours between which the slope turns from rising to falling enclose a mode, which is closed in
    upon by bisection and secants in turn: the first is safe, the second fast. The centres compete as well: they win
    exact ties, so that a single component is met exactly.

    The steps do not depend on the data, so the search can be captured in a graph or exported. Memory is about 9 K^2
    numbers a point.

    >>> centres, log_weights = torch.tensor([0.0, 4.0]), torch.log(torch.tensor([0.4, 0.6]))
    >>> parts = lambda x: log_weights - (x[:, None] - centres) ** 2 / 2
    >>> slope = lambda x: (parts(x).exp() * (centres - x[:, None])).sum(-1)
    >>> highest_mode(lambda x: parts(x).logsumexp(-1), slope, centres, torch.ones(2))
    tensor(3.9991)
    """
    steps = torch.linspace(-1, 1, 9, dtype=centres.dtype, device=centres.device)
    grid = (centres[..., None] + widths[..., None] * steps).flatten(-2).sort(-1).values
    value, tilt = log_density(grid), slope(grid)
    turning = (tilt[..., :-1] > 0) & (tilt[..., 1:] <= 0)
    height = torch.maximum(value[..., :-1], value[..., 1:]).masked_fill(~turning, -torch.inf)
    left = height.topk(centres.shape[-1] + 1).indices
    low, high, tilt_low, tilt_high = (x.gather(-1, i) for x in (grid, tilt) for i in (left, left + 1))
    point = low
    for secant in (False, True) * 7:
        share = (tilt_low / (tilt_low - tilt_high)).nan_to_num(0.5).clamp(0, 1) if secant else 0.5
        point = low + share * (high - low)
        tilt_point = slope(point)
        rising = tilt_point > 0
        low, tilt_low = torch.where(rising, point, low), torch.where(rising, tilt_point, tilt_low)
        high, tilt_high = torch.where(rising, high, point), torch.where(rising, tilt_high, tilt_point)
    candidates = torch.cat([centres, point], dim=-1)
    empty = height.gather(-1, left) == -torch.inf  # there were fewer modes
    heights = torch.cat([log_density(centres), log_density(point).masked_fill(empty, -torch.inf)], dim=-1)
    best = heights.argmax(-1, keepdim=True)
    return candidates.gather(-1, best).squeeze(-1)
