"""High-precision oracle for the one-loop process g g -> gamma gamma g with massless quarks in the loop.

A literal mpmath evaluation of the published formulas, with no numerical rearrangement:
  primitives             Bern, Dixon, Kosower, hep-ph/9302280 (fermion-loop five-gluon amplitudes);
  photon sum and norm    de Florian, Kunszt, hep-ph/9905283.
Singular limits are met by digits alone.  On a removable singularity (r = 1 or r1 + r2 = 1), or too close to
it for the number of digits, the functions raise ZeroDivisionError instead of returning a wrong number.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product

from mpmath import mp, mpc, mpf

Number = int | float | str | mpf
Table = dict[int, mpc]  # keyed by two-digit pairs of positions: a[12] = <12>, b[12] = [12], s[12] = s_12

# Cyclic orderings of the legs g1 g2 y1 y2 g5 = 0..4: gluons (0, 1, 4), photon 2 in 3 gaps, then 3 in 4 gaps.
ORDERINGS = tuple(
    (*four[:j], 3, *four[j:]) for four in ((0, 2, 1, 4), (0, 1, 2, 4), (0, 1, 4, 2)) for j in (1, 2, 3, 4)
)
HELICITIES = tuple("".join(h) for h in product("+-", repeat=5))


def helicity_squares(momenta: Sequence[Sequence[Number]], digits: int = 50) -> dict[str, mpf]:
    """|A_h|^2 of all 32 helicities, A_h the sum of hep-ph/9302280 primitives over 12 photon insertions.

    momenta: rows (E, px, py, pz) of the incoming gluons p1 p2, the photons p3 p4 and the gluon p5.
    Keys: outgoing-convention helicities in the order g1 g2 y1 y2 g5, such as "+-+-+".
    """
    with mp.workdps(digits):
        point = _Point(momenta)
        return {h: _abs2(point.amplitude(h)) for h in HELICITIES}


def squared_amplitude(
    momenta: Sequence[Sequence[Number]],
    alpha_s: Number = "0.118",
    alpha: Number | None = None,
    sum_charges_squared: Number = "11/9",
    identical: bool = False,
    digits: int = 50,
) -> mpf:
    """Spin- and colour-averaged <|M|^2>, normalised as in de Florian-Kunszt hep-ph/9905283.

    alpha=None stands for 1/137.035999084; couplings may be ratio strings such as "1/132.507".
    identical: include the factor 1/2 for the two photons.
    """
    squares = helicity_squares(momenta, digits)
    with mp.workdps(digits):
        g2 = 4 * mp.pi * _number(alpha_s)
        e2 = 4 * mp.pi * _number("1/137.035999084" if alpha is None else alpha)
        couplings = g2**3 * e2**2 * _number(sum_charges_squared) ** 2 / (16 * mp.pi**2) ** 2
        colour = 4 * 48  # photon couplings sqrt(2)^4, sum over colours of |Tr(abc) - Tr(cba)|^2
        average = 4 * 64 * (2 if identical else 1)
        return couplings * colour / average * mp.fsum(squares.values())


def balance(three_momenta_out: Sequence[Sequence[Number]], digits: int = 50) -> list[list[mpf]]:
    """Five massless balanced rows (E, px, py, pz) from the (px, py, pz) of photon, photon, gluon.

    The numbers are taken as exact, except that the gluon's px and py are reset to recoil against the photons;
    E = |p|, and the two beams run along +z and -z.
    """
    with mp.workdps(digits):
        y1, y2, gluon = ([_number(x) for x in row] for row in three_momenta_out)
        gluon = [-(y1[0] + y2[0]), -(y1[1] + y2[1]), gluon[2]]
        out = [[mp.sqrt(x * x + y * y + z * z), x, y, z] for x, y, z in (y1, y2, gluon)]
        energy, pz = (mp.fsum(row[k] for row in out) for k in (0, 3))
        plus, minus = (energy + pz) / 2, (energy - pz) / 2
        return [[plus, mpf(0), mpf(0), plus], [minus, mpf(0), mpf(0), -minus], *out]


def _number(x: Number) -> mpf:
    """x at the working precision; strings may be ratios of decimals."""
    if isinstance(x, str) and "/" in x:
        numerator, denominator = x.split("/")
        return mpf(numerator) / mpf(denominator)
    return mpf(x)


def _abs2(z: mpc) -> mpf:
    return z.real**2 + z.imag**2


class _Point:
    """Spinor products, invariants and loop functions of one phase-space point, all legs outgoing."""

    def __init__(self, momenta: Sequence[Sequence[Number]]) -> None:
        lam = [_spinor(*(_number(x) for x in row)) for row in momenta]
        self.angle, self.square, self.s = ([[mpf(0)] * 5 for _ in range(5)] for _ in range(3))
        for i, j in product(range(5), repeat=2):
            z = lam[i][0] * lam[j][1] - lam[i][1] * lam[j][0]
            incoming = (i < 2) + (j < 2)  # each incoming leg k = -p brings a factor i to both its spinors
            self.angle[i][j] = mpc(0, 1) ** incoming * z
            self.square[i][j] = -(mpc(0, 1) ** incoming) * mp.conj(z)
            self.s[i][j] = (-1) ** incoming * _abs2(z)  # <ij>[ji]
        self.functions = _Functions()

    def amplitude(self, helicities: str) -> mpc:
        """A_h: the primitives summed over the orderings."""
        return mp.fsum(self.primitive(helicities, order) for order in ORDERINGS)

    def primitive(self, helicities: str, order: tuple[int, ...]) -> mpc:
        """a_h(order), rotated to a known helicity pattern; parity swaps < > and [ ], not the functions."""
        flipped = helicities.count("-") > 2
        minus = "+" if flipped else "-"
        for k in range(5):
            legs = order[k:] + order[:k]
            formula = PRIMITIVES.get("".join("-" if helicities[i] == minus else "+" for i in legs))
            if formula:
                break
        tables = (self.square, self.angle) if flipped else (self.angle, self.square)
        a, b, s = (
            {10 * i + j: table[p][q] for i, p in enumerate(legs, 1) for j, q in enumerate(legs, 1)}
            for table in (*tables, self.s)
        )
        return formula(a, b, s, self.functions)


def _spinor(energy: mpf, x: mpf, y: mpf, z: mpf) -> tuple[mpc, mpc]:
    """lambda of a massless momentum (lambda-tilde is its conjugate), in the phase that avoids E - |z|."""
    root = mp.sqrt(energy + abs(z))
    return (mpc(root), mpc(x, y) / root) if z >= 0 else (mpc(x, -y) / root, mpc(root))


def _power(x: mpf, n: int) -> mpf:
    """x^n, to divide a numerator that vanishes like x^n; refused where fewer than 12 digits would be left."""
    if abs(x) ** n < mpf(10) ** (12 - mp.dps):
        raise ZeroDivisionError(f"removable singularity: {mp.nstr(x, 3)}^{n} too small for {mp.dps} digits")
    return x**n


class _Functions:
    """Loop functions of r = (-s1)/(-s2), s -> s + i0 (hep-ph/9302280), cached per instance."""

    def __init__(self) -> None:
        for name in ("log", "li2", "L0", "L1", "L2", "Ls1"):
            setattr(self, name, cache(getattr(self, name)))

    def log(self, s: mpf) -> mpc:
        """ln(-s - i0)."""
        return mpc(mp.log(abs(s)), -mp.pi if s > 0 else 0)

    def ratio_log(self, s1: mpf, s2: mpf) -> mpc:
        """ln r."""
        return self.log(s1) - self.log(s2)

    def li2(self, s1: mpf, s2: mpf) -> mpc:
        """Li2(1 - r)."""
        r = s1 / s2
        if r > 0:
            return mpc(mp.polylog(2, 1 - r).real)
        return mp.pi**2 / 6 - self.ratio_log(s1, s2) * mp.log(1 - r) - mp.polylog(2, r).real

    def L0(self, s1: mpf, s2: mpf) -> mpc:
        return self.ratio_log(s1, s2) / _power(1 - s1 / s2, 1)

    def L1(self, s1: mpf, s2: mpf) -> mpc:
        return (self.L0(s1, s2) + 1) / _power(1 - s1 / s2, 1)

    def L2(self, s1: mpf, s2: mpf) -> mpc:
        r = s1 / s2
        return (self.ratio_log(s1, s2) - (r - 1 / r) / 2) / _power(1 - r, 3)

    def Ls1(self, s1: mpf, s2: mpf, s3: mpf) -> mpc:
        """Ls1(s1/s3, s2/s3)."""
        rest = 1 - s1 / s3 - s2 / s3
        logs = self.ratio_log(s1, s3) * self.ratio_log(s2, s3)
        dilogs = self.li2(s1, s3) + self.li2(s2, s3) + logs - mp.pi**2 / 6
        return (dilogs + rest * (self.L0(s1, s3) + self.L0(s2, s3))) / _power(rest, 2)


def _all_plus(a: Table, b: Table, s: Table, f: _Functions) -> mpc:
    """(+++++)."""
    even = s[12] * s[23] + s[23] * s[34] + s[34] * s[45] + s[45] * s[51] + s[51] * s[12]
    odd = b[12] * a[23] * b[34] * a[41] - a[12] * b[23] * a[34] * b[41]
    return -(even + odd) / (6 * a[12] * a[23] * a[34] * a[45] * a[51])


def _one_minus(a: Table, b: Table, s: Table, f: _Functions) -> mpc:
    """(-++++)."""
    bracket = (
        a[12] ** 2 * a[13] ** 2 * b[23] / a[23]
        + a[13] ** 2 * a[14] ** 2 * b[34] / a[34]
        + a[14] ** 2 * a[15] ** 2 * b[45] / a[45]
    )
    numerator = (
        (s[23] + s[34] + s[45]) * b[25] ** 2 - b[24] * a[43] * b[35] * b[25] - b[12] * b[15] / (a[12] * a[15]) * bracket
    )
    return -numerator / (3 * b[12] * a[23] * a[34] * a[45] * b[51])


def _assemble(tree: mpc, logs: mpc, ff: mpc, fs: mpc) -> mpc:
    """-(Vf + Vs) tree - (Ff + Fs) at mu = 1, without the -5/(2 eps) of Vf: sum(tree) = 0 over ORDERINGS."""
    vf = logs / 2 - 2
    vs = -vf / 3 + mpf(2) / 9
    return -(vf + vs) * tree - (ff + fs)


def _adjacent(a: Table, b: Table, s: Table, f: _Functions) -> mpc:
    """(--+++)."""
    tree = a[12] ** 3 / (a[23] * a[34] * a[45] * a[51])
    t = a[23] * b[34] * a[41] + a[24] * b[45] * a[51]
    k = b[34] * a[41] * a[24] * b[45]
    ff = -(a[12] ** 2) * t / (a[23] * a[34] * a[45] * a[51]) * f.L0(s[23], s[51]) / s[51] / 2
    fs = (
        -k * t / (a[34] * a[45]) * f.L2(s[23], s[51]) / s[51] ** 3 / 3
        - ff / 3
        - a[35] * b[35] ** 3 / (b[12] * b[23] * a[34] * a[45] * b[51]) / 3
        + a[12] * b[35] ** 2 / (b[23] * a[34] * a[45] * b[51]) / 3
        + a[12] * k / (s[23] * a[34] * a[45] * s[51]) / 6
    )
    return _assemble(tree, f.log(s[23]) + f.log(s[51]), ff, fs)


def _split(a: Table, b: Table, s: Table, f: _Functions) -> mpc:
    """(-+-++)."""
    ring = a[12] * a[23] * a[34] * a[45] * a[51]
    tree = a[13] ** 4 / ring
    u = a[15] * b[52] * a[23] - a[34] * b[42] * a[21]
    la = f.Ls1(s[23], s[34], s[51])
    lb = f.Ls1(s[12], s[51], s[34])
    l0 = a[13] ** 3 * u / ring * f.L0(s[34], s[51]) / s[51]
    ff = (
        -(a[13] ** 2) * a[41] * b[24] ** 2 / (a[45] * a[51]) * la / s[51] ** 2
        + a[13] ** 2 * a[53] * b[25] ** 2 / (a[34] * a[45]) * lb / s[34] ** 2
        - l0 / 2
    )
    l1a = 2 * la + f.L1(s[23], s[51]) + f.L1(s[34], s[51])
    l1b = 2 * lb + f.L1(s[12], s[34]) + f.L1(s[51], s[34])
    l2 = (
        a[13] * b[24] * b[25] * u / a[45]
        + 2 * a[12] ** 2 * a[34] ** 2 * a[41] * b[24] ** 3 / (a[45] * a[51] * a[24])
        - 2 * a[32] ** 2 * a[15] ** 2 * a[53] * b[25] ** 3 / (a[54] * a[43] * a[25])
    ) / 3
    fs = (
        -a[12] * a[23] * a[34] * a[41] ** 2 * b[24] ** 2 / (a[45] * a[51] * a[24] ** 2) * l1a / s[51] ** 2
        + a[32] * a[21] * a[15] * a[53] ** 2 * b[25] ** 2 / (a[54] * a[43] * a[25] ** 2) * l1b / s[34] ** 2
        + 2 * a[23] ** 2 * a[41] ** 3 * b[24] ** 3 / (3 * a[45] * a[51] * a[24]) * f.L2(s[23], s[51]) / s[51] ** 3
        - 2 * a[21] ** 2 * a[53] ** 3 * b[25] ** 3 / (3 * a[54] * a[43] * a[25]) * f.L2(s[12], s[34]) / s[34] ** 3
        + f.L2(s[34], s[51]) / s[51] ** 3 * l2
        + l0 / 6
        + b[24] ** 2 * b[25] ** 2 / (3 * b[12] * b[23] * b[34] * a[45] * b[51])
        - a[12] * a[41] ** 2 * b[24] ** 3 / (3 * a[45] * a[51] * a[24] * b[23] * b[34] * s[51])
        + a[32] * a[53] ** 2 * b[25] ** 3 / (3 * a[54] * a[43] * a[25] * b[21] * b[15] * s[34])
        + a[13] ** 2 * b[24] * b[25] / (6 * s[34] * a[45] * s[51])
    )
    return _assemble(tree, f.log(s[34]) + f.log(s[51]), ff, fs)


PRIMITIVES = {"+++++": _all_plus, "-++++": _one_minus, "--+++": _adjacent, "-+-++": _split}
