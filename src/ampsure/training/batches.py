"""Random orders of events, the same on every device and without asking the host for random numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["derived_seed", "shuffled"]


def derived_seed(*keys: int) -> int:
    """A seed (63 bits) that follows from other ones."""
    return int(np.random.SeedSequence(keys).generate_state(1, np.uint64)[0] >> np.uint64(1))


def shuffled(n: int, *keys: int, device: torch.device | str = "cpu") -> Tensor:
    """The numbers below n in a random order that follows from the keys, (n,).

    They are sorted by a hash of themselves (splitmix64, Steele, Lea, Flood, OOPSLA 2014; int64 wraps around).

    >>> shuffled(6, 1, 2)
    tensor([1, 5, 2, 3, 4, 0])
    """
    z = torch.arange(n, device=device) * -0x61C8864680B583EB + derived_seed(*keys)
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        z = (z ^ _shifted(z, shift)) * factor
    return (z ^ _shifted(z, 31)).argsort(stable=True)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Unsigned shift to the right of a signed number."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
