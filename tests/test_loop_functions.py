"""Loop functions against mpmath, on both sides of every switch between closed form, series and quadrature."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsure.processes.gg_yyg.loop_functions import Boxes, Bubbles, dilogarithm

mpmath.mp.dps = 40


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e6, 1e6) | st.floats(-3, 3) | st.sampled_from([0.0, 1.0, 0.5, -1.0, 2.0]))
def test_dilogarithm(x):
    reference = float(mpmath.re(mpmath.polylog(2, mpmath.mpf(x))))
    value = dilogarithm(torch.tensor([x], dtype=torch.float64)).item()
    assert value == pytest.approx(reference, rel=1e-14, abs=4e-15 * (1 + np.log(1 + abs(x)) ** 2))


def _log(s: mpmath.mpf) -> mpmath.mpc:
    """ln(-s - i0)"""
    return mpmath.log(abs(s)) - (1j * mpmath.pi if s > 0 else 0)


def _dilog(r, log_r):
    """Li2(1 - r), r = (-s_P)/(-s_Q), continued as the invariants are."""
    if r > 0:
        return mpmath.polylog(2, 1 - r)
    return mpmath.pi**2 / 6 - log_r * mpmath.log(1 - r) - mpmath.polylog(2, r)


def _reference_bubble(s_p: float, s_q: float) -> dict[str, mpmath.mpc]:
    p, q = mpmath.mpf(s_p), mpmath.mpf(s_q)
    log, d, total = _log(p) - _log(q), q - p, p + q
    return {
        "l0": log / d,
        "g1": total * log / d**3 + 2 / d**2,
        "g2": 2 * p * q * log / d**3 + total / d**2,
        "l1": (log / d + 1 / q) / d,
        "l2": log / d**3 + (1 / p + 1 / q) / (2 * d**2),
        "dilog": _dilog(p / q, log),
    }


def _bubbles(pairs):
    s_p, s_q = torch.tensor(pairs, dtype=torch.float64).T[:, :, None]
    logs = (torch.complex(s.abs().log(), -torch.pi * (s > 0).to(s.dtype)) for s in (s_p, s_q))
    return Bubbles(s_p, s_q, *logs)


ratios = (
    st.floats(1e-3, 1e3) | st.floats(0.9, 1.1) | st.floats(0.55, 0.65) | st.floats(1.6, 1.7) | st.floats(-1e3, -1e-3)
)


@settings(max_examples=150, deadline=None)
@given(ratio=ratios, scale=st.floats(1e-3, 1), sign=st.sampled_from([-1, 1]))
def test_bubbles(ratio, scale, sign):
    s_q = sign * scale
    s_p = ratio * s_q
    if abs(s_p - s_q) < 1e-12 * scale:  # 0/0 even for the reference; the next test is there for it
        return
    functions = _bubbles([(s_p, s_q)])
    for first, (a, b) in enumerate(((s_p, s_q), (s_q, s_p))):
        for name, value in _reference_bubble(a, b).items():
            table = getattr(functions, name)
            found = complex(table[first if len(table) == 2 else 0, 0])
            assert abs(found - complex(value)) <= 3e-13 * abs(complex(value)) + (4e-15 if name == "dilog" else 0), name


def test_bubbles_at_equal_invariants():
    """Limits of D -> 0: l0 = -1/s, g1 = -1/(6 s^2), g2 = 1/(3 s), l1 = -1/(2 s^2), l2 = 1/(6 s^3)."""
    s = -0.37
    functions = _bubbles([(s, s)])
    limits = {"l0": -1 / s, "g1": -1 / (6 * s**2), "g2": 1 / (3 * s), "l1": -1 / (2 * s**2), "l2": 1 / (6 * s**3)}
    for name, limit in limits.items():
        assert complex(getattr(functions, name)[0, 0]) == pytest.approx(limit, rel=1e-14), name


def _reference_ls1(s_p, s_q, s_r):
    """Ls_1(s_P/s_R, s_Q/s_R)/s_R^2 as it is written in hep-ph/9302280."""
    p, q, r = (mpmath.mpf(s) for s in (s_p, s_q, s_r))
    r1, r2 = p / r, q / r
    log1, log2 = _log(p) - _log(r), _log(q) - _log(r)
    rest = 1 - r1 - r2
    bracket = _dilog(r1, log1) + _dilog(r2, log2) + log1 * log2 - mpmath.pi**2 / 6
    bracket += rest * (log1 / (1 - r1) + log2 / (1 - r2))
    return bracket / rest**2 / r**2


@settings(max_examples=100, deadline=None)
@given(
    s_p=st.floats(0.05, 1),
    s_q=st.floats(0.05, 1),
    small=st.floats(1e-7, 0.6),
    signs=st.sampled_from([(1, 1, 1), (-1, -1, -1), (-1, 1, -1), (1, -1, -1), (-1, -1, 1)]),
)
def test_box_function(s_p, s_q, small, signs):
    s_p, s_q, s_d = signs[0] * s_p, signs[1] * s_q, signs[2] * small * min(s_p, s_q)
    s_r = s_p + s_q + s_d
    if min(abs(s_r), abs(s_r - s_p), abs(s_r - s_q)) < 1e-2:
        return
    bubbles = _bubbles([(s_p, s_r), (s_q, s_r)])
    rows = torch.tensor([0]), torch.tensor([1])
    invariants = (torch.tensor([[s]], dtype=torch.float64) for s in (s_p, s_q, s_r, s_d))
    found = complex(Boxes(bubbles, *rows, *invariants).ls1[0, 0])
    reference = complex(_reference_ls1(s_p, s_q, mpmath.mpf(s_p) + mpmath.mpf(s_q) + mpmath.mpf(s_d)))
    assert abs(found - reference) <= 1e-12 * abs(reference)
