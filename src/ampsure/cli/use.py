"""Commands that put surrogates to work: unweight, reweight, histogram, distill."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

import ampsure
from ampsure.deploy import distill as distill_surrogate
from ampsure.deploy import histogram as make_histogram
from ampsure.deploy import reweight as reweight_file
from ampsure.deploy import save_histogram, two_stage
from ampsure.errors import AmpsureError
from ampsure.generation import Settings
from ampsure.io import check_target, make_folder
from ampsure.surrogate import load_surrogate
from ampsure.training import TrainingInterrupted

from .common import DeviceOption, SignedOption, app, console, parse_settings, progress, training_progress

__all__: list[str] = []

RunArgument = Annotated[Path, typer.Argument(help="Folder of a surrogate.")]


class Maximum(StrEnum):
    measured = "measured"
    learned = "learned"


class Outside(StrEnum):
    reference = "reference"
    surrogate = "surrogate"


@app.command()
def unweight(
    run: RunArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write: .h5, .lhe, .lhe.gz or .npz.")],
    n: Annotated[int, typer.Option("-n", "--events", help="Number of events.")] = 100_000,
    preset: Annotated[str, typer.Option(help="benchmark (1 TeV) or lhc (13 TeV).")] = "benchmark",
    seed: Annotated[int, typer.Option(help="The same seed gives the same events.")] = 1,
    overweight: Annotated[
        float, typer.Option(help="Share of the cross section above the maximum weight, in each stage.")
    ] = 1e-3,
    maximum: Annotated[
        Maximum, typer.Option(help="Of the second stage: from exact amplitudes, or from the learned uncertainty.")
    ] = Maximum.measured,
    device: DeviceOption = "cpu",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Override a setting, e.g. cuts.pt_jet=30.")
    ] = None,
) -> None:
    """Generate unweighted events: the surrogate rejects first, the exact amplitude has the last word.

    Example: `ampsure unweight runs/a -n 100000 --seed 1 -o events.h5`
    """
    overrides = parse_settings(settings or [])
    if unknown := set(overrides) - set(Settings.model_fields):
        raise AmpsureError(f"Unknown setting {min(unknown)!r}; settings are {', '.join(Settings.model_fields)}.")
    check_target(output)
    surrogate = load_surrogate(run, device)
    with progress() as report:
        events = two_stage(
                surrogate, n, preset=preset, seed=seed, overweight=overweight, maximum=maximum.value, report=report,
                **overrides,
            )  # fmt: skip
    ampsure.save(events, output)
    found = events.provenance["two_stage"]
    table = Table(title=f"{n:,} events of {events.process.label}", show_header=False)
    table.add_row("cross section", f"{found['cross_section']:.5g} ± {found['cross_section_error']:.2g} pb")
    table.add_row("efficiency of the surrogate's stage", f"{found['first_efficiency']:.1%}")
    table.add_row("efficiency of the exact stage", f"{found['second_efficiency']:.1%}")
    table.add_row("surrogate amplitudes per event", f"{found['surrogate_evaluations']:.2f}")
    table.add_row("exact amplitudes per event", f"{found['exact_evaluations']:.3f}")
    above = f"{found['first_overweight']:.3%}, {found['second_overweight']:.3%}"
    table.add_row("cross section above either maximum", above)
    table.add_row("effective size (Kish)", f"{n * found['effective_share']:,.0f}")
    table.add_row("time", f"{found['seconds']:.1f} s")
    table.add_row("file", escape(str(output)))
    console.print(table)


@app.command()
def reweight(
    events: Annotated[Path, typer.Argument(help="Events: .lhe or .lhe.gz.")],
    surrogate: Annotated[Path, typer.Option(help="Folder of a surrogate.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write: .lhe or .lhe.gz.")],
    name: Annotated[str, typer.Option(help="Of the new weight, and the beginning of its variations.")] = "surrogate",
    members: Annotated[bool, typer.Option("--members", help="One weight a member as well.")] = False,
    outside: Annotated[
        Outside, typer.Option(help="Weights outside the surrogate's domain: as they are, or extrapolated.")
    ] = Outside.reference,
    device: DeviceOption = "cpu",
) -> None:
    """Add weights by a surrogate, and their variations by its uncertainties, to an LHE file.

    Example: `ampsure reweight events.lhe.gz --surrogate runs/a -o out.lhe.gz`
    """
    found = reweight_file(
        events, load_surrogate(surrogate, device), output, name=name, members=members, outside=outside.value
    )
    table = Table("weight", "sum", "over that of the file", title=f"{found.events:,} events in {escape(str(output))}")
    for key, total in found.weights.items():
        table.add_row(key, f"{total:.6g}", f"{total / found.total:.5f}" if found.total else "")
    console.print(table)
    if found.outside:
        kept = "keep their weight" if outside is Outside.reference else "are extrapolated"
        console.print(
            f"[yellow]Warning:[/] {found.outside:,} events are outside the domain of the surrogate; they {kept}, and"
            f" their weight {name}_in_domain is 0.",
            soft_wrap=True,
        )


@app.command()
def histogram(
    run: RunArgument,
    data: Annotated[Path, typer.Option(help="Events that stand for the phase space.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Files to write, without suffix.")],
    observable: Annotated[str, typer.Option(help="mass, amplitude, or pt3 for the pT of leg 3.")] = "mass",
    bins: Annotated[int, typer.Option(min=1, help="Number of bins.")] = 30,
    signed: SignedOption = False,
    device: DeviceOption = "cpu",
) -> None:
    """Write a distribution of the surrogate's cross section with all uncertainties: .yaml (HEPData), .csv, figure.

    Example: `ampsure histogram runs/a --data test.h5 --observable mass -o mass`
    """
    surrogate = load_surrogate(run, device)
    events = ampsure.load(data, signed=signed)
    make_folder(output.parent)
    h = make_histogram(surrogate, events, observable, bins=bins)
    paths = save_histogram(h, output)
    table = Table(title=f"{escape(str(run))}: {escape(h.observable.label)}", show_header=False)
    table.add_row("cross section in the bins", f"{float((h.value * (h.edges[1:] - h.edges[:-1])).sum()):.5g} {h.unit}")
    filled = h.value != 0
    for label, error in h.errors.items():
        relative = f"{np.median(error[filled] / np.abs(h.value[filled])):.2%}" if filled.any() else "no bin is filled"
        table.add_row(f"median error, {label}", relative)
    table.add_row("files", escape(", ".join(map(str, paths))))
    console.print(table)


@app.command()
def distill(
    run: RunArgument,
    data: Annotated[Path, typer.Option(help="Events whose momenta are learned from.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the new surrogate.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Change a setting of the surrogate, e.g. training.epochs=50."),
    ] = None,
    device: DeviceOption = "cpu",
) -> None:
    """Distil an ensemble into one network with the same amplitude, sigma_syst and sigma_stat.

    Example: `ampsure distill runs/a --data events.h5 -o runs/small`
    """
    if (output / "surrogate.json").exists():
        raise AmpsureError(f"{output} holds a finished surrogate: choose another folder, or remove it.")
    teacher = load_surrogate(run, device)
    d = teacher.config.data
    events = ampsure.load(data, process=d.process, invalid=d.invalid, signed=d.signed)
    config = parse_settings(["data.path=" + json.dumps(str(data)), *(settings or [])])
    started = time.monotonic()
    try:
        with training_progress() as report:
            student = distill_surrogate(teacher, events, config=config, report=report)
    except TrainingInterrupted:
        console.print("Interrupted; nothing was written.")
        raise typer.Exit(130) from None
    student.save(output)
    console.print(f"Distilled in {time.monotonic() - started:.0f} s; the surrogate is in {escape(str(output))}.")
