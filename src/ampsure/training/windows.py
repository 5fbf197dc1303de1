"""`Windows`: the order in which an epoch visits training events, of which only some are in memory at a time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ampsure.scratch import Column, Stored

from .batches import shuffled

__all__ = ["Windows"]

_BLOCKS = 16  # in a window


class Windows:
    """Training events in memory, window after window.

    Stored events are cut into blocks of neighbours. Every epoch visits all blocks, in a uniformly random order of its
    own, 16 at a time: these are a window, within which batches are drawn at random. So every event is seen once an
    epoch, but for the few that do not fill the last batch, as in memory. While one window is trained on, a thread reads
    the next.

    Events in memory are one window, which is always there.

    Args:
        x, y: (N, F) and (N,) or (N, 3), ...
        batch: events in a batch; blocks are multiples of it.
        epochs: nothing is read beyond them.
        seed: the order of blocks follows from it, and from the epoch.
    """

    def __init__(self, x: Column, y: Column, batch: int, epochs: int, seed: int) -> None:
        self.size = len(y)
        """Events in a window; the last one may have fewer."""
        if isinstance(x, Stored) and isinstance(y, Stored):
            self._block = max(x.scratch.window // (_BLOCKS * batch), 1) * batch
            self.size = min(_BLOCKS * self._block, self.size)
            self.x, self.y = (c.host(0, 1).new_empty(self.size, *c.shape[1:], device=c.device) for c in (x, y))
            self._stored: tuple[Stored, Stored] | None = (x, y)
        else:
            assert isinstance(x, Tensor)
            assert isinstance(y, Tensor)
            self.x, self.y, self._stored = x, y, None
        self._n, self._epochs, self._seed = len(y), epochs, seed
        self._thread = ThreadPoolExecutor(1)  # starts when it is first used
        self._next: tuple[tuple[int, int], Future[list[Tensor]]] | None = None
        self._loaded: tuple[int, int] | None = None

    def __len__(self) -> int:
        return -(-self._n // self.size)

    def rows(self, number: int) -> int:
        """Events in a window."""
        return min(self.size, self._n - number * self.size)

    def load(self, epoch: int, number: int) -> None:
        """Makes `x` and `y` begin with the events of a window."""
        place = (epoch if len(self) > 1 else 0, number)
        if self._stored is None or place == self._loaded:
            return
        if self._next is None or self._next[0] != place:
            self._read_ahead(place)
        assert self._next is not None
        for window, rows in zip((self.x, self.y), self._next[1].result(), strict=True):
            window[: len(rows)].copy_(rows)
        self._loaded = place
        following = (epoch, number + 1) if number + 1 < len(self) else (epoch + 1, 0)
        if len(self) > 1 and following[0] < self._epochs:
            self._read_ahead(following)

    def close(self) -> None:
        """Reads no further."""
        self._thread.shutdown(cancel_futures=True)

    def _read_ahead(self, place: tuple[int, int]) -> None:
        self._next = place, self._thread.submit(self._read, *place)

    def _read(self, epoch: int, number: int) -> list[Tensor]:
        """Blocks of a window in the order of the file; the last block of all, which may be short, comes last."""
        full = self._n // self._block
        order = [*shuffled(full, self._seed, 3, epoch).tolist(), full]
        chosen = sorted(order[_BLOCKS * number : _BLOCKS * (number + 1)])
        starts = [block * self._block for block in chosen if block * self._block < self._n]
        assert self._stored is not None
        return [torch.cat([c.host(start, start + self._block) for start in starts]) for c in self._stored]
