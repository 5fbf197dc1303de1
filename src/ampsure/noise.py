"""`NoiseProfile`: noise in narrow ranges of a feature, sharper than a network learns it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ampsure.errors import AmpsureError

__all__ = ["NoiseProfile", "find_noise"]

_WINDOW = 64  # events next to each other in a feature
_BIN = 256  # events that share one variance
_MEDIAN = 0.4549364  # of the square of a unit Gaussian


@dataclass(frozen=True)
class NoiseProfile:
    """Variances of the standardised target, each within a range of one feature.

    Args:
        ranges: (M, 4) float64: column of the standardised features, low, high, variance.
    """

    ranges: Tensor

    def __post_init__(self) -> None:
        if self.ranges.ndim != 2 or self.ranges.shape[1] != 4:
            raise AmpsureError(f"Ranges of noise are rows of four numbers, not {tuple(self.ranges.shape)}.")

    def __call__(self, x: Tensor) -> Tensor:
        """Added variance of features: (N, F) -> (N,)."""
        total = torch.zeros_like(x[:, 0])
        for column, low, high, variance in self.ranges.tolist():
            value = x[:, int(column)]
            total = total + variance * ((value > low) & (value <= high)).to(total.dtype)
        return total

    def to(self, device: torch.device) -> NoiseProfile:
        return NoiseProfile(self.ranges.to(device))


def find_noise(x: Tensor, wrong: Tensor, square: Tensor) -> NoiseProfile:
    """Ranges of features in which most amplitudes are called wrong: so many are not wrong, but noisy.

    Wrong amplitudes are few and lie anywhere. Where more than half of some events in a row, ordered by one feature, are
    called wrong, a narrow region is noisy, and its variance is that of a Gaussian with the median of their squared
    residuals, bin by bin. The feature that explains most events goes first, and the others have to explain the rest.

    Args:
        x: (N, F) standardised features.
        wrong: (N,) events called wrong.
        square: (N,) squared residuals of all events.
    """
    wrong, found = wrong.clone(), [x.new_zeros(0, 4)]
    for _ in range(x.shape[1]):
        ranges, explained = max((_ranges(values, k, wrong, square) for k, values in enumerate(x.unbind(1))), key=_count)
        if not _count((ranges, explained)):
            break
        found.append(ranges)
        wrong &= ~explained
    return NoiseProfile(torch.cat(found))


def _count(found: tuple[Tensor, Tensor]) -> int:
    return int(found[1].sum())


def _ranges(x: Tensor, column: int, wrong: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Noisy ranges of one feature (N,) as (M, 4), and the events called wrong that lie in them (N,)."""
    nothing = x.new_zeros(0, 4), torch.zeros_like(wrong)
    if int(wrong.sum()) < _WINDOW // 2:
        return nothing
    value, order = x.sort()
    flag, r2 = wrong[order], square[order]
    count = torch.cat([flag.new_zeros(1, dtype=torch.int64), flag.cumsum(0)])
    start = (count[_WINDOW:] - count[:-_WINDOW] > _WINDOW // 2).nonzero()[:, 0]  # of windows that are mostly wrong
    if not len(start):
        return nothing
    inside = torch.zeros_like(count).index_add_(0, start, torch.ones_like(start))
    inside = inside.index_add_(0, (start + _WINDOW).clamp_max(len(flag)), -torch.ones_like(start)).cumsum(0)[:-1] > 0
    outside = inside.new_zeros(1).to(torch.int8)
    edges = torch.diff(inside.to(torch.int8), prepend=outside, append=outside)
    rows, explained = [], torch.zeros_like(flag)
    for low, high in zip((edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist(), strict=True):
        called = flag[low:high].nonzero()[:, 0]
        low, high = low + int(called[0]), low + int(called[-1]) + 1
        explained[low:high] = True
        bins = max((high - low) // _BIN, 1)
        bounds = torch.linspace(low, high, bins + 1).round().long().tolist()
        for a, b in pairwise(bounds):
            left, right = (
                max(a - (a == low), 0),
                min(b, len(value) - 1),
            )  # edges lie before the next event that is right
            variance = float(r2[a:b].double().median()) / _MEDIAN
            rows.append([column, float(value[left]), float(value[right]), variance])
    mask = torch.zeros_like(wrong)
    mask[order] = explained & flag
    return x.new_tensor(rows), mask
