"""Speed of the exact amplitude: batches on all cores, against one point at a time and against plain mpmath."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from ampsure.processes.gg_yyg import amplitude
from validation import oracle
from validation.amplitude import benchmark_points

BATCH = 100_000


def seconds(function: Callable[[], object], repeats: int) -> float:
    """Median wall-clock time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return median(times)


def peak_memory() -> float:
    """Largest resident size so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    momenta = benchmark_points(BATCH, seed=1)
    threads = torch.get_num_threads()
    amplitude(momenta[:20_000])
    before = peak_memory()
    batch = {}
    for n in dict.fromkeys((1, threads)):
        torch.set_num_threads(n)
        batch[n] = seconds(lambda: amplitude(momenta), 3) / BATCH
    memory = peak_memory() - before
    single = seconds(lambda: [amplitude(momenta[i : i + 1]) for i in range(20)], 3) / 20
    exact = [oracle.balance(p[2:, 1:].tolist()) for p in momenta[:5]]
    literal = seconds(lambda: [oracle.squared_amplitude(p) for p in exact], 1) / len(exact)

    table = Table("", "us a point", "us a point and core", f"ratio to batches on {threads} cores")
    for name, value, cores in (
        *((f"batches of {BATCH:,}, {n} core{'s' * (n > 1)}", value, n) for n, value in batch.items()),
        ("one point at a time", single, 1),
        ("mpmath, 50 digits, one point at a time", literal, 1),
    ):
        table.add_row(name, f"{value * 1e6:,.1f}", f"{value * cores * 1e6:,.1f}", f"{value / batch[threads]:,.1f}")
    console = Console(width=120)
    console.print(table)
    console.print(f"Memory beyond the momenta: {memory:.2f} GiB.")


if __name__ == "__main__":
    main()
