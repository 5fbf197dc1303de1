"""Commands that bring surrogates into other programs: export."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ampsure.deploy import export_umami
from ampsure.surrogate import load_surrogate

from .common import app, console

__all__: list[str] = []


class Format(StrEnum):
    umami = "umami"


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a surrogate.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="What to write.")],
    form: Annotated[Format, typer.Option("--format", help="What other programs read.")] = Format.umami,
    portable: Annotated[
        bool, typer.Option("--portable", help="umami: for any machine of this kind, not only for this one; slower.")
    ] = False,
    build: Annotated[bool, typer.Option(help="umami: compile the library, with CXX or c++.")] = True,
) -> None:
    """Write a surrogate for other programs.

    Example: `ampsure export runs/a --format umami -o a`
    """
    surrogate = load_surrogate(run)
    match form:
        case Format.umami:
            library = export_umami(surrogate, output, portable=portable, build=build)
            written = f"The library is {library}" if build else f"The source is in {output}: run make there"
            console.print(escape(f"{written}; ampsure_surrogate.h says how to call it."), soft_wrap=True)
