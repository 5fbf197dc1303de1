"""Microseconds a point of the exported C++ library on one core, against torch, the exact amplitude and plain sgemm.

All of it in processor time, so that what else runs on the machine counts as little as it can.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure.deploy import export_umami
from ampsure.networks import StackedMLP
from ampsure.threads import one_thread

HIDDEN = (128,) * 6

_DRIVER = r"""
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>
#include "ampsure_surrogate.h"

int main(int, char** argument) {
    const size_t count = std::atoi(argument[2]), batch = std::atoi(argument[3]), legs = ampsure_legs();
    std::vector<double> momenta(count * legs * 4), a(batch), b(batch), c(batch), d(batch);
    std::unique_ptr<bool[]> inside(new bool[batch]);
    std::FILE* file = std::fopen(argument[1], "rb");
    if (!file || std::fread(momenta.data(), sizeof(double), momenta.size(), file) != momenta.size()) return 1;
    ampsure_surrogate* handle = ampsure_create();
    for (int all = 0; all < 2; ++all) {
        double best = 1e30;
        for (int repeat = 0; repeat < 30; ++repeat) {
            const std::clock_t start = std::clock();
            size_t done = 0;
            for (; done + batch <= count; done += batch)
                ampsure_predict(handle, batch, &momenta[done * legs * 4], a.data(), all ? b.data() : nullptr,
                                all ? c.data() : nullptr, all ? d.data() : nullptr, all ? inside.get() : nullptr);
            best = std::min(best, 1e6 * double(std::clock() - start) / CLOCKS_PER_SEC / done);
        }
        std::printf("%.6f\n", best);
    }
    ampsure_destroy(handle);
}
"""


def time_library(library: Path, momenta: NDArray[np.float64], batch: int) -> tuple[float, float]:
    """Microseconds a point of a library of `export_umami`, called from C++ with batches of points: best of 30.

    Returns:
        For the amplitude alone, and for all outputs.
    """
    with TemporaryDirectory() as name:
        folder, lib = Path(name), library.parent
        (folder / "driver.cpp").write_text(_DRIVER)
        np.ascontiguousarray(momenta, np.float64).tofile(folder / "momenta")
        command = ["c++", "-std=c++17", "-O2", "driver.cpp", "-I", lib, "-L", lib, "-lampsure_surrogate"]
        subprocess.run([*command, f"-Wl,-rpath,{lib}", "-o", "driver"], cwd=folder, check=True)
        arguments = [folder / "driver", "momenta", str(len(momenta)), str(batch)]
        output = subprocess.run(arguments, cwd=folder, check=True, capture_output=True, text=True).stdout
    amplitude, everything = map(float, output.split())
    return amplitude, everything


def untrained(events: ampsure.Events, members: int) -> ampsure.Surrogate:
    """A surrogate of the shape of the benchmark, whose numbers mean nothing."""
    surrogate = ampsure.fit(events, "repulsive", config={"network": {"hidden": (8,)}}, epochs=1, seed=1)
    n_inputs, n_outputs = surrogate.network.widths[0], surrogate.network.widths[-1]
    network = StackedMLP(n_inputs, n_outputs, hidden=HIDDEN, members=members, residual=True)
    return replace(surrogate, network=network.requires_grad_(False))


def fastest(function: Callable[[], object], repeats: int) -> float:
    """Smallest processor time of a call in seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def floor(surrogate: ampsure.Surrogate) -> float:
    """Microseconds a point of the matrix products alone, at the speed of this machine's sgemm."""
    a, b = torch.randn(1000, 128), torch.randn(128, 128)
    each = fastest(lambda: a @ b, 300) / (1000 * 128 * 128)
    widths = surrogate.network.widths
    products = sum(n_in * n_out for n_in, n_out in pairwise(widths))
    return surrogate.network.members * products * each * 1e6


def main() -> None:
    table = Table(
        "members", "batch", "C++, amplitude", "C++, all outputs", "sgemm floor", "C++ / floor", "torch", "exact",
        title=f"microseconds a point on one core, {len(HIDDEN)}x{HIDDEN[0]}, float32",
    )  # fmt: skip
    events = ampsure.generate("gg_yyg", 2000, seed=1, sampling="rambo")
    momenta = events.momenta
    with one_thread(), TemporaryDirectory() as name:
        for members in (1, 8):
            surrogate = untrained(events, members)
            library = export_umami(surrogate, Path(name) / str(members))
            for batch in (1, 1000):
                points, repeats = momenta[:batch], 20 if batch == 1 else 5
                torch_time = fastest(lambda s=surrogate, p=points: s.predict(p), repeats) / batch * 1e6
                exact = fastest(lambda p=points: events.process.amplitude(p), repeats) / batch * 1e6
                amplitude, everything = time_library(library, momenta, batch)
                least = floor(surrogate)
                row = (amplitude, everything, least, amplitude / least, torch_time, exact)
                table.add_row(str(members), str(batch), *(f"{value:.2f}" for value in row))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
