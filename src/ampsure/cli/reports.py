"""Commands that write pages: report, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ampsure.errors import AmpsureError
from ampsure.io import replacing
from ampsure.io.atomic import check_writable
from ampsure.report import (
    Drawing,
    Examination,
    comparison_drawings,
    comparison_report,
    examine,
    save_figure,
    surrogate_drawings,
    surrogate_report,
)
from ampsure.surrogate import load_surrogate
from ampsure.training import TrainingInterrupted

from .common import DeviceOption, app, console, events_to_test

__all__: list[str] = []


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a surrogate.")],
    data: Annotated[
        Path | None, typer.Option(help="Events to test on; by default the test part of the training file.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Page to write; by default RUN/report.html.")
    ] = None,
    device: DeviceOption = "cpu",
) -> None:
    """Write a page about a surrogate: verdict, numbers, figures, origin. Figures also go to RUN/figures, or next to -o.

    Example: `ampsure report runs/a --data test.h5`
    """
    figures = run / "figures" if output is None else output.parent / f"{output.stem}-figures"
    output = output or run / "report.html"
    (found,) = _examined([run], data, output, figures, device)
    drawings = surrogate_drawings(found)
    _write(surrogate_report(found, drawings), drawings, output, figures)
    _say(found)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Folders of surrogates.")],
    data: Annotated[
        Path | None, typer.Option(help="Events to test all of them on; by default each one's own test part.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Page to write.")] = Path("compare.html"),
    device: DeviceOption = "cpu",
) -> None:
    """Write a page about several surrogates side by side. Figures also go to a folder next to it.

    Example: `ampsure compare runs/a runs/b --data test.h5 -o compare.html`
    """
    if len(runs) < 2:
        raise AmpsureError("There is nothing to compare: give at least two runs.")
    figures = output.with_name(f"{output.stem}-figures")
    found = _examined(runs, data, output, figures, device)
    drawings = comparison_drawings(found)
    _write(comparison_report(found, drawings), drawings, output, figures)
    for examination in found:
        _say(examination)


def _examined(runs: list[Path], data: Path | None, output: Path, figures: Path, device: str) -> list[Examination]:
    """Every run on its test events; what cannot work is said before the work."""
    if output.suffix not in (".html", ".htm"):
        raise AmpsureError(f"A page is written as .html, not {output.name!r}.")
    surrogates = [load_surrogate(run, device) for run in runs]
    check_writable(output)
    check_writable(figures / "figure.png" if figures.exists() else figures)
    tests = [events_to_test(surrogate, data) for surrogate in surrogates]
    found = []
    try:
        for run, surrogate, (events, source) in zip(runs, surrogates, tests, strict=True):
            console.print(f"Testing {escape(str(run))} on {len(events):,} events ...", highlight=False, soft_wrap=True)
            name = str(run).encode(errors="replace").decode()  # a page is UTF-8, a path may be anything
            found.append(examine(surrogate, events, name, source))
    except TrainingInterrupted:  # of the small network that learns residuals
        console.print("Interrupted; nothing was written.")
        raise typer.Exit(130) from None
    return found


def _write(page: str, drawings: list[Drawing], output: Path, figures: Path) -> None:
    for drawing in drawings:
        save_figure(drawing.figure, figures / drawing.name)
    with replacing(output) as temporary:
        temporary.write_text(page, encoding="utf-8")
    console.print(f"Page: {escape(str(output))}; figures: {escape(str(figures))}.", highlight=False, soft_wrap=True)


def _say(examination: Examination) -> None:
    words = f"{examination.name}: {' '.join(examination.judgement.verdict)}"
    console.print(escape(words), highlight=False, soft_wrap=True)
