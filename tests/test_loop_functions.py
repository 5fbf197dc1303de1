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
        "logs": _log(p) + _log(q),
        "l0": log / d,
        "g1": total * log / d**3 + 2 / d**2,
        "g2": 2 * log / d**3 + total / (p * q * d**2),
        "log": log,
        "dilog": _dilog(p / q, log),
        "l1": (log / d + 1 / q) / d,
        "l2": log / d**3 + (1 / p + 1 / q) / (2 * d**2),
        "l1_pole_free": mpmath.re(log / d**2),
        "l2_pole_free": mpmath.re(log / d**3 + 1 / (2 * p * d**2)),
    }


def _bubbles(pairs) -> Bubbles:
    s_p, s_q = torch.tensor(pairs, dtype=torch.float64).T[:, :, None]
    phases = (-torch.pi * (s > 0).to(s.dtype) for s in (s_p, s_q))
    return Bubbles(s_p, s_q, s_p.abs().log(), s_q.abs().log(), *phases)


def _values(bubbles: Bubbles, reverse: bool) -> dict[str, complex]:
    """All functions of a single pair (P, Q), or of (Q, P)."""
    values = dict(zip(("logs", "l0", "g1", "g2"), bubbles.functions[:, 0, 0].tolist(), strict=True))
    sided = bubbles.sided[:, int(reverse), 0].tolist()
    for k, name in enumerate(("log", "dilog", "l0", "l1", "l2")):
        values[name] = complex(sided[2 * k], sided[2 * k + 1])
    return values | {"l1_pole_free": sided[10], "l2_pole_free": sided[11]}


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
    d = abs(s_q - s_p)
    near = ratio > 0 and d < 0.25 * abs(s_p + s_q)
    # a difference of two logarithms cannot be better than their rounding, and real parts cancel where s_p = -s_q
    roundings = {
        "log": 8e-15,
        "dilog": 4e-15,
        "logs": 1e-14,
        "l1_pole_free": 8e-15 / d**2,
        "l2_pole_free": 8e-15 / d**3,
    }
    for reverse, (a, b) in enumerate(((s_p, s_q), (s_q, s_p))):
        found = _values(_bubbles([(s_p, s_q)]), bool(reverse))
        for name, value in _reference_bubble(a, b).items():
            if near and name.endswith("pole_free"):
                continue
            limit = 5e-13 * abs(complex(value)) + roundings.get(name, 0.0)
            assert abs(found[name] - complex(value)) <= limit, name


def test_bubbles_at_equal_invariants():
    """Limits of D -> 0: l0 = -1/s, g1 = -1/(6 s^2), g2 = 1/(3 s^3), l1 = -1/(2 s^2), l2 = 1/(6 s^3)."""
    s = -0.37
    found = _values(_bubbles([(s, s)]), False)
    limits = {"l0": -1 / s, "g1": -1 / (6 * s**2), "g2": 1 / (3 * s**3), "l1": -1 / (2 * s**2), "l2": 1 / (6 * s**3)}
    for name, limit in limits.items():
        assert found[name] == pytest.approx(limit, rel=1e-14), name


def _reference_ls1(p, q, r):
    """Ls_1(s_P/s_R, s_Q/s_R)/s_R^2 as it is written in hep-ph/9302280."""
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
def test_boxes(s_p, s_q, small, signs):
    """Closed form, quadrature and the form without poles: all the same in x^2 pp + y^2 qq + x y pq + n^2 <51>/[15] nn.

    Away from the pole nn = 0, and the three functions are Ls_1 + 2/3 s_D l2 and l1 + l1 - s_D/(3 s_P s_Q s_R).
    """
    s_p, s_q, s_d = signs[0] * s_p, signs[1] * s_q, signs[2] * small * min(s_p, s_q)
    s_r = s_p + s_q + s_d
    if min(abs(s_r - s_p), abs(s_r - s_q)) < 1e-2 or abs(s_r) < 0.21 * min(abs(s_p), abs(s_q)):
        return
    bubbles = _bubbles([(s_p, s_r), (s_q, s_r)])
    rows = torch.tensor([0]), torch.tensor([1])
    invariants = (torch.tensor([[s]], dtype=torch.float64) for s in (s_p, s_q, s_r, s_d))
    boxes = Boxes(bubbles, *rows, *invariants)
    p, q, d = (mpmath.mpf(s) for s in (s_p, s_q, s_d))
    r = p + q + d
    ls1, of_p, of_q = _reference_ls1(p, q, r), _reference_bubble(p, r), _reference_bubble(q, r)
    expected = (
        ls1 + 2 * d * of_p["l2"] / 3,
        ls1 + 2 * d * of_q["l2"] / 3,
        of_p["l1"] + of_q["l1"] - d / (3 * p * q * r),
    )
    scale = max(abs(complex(value)) for value in (ls1, *expected))
    for found, value in zip(boxes.functions[:, 0, 0].tolist(), expected, strict=True):
        assert abs(found - complex(value)) <= 2e-12 * scale
    assert float(boxes.nn) == 0
