"""`NoiseProfile`: noise in narrow ranges of a feature, sharper than a network learns it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ampsure.errors import AmpsureError

__all__ = ["NoiseProfile", "find_noise"]

_WINDOW = 64  # events next to each other in a feature
_BIN, _BINS = 256, 16  # events that share one variance, at least, and how many variances a range has, at most
_SIDE = 384  # events on either side of an edge
_EDGE = 2.2  # in the log of the variance: a factor of three in sigma
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
    """Ranges of features in which most amplitudes are called wrong, or residuals are larger from one event to the next.

    Wrong amplitudes are few and lie anywhere. Where more than half of some events in a row, ordered by one feature, are
    called wrong, a narrow region is noisy, and its variance is that of a Gaussian with the median of their squared
    residuals, bin by bin. The same holds between a sudden rise of the residuals and a sudden fall: a network learns a
    smooth sigma for these, so that few of them are called wrong, and the errors of a network have no such edges. The
    feature that explains most events goes first, and the others have to explain the rest.

    Args:
        x: (N, F) standardised features.
        wrong: (N,) events called wrong.
        square: (N,) squared residuals of all events.
    """
    left, found = torch.ones_like(wrong), [x.new_zeros(0, 4)]
    for _ in range(x.shape[1]):
        each = (_ranges(values[left], k, wrong[left], square[left]) for k, values in enumerate(x.unbind(1)))
        ranges, inside, explained = max(each, key=lambda found: found[2])
        if not explained:
            break
        found.append(ranges)
        left[left.nonzero()[:, 0][inside]] = False
    return NoiseProfile(torch.cat(found))


def _ranges(x: Tensor, column: int, wrong: Tensor, square: Tensor) -> tuple[Tensor, Tensor, int]:
    """Noisy ranges of one feature (N,) as (M, 4), events in them (N,), and how many of these are wrong or stand out."""
    nothing = x.new_zeros(0, 4), torch.zeros_like(wrong), 0
    value, order = x.sort()
    r2 = square[order]
    flag = wrong[order] | _standing_out(r2)
    if int(flag.sum()) < _WINDOW // 2:
        return nothing
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
        bins = min(max((high - low) // _BIN, 1), _BINS)
        bounds = torch.linspace(low, high, bins + 1).round().long().tolist()
        for a, b in pairwise(bounds):
            left, right = max(a - (a == low), 0), min(b, len(value) - 1)  # edges lie before the next right event
            variance = float(r2[a:b].double().median()) / _MEDIAN
            rows.append([column, float(value[left]), float(value[right]), variance])
    mask = torch.zeros_like(wrong)
    mask[order] = explained
    return x.new_tensor(rows), mask, int((explained & flag).sum())


def _standing_out(square: Tensor) -> Tensor:
    """Which of some squared residuals (N,) in a row are large, between a sudden rise and the next sudden fall."""
    found = torch.zeros_like(square, dtype=torch.bool)
    n, piece = len(square), _SIDE // 3
    level = square[: n - n % piece].view(-1, piece).median(1).values.clamp_min(1e-300).log()
    if len(level) < 6:
        return found
    level = level.unfold(0, 3, 1).median(1).values  # one piece may be anything
    step = level[3:] - level[:-3]  # at the end of piece 3, 4, ...
    inside = None
    for at in (step.abs() > _EDGE).nonzero()[:, 0].tolist():
        if step[at] > 0:
            inside = at if inside is None or step[at] > step[inside] else inside
        elif inside is not None:
            fall = at + int(step[at : at + 3].argmin())
            outside = torch.maximum(level[inside], level[fall + 3])
            between = level[inside + 3 : fall + 1]
            if len(between) and between.min() > outside + _EDGE / 2:
                low, high = inside * piece, min((fall + 6) * piece, n)
                found[low:high] = square[low:high].log() > 0.5 * (between.median() + outside)
            inside = None
    return found
