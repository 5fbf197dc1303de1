"""Surrogates as one ONNX graph, from momenta to amplitudes with uncertainties."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from ampsure.prediction import Prediction
from ampsure.surrogate import Surrogate

from .agreement import OUTPUTS, check, phase_space_points
from .tracing import BATCH, trace

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["SCHEMA_VERSION", "export_onnx"]

SCHEMA_VERSION = 1
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
        precision: of the last stage's networks. In "float64" the graph agrees with `predict` to 1e-6; in
            "float32" it is several times faster, and agrees as far as rounding in float32 lets `predict` agree with
            itself. All else is in float64.
        momenta: (N, n, 4) of events to compare on, besides random points of phase space.
    """
    if Path(path).suffix != ".onnx":
        raise AmpsureError(f"ONNX graphs are written as .onnx, not {Path(path).name!r}.")
    import_onnx()
    with replacing(path) as temporary:
        chosen = replace(surrogate.in_precision(precision), posterior=None).to("cpu")  # members are all it needs
        points = phase_space_points(surrogate.process, BATCH)
        content = _model(chosen, points, _metadata(surrogate, precision)).SerializeToString()
        check(_session(content), chosen, "ONNX graph", momenta)
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
        # not a number where any momentum is none: features may not look at all of them
        nothing = (0 * momenta).sum((1, 2), keepdim=True)
        moments, inside, *_ = surrogate._predict(momenta + nothing, linear=False)
        return (*moments, inside)

    graph = trace(predict, torch.from_numpy(points), "momenta", OUTPUTS)
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


def _session(content: bytes) -> Callable[[NDArray[np.float64]], Prediction]:
    """What predicts with a graph, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4

    def predict(momenta: NDArray[np.float64]) -> Prediction:
        with _running():
            outputs = session.run(OUTPUTS, {"momenta": momenta})
        return Prediction(**dict(zip(OUTPUTS, outputs, strict=True)))

    with _running():
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return predict


@contextmanager
def _running() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # onnxruntime's own exceptions have no common base
        raise AmpsureError(f"onnxruntime cannot run the graph of this surrogate: {error}.") from error
