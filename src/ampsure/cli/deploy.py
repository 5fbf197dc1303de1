"""Commands that bring surrogates into other programs: export."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ampsure.deploy import export_onnx, export_umami
from ampsure.surrogate import load_surrogate

from .common import app, console

__all__: list[str] = []


class Format(StrEnum):
    onnx = "onnx"
    umami = "umami"


class Precision(StrEnum):
    float64 = "float64"
    float32 = "float32"


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a surrogate.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="What to write.")],
    form: Annotated[Format, typer.Option("--format", help="What other programs read.")] = Format.onnx,
    precision: Annotated[
        Precision | None,
        typer.Option(help="Of the networks: float64 as in `predict` (default of onnx), float32 is faster (of umami)."),
    ] = None,
    portable: Annotated[
        bool, typer.Option("--portable", help="umami: for any machine of this kind, not only for this one; slower.")
    ] = False,
    build: Annotated[bool, typer.Option(help="umami: compile the library, with CXX or c++.")] = True,
) -> None:
    """Write a surrogate for other programs.

    Example: `ampsure export runs/a --format onnx -o a.onnx`
    """
    surrogate = load_surrogate(run)
    match form:
        case Format.onnx:
            export_onnx(surrogate, output, precision=(precision or Precision.float64).value)
            console.print(f"The surrogate is written to {escape(str(output))}; it predicts the same there.")
        case Format.umami:
            surrogate = surrogate.in_precision((precision or Precision.float32).value)
            library = export_umami(surrogate, output, portable=portable, build=build)
            written = f"The library is {library}" if build else f"The source is in {output}: run make there"
            console.print(escape(f"{written}; ampsure_surrogate.h says how to call it."), soft_wrap=True)
