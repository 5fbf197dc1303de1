"""Commands about studies: list, run, report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import ampsure
from ampsure.errors import AmpsureError
from ampsure.io import replacing
from ampsure.report.style import save_figure
from ampsure.studies import (
    PRESETS,
    STUDIES,
    Record,
    cost,
    get_preset,
    get_study,
    run_studies,
    run_study,
    study_events,
)
from ampsure.studies.summary import load_records, markdown_report, studies_report, using
from ampsure.surrogate import find_device
from ampsure.training import TrainingInterrupted

from .common import (
    ClusterOption,
    ProcessOption,
    WorkersOption,
    app,
    connected,
    console,
    parse_value,
    process_of,
    progress,
    tell,
    training_progress,
)

__all__: list[str] = []

study_app = typer.Typer(help="The figures and tables of the paper, run again.", no_args_is_help=True)
app.add_typer(study_app, name="study")

_COLOURS = {"confirmed": "green", "refuted": "red", "inconclusive": "yellow"}

OutputOption = Annotated[Path, typer.Option("-o", "--output", help="Folder of results.")]
CacheOption = Annotated[Path, typer.Option(help="Folder of events and trained surrogates, shared by all studies.")]


@study_app.command("list")
def list_studies() -> None:
    """Show all studies, their claims, and what they cost: trainings, and time on two cores (full, paper: on one H200).

    Example: `ampsure study list`
    """
    table = Table("study, label in the paper", "claims", *PRESETS, show_lines=True)
    table.columns[0].min_width = max(len(study.name) for study in STUDIES.values())  # to be copied: never cut
    table.columns[1].max_width = 11  # all fits into 80 characters then
    for column in table.columns:
        column.overflow = "fold"
    for study in STUDIES.values():
        costs = []
        for preset in PRESETS.values():
            count, seconds = cost(study, preset, gpu=preset.name in ("full", "paper"))
            costs.append(f"{count} in {_duration(seconds)}" if count else "no training")
        name = f"{study.name}\n[dim]{escape(study.label)}[/]"
        table.add_row(name, ", ".join(claim.id for claim in study.claims), *costs)
    console.print(table)


@study_app.command("run")
def run(
    name: Annotated[str, typer.Argument(help="Name of a study, or 'all'.")],
    preset: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")] = "smoke",
    device: Annotated[str, typer.Option(help="'cpu', 'cuda' or 'auto'.")] = "auto",
    data: Annotated[Path | None, typer.Option(help="Events to use instead of generated ones.")] = None,
    process: ProcessOption = None,
    output: OutputOption = Path("studies"),
    cache: CacheOption = Path("studies/cache"),
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=VALUE", help="Only cases with this label, such as method=recommended."),
    ] = None,
    remeasure: Annotated[bool, typer.Option(help="Measure again what was measured before.")] = False,
    cluster: ClusterOption = None,
    workers: WorkersOption = None,
) -> None:
    """Run a study: train what is missing, draw its figure, judge its claims. The same command goes on after Ctrl-C.

    Example: `ampsure study run box-smearing --preset smoke`
    """
    chosen = list(STUDIES.values()) if name == "all" else [get_study(name)]
    size, labels = get_preset(preset), _labels(where or [])
    gpu = cluster is None and find_device(device).type == "cuda"
    with connected(cluster, workers) as pool:
        if data is None:
            with progress() as generating:
                events = study_events(size, cache, generating, pool)
        else:
            events = ampsure.load(data, process=process_of(process))
        options: dict[str, Any] = {"where": labels, "device": device, "remeasure": remeasure, "tell": tell}
        try:
            if pool is not None:
                started = time.monotonic()
                with training_progress(vanishing=True) as report:
                    for record in run_studies(chosen, size, events, output, cache, pool, report=report, **options):
                        _print_record(record, output, time.monotonic() - started)
                return
            for study in chosen:
                count, seconds = cost(study, size, gpu, labels)
                if seconds > 60:
                    console.print(f"{study.name}: {count} trainings, about {_duration(seconds)} if none is cached.")
                started = time.monotonic()
                with training_progress() as report:
                    record = run_study(study, size, events, output, cache, report=report, **options)
                _print_record(record, output, time.monotonic() - started)
        except (TrainingInterrupted, KeyboardInterrupt):
            console.print("Interrupted; the same command goes on from there.")
            raise typer.Exit(130) from None


@study_app.command("report")
def report(
    preset: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")] = "smoke",
    output: OutputOption = Path("studies"),
) -> None:
    """Draw all results again, and collect them on one page, as HTML and as Markdown.

    Example: `ampsure study report --preset laptop`
    """
    records = load_records(output, get_preset(preset).name)
    for record in records:
        with using(record):
            figure = get_study(record.study).figure(record.results)
        save_figure(figure, output / f"{record.study}-{preset}")
    for name, content in (("report.html", studies_report(records)), ("results.md", markdown_report(records))):
        path = output / f"{preset}-{name}"
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
        console.print(f"{len(records)} studies: {escape(str(path))}")


def _labels(assignments: list[str]) -> dict[str, Any]:
    """['method=mse', 'run=0'] as labels of cases."""
    labels = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise AmpsureError(f"--where takes LABEL=VALUE, e.g. method=recommended, not {assignment!r}.")
        labels[name] = parse_value(text)
    return labels


def _print_record(record: Record, output: Path, seconds: float) -> None:
    for verdict in record.verdicts:
        console.print(f"[{_COLOURS[verdict.outcome]}]{verdict.claim} {verdict.outcome}[/] {escape(verdict.text)}")
        for check in verdict.checks:
            console.print(f"    {escape(str(check))}", highlight=False, soft_wrap=True)
    where = escape(str(output / f"{record.study}-{record.preset}"))
    if record.missing:
        console.print(f"{where}.json written after {seconds:.0f} s; {record.missing} cases are missing for a verdict.")
    else:
        console.print(f"{where}.json, .pdf, .png written after {seconds:.0f} s.")


def _duration(seconds: float) -> str:
    """As a person would say it."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
