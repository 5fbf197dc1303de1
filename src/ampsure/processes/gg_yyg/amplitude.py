r"""Helicity amplitudes of g g -> gamma gamma g through a massless quark loop, exact, in batches.

The fermion-loop primitives are those of Bern, Dixon, Kosower (hep-ph/9302280), rewritten without spurious poles; the
photons are summed over their twelve places between the gluons (de Florian, Kunszt, hep-ph/9905283; Bern, Dixon,
Schmidt, hep-ph/0206194). Poles in the regulator, the scale mu and all constants times the tree cancel in that sum.

An amplitude is a sum of c_f f: rational coefficients c_f of spinor products times loop functions f. Parity exchanges
< > and [ ] but leaves f alone, so for real momenta the flipped helicity is the sum of c_f f* up to a phase: sixteen
sets of coefficients serve thirty-two helicities.

The sum over orderings is also a sum over relabellings: the three gluons and the two photons may be permuted among
themselves, and a handful of orderings, evaluated for all twelve relabellings at once, gives all the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, permutations
from math import pi
from typing import Any

import torch
from torch import Tensor

from .loop_functions import Boxes, Bubbles
from .spinors import Spinors

__all__ = ["HELICITIES", "helicity_squares"]

Pair = tuple[int, int]
Legs = tuple[int, ...]
Function = tuple[Any, ...]
"""Name of a loop function: ("log", P), ("l0" | "g1" | "g2", P, Q), ("ls1" | "l1", R, m), ("l2", R, m, P)."""
Terms = Iterator[tuple[Function | None, Tensor]]  # (f, c_f), with None for the rational part

_GLUONS, _PHOTONS = (0, 1, 4), (2, 3)
_PAIRS: list[Pair] = list(combinations(range(5), 2))
_POSITIVE = {(0, 1), (2, 3), (2, 4), (3, 4)}  # s_ij > 0 with legs 0 and 1 incoming
_DISJOINT = [(p, r) for p, r in combinations(_PAIRS, 2) if not set(p) & set(r)]
_BUBBLES = _DISJOINT + [(r, p) for p, r in _DISJOINT]
_BOXES = [(r, m) for r in _PAIRS for m in range(5) if m not in r]

_NEGATIVE: list[Legs] = [(), *((i,) for i in range(5)), *_PAIRS]
_SIXTEEN = ["".join("-" if i in negative else "+" for i in range(5)) for negative in _NEGATIVE]
HELICITIES: tuple[str, ...] = (*_SIXTEEN, *(h.translate(str.maketrans("+-", "-+")) for h in _SIXTEEN))
"""Order of the helicities in `helicity_squares`; legs g1 g2 gamma1 gamma2 g5, all outgoing."""


def _pair(i: int, j: int) -> Pair:
    return (i, j) if i < j else (j, i)


def _row(pair: Pair) -> int:
    return 5 * pair[0] + pair[1]


def _box_pairs(r: Pair, m: int) -> tuple[Pair, Pair, Pair]:
    """P, Q, D of the box (R, m)."""
    u, v = (k for k in range(5) if k != m and k not in r)
    return _pair(u, m), _pair(v, m), _pair(u, v)


def _even(legs: Sequence[int]) -> bool:
    return sum(a > b for a, b in combinations(legs, 2)) % 2 == 0


_RELABELLINGS: list[Legs] = [(g[0], g[1], *y, g[2]) for g in permutations(_GLUONS) for y in permutations(_PHOTONS)]
# The colour trace changes sign with the orientation of the gluons.
_RELABELLING_SIGNS = [1 if _even([r[i] for i in _GLUONS]) else -1 for r in _RELABELLINGS]


def _representatives(negative: Legs, mirror: Legs | None = None) -> Iterator[tuple[float, Legs]]:
    """(weight, ordering) whose relabellings make up the sum over all orderings, for negative helicities at `negative`.

    One ordering for every placement of the photons; `mirror` says where each position goes in a reflection that gives
    the same primitive up to a sign, so that one of two mirror images is enough.
    """
    for photons in combinations(range(5), 2):
        image = photons if mirror is None else tuple(sorted(mirror[i] for i in photons))
        if image < photons:
            continue
        gluon_labels, photon_labels = iter(_GLUONS), iter(_PHOTONS)
        places = sorted(range(5), key=lambda i: i not in negative)  # so negative legs are always the same
        label = {i: next(photon_labels if i in photons else gluon_labels) for i in places}
        ordering = tuple(label[i] for i in range(5))
        weight = 0.5 if mirror is not None and image == photons else 1.0
        yield weight if _even([i for i in ordering if i in _GLUONS]) else -weight, ordering


_ALL_PLUS = [(w / 2, o) for w, o in _representatives(()) if o[0] == 2 and 3 in o[1:3]]  # the others are rotations
_ONE_MINUS = list(_representatives((0,), mirror=(0, 4, 3, 2, 1)))
_ADJACENT = list(_representatives((0, 1), mirror=(1, 0, 4, 3, 2)))
_SEPARATE = list(_representatives((0, 2), mirror=(2, 1, 0, 4, 3)))
_BOX = [(-w, o) for w, o in _representatives((0, 2))]  # a mirror image is an ordering of its own


def _bubble(kind: str, i: int, j: int, k: int, m: int) -> Function:
    return (kind, *sorted((_pair(i, j), _pair(k, m))))


@cache
def _rows(name: Function, device: torch.device) -> Tensor:
    """Where the function stands in its table, for each of the relabellings."""
    kind, first, *rest = name

    def row(g: Legs) -> int:
        def to(pair: Pair | int) -> Pair:
            assert isinstance(pair, tuple)
            return _pair(g[pair[0]], g[pair[1]])

        match kind, rest:
            case "product", [int(j)]:
                assert isinstance(first, int)
                return 5 * g[first] + g[j]
            case "log", []:
                return _row(to(first))
            case "l0" | "g1" | "g2", [q]:
                return _BUBBLES.index((to(first), to(q))) % len(_DISJOINT)
            case "ls1" | "l1" | "pole_free", [int(m)]:
                return _BOXES.index((to(first), g[m]))
            case "l2", [int(m), p]:
                on_q = _box_pairs(to(first), g[m])[0] != to(p)
                return _BOXES.index((to(first), g[m])) + len(_BOXES) * on_q
        raise AssertionError(name)

    return torch.tensor([row(g) for g in _RELABELLINGS], device=device)


@cache
def _tensor(values: tuple[float, ...] | tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


class _LoopFunctions:
    """All loop functions of a batch; `functions[name]` is f of all relabellings, complex (12, N)."""

    def __init__(self, s: Tensor) -> None:
        self._device = device = s.device
        phases = [-pi * (_pair(i, j) in _POSITIVE) for i in range(5) for j in range(5)]
        log = torch.complex(torch.log(s.abs()), s.new_tensor(phases)[:, None].expand_as(s))
        p, r = (_tensor(tuple(_row(pairs[k]) for pairs in _DISJOINT), device) for k in (0, 1))
        bubbles = Bubbles(s[p], s[r], log[p], log[r])
        sides = [(*_box_pairs(r, m), r) for r, m in _BOXES]
        p, q = (_tensor(tuple(_BUBBLES.index((side[k], side[3])) for side in sides), device) for k in (0, 1))
        invariants = (s[_tensor(tuple(_row(side[k]) for side in sides), device)] for k in (0, 1, 3, 2))
        boxes = Boxes(bubbles, p, q, *invariants)
        self._pole_free = boxes.pole_free
        self._tables = {"log": log, "l0": bubbles.l0, "g1": bubbles.g1, "g2": bubbles.g2}
        self._tables |= {"ls1": boxes.ls1, "l1": boxes.l1, "l2": torch.cat([boxes.l2_p, boxes.l2_q])}

    def __getitem__(self, name: Function) -> Tensor:
        return self._tables[name[0]].index_select(0, _rows(name, self._device))

    def pole_free(self, r: Pair, m: int) -> Tensor:
        """Where the box functions of (R, m) come without poles in s_R, (12, N)."""
        return self._pole_free.index_select(0, _rows(("pole_free", r, m), self._device))


Table = list[list[Tensor]]


class _Primitives:
    """Coefficients of the primitives, as in the literature, for all relabellings at once: tensors (12, N).

    Legs are given in the order of the trace; a[i][j] = <ij>, b[i][j] = [ij], ia and ib are their inverses.
    """

    def __init__(self, spinors: Spinors, functions: _LoopFunctions) -> None:
        def relabelled(table: Tensor) -> Table:
            rows = [[_rows(("product", i, j), table.device) for j in range(5)] for i in range(5)]
            return [[table.index_select(0, r) for r in row] for row in rows]

        self.a, self.ia = relabelled(spinors.angle), relabelled(spinors.inverse_angle)
        self.b, self.ib = relabelled(spinors.square), relabelled(spinors.inverse_square)
        self.s = relabelled(spinors.s)
        self._pole_free = functions.pole_free

    def all_plus(self, i1: int, i2: int, i3: int, i4: int, i5: int) -> Terms:
        """(+++++)"""
        a, b, ia, s = self.a, self.b, self.ia, self.s
        s12, s23, s34, s45, s51 = s[i1][i2], s[i2][i3], s[i3][i4], s[i4][i5], s[i5][i1]
        cyclic = s12 * (s23 + s51) + s34 * (s23 + s45) + s45 * s51
        odd = _product(b[i1][i2], a[i2][i3], b[i3][i4], a[i4][i1]) - _product(
            a[i1][i2], b[i2][i3], a[i3][i4], b[i4][i1]
        )
        yield None, _product(odd + cyclic, ia[i1][i2], ia[i2][i3], ia[i3][i4], ia[i4][i5], ia[i5][i1], -1 / 6)

    def one_minus(self, i1: int, i2: int, i3: int, i4: int, i5: int) -> Terms:
        """(-++++)"""
        a, b, ia, ib, s = self.a, self.b, self.ia, self.ib, self.s
        a14_2, b25 = a[i1][i4].square(), b[i2][i5]
        chain = _product(a[i1][i2].square(), b[i2][i3], ia[i2][i3]) + _product(a14_2, b[i3][i4], ia[i3][i4])
        chain = chain.mul_(a[i1][i3].square()).add_(_product(a14_2, a[i1][i5].square(), b[i4][i5], ia[i4][i5]))
        curly = b25 * (s[i2][i3] + s[i3][i4] + s[i4][i5]) - _product(b[i2][i4], a[i4][i3], b[i3][i5])
        curly = curly.mul_(b25).sub_(_product(chain, b[i1][i2], b[i1][i5], ia[i1][i2], ia[i1][i5]))
        yield None, _product(curly, ib[i1][i2], ia[i2][i3], ia[i3][i4], ia[i4][i5], ib[i5][i1], -1 / 3)

    def two_adjacent_minus(self, i1: int, i2: int, i3: int, i4: int, i5: int) -> Terms:
        """(--+++)"""
        a, b, ia, ib = self.a, self.b, self.ia, self.ib
        a12, b35, ends = a[i1][i2], b[i3][i5], ia[i3][i4] * ia[i4][i5]
        tree_12 = _product(a12.square(), ia[i2][i3], ends, ia[i5][i1], 1 / 3)  # tree/(3 <12>)
        left, right = b[i3][i4] * a[i4][i1], a[i2][i4] * b[i4][i5]
        t = (a[i2][i3] * left).add_(right * a[i5][i1])
        k = _product(left, right, ends, 1 / 3)
        chi = _product(b35, ib[i2][i3], ib[i5][i1])
        log = _product(tree_12, a12, -1.0)
        yield ("log", _pair(i2, i3)), log
        yield ("log", _pair(i5, i1)), log.clone()
        yield _bubble("l0", i2, i3, i5, i1), t.mul_(tree_12)
        yield _bubble("g1", i2, i3, i5, i1), k * a12
        yield _bubble("g2", i2, i3, i5, i1), _product(k, chi, -1.0)
        yield None, _product(a[i3][i5], b35, ib[i1][i2]).sub_(a12).mul_(_product(b35, chi, ends, 1 / 3))

    def two_separate_minus(self, i1: int, i2: int, i3: int, i4: int, i5: int) -> Terms:
        """(-+-++) without its box parts"""
        a, b, ia, ib = self.a, self.b, self.ia, self.ib
        a13, b24_25, ia45 = a[i1][i3], b[i2][i4] * b[i2][i5], ia[i4][i5]
        tree_13 = _product(
            a13.square(), a13, ia[i1][i2], ia[i2][i3], ia[i3][i4], ia45, ia[i5][i1], 1 / 3
        )  # over 3 <13>
        u = _product(a[i1][i5], b[i5][i2], a[i2][i3]).sub_(_product(a[i3][i4], b[i4][i2], a[i2][i1]))
        k = _product(b24_25, a13, ia45, 1 / 3)
        ib34_51 = ib[i3][i4] * ib[i5][i1]
        log = _product(tree_13, a13, -1.0)
        yield ("log", _pair(i3, i4)), log
        yield ("log", _pair(i5, i1)), log.clone()
        yield _bubble("l0", i3, i4, i5, i1), u.mul_(tree_13)
        yield _bubble("g1", i3, i4, i5, i1), k * a13
        yield _bubble("g2", i3, i4, i5, i1), _product(k, b[i4][i5], ib34_51, -1.0)
        yield None, _product(b24_25.square(), ib[i1][i2], ib[i2][i3], ib34_51, ia45, -1 / 3)

    def box_part(self, i1: int, i2: int, i3: int, i4: int, i5: int) -> Terms:
        """H(1,2,3,4,5), where (-+-++) also has -H(1,2,3,4,5) + H(3,2,1,5,4)"""
        a, b, ia, ib, s = self.a, self.b, self.ia, self.ib, self.s
        r, p, q = _pair(i5, i1), _pair(i2, i3), _pair(i3, i4)
        a12, a23, a34, a41, b24 = a[i1][i2], a[i2][i3], a[i3][i4], a[i4][i1], b[i2][i4]
        s23, s34, s51, s24 = s[i2][i3], s[i3][i4], s[i5][i1], s[i2][i4]
        a41_b24, a12_34 = a41 * b24, a12 * a34
        w = _product(a41_b24, ia[i4][i5], ia[i5][i1])
        w24 = w * ia[i2][i4]
        left, right = a23 * a41_b24, a12_34 * b24
        minus_x = _product(a12_34, left, w24, ia[i2][i4], -1.0)
        yield ("ls1", r, i3), _product(a[i1][i3].square(), b24, w, -1.0).add_(minus_x, alpha=2)
        yield ("l1", r, i3), minus_x
        yield ("l2", r, i3, p), _product(left.square(), w24, 2 / 3)
        yield ("l2", r, i3, q), _product(right.square(), w24, 2 / 3)
        # s51 small against s23 and s34: the poles of l1, l2 and the rational part are added up by hand, and cancel.
        rational = _product(a12, b24, a41_b24, ib[i2][i3], ib[i3][i4], -1 / (3 * s51))
        n = (a23 * a41).add_(a12_34).mul_(b[i1][i5]).add_(_product(a23, a34, b[i5][i3]))
        inverse = 1 / ((s51 - s23) * (s51 - s34))
        cancelled = _product(n, b24, inverse).square_().mul_(a[i5][i1] * ib[i1][i5]).mul_(1 / 3)
        cancelled.add_(_product(left, right, inverse * (1 / s24 - s24 / (3 * s23 * s34))))
        yield None, torch.where(self._pole_free(r, i3), cancelled, rational).mul_(w24)


def _product(first: Tensor, second: Tensor, *others: Tensor | float) -> Tensor:
    """A chain of factors in one buffer: the allocations would cost more than the arithmetic."""
    product = first * second
    for factor in others:
        product.mul_(factor)
    return product


def helicity_squares(momenta: Tensor) -> Tensor:
    """|A_h|^2 of the stripped amplitude in GeV^-2, for all of `HELICITIES`: (N, 5, 4) -> (N, 32).

    The momenta are taken as valid (see `ampsure.kinematics`), in any frame. Memory grows with N.
    """
    total = momenta[:, 0] + momenta[:, 1]
    s12 = total[:, 0].square() - total[:, 1:].square().sum(1)
    spinors = Spinors(momenta / torch.sqrt(s12)[:, None, None])
    functions = _LoopFunctions(spinors.s)
    amplitudes = torch.zeros(2, len(_NEGATIVE), len(momenta), dtype=spinors.angle.dtype, device=momenta.device)
    signs = _tensor(tuple(_RELABELLING_SIGNS), momenta.device)[:, None]
    for negative, coefficients in _coefficients(_Primitives(spinors, functions)).items():
        total = coefficients[None].expand(2, -1, -1).clone()
        for f, c in coefficients.items():
            if f is not None:
                value = functions[f]
                total[0].addcmul_(c, value)
                total[1].addcmul_(c, value.conj_physical_())
        images = tuple(_NEGATIVE.index(tuple(sorted(g[i] for i in negative))) for g in _RELABELLINGS)
        amplitudes.index_add_(1, _tensor(images, momenta.device), total.mul_(signs))
    amplitudes = amplitudes.flatten(0, 1)
    return ((amplitudes.real.square() + amplitudes.imag.square()) / s12).T


def _coefficients(primitives: _Primitives) -> dict[Legs, dict[Function | None, Tensor]]:
    """c_f of all relabellings, for one choice of negative legs of each kind (gluons, photons or both)."""
    amplitudes: dict[Legs, dict[Function | None, Tensor]] = {}
    for primitive, negative, representatives in (
        (primitives.all_plus, (), _ALL_PLUS),
        (primitives.one_minus, (0,), _ONE_MINUS),
        (primitives.two_adjacent_minus, (0, 1), _ADJACENT),
        (primitives.two_separate_minus, (0, 2), _SEPARATE),
        (primitives.box_part, (0, 2), _BOX),
    ):
        for weight, ordering in representatives:
            coefficients = amplitudes.setdefault(tuple(sorted(ordering[i] for i in negative)), {})
            for f, c in primitive(*ordering):
                if f in coefficients:
                    coefficients[f].add_(c, alpha=weight)
                else:
                    coefficients[f] = c if weight == 1 else c * weight
    return amplitudes
