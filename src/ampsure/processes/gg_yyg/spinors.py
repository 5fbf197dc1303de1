"""Spinor products of five massless legs, all outgoing.

Signs follow <ij>[ji] = s_ij with k1 = -p1 and k2 = -p2. Only moduli and relative phases matter: any little-group phase
gives the same squared amplitudes, so each leg takes the light-cone component that is free of cancellation.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Spinors"]

_CROSSINGS = torch.tensor([(i < 2) + (j < 2) for i in range(5) for j in range(5)])  # incoming legs in <ij>
_PHASE = torch.tensor([1, 1j, -1], dtype=torch.complex128)[_CROSSINGS][:, None]
_SIGN = torch.tensor([1, -1, 1], dtype=torch.float64)[_CROSSINGS][:, None]


class Spinors:
    """<ij>, [ij], 1/<ij>, 1/[ij] (complex) and s_ij (real), each (25, N) with row 5 i + j; rows i = j have no meaning.

    `phase` and `inverse_phase` are [ij]/<ij> and <ij>/[ij], `chain`, `inverse_angles` and `inverse_squares` are
    <ij>[jk], 1/(<ij><jk>) and 1/([ij][jk]), complex (125, N) with row 25 i + 5 j + k.

    Args:
        momenta: (N, 5, 4) physical momenta (E, px, py, pz), the first two incoming.
    """

    def __init__(self, momenta: Tensor) -> None:
        _, x, y, z = momenta.permute(2, 1, 0).contiguous()  # each (5, N)
        energy = torch.sqrt(x * x + y * y + z * z)  # exactly on shell, whatever the input said
        forward = z >= 0
        root = torch.sqrt(energy + z.abs())
        transverse = torch.complex(x, torch.where(forward, y, -y)) / root
        upper = torch.where(forward, root, transverse)
        lower = torch.where(forward, transverse, root)
        product = (upper[:, None] * lower - lower[:, None] * upper).reshape(25, -1)

        phase = _PHASE.to(product.device)
        self.angle = phase * product
        self.square = -phase * product.conj_physical()
        self.s = _SIGN.to(product.device) * (product.real.square() + product.imag.square())
        inverse = -1 / self.s
        self.inverse_angle = self.square * inverse  # 1/<ij> = [ji]/s_ij
        self.inverse_square = self.angle * inverse
        self.phase = self.square * self.inverse_angle
        self.inverse_phase = self.phase.conj_physical()
        self.chain = _chained(self.angle, self.square)
        self.inverse_angles = _chained(self.inverse_angle, self.inverse_angle)
        self.inverse_squares = _chained(self.inverse_square, self.inverse_square)


def _chained(ij: Tensor, jk: Tensor) -> Tensor:
    return (ij.view(5, 5, 1, -1) * jk.view(1, 5, 5, -1)).view(125, -1)
