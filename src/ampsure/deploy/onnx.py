"""Surrogates as one ONNX graph, from momenta to amplitudes with uncertainties."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampsure._version import __version__
from ampsure.errors import AmpsureError
from ampsure.io import replacing
from ampsure.processes import Process
from ampsure.surrogate import Surrogate

from .tracing import BATCH, trace

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["OUTPUTS", "SCHEMA_VERSION", "TOLERANCE", "export_onnx", "phase_space_points"]

SCHEMA_VERSION = 1
OUTPUTS = ("amplitude", "sigma_syst", "sigma_stat", "sigma_tot", "in_domain")
TOLERANCE = 1e-6
"""Largest relative difference between the graph and `Surrogate.predict`."""

_OPSET, _IR_VERSION = 20, 9  # the oldest with GELU: onnxruntime 1.17 and later read them


def export_onnx(
    surrogate: Surrogate,
    path: str | os.PathLike[str],
    *,
    precision: str = "float64",
    momenta: NDArray[np.float64] | None = None,
) -> None:
    """Write a surrogate as one ONNX graph: `momenta` (N, n, 4) -> the `OUTPUTS`, (N,) each, as `predict` gives them.

    Everything is in the graph: features, all members and stages, calibration, exact error propagation, domain flag.
    Before the file is written, onnxruntime runs it and its answers are compared with `predict`.

    Args:
        path: of the file, .onnx.
        precision: of the last stage's networks. In "float64" the graph agrees with `predict` to `TOLERANCE`; in
            "float32" it is several times faster, and agrees as far as rounding in float32 lets `predict` agree with
            itself. All else is in float64.
        momenta: (N, n, 4) of events to compare on, besides random points of phase space.
    """
    if Path(path).suffix != ".onnx":
        raise AmpsureError(f"ONNX graphs are written as .onnx, not {Path(path).name!r}.")
    import_onnx()
    with replacing(path) as temporary:
        chosen = replace(surrogate.in_precision(precision), posterior=None).to("cpu")  # members are all it needs
        points = phase_space_points(surrogate.process, 2048)
        content = _model(chosen, points, _metadata(surrogate, precision)).SerializeToString()
        _compare(content, chosen, points if momenta is None else np.concatenate([momenta, points]))
        temporary.write_bytes(content)


def import_onnx() -> tuple[Any, Any]:
    """The modules onnx and onnxruntime."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise AmpsureError(
            "ONNX graphs need onnx and onnxruntime: install them with pip install 'ampsure[export]'."
        ) from error
    return onnx, onnxruntime


