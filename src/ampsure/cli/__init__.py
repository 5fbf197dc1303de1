"""The command line: parse, call, print."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import ampsure
from ampsure.errors import AmpsureError
from ampsure.training.ranks import first_to_fail, processes

from . import deploy, events, grids, reports, studies, surrogates, use
from .common import app

__all__ = ["app", "deploy", "events", "grids", "main", "reports", "studies", "surrogates", "use"]


def main() -> None:
    """Run the command line; bad input is one sentence and exit code 2."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # it may not know Δ, nor the name of a file
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except AmpsureError as error:
        _fail(str(error))
    except OSError as error:  # of a name that cannot even be asked about, or of what is printed
        what = "The output" if error.filename is None else os.fsdecode(error.filename)
        _fail(f"{what} cannot be used ({error.strerror or error}): free some space or choose another name.")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):  # torch's words on the CPU
            raise
        _fail("There is not enough memory for this: free some of it, or ask for smaller networks or fewer events.")


def _fail(sentence: str) -> None:
    if first_to_fail():
        Console(stderr=True, soft_wrap=True).print(f"[bold red]Error:[/] {escape(sentence)}")
    try:
        sys.stdout.flush()
    except OSError:  # Python would try once more, and have its own words and exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(2)


def _version(value: bool) -> None:
    if value:
        print(f"ampsure {ampsure.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if processes() > 1 and context.invoked_subcommand != "train":
        raise AmpsureError("Only `ampsure train` runs as several processes: start this command without torchrun.")
