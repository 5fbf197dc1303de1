r"""Logarithmic and dilogarithmic functions of the one-loop five-point amplitudes, free of spurious poles.

Bern, Dixon, Kosower, hep-ph/9302280, use L_i(r) and Ls_1(r_1, r_2); here their combinations are arranged so that
every removable singularity (equal invariants, vanishing Gram-like denominators) is removed in the arithmetic too.
"""

from __future__ import annotations

from math import factorial, pi

import numpy as np
import torch
from torch import Tensor

__all__ = ["Boxes", "Bubbles", "dilogarithm"]

# Li2(x) = sum_n B_n u^(n+1)/(n+1)!, u = -ln(1-x), converges like (u/2 pi)^n: nine even terms do for |u| <= ln 2.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)
_DILOG_SERIES = [b / factorial(2 * k + 3) for k, b in enumerate(_BERNOULLI)]
_NEAR = 0.25  # below this, series or quadrature instead of the closed form
_ATANH_SERIES = [1 / (2 * k + 3) for k in range(14)]  # (atanh(y)/y - 1)/y^2 in powers of y^2; y^28 < 1e-16
_POLE = 0.2  # |s_R| below this times |s_P| and |s_Q|: the pole 1/s_R is cancelled by hand
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)


def _horner(coefficients: list[float], x: Tensor) -> Tensor:
    result = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result.mul_(x).add_(c)
    return result


def dilogarithm(x: Tensor) -> Tensor:
    """Real part of Li2(x) for real x; shape kept.

    >>> bool(abs(dilogarithm(torch.tensor([0.5], dtype=torch.float64)) - (pi**2 / 12 - np.log(2) ** 2 / 2)) < 1e-15)
    True
    """
    # Map to a in [-1, 1/2], |u| <= ln 2: far arguments by inversion, those above 1/2 by reflection.
    inverted = (x > 2) | (x < -1)
    reflected = (x > 0.5) & ~inverted
    a = torch.where(inverted, 1 / torch.where(inverted, x, 1.0), torch.where(reflected, 1 - x, x))
    u = -torch.log1p(-a)
    u2 = u * u
    series = u - u2 / 4 + u * u2 * _horner(_DILOG_SERIES, u2)
    log_a = torch.log(a.abs().clamp_min(torch.finfo(x.dtype).tiny))
    by_inversion = pi**2 / 2 * (x > 0).to(x.dtype) - pi**2 / 6 - 0.5 * log_a.square() - series
    by_reflection = pi**2 / 6 + u * log_a - series
    return torch.where(inverted, by_inversion, torch.where(reflected, by_reflection, series))


class Bubbles:
    r"""Functions of pairs of invariants (s_P, s_Q), complex (pairs, N).

    With r = s_P/s_Q, D = s_Q - s_P, S = s_P + s_Q, these are symmetric in P and Q: `l0` = ln r/D,
    `g1` = S ln r/D^3 + 2/D^2, `g2` = 2 s_P s_Q ln r/D^3 + S/D^2, and
    `l2` = L_2(r)/s_Q^3 = ln r/D^3 + (1/s_P + 1/s_Q)/(2 D^2).
    These are not, and hold (P, Q) for all pairs, then (Q, P) for all pairs, (2 pairs, N): `log` = ln r,
    `dilog` = Li2(1 - r) on the physical sheet, `l1` = L_1(r)/s_Q^2 = (l0 + 1/s_Q)/D, and `l1_pole_free`,
    `l2_pole_free`, which lack the terms in 1/s_Q and are for |s_Q| far below |s_P| only.

    Args:
        s_p, s_q: real (pairs, N).
        log_p, log_q: ln(-s - i0) = ln|s| - i pi Theta(s), complex (pairs, N).
    """

    def __init__(self, s_p: Tensor, s_q: Tensor, log_p: Tensor, log_q: Tensor) -> None:
        difference, total, ratio = s_q - s_p, s_p + s_q, s_p / s_q
        log = log_p - log_q
        same_sign = ratio > 0
        # A branch that is not taken may divide by zero: where() discards it.
        near = same_sign & (difference.abs() < _NEAR * total.abs())
        y = torch.where(near, difference / total, 0.0)
        y2 = y * y
        series = _horner(_ATANH_SERIES, y2)
        inverse = 1 / torch.where(near, 1.0, difference)
        inverse2 = inverse * inverse
        log_d3 = log * (inverse * inverse2)
        per_p, per_q = inverse2 / (2 * s_p), inverse2 / (2 * s_q)
        self.l0 = torch.where(near, -2 / total * (1 + y2 * series), log * inverse)
        self.g1 = torch.where(near, -2 / total**2 * series, log_d3 * total + 2 * inverse2)
        self.g2 = torch.where(near, (1 + (y2 - 1) * series) / total, log_d3 * (2 * s_p * s_q) + total * inverse2)
        self.l2 = torch.where(near, 2 / total**3 * (1 / (1 - y2) - series), log_d3 + (per_p + per_q))
        l1_pole_free = self.l0 * inverse
        l1 = torch.where(near, -(1 + (1 + y) * y * series) / (total * s_q), l1_pole_free + inverse / s_q)
        l1_reversed = torch.where(near, (-1 + (1 - y) * y * series) / (total * s_p), -inverse / s_p - l1_pole_free)
        self.l1 = torch.cat([l1, l1_reversed])
        self.l1_pole_free = torch.cat([l1_pole_free, -l1_pole_free])
        self.l2_pole_free = torch.cat([log_d3 + per_p, log_d3 + per_q])

        # r > 0: Li2(1-r) is real; r < 0: pi^2/6 - ln r ln(1-r) - Li2(r). Li2(1-1/r) = -Li2(1-r) - (ln r)^2/2 on both.
        li2 = dilogarithm(torch.where(same_sign, difference / s_q, ratio))
        log_1mr = torch.log1p(torch.where(same_sign, 0.0, -ratio))
        dilog = torch.where(same_sign, li2, pi**2 / 6 - log * log_1mr - li2)
        self.log = torch.cat([log, -log])
        self.dilog = torch.cat([dilog, log.square().mul_(-0.5).sub_(dilog)])