def _model(surrogate: Surrogate, points: NDArray[np.float64], metadata: dict[str, str]) -> ModelProto:
    import onnx

    def predict(momenta: Tensor) -> tuple[Tensor, ...]:
        moments, inside, *_ = surrogate._predict(momenta, linear=False)
        return (*moments, inside)

    graph = trace(predict, torch.from_numpy(points[:BATCH].copy()), "momenta", OUTPUTS)
    model: ModelProto = onnx.helper.make_model(
        graph,
        producer_name="ampsure",
        producer_version=__version__,
        doc_string=f"Surrogate of the squared amplitude of {surrogate.process.label}, with uncertainties.",
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model


def _metadata(surrogate: Surrogate, precision: str) -> dict[str, str]:
    """What the file says about itself; lists are JSON."""
    config, process = surrogate.config, surrogate.process
    return {
        "format": "ampsure-onnx",
        "schema_version": str(SCHEMA_VERSION),
        "ampsure_version": __version__,
        "process": process.name,
        "n_incoming": str(process.n_incoming),
        "pdg_ids": json.dumps(process.pdg_ids),
        "masses": json.dumps(process.masses),
        "momentum_unit": "GeV",
        "amplitude_unit": process.unit,
        "likelihood": surrogate.likelihood.name,
        "posterior": config.posterior.name,
        "systematic": config.posterior.systematic,
        "members": str(surrogate.network.members),
        "features": config.features.inputs,
        "target": surrogate.target.name,
        "precision": precision,
        "weights_checksum": surrogate.weights_checksum,
        "data_checksum": str(surrogate.provenance.get("data", {}).get("checksum", "")),
    }


def _compare(content: bytes, surrogate: Surrogate, momenta: NDArray[np.float64]) -> None:
    """Raises an error if the graph does not predict what the surrogate does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        found, first, none = (session.run(OUTPUTS, {"momenta": momenta[:n]}) for n in (None, 1, 0))
    except Exception as error:  # onnxruntime's own exceptions have no common base
        raise AmpsureError(f"onnxruntime cannot run the graph of this surrogate: {error}.") from error
    wide = surrogate.in_precision("float64")
    expected, exact = ([getattr(s.predict(momenta), name) for name in OUTPUTS] for s in (surrogate, wide))
    finite = np.logical_and.reduce(
        [np.isfinite(x) for x in expected + exact]
    )  # extrapolations may be beyond all bounds
    tolerance = TOLERANCE + 10 * _difference(expected, exact, finite)  # that of rounding: none in float64
    difference = max(_difference(found, exact, finite), _difference(first, [x[:1] for x in exact], finite[:1]))
    if not finite.any() or any(len(values) for values in none) or difference > tolerance:
        raise AmpsureError(
            f"The ONNX graph differs from the surrogate's predictions by {difference:.1e}, more than {tolerance:.1e}: "
            "it was not written."
        )


def _difference(found: list[NDArray[Any]], expected: list[NDArray[Any]], where: NDArray[np.bool_]) -> float:
    """Largest relative difference between outputs.

    Uncertainties of less than 1e-9 of the amplitude are compared on that scale: float64 knows them no better.
    """
    floor = 1e-9 * np.abs(expected[0][where])
    largest = 0.0
    for a, b in ((a[where].astype(float), b[where].astype(float)) for a, b in zip(found, expected, strict=True)):
        relative = np.abs(a - b) / np.maximum(np.abs(b), floor).clip(1e-300)
        largest = max(largest, float(np.nan_to_num(relative, nan=np.inf, posinf=np.inf).max(initial=0.0)))
    return largest


def phase_space_points(process: Process, n: int, seed: int = 0) -> NDArray[np.float64]:
    """Random momenta (n, legs, 4), balanced and on shell, of collision energies from just above threshold to 10 TeV."""
    rng = np.random.default_rng(seed)
    masses, incoming = np.array(process.masses), process.n_incoming
    threshold = max(masses[:incoming].sum(), masses[incoming:].sum(), 1.0)
    energy = threshold * np.exp(rng.uniform(0.01, np.log(max(10_000 / threshold, 10)), n))
    momenta = np.empty((n, process.n_legs, 4))
    for legs in (slice(0, incoming), slice(incoming, None)):
        m = masses[legs]
        directions = rng.standard_normal((n, len(m), 3)) * ([0, 0, 1] if legs.start == 0 else [1, 1, 1])
        directions -= directions.mean(1, keepdims=True)
        low, high = np.zeros(n), energy / np.linalg.norm(directions, axis=-1).sum(1).clip(1e-300)
        for _ in range(60):  # bisect the size at which the energies add up
            middle = (low + high) / 2
            vectors = middle[:, None, None] * directions
            above = np.sqrt((vectors**2).sum(-1) + m**2).sum(1) > energy
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        momenta[:, legs, 1:] = vectors
        momenta[:, legs, 0] = np.sqrt((vectors**2).sum(-1) + m**2)
    rapidity = rng.uniform(-1, 1, (n, 1))
    e, z = momenta[..., 0].copy(), momenta[..., 3].copy()
    momenta[..., 0] = np.cosh(rapidity) * e + np.sinh(rapidity) * z
    momenta[..., 3] = np.sinh(rapidity) * e + np.cosh(rapidity) * z
    return momenta
