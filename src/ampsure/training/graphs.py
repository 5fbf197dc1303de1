"""Steps recorded once as a CUDA graph and replayed: launching hundreds of small kernels takes longer than they do."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import torch

__all__ = ["Replay"]


class Replay:
    """Calls `work(n)`: as written, or from the third call on as a CUDA graph, one for every n.

    The work must read what changes from call to call (batch, learning rate) from tensors that stay where they are,
    work in place, and ask the device nothing.

    Args:
        generators: of random numbers drawn in the work; a replay advances them as the work would.
        enabled: False to call the work as written, always.
    """

    def __init__(
        self, work: Callable[[int], None], *, generators: Sequence[torch.Generator] = (), enabled: bool = True
    ) -> None:
        self._work, self._generators, self._enabled = work, generators, enabled
        self._calls = 0  # the first ones are not recorded: libraries and optimisers set themselves up in them
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, n: int) -> None:
        self._calls += 1
        if not self._enabled or self._calls < 3:
            self._work(n)
            return
        if n not in self._graphs:
            self._graphs[n] = self._record(n)
        self._graphs[n].replay()

    def forget(self) -> None:
        """Give the graphs and their memory back."""
        self._graphs = {}

    def _record(self, n: int) -> torch.cuda.CUDAGraph:
        if not self._graphs:
            gc.collect()  # no graph of an earlier training may be destroyed while this one is recorded
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None  # they never run at the same time
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads may go on
            self._work(n)
        return graph
