r"""g g -> gamma gamma g at lowest order: one quark loop, exact squared amplitude in closed form.

<|M|^2> = 3 pi alpha_s^3 alpha^2 (sum_q Q_q^2)^2 sum_h |A_h|^2, averaged over incoming and summed over outgoing spins
and colours, in GeV^-2, for massless quarks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import pi

import torch
from torch import Tensor

from ampsure.errors import AmpsureError, InvalidEventsError
from ampsure.kinematics import Array, find_collinear, find_invalid
from ampsure.processes.process import Process, register_process

from .amplitude import HELICITIES
from .amplitude import helicity_squares as _helicity_squares

__all__ = ["ALPHA", "ALPHA_S", "HELICITIES", "PROCESS", "amplitude", "helicity_squares"]

ALPHA_S = 0.118
ALPHA = 1 / 137.035999084
_CHUNK = {"cpu": 1024, "cuda": 8192}  # the cache on a CPU, less than a gigabyte on a GPU
_KEPT_BYTES = 31 << 20  # just below the largest block glibc learns from
_MAX_THREADS = 8  # more only wait for the interpreter


def amplitude(
    momenta: Array, *, alpha_s: float = ALPHA_S, alpha: float = ALPHA, n_flavours: int = 5, identical: bool = False
) -> Array:
    """Squared amplitude, averaged over spins and colours, in GeV^-2: (N, 5, 4) -> (N,), numpy or torch.

    Args:
        momenta: (E, px, py, pz) of g g gamma gamma g in GeV, the first two incoming, in any frame.
        n_flavours: massless quarks in the loop, 1 (down) to 6.
        identical: include the factor 1/2 for identical photons.

    >>> import numpy as np
    >>> point = np.array([[[14, 0, 0, 14], [33, 0, 0, -33], [9, 1, 4, 8], [7, -6, 2, 3], [31, 5, -6, -30]]])
    >>> float(amplitude(point, alpha=1 / 132.507)[0])  # doctest: +ELLIPSIS
    0.000896235501415...
    """
    if not 1 <= n_flavours <= 6:
        raise AmpsureError(f"n_flavours must be 1 to 6, not {n_flavours}.")
    charges = sum((4 if flavour % 2 else 1) / 9 for flavour in range(n_flavours))  # d, u, s, c, b, t
    coupling = 3 * pi * alpha_s**3 * alpha**2 * charges**2 * (0.5 if identical else 1.0)
    return _evaluate(momenta, lambda p: _helicity_squares(p).sum(1).mul_(coupling), ())


def helicity_squares(momenta: Array) -> Array:
    """|A_h|^2 of the stripped amplitude in GeV^-2, one column for each of `HELICITIES`: (N, 5, 4) -> (N, 32)."""
    return _evaluate(momenta, _helicity_squares, (len(HELICITIES),))


def _evaluate(momenta: Array, function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Array:
    """Check and evaluate chunk by chunk, on all threads, and return what was given: numpy or torch."""
    try:
        tensor = torch.as_tensor(momenta).to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidEventsError(
            f"The momenta must be a numeric array (N, 5, 4), not {type(momenta).__name__}."
        ) from error
    if tensor.ndim != 3 or tensor.shape[1:] != (5, 4):
        raise InvalidEventsError(f"The momenta of g g > a a g have shape (N, 5, 4), not {tuple(tensor.shape)}.")
    on_cpu = tensor.device.type == "cpu"
    size = _CHUNK["cpu" if on_cpu else "cuda"]
    threads = torch.get_num_threads()
    result = tensor.new_empty((len(tensor), *shape))
    if on_cpu:
        # Freeing one large block tells the C library to keep the memory of the chunks, instead of giving it back to the
        # system and faulting it in again for every tensor, which would double the time.
        torch.empty(_KEPT_BYTES, dtype=torch.uint8)

    @torch.inference_mode()
    def evaluate(start: int) -> None:
        chunk = tensor[start : start + size]
        _check(chunk, start, len(tensor))
        result[start : start + size] = function(chunk)

    starts = range(0, len(tensor), size)
    if on_cpu and len(starts) > 1 and threads > 1:
        try:  # chunks side by side, each on one thread
            with ThreadPoolExecutor(
                min(threads, _MAX_THREADS), initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                list(pool.map(evaluate, starts))
        finally:
            torch.set_num_threads(threads)
    else:
        for start in starts:
            evaluate(start)
    return result if isinstance(momenta, Tensor) else result.numpy()


def _check(momenta: Tensor, start: int, total: int) -> None:
    """Raise on the first invalid event of a chunk that begins at event `start` of `total`."""
    bad, reasons = find_invalid(momenta, PROCESS.masses)
    if not bad.any():
        bad = find_collinear(momenta)
        reasons = [(bad, "two legs are exactly collinear, where the amplitude is not defined")]
    if bad.any():
        first = int(bad.nonzero()[0])
        reason = next(reason for mask, reason in reasons if mask[first])
        raise InvalidEventsError(f"Event {start + first} of {total} is invalid: {reason}.")


PROCESS = register_process(
    Process("gg_yyg", (21, 21, 22, 22, 21), masses=(0.0,) * 5, exact=amplitude, unit="GeV^-2", symmetric=True)
)
