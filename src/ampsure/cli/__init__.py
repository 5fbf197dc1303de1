"""The command line: parse, call, print."""

from __future__ import annotations

import sys
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
    try:
        app()
    except AmpsureError as error:
        if first_to_fail():
            Console(stderr=True, soft_wrap=True).print(f"[bold red]Error:[/] {escape(str(error))}")
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
