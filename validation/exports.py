"""ONNX graphs and C++ libraries against `predict`, for every method: largest relative differences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure.config import METHODS
from ampsure.deploy import Library, distill, export_onnx, export_umami
from ampsure.deploy.agreement import OUTPUTS, TOLERANCE, phase_space_points
from ampsure.disturbances import Gap
from ampsure.noise import NoiseProfile
from ampsure.prediction import Prediction
from ampsure.surrogate import Surrogate

Floats = NDArray[np.float64]

NETWORK = {"hidden": (64, 64)}
OTHERS: dict[str, dict[str, Any]] = {
    "recommended, three stages": {"training": {"stages": 3}},
    "recommended, float64": {"network": {**NETWORK, "precision": "float64"}},
    "recommended, signed": {"features": {"target": "asinh"}, "data": {"signed": True}},
}


def surrogates(events: ampsure.Events, epochs: int) -> Iterator[tuple[str, Surrogate]]:
    """Every method, the default one with other settings and data, and what it is distilled to."""

    def fit(events: ampsure.Events, method: str, **config: Any) -> Surrogate:
        return ampsure.fit(events, method, config={"network": NETWORK, **config}, epochs=epochs, seed=1)

    for method in METHODS:
        yield method, fit(events, method)
    signed = ampsure.Events(events.momenta, events.amplitude - np.median(events.amplitude), events.process)
    for name, config in OTHERS.items():
        yield name, fit(signed if "signed" in name else events, "recommended", **config)
    holed = fit(Gap(half_width=30, threshold=200)(events), "recommended")
    assert len(holed.standardization.holes)
    ranges = torch.tensor([[0, -0.5, 0.5, 0.02], [3, 0.9, 1.0, 0.5]], dtype=torch.float64)  # it takes more to find some
    yield "recommended, hole and noise", replace(holed, noise=NoiseProfile(ranges))
    yield "recommended, distilled", distill(fit(events, "recommended"), events, epochs=epochs)


def graph(path: Path) -> Callable[[Floats], Prediction]:
    """What predicts with the graph of a file."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda momenta: Prediction(*session.run(OUTPUTS, {"momenta": momenta}))


def differences(found: Prediction, expected: Prediction) -> Floats:
    """Relative differences of amplitude and sigmas, (4, N); of the domain flag infinite ones, where it differs."""
    pairs = [(getattr(found, name), getattr(expected, name)) for name in OUTPUTS[:-1]]
    same = np.stack([np.where(a == b, 0.0, np.abs(a - b) / np.abs(b).clip(1e-300)) for a, b in pairs])
    return np.where(found.in_domain == expected.in_domain, same, np.inf)


def main(n: int = 5000, epochs: int = 10) -> int:
    events = ampsure.generate("gg_yyg", n, seed=3)
    momenta = np.concatenate([events.momenta, phase_space_points(events.process, n, seed=1)])
    table = Table("", *OUTPUTS[:-1], "C++, all", title=f"ONNX and C++ against predict, {len(momenta):,} points")
    worst = 0.0
    with TemporaryDirectory() as name:
        for label, surrogate in surrogates(events, epochs):
            export_onnx(surrogate, path := Path(name) / "a.onnx")
            library = Library(export_umami(surrogate, Path(name) / "library", optimize="-O1"))
            expected = surrogate.predict(momenta)
            found = [differences(p, expected) for p in (graph(path)(momenta), library.predict(momenta))]
            table.add_row(label, *(f"{row.max():.1e}" for row in found[0]), f"{found[1].max():.1e}")
            worst = max(worst, *(float(difference.max()) for difference in found))
    console = Console(width=120)
    console.print(table)
    console.print(f"The largest is {worst:.1e}; {TOLERANCE:.0e} is allowed.")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
