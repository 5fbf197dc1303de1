"""The command about hyperparameter grids."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ampsure.errors import AmpsureError
from ampsure.grids import Point, combinations, run_grid, write_table
from ampsure.training import TrainingInterrupted

from .common import ClusterOption, WorkersOption, app, connected, console, parse_value, tell, training_progress
from .surrogates import FileArgument, MethodOption, RecipeOption, SetOption, config_of

__all__: list[str] = []


class By(StrEnum):
    mean = "mean"
    median = "median"
    nll = "nll"


@app.command()
def grid(
    vary: Annotated[
        list[str],
        typer.Option(metavar="A.B=C,D,...", help="Values of a setting, e.g. network.hidden=[64,64],[128,128]."),
    ],
    file: FileArgument = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of all runs.")] = Path("runs/grid"),
    data: Annotated[Path | None, typer.Option(help="Events to learn from.")] = None,
    method: MethodOption = None,
    recipe: RecipeOption = None,
    settings: SetOption = None,
    by: Annotated[By, typer.Option(help="What to sort by: mean or median of |Δ|, or the likelihood.")] = By.mean,
    cluster: ClusterOption = None,
    workers: WorkersOption = None,
) -> None:
    """Train all combinations of settings and rank them by validation events. The same command goes on after Ctrl-C.

    Example: `ampsure grid --data events.h5 --method repulsive --vary training.learning_rate=1e-3,3e-3 -o runs/grid`
    """
    points = [
        Point(chosen, config_of(file, method, recipe, [*(settings or []), *_assignments(chosen)], data))
        for chosen in combinations(_values(vary))
    ]
    try:
        with connected(cluster, workers) as pool, training_progress(vanishing=True) as report:
            scores = run_grid(points, output, cluster=pool, tell=tell, report=report)
    except (TrainingInterrupted, KeyboardInterrupt):
        console.print("Interrupted; the same command goes on from there.")
        raise typer.Exit(130) from None
    path = output / "grid.json"
    ranked = write_table(points, scores, by.value, path)
    table = Table(*ranked[0].settings, "mean |Δ|", "median |Δ|", "NLL", title=f"{len(points)} runs, validation events")
    for point in ranked:
        score = scores[point.name]
        likelihood = "-" if score.nll is None else f"{score.nll:.4f}"
        table.add_row(*map(_text, point.settings.values()), f"{score.mean:.3g}", f"{score.median:.3g}", likelihood)
    console.print(table)
    console.print(f"Best run: {escape(str(output / ranked[0].name))}; all: {escape(str(path))}", soft_wrap=True)


def _values(vary: list[str]) -> dict[str, list[Any]]:
    """['a.b=1,2', 'c.d=[1,2],[3,4]'] as lists of values, which are JSON or plain text without commas."""
    found: dict[str, list[Any]] = {}
    for assignment in vary:
        name, equals, text = assignment.partition("=")
        if not equals or not text or name.count(".") != 1:
            raise AmpsureError(f"--vary takes NAME=VALUE,VALUE, e.g. training.epochs=50,100, not {assignment!r}.")
        if name in found:
            raise AmpsureError(f"--vary gives {name!r} twice: give all its values at once.")
        values = parse_value(f"[{text}]")
        found[name] = values if isinstance(values, list) else [parse_value(part) for part in text.split(",")]
    return found


def _assignments(chosen: dict[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(value)}" for name, value in chosen.items()]


def _text(value: Any) -> str:
    return escape(value if isinstance(value, str) else json.dumps(value))