class Boxes:
    r"""Functions of a pair of legs R and a third leg m, with P = {u, m}, Q = {m, v}, D = {u, v}; complex (boxes, N).

    `ls1` = Ls_1(s_P/s_R, s_Q/s_R)/s_R^2; `l1` = l1(P, R) + l1(Q, R); `l2_p` = l2(P, R), `l2_q` = l2(Q, R). Where the
    mask `pole_free` holds (s_R small against s_P and s_Q), l1 and l2 come without their poles in s_R.

    Args:
        bubbles: with (P, R) of every box at rows `p`, (Q, R) at rows `q` of the functions that are not symmetric.
        s_p, s_q, s_r, s_d: real (boxes, N).
    """

    def __init__(
        self, bubbles: Bubbles, p: Tensor, q: Tensor, s_p: Tensor, s_q: Tensor, s_r: Tensor, s_d: Tensor
    ) -> None:
        pairs = len(bubbles.l0)
        smaller = torch.minimum(s_p.abs(), s_q.abs())
        self.pole_free = pole_free = s_r.abs() < _POLE * smaller
        l1_pole_free = bubbles.l1_pole_free[p] + bubbles.l1_pole_free[q]
        self.l1 = torch.where(pole_free, l1_pole_free, bubbles.l1[p] + bubbles.l1[q])
        self.l2_p = torch.where(pole_free, bubbles.l2_pole_free[p], bubbles.l2[p % pairs])
        self.l2_q = torch.where(pole_free, bubbles.l2_pole_free[q], bubbles.l2[q % pairs])

        near = s_d.abs() < _NEAR * smaller
        inverse = 1 / torch.where(near, 1.0, s_d)
        log_p, log_q = bubbles.log[p], bubbles.log[q]
        f = bubbles.dilog[p].add_(bubbles.dilog[q]).addcmul_(log_p, log_q).sub_(pi**2 / 6)
        self.ls1 = f.mul_(inverse).add_(bubbles.l0[p % pairs]).add_(bubbles.l0[q % pairs]).mul_(inverse)
        logs = (log_p[near], log_q.imag[near])
        self.ls1[near] = _ls1_by_quadrature(s_p[near], s_q[near], s_r[near], s_d[near], *logs)


def _ls1_by_quadrature(s_p: Tensor, s_q: Tensor, s_r: Tensor, s_d: Tensor, log_a: Tensor, phase_b: Tensor) -> Tensor:
    """Ls_1/s_R^2 where 1 - r_1 - r_2 = s_D/s_R is small: a smooth integral over u in (0, 1); all (M,)."""
    a, b, d = s_p / s_r, (s_q + s_d) / s_r, s_d / s_r
    u = torch.as_tensor((_NODES + 1) / 2, dtype=a.dtype, device=a.device)[:, None]
    weight = torch.as_tensor(_WEIGHTS / 2, dtype=a.dtype, device=a.device)[:, None] * u
    b_u, a_u = b - d * u, a + d * u
    log_b = torch.complex(torch.log(b_u.abs()), phase_b.expand_as(b_u))
    inverse_a, inverse_b = 1 / a_u, 1 / b_u
    integrand = log_a * (inverse_b / b) + inverse_a * inverse_b + log_b * inverse_a**2
    return (integrand * weight).sum(0) * (-1 / s_r**2)
