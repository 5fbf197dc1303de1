"""Commands that bring surrogates into other programs: export."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ampsure.deploy import export_onnx
from ampsure.surrogate import load_surrogate

from .common import app, console

__all__: list[str] = []


class Format(StrEnum):
    onnx = "onnx"


class Precision(StrEnum):
    float64 = "float64"
    float32 = "float32"


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a surrogate.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="What to write.")],
    form: Annotated[Format, typer.Option("--format", help="What other programs read.")] = Format.onnx,
    precision: Annotated[
        Precision, typer.Option(help="Of the networks: float64 agrees to 1e-6 with `predict`, float32 is faster.")
    ] = Precision.float64,
) -> None:
    """Write a surrogate for other programs, and check that it predicts the same there.

    Example: `ampsure export runs/a --format onnx -o a.onnx`
    """
    surrogate = load_surrogate(run)
    match form:
        case Format.onnx:
            export_onnx(surrogate, output, precision=precision.value)
    console.print(f"The surrogate is written to {escape(str(output))}; it predicts the same there.")
