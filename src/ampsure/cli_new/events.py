"""The command line: parse, call, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import ampsure
from ampsure.disturbances import BoxSmearing, Disturbance, Gap, PeakedSmearing, UniformSmearing, disturb
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.generation.generate import Report
from ampsure.io import check_target, replacing
from ampsure.kinematics import pseudorapidity, transverse_momentum
from ampsure.processes import Process, get_process
from ampsure.report import event_overview

__all__ = ["app", "main"]

app = typer.Typer(
    name="ampsure",
    help="Learn scattering amplitudes, with an uncertainty for every phase-space point.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)
_console = Console()


class Invalid(StrEnum):
    error = "error"
    drop = "drop"


class Sampling(StrEnum):
    adaptive = "adaptive"
    rambo = "rambo"


class Negative(StrEnum):
    redraw = "redraw"
    keep = "keep"


ProcessOption = Annotated[str | None, typer.Option("--process", help="Process of a file that does not name one.")]
InvalidOption = Annotated[Invalid, typer.Option(help="What to do with events that cannot be right.")]
SignedOption = Annotated[bool, typer.Option("--signed", help="Allow amplitudes that are zero or negative.")]


def main() -> None:
    """Run the command line; bad input is one sentence and exit code 2."""
    try:
        app()
    except AmpsureError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]Error:[/] {escape(str(error))}")
        sys.exit(2)


def _version(value: bool) -> None:
    if value:
        print(f"ampsure {ampsure.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command()
def generate(
    process: Annotated[str, typer.Argument(help="A process with a known exact amplitude, e.g. gg_yyg.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write: .h5, .lhe, .lhe.gz, .npz or .npy.")],
    n: Annotated[int, typer.Option("-n", "--events", help="Number of events.")] = 100_000,
    preset: Annotated[str, typer.Option(help="benchmark (1 TeV) or lhc (13 TeV).")] = "benchmark",
    seed: Annotated[int, typer.Option(help="The same seed gives the same events.")] = 1,
    sampling: Annotated[
        Sampling, typer.Option(help="A trained flow, or flat phase space with weights.")
    ] = Sampling.adaptive,
    unweight: Annotated[bool, typer.Option(help="Unweight the events.")] = True,
    overweight: Annotated[
        float, typer.Option(help="Share of the cross section in excess of the maximum weight.")
    ] = 1e-3,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; by default all cores.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a setting, e.g. cuts.pt_jet=30.")
    ] = None,
) -> None:
    """Generate events with exact amplitudes.

    Example: `ampsure generate gg_yyg -n 100000 --preset benchmark --seed 1 -o events.h5`
    """
    overrides = _parse_settings(settings or [])
    check_target(output)  # now, not after minutes
    with _progress() as report:
        events = ampsure.generate(
                process, n, preset=preset, seed=seed, sampling=sampling.value, unweight=unweight, overweight=overweight,
                workers=workers, report=report, **overrides,
            )  # fmt: skip
    ampsure.save(events, output)
    found = events.provenance["generation"]
    table = Table(title=f"{n:,} events of {events.process.label}", show_header=False)
    table.add_row("cross section", f"{found['cross_section']:.5g} ± {found['cross_section_error']:.2g} pb")
    table.add_row("points inside the cuts", f"{found['cut_efficiency']:.1%} of {found['points']:,}")
    table.add_row("unweighting efficiency", f"{found['unweighting_efficiency']:.1%}")
    table.add_row("cross section above the maximum weight", f"{found['overweight_share']:.3%}")
    table.add_row("effective size (Kish)", f"{found['effective_size']:,.0f}")
    table.add_row("time", f"{found['seconds']:.1f} s")
    table.add_row("file", str(output))
    _console.print(table)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="Events: .h5, .lhe, .lhe.gz, .npz or .npy.")],
    figure: Annotated[Path | None, typer.Option("-o", "--figure", help="Figure to write (.png, .pdf or .svg).")] = None,
    process: ProcessOption = None,
    signed: SignedOption = False,
) -> None:
    """Summarise a data set, warn of what is wrong with it, and draw it.

    Example: `ampsure inspect events.h5 -o events.png`
    """
    events = ampsure.load(file, process=_process(process), invalid="drop", signed=signed)
    figure = figure or file.with_name(file.name.split(".")[0] + ".png")
    if figure.suffix not in (".png", ".pdf", ".svg"):
        raise AmpsureError(f"A figure is written as .png, .pdf or .svg, not {figure.name!r}.")
    table = Table(title=f"{escape(file.name)}: {escape(events.process.label)}", show_header=False)
    for name, value in _summary(events):
        table.add_row(name, value)
    _console.print(table)
    for warning in _warnings(events):
        _console.print(f"[yellow]Warning:[/] {escape(warning)}")
    if len(events):
        with replacing(figure) as temporary:
            event_overview(events).savefig(temporary, format=figure.suffix[1:], dpi=150)
        _console.print(f"Figure: {escape(str(figure))}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Events in any known format.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; its suffix names the format.")],
    process: ProcessOption = None,
    invalid: InvalidOption = Invalid.error,
    signed: SignedOption = False,
) -> None:
    """Convert events from one format to another.

    Example: `ampsure convert events.lhe.gz events.h5`
    """
    events = ampsure.load(source, process=_process(process), invalid=invalid.value, signed=signed)
    ampsure.save(events, target)
    _print_dropped(events)
    _console.print(f"{len(events):,} events written to {escape(str(target))}.")


@app.command(name="disturb")
def disturb_command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Events in any known format.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    uniform: Annotated[float | None, typer.Option(metavar="EPS", help="Relative noise everywhere.")] = None,
    box: Annotated[
        tuple[float, float] | None, typer.Option(metavar="EPS W", help="Noise where |m - m_thresh| < W.")
    ] = None,
    peak: Annotated[float | None, typer.Option(metavar="EPS", help="Noise EPS m_thresh/|m - m_thresh|.")] = None,
    gap: Annotated[float | None, typer.Option(metavar="W", help="No training events where |m - m_thresh| < W.")] = None,
    threshold: Annotated[float, typer.Option("--threshold", help="m_thresh in GeV.")] = 200.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the noise.")] = 0,
    negative: Annotated[Negative, typer.Option(help="Draw negative amplitudes again, or keep them.")] = Negative.redraw,
    process: ProcessOption = None,
    invalid: InvalidOption = Invalid.error,
    signed: SignedOption = False,
) -> None:
    """Put noise or a gap into a data set; the truth stays in the file.

    Example: `ampsure disturb events.h5 noisy.h5 --box 0.01 20 --seed 1`
    """
    chosen: list[Disturbance] = []
    if uniform is not None:
        chosen.append(UniformSmearing(uniform))
    if box is not None:
        chosen.append(BoxSmearing(box[0], width=box[1], threshold=threshold))
    if peak is not None:
        chosen.append(PeakedSmearing(peak, threshold=threshold))
    if gap is not None:
        chosen.append(Gap(gap, threshold=threshold))
    if not chosen:
        raise AmpsureError("Nothing to do: give at least one of --uniform, --box, --peak and --gap.")
    events = ampsure.load(source, process=_process(process), invalid=invalid.value, signed=signed)
    _print_dropped(events)
    events = disturb(events, chosen, seed=seed, negative=negative.value)
    ampsure.save(events, target)
    for entry in events.provenance["disturbances"][-len(chosen) :]:
        if entry["kind"] == "Gap":
            _console.print(f"Gap: {entry['events']:,} of {len(events):,} events are left to tests alone.")
        else:
            fate = "drawn again" if entry["negative"] == "redraw" else "kept"
            _console.print(
                f"{entry['kind']}: {entry['negative_events']:,} amplitudes came out negative and were {fate}."
            )
    _console.print(f"{len(events):,} events written to {escape(str(target))}.")


def _process(name: str | None) -> Process | None:
    return None if name is None else get_process(name)


def _parse_settings(assignments: list[str]) -> dict[str, Any]:
    """['energy=13000', 'cuts.pt_jet=30'] as nested dictionaries; values are JSON, or plain text."""
    result: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        *parents, last = name.strip().split(".")
        if not equals or not last or len(parents) > 1:
            raise AmpsureError(f"--set takes NAME=VALUE, e.g. cuts.pt_jet=30, not {assignment!r}.")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        if not isinstance(place, dict):
            raise AmpsureError(f"--set gives {parents[0]!r} twice, in part and as a whole.")
        place[last] = value
    return result


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar for every stage, plain lines where there is no terminal; Ctrl-C ends the command."""
    try:
        with _bars() as report:
            yield report
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; nothing was written.")
        raise typer.Exit(130) from None


