"""What all commands share: console, options, progress, settings from the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ampsure._version import versions
from ampsure.cluster import SPECIFICATIONS, Cluster, connect
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.fitting import Report as TrainingReport
from ampsure.generation.generate import Report
from ampsure.io import EventFile, checksum, load_or_open
from ampsure.processes import Process, get_process
from ampsure.surrogate import Surrogate
from ampsure.training import Progress as TrainingProgress

_TESTED = 1_000_000  # events at most, of a file larger than memory

__all__ = ["Invalid", "InvalidOption", "ProcessOption", "SignedOption", "app", "console", "parse_settings", "progress"]

console = Console()
app = typer.Typer(
    name="ampsure",
    help="Learn scattering amplitudes, with an uncertainty for every phase-space point.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)


class Invalid(StrEnum):
    error = "error"
    drop = "drop"


ProcessOption = Annotated[str | None, typer.Option("--process", help="Process of a file that does not name one.")]
InvalidOption = Annotated[Invalid, typer.Option(help="What to do with events that cannot be right.")]
SignedOption = Annotated[bool, typer.Option("--signed", help="Allow amplitudes that are zero or negative.")]


DeviceOption = Annotated[str, typer.Option(help="'cpu', 'cuda' or 'auto'.")]
ClusterOption = Annotated[
    str | None, typer.Option(metavar="WHERE", help=f"Compute elsewhere: {SPECIFICATIONS}.", show_default=False)
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Processes to start for --cluster.")]


def process_of(name: str | None) -> Process | None:
    return None if name is None else get_process(name)


@contextmanager
def connected(cluster: str | None, workers: int | None) -> Iterator[Cluster | None]:
    """The cluster of a command line, or None for this process."""
    if cluster is None:
        if workers is not None:
            raise AmpsureError("--workers is for a cluster: say which one (--cluster).")
        yield None
        return
    with connect(cluster, workers, tell) as found:
        yield found


def tell(sentence: str) -> None:
    console.print(escape(sentence), highlight=False, soft_wrap=True)


def parse_settings(assignments: list[str]) -> dict[str, Any]:
    """['energy=13000', 'cuts.pt_jet=30'] as nested dictionaries; values are JSON, or plain text."""
    result: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        *parents, last = name.strip().split(".")
        if not equals or not last or len(parents) > 1:
            raise AmpsureError(f"--set takes NAME=VALUE, e.g. cuts.pt_jet=30, not {assignment!r}.")
        place, value = result, parse_value(text)
        for parent in parents:
            place = place.setdefault(parent, {})
        if not isinstance(place, dict) or isinstance(place.get(last), dict):
            raise AmpsureError(f"--set gives {[*parents, last][0]!r} twice, in part and as a whole.")
        place[last] = value
    return result


def parse_value(text: str) -> Any:
    """JSON, or plain text."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return text


@contextmanager
def progress() -> Iterator[Report]:
    """A bar for every stage, plain lines where there is no terminal; Ctrl-C ends the command."""
    try:
        with _bars() as report:
            yield report
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; nothing was written.")
        raise typer.Exit(130) from None


def bar_display(*extra: ProgressColumn) -> Progress:
    """Bars with a name, a count, and the time taken and left; further columns behind them."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(TextColumn("{task.description}"), *columns, *extra, console=console)


@contextmanager
def _bars() -> Iterator[Report]:
    if not console.is_terminal:
        stages: set[str] = set()

        def log(stage: str, done: float, total: float) -> None:
            if stage not in stages:
                stages.add(stage)
                console.print(f"{stage} ...")

        yield log
        return
    with bar_display() as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: float, total: float) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield show


@contextmanager
def training_progress(vanishing: bool = False) -> Iterator[TrainingReport]:
    """Losses, learning rate, throughput and remaining time; one line every few seconds where there is no terminal.

    Args:
        vanishing: bars go when they are full, where there would be too many.
    """
    if not console.is_terminal:
        shown = 0.0

        def log(stage: str, p: TrainingProgress) -> None:
            nonlocal shown
            if p.epoch in (1, p.epochs) or time.monotonic() - shown > 5:
                shown = time.monotonic()
                line = f"{stage}: epoch {p.epoch}/{p.epochs}, {_losses(p)}, {p.seconds_left:.0f} s left"
                console.print(line, highlight=False, soft_wrap=True)

        yield log
        return
    with bar_display(TextColumn("{task.fields[losses]}")) as bars:
        tasks: dict[str, Any] = {}

        def show_bar(stage: str, p: TrainingProgress) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=p.epochs, losses="")
            visible = not vanishing or p.epoch < p.epochs
            bars.update(tasks[stage], completed=p.epoch, losses=_losses(p), visible=visible)

        yield show_bar


def _losses(p: TrainingProgress) -> str:
    return (
        f"loss {p.training_loss:.4f}, validation {p.validation_loss:.4f}, "
        f"rate {p.learning_rate:.1e}, {p.events_per_second:,.0f} events/s"
    )


def record(events: Events, name: str, *keys: str) -> dict[str, Any]:
    """An entry of the provenance, which is free in form: empty unless it is a dictionary with these keys."""
    entry = events.provenance.get(name)
    return entry if isinstance(entry, dict) and all(key in entry for key in keys) else {}


def with_history(events: Events, command: str, source: Path) -> Events:
    """The events, with a command that changed them in their provenance."""
    history = events.provenance.get("history", [])
    entry = {"command": command, "source": source.name, "versions": versions()}
    provenance = {**events.provenance, "history": [*(history if isinstance(history, list) else []), entry]}
    return replace(events, provenance=provenance)


def events_to_test(surrogate: Surrogate, data: Path | None) -> tuple[Events, str]:
    """The events of a file a surrogate has not learned from, and in words where they are from.

    Of a file larger than memory, a uniform sample.
    """
    d, path = surrogate.config.data, data or surrogate.config.data.path
    if path is None:
        raise AmpsureError("The surrogate does not say what it was trained on: give --data FILE.")
    options: dict[str, Any] = {"process": d.process, "invalid": d.invalid, "signed": d.signed, "memory": d.memory}
    events, source = load_or_open(path, **options), str(path)
    if events.process.n_legs != surrogate.process.n_legs:
        raise AmpsureError(
            f"{path} has events of {events.process.n_legs} legs, the surrogate {surrogate.process.n_legs}."
        )
    if not np.allclose(events.process.masses, surrogate.process.masses, rtol=1e-3, atol=1e-3):
        raise AmpsureError(f"{path} has legs of other masses than the surrogate: {events.process.masses}.")
    learned = checksum(events) == surrogate.provenance.get("data", {}).get("checksum")  # never test on these
    test = events.split_indices(surrogate.config.training.seed, d.fractions)[2] if learned else np.arange(len(events))
    source = f"the test part of {path}" if learned else source
    if isinstance(events, EventFile):
        if len(test) > _TESTED:
            source = f"a random {_TESTED:,} of the {len(test):,} events of {source}"
            test = np.random.default_rng(0).choice(test, _TESTED, replace=False)
        events = events.take(test)
    elif learned:
        events = events[test]
    if not len(events):
        raise AmpsureError(f"{path} has no test events: give --data FILE.")
    return events, source


def print_dropped(events: Events) -> None:
    if dropped := record(events, "dropped", "events", "reasons"):
        reasons = "; ".join(f"{count:,} because {reason}" for reason, count in dropped["reasons"].items())
        console.print(f"[yellow]Dropped[/] {dropped['events']:,} invalid events: {escape(reasons)}.")
