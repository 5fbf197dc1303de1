"""Microseconds a point of a surrogate's prediction on one CPU core, against the exact amplitude and plain sgemm.

All of it in processor time, the shortest of many, so that what else runs on the machine counts as little as it can.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure.deploy import export_onnx, export_umami
from ampsure.deploy.agreement import OUTPUTS
from ampsure.threads import one_thread

MEMBERS, BATCHES, HIDDEN = (1, 8), (1, 1000), (128,) * 6
Momenta = NDArray[np.float64]
Run = Callable[[Momenta, int], object]
"""Evaluates momenta (N, n, 4) in batches of so many."""
Way = Callable[[ampsure.Surrogate], Run]

_LOOP = r"""
#include <cstddef>
using Predict = int (*)(void*, size_t, const double*, double*, double*, double*, double*, bool*);
extern "C" void loop(Predict predict, void* handle, size_t count, size_t batch, size_t numbers, const double* momenta,
                     double* amplitude, double* syst, double* stat, double* tot, bool* inside) {
    for (size_t k = 0; k < count; k += batch)
        predict(handle, batch, momenta + k * numbers, amplitude, syst, stat, tot, inside);
}
"""


def microseconds(call: Callable[[], object], seconds: float) -> float:
    """Shortest processor time of a call."""
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 10 or time.perf_counter() - start < seconds:
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times) * 1e6


def in_batches(function: Callable[[Momenta], object]) -> Run:
    return lambda momenta, batch: [function(momenta[k : k + batch]) for k in range(0, len(momenta), batch)]


def torch_predict(precision: str) -> Way:
    return lambda surrogate: in_batches(surrogate.in_precision(precision).predict)


def onnx_graph(precision: str) -> Way:
    def prepare(surrogate: ampsure.Surrogate) -> Run:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "surrogate.onnx"
            export_onnx(surrogate, path, precision=precision)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return in_batches(lambda momenta: session.run(None, {"momenta": momenta}))

    return prepare


def library(precision: str, outputs: tuple[str, ...]) -> Way:
    """The library of `export_umami`, called from C++."""

    def prepare(surrogate: ampsure.Surrogate) -> Run:
        with TemporaryDirectory() as name:
            folder = Path(name)
            predictor = ctypes.CDLL(str(export_umami(surrogate.in_precision(precision), folder / "library")))
            (folder / "loop.cpp").write_text(_LOOP)
            subprocess.run(["c++", "-O2", "-fPIC", "-shared", "loop.cpp", "-o", "loop.so"], cwd=folder, check=True)
            loop = ctypes.CDLL(str(folder / "loop.so")).loop
        predictor.ampsure_create.restype = ctypes.c_void_p
        handle = ctypes.c_void_p(predictor.ampsure_create())
        room = [np.empty(max(BATCHES)) if name in outputs else None for name in OUTPUTS]
        given = [None if array is None else ctypes.c_void_p(array.ctypes.data) for array in room]

        def run(momenta: Momenta, batch: int) -> object:
            sizes = map(ctypes.c_size_t, (len(momenta), batch, momenta[0].size))
            loop(predictor.ampsure_predict, handle, *sizes, ctypes.c_void_p(momenta.ctypes.data), *given)
            return room

        return run

    return prepare


def exact(surrogate: ampsure.Surrogate) -> Run:
    return in_batches(surrogate.process.amplitude)


def products(surrogate: ampsure.Surrogate, seconds: float) -> float:
    """Microseconds a point of the matrix products alone, at the speed of this machine's sgemm on the hidden layers."""
    a, b = torch.randn(max(BATCHES), HIDDEN[0]), torch.randn(HIDDEN[0], HIDDEN[0])
    each = microseconds(lambda: torch.mm(a, b), seconds) / (len(a) * b.numel())
    return each * sum(int(w.numel()) for w in surrogate.network.weights)


WAYS: dict[str, Way] = {
    "predict, float64": torch_predict("float64"),
    "predict, float32": torch_predict("float32"),
    "ONNX graph, float64": onnx_graph("float64"),
    "ONNX graph, float32": onnx_graph("float32"),
    "C++, float64": library("float64", OUTPUTS),
    "C++, float32": library("float32", OUTPUTS),
    "C++, float32, amplitude": library("float32", OUTPUTS[:1]),
    "exact amplitude": exact,
}
"""Name of a row -> what makes a function of momenta from a surrogate."""
FASTEST = "C++, float32, amplitude"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for every measurement")
    seconds = parser.parse_args().seconds
    cases = [(members, batch) for members in MEMBERS for batch in BATCHES]
    titles = [f"{m} member{'s' * (m > 1)}, batch {b:,}" for m, b in cases]
    shape = f"{len(HIDDEN)}x{HIDDEN[0]}"
    table = Table("us a point", *titles, title=f"{shape} network, one core, {torch.__version__}")
    with one_thread():
        events = ampsure.generate("gg_yyg", max(BATCHES), seed=1, sampling="rambo")
        surrogates = {}
        for members in MEMBERS:
            config = {"network": {"hidden": HIDDEN}, "posterior": {"members": members, "beta": 0.0}}
            surrogates[members] = ampsure.fit(events, "repulsive", config=config, epochs=1, device="cpu")

        def measured(run: Run, batch: int) -> float:
            momenta = events.momenta[: max(batch, 20)].copy()
            return microseconds(lambda: run(momenta, batch), seconds) / len(momenta)

        rows = {}
        for name, way in WAYS.items():
            runs = {members: way(surrogate) for members, surrogate in surrogates.items()}
            rows[name] = [measured(runs[members], batch) for members, batch in cases]
        rows["sgemm alone"] = [products(surrogates[members], seconds) for members, _ in cases]
    for name, row in rows.items():
        table.add_row(name, *(f"{value:,.1f}" for value in row))
    ratios = [a / b for a, b in zip(rows[FASTEST], rows["sgemm alone"], strict=True)]
    table.add_row(f"{FASTEST} / sgemm", *(f"{ratio:.2f}" for ratio in ratios))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