@contextmanager
def _bars() -> Iterator[Report]:
    if not _console.is_terminal:
        stages: set[str] = set()

        def log(stage: str, done: float, total: float) -> None:
            if stage not in stages:
                stages.add(stage)
                _console.print(f"{stage} ...")

        yield log
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_console) as progress:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: float, total: float) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done)

        yield show


def _print_dropped(events: Events) -> None:
    if dropped := events.provenance.get("dropped"):
        reasons = "; ".join(f"{count:,} because {reason}" for reason, count in dropped["reasons"].items())
        _console.print(f"[yellow]Dropped[/] {dropped['events']:,} invalid events: {escape(reasons)}.")


def _range(values: Any, unit: str = "") -> str:
    return f"{values.min():.4g} to {values.max():.4g}{unit} (median {np.median(values):.4g})"


def _summary(events: Events) -> Iterator[tuple[str, str]]:
    yield "process", events.process.name
    yield "events", f"{len(events):,}"
    if not len(events):
        return
    unit = f" {events.process.unit}" if events.process.unit else ""
    yield "squared amplitude", _range(events.amplitude, unit)
    positive = events.amplitude[events.amplitude > 0]
    if len(positive):
        yield "orders of magnitude", f"{np.log10(positive.max() / positive.min()):.2f}"
    yield "mass of the final state", _range(events.final_state_mass, " GeV")
    names = events.process.label.split(" > ")[1].split()
    for i, name in enumerate(names, start=events.process.n_incoming):
        p = events.momenta[:, i]
        yield (
            f"leg {i + 1} ({name})",
            f"pT {_range(transverse_momentum(p), ' GeV')}, |eta| < {abs(pseudorapidity(p)).max():.3g}",
        )
    if not (events.weights == 1).all():
        yield "weights", f"{_range(events.weights)}, effective size {events.effective_size:,.0f}"
    if events.noise.any():
        noisy = events.noise > 0
        level = events.noise[noisy] / abs(events.truth[noisy])
        yield "noise", f"{noisy.mean():.1%} of the events, relative {_range(level)}"
    if not events.trainable.all():
        yield "left to tests alone", f"{(~events.trainable).sum():,} events"
    if generation := events.provenance.get("generation"):
        yield "cross section", f"{generation['cross_section']:.5g} ± {generation['cross_section_error']:.2g} pb"
    if command := events.provenance.get("command"):
        yield "made by", ", ".join(f"{k} {v}" for k, v in command.items())


def _warnings(events: Events) -> Iterator[str]:
    if dropped := events.provenance.get("dropped"):
        for reason, count in dropped["reasons"].items():
            yield f"{count:,} events are invalid and were left out: {reason}."
    if not len(events):
        yield "there are no valid events."
        return
    repeated = len(events) - len(np.unique(events.momenta.reshape(len(events), -1), axis=0))
    if repeated:
        yield f"{repeated:,} events repeat others exactly."
    if events.process.exact is None and events.process.name == "unknown":
        yield "the file does not name its process; two incoming legs were assumed and masses read off the momenta."
    if (events.amplitude <= 0).any():
        yield f"{(events.amplitude <= 0).sum():,} amplitudes are not positive."
    if events.effective_size < 0.5 * len(events):
        yield f"the weights are uneven: {len(events):,} events are worth {events.effective_size:,.0f}."


if __name__ == "__main__":
    main()
