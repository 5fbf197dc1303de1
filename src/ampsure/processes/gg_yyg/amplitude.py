r"""Helicity amplitudes of g g -> gamma gamma g through a massless quark loop, exact, in batches.

The fermion-loop primitives are those of Bern, Dixon, Kosower (hep-ph/9302280), rewritten without spurious poles; the
photons are summed over their twelve places between the gluons (de Florian, Kunszt, hep-ph/9905283; Bern, Dixon,
Schmidt, hep-ph/0206194). Poles in the regulator, the scale mu and all constants times the tree cancel in that sum.

An amplitude is a sum of c_f f: rational coefficients c_f of spinor products times loop functions f. Parity exchanges
< > and [ ] but leaves f alone, so for real momenta the flipped helicity is the sum of c_f f* up to a phase: sixteen
sets of coefficients serve thirty-two helicities.

The sum over orderings is taken function by function: orderings that share their functions also share most of their
coefficients. Legs are called 1 to 5 as in the literature, in many ways at once: t.a(1, 2) is <12> for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations, permutations
from math import pi

import torch
from torch import Tensor

from .loop_functions import Boxes, Bubbles
from .spinors import Spinors

__all__ = ["HELICITIES", "helicity_squares"]

Pair = tuple[int, int]
Legs = tuple[int, ...]

_GLUONS = (0, 1, 4)
_PAIRS: list[Pair] = list(combinations(range(5), 2))
_POSITIVE = {(0, 1), (2, 3), (2, 4), (3, 4)}  # s_ij > 0 with legs 0 and 1 incoming
_DISJOINT = [(p, q) for p, q in combinations(_PAIRS, 2) if not set(p) & set(q)]
_EITHER_WAY = _DISJOINT + [(q, p) for p, q in _DISJOINT]

_NEGATIVE: list[Legs] = [(), *((i,) for i in range(5)), *_PAIRS]
_SIXTEEN = ["".join("-" if i in negative else "+" for i in range(5)) for negative in _NEGATIVE]
HELICITIES: tuple[str, ...] = (*_SIXTEEN, *(h.translate(str.maketrans("+-", "-+")) for h in _SIXTEEN))
"""Order of the helicities in `helicity_squares`; legs g1 g2 gamma1 gamma2 g5, all outgoing."""


def _pair(i: int, j: int) -> Pair:
    return (i, j) if i < j else (j, i)


def _others(*legs: int) -> Legs:
    return tuple(i for i in range(5) if i not in legs)


def _sign(legs: Sequence[int]) -> int:
    """Of the permutation."""
    return -1 if sum(a > b for a, b in combinations(legs, 2)) % 2 else 1


class _Labellings:
    """A list of ways to call the legs 1 to 5."""

    def __init__(self, *legs: Legs) -> None:
        self.legs = legs

    @cache  # noqa: B019
    def rows(self, names: Legs, device: torch.device) -> Tensor:
        """Where the products of the legs with these names stand in the tables of `Spinors`."""
        places = [sum(legs[i - 1] * 5**k for k, i in enumerate(reversed(names))) for legs in self.legs]
        return torch.tensor(places, device=device)

    @cache  # noqa: B019
    def signs(self, ordering: Legs, device: torch.device) -> Tensor:
        """Of the colour trace, which changes with the orientation of the gluons, for this ordering: (labellings, 1)."""
        orderings = [[legs[i - 1] for i in ordering] for legs in self.legs]
        signs = [[_sign([i for i in o if i in _GLUONS])] for o in orderings]
        return torch.tensor(signs, dtype=torch.float64, device=device)

    @cache  # noqa: B019
    def by_negative(self, names: Legs, device: torch.device) -> Tensor:
        """The labellings sorted by the pair of legs with these names."""
        pairs = [tuple(sorted(legs[i - 1] for i in names)) for legs in self.legs]
        return torch.tensor(sorted(range(len(pairs)), key=pairs.__getitem__), device=device)


# Twelve orderings, up to rotations and reflections; for one negative leg, each with that leg first.
_ORDERINGS = [(0, *rest) for rest in permutations(range(1, 5)) if rest[0] < rest[-1]]
_NO_MINUS = _Labellings(*_ORDERINGS)
_ONE_MINUS = _Labellings(*((*o[o.index(i) :], *o[: o.index(i)]) for i in range(5) for o in _ORDERINGS))
# Two disjoint pairs of legs, 23 and 51, negative legs 1 and 2: four choices of these for any two pairs.
_BUBBLE = _Labellings(
    *((q[j], p[i], p[1 - i], *_others(*p, *q), q[1 - j]) for i in (0, 1) for j in (0, 1) for p, q in _DISJOINT)
)
# A box with R = 51, m = 3, P = 23, Q = 34, D = 24, negative legs 1 and 3: two choices of these for any box.
_BOXES = [(r, m, _others(*r, m)) for r in _PAIRS for m in _others(*r)]
_BOX = _Labellings(*((r[i], uv[0], m, uv[1], r[1 - i]) for i in (0, 1) for r, m, uv in _BOXES))


class _Products:
    """Spinor products for a list of labellings, as in `Spinors`: t.a(1, 2) is <12> of each, a new (labellings, N).

    a, b: <ij>, [ij]; ia, ib: their inverses; s: s_ij; ab, iaa, ibb: <ij>[jk], 1/(<ij><jk>), 1/([ij][jk]); phase and
    inverse_phase: [ij]/<ij>, <ij>/[ij].
    """

    def __init__(self, spinors: Spinors, labellings: _Labellings) -> None:
        self._labellings, self._device = labellings, spinors.s.device
        self.a, self.b, self.s = (self._named(x) for x in (spinors.angle, spinors.square, spinors.s))
        self.ia, self.ib = self._named(spinors.inverse_angle), self._named(spinors.inverse_square)
        self.iaa, self.ibb = self._named(spinors.inverse_angles), self._named(spinors.inverse_squares)
        self.ab = self._named(spinors.chain)
        self.phase, self.inverse_phase = self._named(spinors.phase), self._named(spinors.inverse_phase)

    def _named(self, table: Tensor) -> Callable[..., Tensor]:
        rows, device = self._labellings.rows, self._device  # not self: a cycle would keep the tables until it is found
        return lambda *names: table.index_select(0, rows(names, device))

    def sign(self, *ordering: int) -> Tensor:
        return self._labellings.signs(ordering, self._device)

    def by_negative(self, *names: int) -> Tensor:
        return self._labellings.by_negative(names, self._device)


def _times(first: Tensor, *others: Tensor | float) -> Tensor:
    """The product, in the memory of the first factor: fresh memory would cost more than the arithmetic."""
    for factor in others:
        first.mul_(factor)
    return first


def _no_and_one_minus(spinors: Spinors) -> Tensor:
    """(+++++) and the five (-++++), without factor -1/3, complex (6, N).

    With 1/PT = <12><23><34><45><51>, (+++++) is
        PT/2 { s12 s23 + s23 s34 + s34 s45 + s45 s51 + s51 s12 + [12]<23>[34]<41> - <12>[23]<34>[41] }
    and (-++++), after a Schouten identity and momentum conservation, is
        PT { <12><15>/([12][15]) [25] ([25] s45 + [23]<13>[15])
             - <12>^2<13>^2 [23]/<23> - <13>^2<14>^2 [34]/<34> - <14>^2<15>^2 [45]/<45> }.
    """
    t = _Products(spinors, _NO_MINUS)
    parke_taylor = _times(t.iaa(1, 2, 3), t.iaa(3, 4, 5), t.ia(5, 1), t.sign(1, 2, 3, 4, 5))
    s12, s23, s34, s45, s51 = t.s(1, 2), t.s(2, 3), t.s(3, 4), t.s(4, 5), t.s(5, 1)
    cyclic = s12 * (s23 + s51) + s34 * (s23 + s45) + s45 * s51
    odd = _times(t.ab(4, 1, 2), t.ab(2, 3, 4)).sub_(_times(t.ab(1, 2, 3), t.ab(3, 4, 1)))
    none = _times(odd.add_(cyclic), parke_taylor, 0.5)

    t = _Products(spinors, _ONE_MINUS)
    a12, a13, a14, a15 = (t.a(1, i).square_() for i in range(2, 6))
    b25 = t.b(2, 5)
    one = (b25 * t.s(4, 5)).sub_(_times(t.ab(3, 1, 5), t.b(2, 3)))
    one = _times(one, b25, t.inverse_phase(1, 2), t.inverse_phase(1, 5))
    chain = _times(t.phase(2, 3), a12).add_(_times(t.phase(3, 4), a14)).mul_(a13).add_(_times(t.phase(4, 5), a14, a15))
    one = one.sub_(chain).view(5, *parke_taylor.shape).mul_(parke_taylor)
    return torch.cat([none[None], one]).sum(1)


def _bubble_part(spinors: Spinors, functions: Tensor) -> Tensor:
    """(--+++) for 1, 2, 3, 4, 5 and (-+-++) for 1, 4, 2, 3, 5 without box functions, times 3, complex (2, 10, N).

    Both have functions of s23 and s51 with the same coefficients, up to factors A and S, without signs of colour
        A = 1/(<34><45>),   S = <12>/(<14><42><35>),
    T = T1 + T2 (which is -U of (-+-++)), and K with <23><51> K = T1 T2, where T1 = <23>[34]<41>, T2 = <24>[45]<51>:
        (A - S)/(<23><51>) { <12>^2 (T1 + T2) l0 + T1 T2 (<12> g1 - <23>[35]<51> g2) }
        - (A + S)/(<23><51>) <12>^3 (ln(-s23) + ln(-s51))
        + A [35]^2/([23][51]) (s12 - s35)/[12] - [34]^2[45]^2/([14][42][23]<35>[51]).
    """
    t = _Products(spinors, _BUBBLE)
    a12, a51, ia35 = t.a(1, 2), t.a(5, 1), t.ia(3, 5).mul_(t.sign(1, 4, 2, 3, 5))
    adjacent, separate = t.iaa(3, 4, 5).mul_(t.sign(1, 2, 3, 4, 5)), _times(t.iaa(1, 4, 2), a12, ia35)
    ends = _times(t.ia(2, 3), t.ia(5, 1))
    t1, t2 = _times(t.ab(2, 3, 4), t.a(4, 1)), _times(t.ab(2, 4, 5), a51)
    rational = _times(t.b(3, 5).square_(), t.s(1, 2).sub_(t.s(3, 5)), t.ib(1, 2), adjacent)
    rational.sub_(_times(t.b(3, 4).mul_(t.b(4, 5)).square_(), t.ibb(1, 4, 2), ia35))
    rational = _times(rational, t.ib(2, 3), t.ib(5, 1))
    difference = (adjacent - separate).mul_(ends)
    k = _times(t1 * t2, difference)
    g2 = _times(t.ab(2, 3, 5), a51, k).neg_()
    g1 = k.mul_(a12)
    a12_2 = a12.square()
    l0 = _times(t1.add_(t2), difference, a12_2)
    logs = _times(adjacent.add_(separate), ends, a12_2, a12).neg_()
    return _two_minus(rational, [logs, l0, g1, g2], functions, t.by_negative(1, 2))


def _box_part(spinors: Spinors, functions: Tensor, nn: Tensor) -> Tensor:
    """The box functions of (-+-++) for 1, 2, 3, 4, 5 and 1, 4, 3, 2, 5, complex (2, 10, N).

    With x = <23><41> and y = <12><34>, so that <13><24> = y - x, the primitive has -H(1,2,3,4,5) + H(3,2,1,5,4),
        H(1,2,3,4,5) = -[24]^2<41>/(<24>^2<45><51>) { x^2 pp + y^2 qq + x y pq + n^2 <51>/[15] nn },
        n = [15] (x + y) + <23><34>[53]
    (see `Boxes`). The curly bracket is the same with 2 and 4 exchanged.
    """
    t = _Products(spinors, _BOX)
    a12, a34, a41 = t.a(1, 2), t.a(3, 4), t.a(4, 1)
    weight = _times(t.ia(4, 5), a41, t.sign(1, 2, 3, 4, 5)).add_(_times(t.ia(5, 2), a12, t.sign(1, 4, 3, 2, 5)))
    weight = _times(weight, t.phase(2, 4).square_(), t.ia(5, 1))
    x, y = a41.mul_(t.a(2, 3)), a12.mul_(a34)
    n = (x + y).mul_(t.b(5, 1)).add_(_times(t.ab(2, 3, 5), a34)).square_()
    rational = n.mul_(t.inverse_phase(5, 1))
    rational.view(-1, *nn.shape).mul_(-nn)
    xy = x * y
    return _two_minus(rational, [x.square_(), y.square_(), xy], functions, t.by_negative(1, 3), weight)


def _two_minus(
    rational: Tensor, coefficients: list[Tensor], functions: Tensor, by_negative: Tensor, weight: Tensor | float = 1.0
) -> Tensor:
    """Sum of all c_f f and sum of all c_f f* over the labellings, for each pair of negative legs: (2, 10, N).

    Functions (kinds, rows, N) belong to coefficients [(labellings, N)], where rows divide labellings.
    """
    sums = []
    for total, values in ((rational.clone(), functions), (rational, functions.conj_physical())):
        shaped = total.view(-1, *values.shape[1:])
        for c, f in zip(coefficients, values, strict=True):
            shaped.addcmul_(c.view_as(shaped), f)
        sums.append(total.mul_(weight).index_select(0, by_negative).view(len(_PAIRS), -1, len(f.T)).sum(1))
    return torch.stack(sums)


@cache
def _rows(device: torch.device) -> dict[str, Tensor]:
    """Rows of s_ij for pairs p, q of bubbles and sides P, Q, R, D of boxes, and of bubbles (P, R), (Q, R) for boxes."""
    sides: dict[str, list[Pair]] = {
        "P": [_pair(u, m) for _, m, (u, _) in _BOXES],
        "Q": [_pair(m, v) for _, m, (_, v) in _BOXES],
        "R": [r for r, _, _ in _BOXES],
        "D": [_pair(u, v) for _, _, (u, v) in _BOXES],
    }
    sides |= {"p": [p for p, _ in _DISJOINT], "q": [q for _, q in _DISJOINT]}
    rows = {name: [5 * i + j for i, j in pairs] for name, pairs in sides.items()}
    rows |= {k + "R": [_EITHER_WAY.index(pair) for pair in zip(sides[k], sides["R"], strict=True)] for k in "PQ"}
    return {name: torch.tensor(values, device=device) for name, values in rows.items()}


@cache
def _phases(device: torch.device) -> Tensor:
    """Imaginary part of ln(-s_ij - i0), (25, 1)."""
    phases = [[-pi * (_pair(i, j) in _POSITIVE)] for i in range(5) for j in range(5)]
    return torch.tensor(phases, dtype=torch.float64, device=device)


def _loop_functions(s: Tensor) -> tuple[Bubbles, Boxes]:
    rows, log, phase = _rows(s.device), torch.log(s.abs()), _phases(s.device)
    bubbles = Bubbles(*(table.index_select(0, rows[side]) for table in (s, log, phase) for side in "pq"))
    sides = (s.index_select(0, rows[side]) for side in "PQRD")
    return bubbles, Boxes(bubbles, rows["PR"], rows["QR"], *sides)


def helicity_squares(momenta: Tensor) -> Tensor:
    """|A_h|^2 of the stripped amplitude in GeV^-2, for all of `HELICITIES`: (N, 5, 4) -> (N, 32).

    The momenta are taken as valid (see `ampsure.kinematics`), in any frame. Memory grows with N.
    """
    total = momenta[:, 0] + momenta[:, 1]
    s12 = total[:, 0].square() - total[:, 1:].square().sum(1)
    spinors = Spinors(momenta / torch.sqrt(s12)[:, None, None])
    bubbles, boxes = _loop_functions(spinors.s)
    simple = _no_and_one_minus(spinors)
    two = _bubble_part(spinors, bubbles.functions).add_(_box_part(spinors, boxes.functions, boxes.nn), alpha=3)
    amplitudes = torch.cat([simple, two[0], simple, two[1]])
    return ((amplitudes.real.square() + amplitudes.imag.square()) / (9 * s12)).T
