"""Learning rates as functions of the step alone, so that a resumed run needs no state for them."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

from ampsure.errors import AmpsureError

__all__ = ["SCHEDULES", "get_schedule"]

Schedule = Callable[[int, int], float]
"""Share of the maximum learning rate at a step, of so many steps in all."""


def one_cycle(step: int, total: int, warm_up: float = 0.3, start: float = 1 / 25, end: float = 1e-4 / 25) -> float:
    """Cosine up to the maximum and down again (Smith, Topin, arXiv:1708.07120), with the defaults of PyTorch.

    >>> round(one_cycle(0, 100), 12)
    0.04
    """
    peak = max(warm_up * total - 1, 1e-9)
    if step <= peak:
        return _cosine(start, 1.0, step / peak)
    return _cosine(1.0, end, (step - peak) / max(total - 1 - peak, 1e-9))


def cosine(step: int, total: int) -> float:
    """Cosine down to zero."""
    return _cosine(1.0, 0.0, step / max(total, 1))


def constant(step: int, total: int) -> float:
    """The maximum throughout."""
    return 1.0


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + cos(pi * min(share, 1.0)))


SCHEDULES: dict[str, Schedule] = {"one-cycle": one_cycle, "cosine": cosine, "constant": constant}


def get_schedule(name: str) -> Schedule:
    """A schedule by name."""
    if name not in SCHEDULES:
        raise AmpsureError(f"Unknown schedule {name!r}; known are {', '.join(SCHEDULES)}.")
    return SCHEDULES[name]
