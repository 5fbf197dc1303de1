r"""Logarithmic and dilogarithmic functions of the one-loop five-point amplitudes, free of spurious poles.

Bern, Dixon, Kosower, hep-ph/9302280, use L_i(r) and Ls_1(r_1, r_2); here their combinations are arranged so that
every removable singularity (equal invariants, vanishing Gram-like denominators) is removed in the arithmetic too.
Real and imaginary parts (`phase`) are apart until the end: most of the arithmetic is real.
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

    >>> round(dilogarithm(torch.tensor([0.5], dtype=torch.float64)).item(), 14)  # pi^2/12 - ln(2)^2/2
    0.58224052646501
    """
    # Map to a in [-1, 1/2], |u| <= ln 2: far arguments by inversion, those above 1/2 by reflection.
    inverted = (x > 2) | (x < -1)
    reflected = (x > 0.5) & ~inverted
    a = torch.where(inverted, 1 / x, torch.where(reflected, 1 - x, x))
    u = torch.log1p(-a).neg_()
    u2 = u * u
    series = u - u2 / 4 + u * u2 * _horner(_DILOG_SERIES, u2)
    log_a = torch.log(a.abs().clamp_min_(torch.finfo(x.dtype).tiny))
    by_inversion = pi**2 / 2 * (x > 0).to(x.dtype) - pi**2 / 6 - 0.5 * log_a.square() - series
    by_reflection = pi**2 / 6 + u * log_a - series
    return torch.where(inverted, by_inversion, torch.where(reflected, by_reflection, series))


