"""Microseconds a point of a surrogate's prediction on one CPU core, against the exact amplitude and plain products."""

from __future__ import annotations

import argparse
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
from ampsure.deploy import export_onnx
from ampsure.threads import one_thread

MEMBERS, BATCHES, HIDDEN = (1, 8), (1, 1000), (128,) * 6
Momenta = NDArray[np.float64]
Way = Callable[[ampsure.Surrogate], Callable[[Momenta], object]]


def microseconds(call: Callable[[], object], seconds: float) -> float:
    """Shortest wall-clock time of a call: what it takes where nobody else is at work."""
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 10 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e6


def torch_predict(precision: str) -> Way:
    return lambda surrogate: surrogate.in_precision(precision).predict


def onnx_graph(precision: str) -> Way:
    def prepare(surrogate: ampsure.Surrogate) -> Callable[[Momenta], object]:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "surrogate.onnx"
            export_onnx(surrogate, path, precision=precision)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda momenta: session.run(None, {"momenta": momenta})

    return prepare


def exact(surrogate: ampsure.Surrogate) -> Callable[[Momenta], object]:
    return surrogate.process.amplitude


def products(surrogate: ampsure.Surrogate) -> Callable[[Momenta], object]:
    """The matrix products of all members in float32 and nothing else: what no implementation can beat in a batch."""
    members = list(zip(*(w.float().unbind() for w in surrogate.network.weights), strict=True))
    rows = {(n, k): torch.ones(n, k) for n in BATCHES for w in surrogate.network.weights for k in w.shape[1:]}

    def run(momenta: Momenta) -> None:
        n = len(momenta)
        for layers in members:  # one after the other: its layers stay in the cache
            for w in layers:
                torch.mm(rows[n, w.shape[0]], w)

    return run


WAYS: dict[str, Way] = {
    "predict, float64": torch_predict("float64"),
    "predict, float32": torch_predict("float32"),
    "ONNX graph, float64": onnx_graph("float64"),
    "ONNX graph, float32": onnx_graph("float32"),
    "exact amplitude": exact,
    "float32 products alone": products,
}
"""Name of a row -> what makes a function of momenta (N, n, 4) from a surrogate."""


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
        for name, way in WAYS.items():
            row = []
            for members, batch in cases:
                run, momenta = way(surrogates[members]), events.momenta[:batch].copy()
                row.append(microseconds(lambda run=run, momenta=momenta: run(momenta), seconds) / batch)
            table.add_row(name, *(f"{value:,.1f}" for value in row))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
