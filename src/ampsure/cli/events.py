"""Commands about events: generate, inspect, convert, disturb."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

import ampsure
from ampsure.disturbances import BoxSmearing, Disturbance, Gap, Outliers, PeakedSmearing, UniformSmearing, disturb
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.generation import Settings
from ampsure.io import FORMATS, PART, appending, check_target, replacing
from ampsure.kinematics import pseudorapidity, transverse_momentum
from ampsure.report import event_overview
from ampsure.report.style import rendered

from .common import (
    ClusterOption,
    Invalid,
    InvalidOption,
    ProcessOption,
    SignedOption,
    app,
    connected,
    console,
    parse_settings,
    print_dropped,
    process_of,
    progress,
    record,
    with_history,
)

__all__: list[str] = []


class Sampling(StrEnum):
    adaptive = "adaptive"
    rambo = "rambo"


class Negative(StrEnum):
    redraw = "redraw"
    keep = "keep"


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
    unweight: Annotated[bool, typer.Option(help="Unweight the events; flat ones always have weights.")] = True,
    overweight: Annotated[
        float, typer.Option(help="Share of the cross section in excess of the maximum weight.")
    ] = 1e-3,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads, or processes of a cluster; by default all cores.")
    ] = None,
    cluster: ClusterOption = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a setting, e.g. cuts.pt_jet=30.")
    ] = None,
) -> None:
    """Generate events with exact amplitudes.

    Example: `ampsure generate gg_yyg -n 100000 --preset benchmark --seed 1 -o events.h5`
    """
    overrides = parse_settings(settings or [])
    if unknown := set(overrides) - set(Settings.model_fields):
        raise AmpsureError(f"Unknown setting {min(unknown)!r}; settings are {', '.join(Settings.model_fields)}.")
    check_target(output)  # now, not after minutes
    if output.suffix == ".npy":
        raise AmpsureError("A .npy has no room for the weights of generated events: write .h5, .lhe, .lhe.gz or .npz.")
    threads, workers = (workers, None) if cluster is None else (None, workers)
    with progress() as report, connected(cluster, workers) as pool:
        events = ampsure.generate(
                process, n, preset=preset, seed=seed, sampling=sampling.value, unweight=unweight, overweight=overweight,
                workers=threads, cluster=pool, report=report, **overrides,
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
    table.add_row("file", escape(str(output)))
    console.print(table)


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
    name = next((file.name.removesuffix(s) for s in FORMATS if file.name.endswith(s)), file.name)
    figure = figure or file.with_name(f"{name}.png")
    if (kind := figure.suffix.lower()) not in (".png", ".pdf", ".svg"):
        raise AmpsureError(f"A figure is written as .png, .pdf or .svg, not {figure.name!r}.")
    events = ampsure.load(file, process=process_of(process), invalid="drop", signed=signed)
    table = Table(title=f"{escape(file.name)}: {escape(events.process.label)}", show_header=False)
    for row in _summary(events):
        table.add_row(*map(escape, row))
    console.print(table)
    for warning in _warnings(events):
        console.print(f"[yellow]Warning:[/] {escape(warning)}")
    with replacing(figure) as temporary:
        temporary.write_bytes(rendered(event_overview(events), kind[1:]))
    console.print(f"Figure: {escape(str(figure))}")


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
    options: dict[str, Any] = {"process": process_of(process), "invalid": invalid.value, "signed": signed}
    if target.suffix.lower() in (".h5", ".hdf5"):  # in bounded memory
        with appending(target) as file:
            for events in ampsure.stream(source, PART, **options):
                file.append(with_history(events, "convert", source))
        n = len(file)
    else:
        events = ampsure.load(source, **options)
        ampsure.save(with_history(events, "convert", source), target)
        n = len(events)
    print_dropped(events)
    console.print(f"{n:,} events written to {escape(str(target))}.")


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
    outliers: Annotated[bool, typer.Option("--outliers", help="Wrong amplitudes, as real programs make them.")] = False,
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
    if outliers:
        chosen.append(Outliers())
    if not chosen:
        raise AmpsureError("Nothing to do: give at least one of --uniform, --box, --peak, --gap and --outliers.")
    events = ampsure.load(source, process=process_of(process), invalid=invalid.value, signed=signed)
    print_dropped(events)
    events = disturb(events, chosen, seed=seed, negative=negative.value)
    ampsure.save(with_history(events, "disturb", source), target)
    for entry in events.provenance["disturbances"][-len(chosen) :]:
        if entry["kind"] == "Gap":
            console.print(f"Gap: {entry['events']:,} of {len(events):,} events are left to tests alone.")
        elif entry["kind"] == "Outliers":
            console.print(f"Outliers: {entry['wrong_events']:,} amplitudes are wrong by more than 0.1 %.")
        else:
            fate = "drawn again" if entry["negative"] == "redraw" else "kept"
            console.print(
                f"{entry['kind']}: {entry['negative_events']:,} amplitudes came out negative and were {fate}."
            )
    console.print(f"{len(events):,} events written to {escape(str(target))}.")


def _range(values: Any, unit: str = "") -> str:
    return f"{values.min():.4g} to {values.max():.4g}{unit} (median {np.median(values):.4g})"


def _summary(events: Events) -> Iterator[tuple[str, str]]:
    yield "process", events.process.name
    yield "events", f"{len(events):,}"
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
    generation = record(events, "generation", "cross_section", "cross_section_error")
    found = [generation.get(name) for name in ("cross_section", "cross_section_error")]
    if all(isinstance(number, int | float) and abs(number) < 1e300 for number in found):  # JSON's integers have no end
        yield "cross section", f"{found[0]:.5g} ± {found[1]:.2g} pb"
    if command := record(events, "command"):
        yield "made by", ", ".join(f"{k} {v}" for k, v in command.items())


def _warnings(events: Events) -> Iterator[str]:
    if dropped := record(events, "dropped", "reasons"):
        for reason, count in dropped["reasons"].items():
            yield f"{count:,} events are invalid and were left out: {reason}."
    repeated = len(events) - len(np.unique(events.momenta.reshape(len(events), -1), axis=0))
    if repeated:
        yield f"{repeated:,} events repeat others exactly."
    if events.process.exact is None and events.process.name == "unknown":
        yield "the file does not name its process; two incoming legs were assumed and masses read off the momenta."
    if (events.amplitude <= 0).any():
        yield f"{(events.amplitude <= 0).sum():,} amplitudes are not positive."
    if events.effective_size < 0.5 * len(events):
        yield f"the weights are uneven: {len(events):,} events are worth {events.effective_size:,.0f}."