class Bubbles:
    r"""Functions of pairs of invariants (s_P, s_Q).

    With r = s_P/s_Q, D = s_Q - s_P, S = s_P + s_Q, `functions` are symmetric in P and Q, complex (4, pairs, N):
    ln(-s_P) + ln(-s_Q), l0 = ln r/D, g1 = S ln r/D^3 + 2/D^2 and g2 = 2 ln r/D^3 + S/(s_P s_Q D^2).

    `sided` is for the boxes, real (12, 2 pairs, N), in rows (P, Q) for all pairs, then (Q, P) for all pairs. It has
    real and imaginary parts of ln r, Li2(1 - r) on the physical sheet, l0, l1 = L_1(r)/s_Q^2 = (l0 + 1/s_Q)/D and
    l2 = L_2(r)/s_Q^3 = ln r/D^3 + (1/s_P + 1/s_Q)/(2 D^2), and then real parts of l1 and l2 without the terms in
    1/s_Q, for |s_Q| far below |s_P| only.

    Args:
        s_p, s_q: real (pairs, N).
        log_p, log_q: ln|s|, (pairs, N).
        phase_p, phase_q: imaginary part of ln(-s - i0) = ln|s| - i pi Theta(s), (pairs, 1).
    """

    def __init__(
        self, s_p: Tensor, s_q: Tensor, log_p: Tensor, log_q: Tensor, phase_p: Tensor, phase_q: Tensor
    ) -> None:
        difference, total = s_q - s_p, s_p + s_q
        log, phase = log_p - log_q, (phase_p - phase_q).expand_as(s_p)
        same_sign = phase == 0
        # A branch that is not taken may divide by zero: where() discards it. Where r is near 1, the phase is zero.
        near = difference.abs().lt(_NEAR * total.abs()).logical_and_(same_sign)
        per_p, per_q, per_total = 1 / s_p, 1 / s_q, 1 / total
        y = torch.where(near, difference * per_total, 0.0)
        y2 = y * y
        series = _horner(_ATANH_SERIES, y2)
        d = 1 / torch.where(near, 1.0, difference)
        d2 = d * d
        d3, s_d2 = d * d2, total * d2
        log_d3, phase_d3 = log * d3, phase * d3
        half_p, half_q = 0.5 * d2 * per_p, 0.5 * d2 * per_q

        l0 = torch.where(near, (-2 * per_total).addcmul_(per_total, y2 * series, value=-2), log * d)
        g1 = torch.where(near, -2 * per_total * per_total * series, (log_d3 * total).add_(d2, alpha=2))
        g2 = torch.where(near, (1 + (y2 - 1) * series) * per_total, s_d2 + 2 * log_d3 * s_p * s_q) * per_p * per_q
        l2 = torch.where(near, 2 * per_total**3 * (1 / (1 - y2) - series), log_d3 + half_p + half_q)
        l1_free, l1_phase = l0 * d, phase * d2
        y_series = y * series
        l1 = torch.where(near, -(1 + (1 + y) * y_series) * per_total * per_q, l1_free + d * per_q)
        l1_back = torch.where(near, ((1 - y) * y_series - 1) * per_total * per_p, -l1_free - d * per_p)
        real = torch.stack([log_p + log_q, l0, g1, g2])
        phases = torch.stack([(phase_p + phase_q).expand_as(s_p), phase * d, phase_d3 * total, 2 * phase_d3])
        self.functions = torch.complex(real, phases)

        # r > 0: Li2(1-r) is real; r < 0: pi^2/6 - ln r ln(1-r) - Li2(r). Li2(1-1/r) = -Li2(1-r) - (ln r)^2/2 on both.
        ratio = s_p * per_q
        li2 = dilogarithm(torch.where(same_sign, difference * per_q, ratio))
        log_1mr = torch.log1p(torch.where(same_sign, 0.0, -ratio))
        dilog, dilog_phase = torch.where(same_sign, li2, pi**2 / 6 - li2 - log * log_1mr), -phase * log_1mr
        dilog_back = 0.5 * (phase.square() - log.square()) - dilog
        # fmt: off
        sided = [
            log, -log, phase, -phase, dilog, dilog_back, dilog_phase, -log * phase - dilog_phase,
            l0, l0, phases[1], phases[1], l1, l1_back, l1_phase, -l1_phase, l2, l2, phase_d3, phase_d3,
            l1_free, -l1_free, log_d3 + half_p, log_d3 + half_q,
        ]
        # fmt: on
        self.sided = torch.cat(sided).view(len(sided) // 2, -1, *s_p.shape[1:])


class Boxes:
    r"""Functions of a pair of legs R and a third leg m, with P = {u, m}, Q = {m, v}, D = {u, v}.

    `functions`, complex (3, boxes, N), with Ls_1 = Ls_1(s_P/s_R, s_Q/s_R)/s_R^2: pp = Ls_1 + 2/3 s_D l2(P, R),
    qq = Ls_1 + 2/3 s_D l2(Q, R), pq = l1(P, R) + l1(Q, R) - s_D/(3 s_P s_Q s_R); and `nn` = 0, real (boxes, N).
    Where s_R is small against s_P and s_Q, the poles 1/s_R cancel in the amplitude between pp, qq and pq, which are
    without them there; what they leave behind is in pq and in `nn`.

    Args:
        bubbles: with (P, R) of every box at rows `p`, (Q, R) at rows `q` of `sided`.
        s_p, s_q, s_r, s_d: real (boxes, N).
    """

    def __init__(
        self, bubbles: Bubbles, p: Tensor, q: Tensor, s_p: Tensor, s_q: Tensor, s_r: Tensor, s_d: Tensor
    ) -> None:
        of_p, of_q = bubbles.sided.index_select(1, p), bubbles.sided.index_select(1, q)
        log_p, phase_p, *_, l2_p, l2_phase_p, _, l2_free_p = of_p
        log_q, phase_q, *_, l2_q, l2_phase_q, _, l2_free_q = of_q
        _, _, dilog, dilog_phase, l0, l0_phase, l1, l1_phase, _, _, l1_free, _ = of_p + of_q
        smaller = torch.minimum(s_p.abs(), s_q.abs())

        near = s_d.abs() < _NEAR * smaller
        d = 1 / torch.where(near, 1.0, s_d)
        ls1 = dilog.addcmul_(log_p, log_q).addcmul_(phase_p, phase_q, value=-1).sub_(pi**2 / 6)
        ls1 = ls1.mul_(d).add_(l0).mul_(d)
        ls1_phase = dilog_phase.addcmul_(log_p, phase_q).addcmul_(phase_p, log_q)
        ls1_phase = ls1_phase.mul_(d).add_(l0_phase).mul_(d)
        at = near.flatten().nonzero()[:, 0]
        points = (x.flatten()[at] for x in (s_p, s_q, s_r, s_d, log_p, phase_p, phase_q))
        ls1.view(-1)[at], ls1_phase.view(-1)[at] = _ls1_by_quadrature(*points)

        pole_free = s_r.abs() < _POLE * smaller
        per_pq, s_d_3 = 1 / (s_p * s_q), s_d / 3
        d = 1 / ((s_r - s_p) * (s_r - s_q))
        self.nn = torch.where(pole_free, s_d_3 * d.square(), 0.0)
        pp = torch.addcmul(ls1, torch.where(pole_free, l2_free_p, l2_p), s_d_3, value=2)
        qq = torch.addcmul(ls1, torch.where(pole_free, l2_free_q, l2_q), s_d_3, value=2)
        pp_phase = torch.addcmul(ls1_phase, l2_phase_p, s_d_3, value=2)
        qq_phase = torch.addcmul(ls1_phase, l2_phase_q, s_d_3, value=2)
        s_d_pq = s_d_3 * per_pq
        pq = torch.where(pole_free, l1_free + d - d * s_d * s_d_pq, l1 - s_d_pq / s_r)
        self.functions = torch.complex(torch.stack([pp, qq, pq]), torch.stack([pp_phase, qq_phase, l1_phase]))


def _ls1_by_quadrature(
    s_p: Tensor, s_q: Tensor, s_r: Tensor, s_d: Tensor, log_a: Tensor, phase_a: Tensor, phase_b: Tensor
) -> Tensor:
    """Ls_1/s_R^2 where 1 - r_1 - r_2 = s_D/s_R is small: a smooth integral over u in (0, 1); (M,) -> (2, M)."""
    per_r = 1 / s_r
    a, b, d = s_p * per_r, (s_q + s_d) * per_r, s_d * per_r
    u = torch.as_tensor((_NODES + 1) / 2, dtype=a.dtype, device=a.device)[:, None]
    weight = torch.as_tensor(_WEIGHTS / 2, dtype=a.dtype, device=a.device)[:, None] * u
    d_u = d * u
    per_b, per_a = 1 / (b - d_u), 1 / (a + d_u)
    per_b2, per_a2 = per_b / b, per_a.square()
    real = log_a * per_b2 + per_a * per_b - torch.log(per_b.abs()) * per_a2
    imaginary = phase_a * per_b2 + phase_b * per_a2
    return torch.stack([(real * weight).sum(0), (imaginary * weight).sum(0)]).mul_(-per_r.square())
