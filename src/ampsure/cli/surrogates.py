"""Commands about surrogates: train, evaluate, predict, config."""

from __future__ import annotations

import shutil
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

import ampsure
from ampsure.audit import audit
from ampsure.config import DEFAULT_METHOD, METHODS, RECIPES, Config, resolve, to_toml
from ampsure.errors import AmpsureError
from ampsure.evaluation import Judgement, judge
from ampsure.fitting import Report, fit
from ampsure.grids import save_run
from ampsure.io import PART, EventFile, check_target, load_or_open, replacing, save_columns
from ampsure.io.atomic import check_writable
from ampsure.io.numpy import read_momenta
from ampsure.surrogate import Surrogate, find_device, load_surrogate
from ampsure.training import Progress, TrainingInterrupted
from ampsure.training.ranks import close_ranks, find_ranks

from .common import (
    DeviceOption,
    Invalid,
    InvalidOption,
    ProcessOption,
    app,
    console,
    events_to_test,
    parse_settings,
    process_of,
    training_progress,
    with_history,
)

__all__: list[str] = []

_PREDICTED = ("amplitude", "sigma_syst", "sigma_stat", "sigma_tot", "in_domain")

config_app = typer.Typer(help="Show configurations.", no_args_is_help=True)
app.add_typer(config_app, name="config")

FileArgument = Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Configuration to start from.")]
MethodOption = Annotated[str | None, typer.Option(help=f"One of {', '.join(METHODS)}; by default {DEFAULT_METHOD}.")]
RecipeOption = Annotated[str | None, typer.Option(help=f"One of {', '.join(RECIPES)}.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a setting, e.g. training.epochs=50.")
]


@app.command()
def train(
    file: FileArgument = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run.")] = Path("runs/surrogate"),
    data: Annotated[Path | None, typer.Option(help="Events to learn from.")] = None,
    method: MethodOption = None,
    recipe: RecipeOption = None,
    signed: Annotated[
        bool, typer.Option("--signed", help="Learn amplitudes that change sign: data.signed, features.target=asinh.")
    ] = False,
    invalid: Annotated[Invalid | None, typer.Option(help="What to do with events that cannot be right.")] = None,
    settings: SetOption = None,
) -> None:
    """Train a surrogate. Ctrl-C saves the state, and the same command goes on from there.

    Example: `ampsure train --data events.h5 --method repulsive -o runs/a`

    On 4 GPUs: `torchrun --nproc-per-node 4 -m ampsure train --data events.h5 --method repulsive -o runs/a`
    """
    options = [f"data.invalid={invalid.value}"] if invalid is not None else []
    options += ["data.signed=true", "features.target=asinh"] if signed else []
    config = config_of(file, method, recipe, [*options, *(settings or [])], data)
    if config.data.path is None:
        raise AmpsureError("There are no events to learn from: give --data FILE or data.path in the configuration.")
    checkpoint = output / "checkpoint"
    if (output / "surrogate.json").exists() and not checkpoint.exists():
        raise AmpsureError(f"{output} holds a finished surrogate: choose another folder, or remove it.")
    ranks = find_ranks(find_device(config.training.device))
    console.quiet = not ranks.leads
    d = config.data
    events = load_or_open(d.path or "", process=d.process, invalid=d.invalid, signed=d.signed, memory=d.memory)
    if isinstance(events, EventFile):
        console.print(f"{len(events):,} events are too many for memory (data.memory): they are read while training.")
    started = time.monotonic()
    try:
        with training_progress() as shown, _tensorboard(output / "tensorboard", shown, ranks.leads) as report:
            surrogate = fit(events, config=config, checkpoint=checkpoint, report=report)
    except TrainingInterrupted as stopped:
        console.print(escape(str(stopped)))
        raise typer.Exit(130) from None
    if ranks.leads:
        save_run(surrogate, output)
        shutil.rmtree(checkpoint, ignore_errors=True)
    close_ranks()
    console.print(f"Trained in {time.monotonic() - started:.0f} s; the surrogate is in {escape(str(output))}.")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a surrogate.")],
    data: Annotated[
        Path | None, typer.Option(help="Events to test on; by default the test part of the training file.")
    ] = None,
    device: DeviceOption = "cpu",
) -> None:
    """Compare a surrogate with the truth: accuracy, pulls, coverage.

    Example: `ampsure evaluate runs/a --data test.h5`
    """
    surrogate = load_surrogate(run, device)
    events, source = events_to_test(surrogate, data)
    title = f"{escape(str(run))}: {len(events):,} test events"
    table = Table(title=title, caption=escape(source), show_header=False)
    judgement = judge(surrogate.predict(events.momenta), events)
    for row in evaluation_rows(judgement):
        table.add_row(*map(escape, row))
    console.print(table)
    for sentence in judgement.verdict:
        console.print(escape(sentence), highlight=False, soft_wrap=True)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a surrogate.")],
    momenta: Annotated[Path, typer.Argument(help="Momenta (N, n, 4) in a .npy or .npz, or a file of events.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write: .npz, or .h5 for very many.")],
    samples: Annotated[int | None, typer.Option(help="Networks to draw from a variational posterior.")] = None,
    sample_seed: Annotated[int, typer.Option(help="Seed of that draw.")] = 0,
    device: DeviceOption = "cpu",
) -> None:
    """Predict amplitudes and their uncertainties.

    Example: `ampsure predict runs/a momenta.npy -o out.npz`
    """
    if output.suffix not in (".npz", ".h5"):
        raise AmpsureError(f"Predictions are written as .npz or .h5, not {output.name!r}.")
    surrogate = load_surrogate(run, device)
    if samples is not None:
        surrogate = surrogate.resampled(samples, sample_seed)
    n = outside = 0

    def predictions() -> Iterator[dict[str, Any]]:
        nonlocal n, outside
        for part in _momenta(momenta, surrogate):
            p = surrogate.predict(part)
            n, outside = n + len(part), outside + int((~p.in_domain).sum())
            yield {name: getattr(p, name) for name in _PREDICTED}

    save_columns(predictions(), output, "ampsure-predictions")
    console.print(f"{n:,} predictions written to {escape(str(output))}.")
    if outside:
        console.print(f"[yellow]Warning:[/] {outside:,} of them are outside the domain of the training events.")


@app.command(name="audit")
def audit_command(
    source: Annotated[Path, typer.Argument(metavar="EVENTS", help="Events in any known format.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for all probabilities (.npz).")] = None,
    clean: Annotated[Path | None, typer.Option(help="File for the events that are rather right than wrong.")] = None,
    folds: Annotated[int, typer.Option(help="Parts, each predicted from all others.")] = 4,
    process: ProcessOption = None,
    invalid: InvalidOption = Invalid.error,
    signed: Annotated[
        bool, typer.Option("--signed", help="Audit amplitudes that change sign: features.target=asinh.")
    ] = False,
    settings: SetOption = None,
) -> None:
    """Find amplitudes that do not agree with all the others, before anything is trained on them.

    Example: `ampsure audit events.h5 -o audit.npz --clean clean.h5`
    """
    if output is not None and output.suffix != ".npz":
        raise AmpsureError(f"The probabilities are written as .npz, not {output.name!r}.")
    if output is not None:
        check_writable(output)
    if clean is not None:
        check_target(clean)
    options = ["features.target=asinh"] if signed else []
    config = resolve(DEFAULT_METHOD, "accurate", parse_settings([*options, *(settings or [])]))
    events = ampsure.load(source, process=process_of(process), invalid=invalid.value, signed=signed)
    try:
        with training_progress() as report:
            found = audit(events, config, folds=folds, report=lambda k, stage, p: report(f"part {k + 1}: {stage}", p))
    except TrainingInterrupted as stopped:
        console.print(escape(str(stopped)))
        raise typer.Exit(130) from None
    suspects = found.suspects
    console.print(
        f"{len(suspects):,} of {len(events):,} amplitudes are wrong with a probability above 95 %; "
        f"{found.share * len(events):,.0f} are expected to be wrong."
    )
    table = Table("event", "amplitude", "expected", "sigma", "probability")
    for i in suspects[:20]:
        values = (events.amplitude[i], found.amplitude[i], found.sigma[i])
        table.add_row(str(i), *(f"{value:.4g}" for value in values), f"{found.probability[i]:.4f}")
    if len(suspects):
        console.print(table)
    if output is not None:
        with replacing(output) as temporary:
            np.savez(temporary, probability=found.probability, amplitude=found.amplitude, sigma_tot=found.sigma)
        console.print(f"All probabilities: {escape(str(output))}")
    if clean is not None:
        ampsure.save(with_history(events[found.probability <= 0.5], "audit", source), clean)
        console.print(f"{len(events) - len(suspects):,} events written to {escape(str(clean))}.")


@config_app.command()
def show(
    file: FileArgument = None, method: MethodOption = None, recipe: RecipeOption = None, settings: SetOption = None
) -> None:
    """Print a complete configuration as TOML.

    Example: `ampsure config show --method repulsive --set training.epochs=50`
    """
    print(to_toml(config_of(file, method, recipe, settings, None)), end="")


def config_of(
    file: Path | None, method: str | None, recipe: str | None, settings: list[str] | None, data: Path | None
) -> Config:
    """File, then command line; each may name a method and a recipe."""
    written: dict[str, Any] = {}
    if file is not None:
        try:
            written = tomllib.loads(file.read_text())
        except tomllib.TOMLDecodeError as error:
            raise AmpsureError(f"{file} is not valid TOML: {error}.") from error
        except (OSError, UnicodeDecodeError) as error:
            raise AmpsureError(f"{file} cannot be read: check its name.") from error
        except (RecursionError, ValueError) as error:
            raise AmpsureError(f"{file} is not valid TOML: a value is too large or too deep.") from error
    if method is not None and ("likelihood" in written or "posterior" in written):
        raise AmpsureError(
            f"{file} decides likelihood and posterior: leave out --method, or take them out of the file."
        )
    if recipe is not None and {"features", "network", "training"} & set(written):
        raise AmpsureError(f"{file} decides features, network or training: leave out --recipe.")
    named = written.pop("method", None)
    method = method or named or (None if "likelihood" in written else DEFAULT_METHOD)
    named = written.pop("recipe", None)
    recipe = recipe or named or "accurate"
    given = {"data": {"path": str(data)}} if data is not None else {}
    return resolve(method, recipe, written, parse_settings(settings or []), given)


def evaluation_rows(judgement: Judgement) -> Iterator[tuple[str, str]]:
    """The first numbers anyone asks for."""
    a = judgement.accuracy
    yield "mean |Δ|", f"{a.mean:.3g}"
    yield "median |Δ|", f"{a.median:.3g}"
    yield "99 % quantile of |Δ|", f"{a.quantile99:.3g}"
    yield "bias <Δ>", f"{a.bias:+.2g} ± {a.bias_error:.2g}"
    for name in ("total", "systematic", "statistical"):
        if name in judgement.pulls:
            s = judgement.pulls[name]
            yield f"{name} pull: mean, width", f"{s.mean:+.3f}, {s.width:.3f}"
            yield f"{name} pull: 68 %, 95 % coverage", f"{s.coverage68:.1%}, {s.coverage95:.1%}"
        else:
            yield f"{name} pull", "this method has no such uncertainty"
    yield "outside the training domain", f"{judgement.outside:,} of {judgement.events:,}"


def _momenta(path: Path, surrogate: Surrogate) -> Iterator[Any]:
    """Momenta, in parts, from a plain array, from the array `momenta` of an .npz, or from a file of events."""
    if path.suffix not in (".npy", ".npz"):
        yield from (part.momenta for part in ampsure.stream(path, PART, process=surrogate.process, signed=True))
        return
    momenta = read_momenta(path)
    if momenta.dtype.kind not in "fiu":
        raise AmpsureError(f"{path} must hold real numbers, not {momenta.dtype}.")
    momenta = np.atleast_1d(momenta)
    for start in range(0, max(len(momenta), 1), PART):
        yield momenta[start : start + PART]


@contextmanager
def _tensorboard(folder: Path, report: Report, writes: bool) -> Iterator[Report]:
    """The same report, also written for TensorBoard where that is installed, by the process that writes."""
    if not writes:
        yield report
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield report
        return
    writer = SummaryWriter(folder)

    def log(stage: str, p: Progress) -> None:
        report(stage, p)
        for name in ("training_loss", "validation_loss", "learning_rate", "events_per_second"):
            writer.add_scalar(f"{stage}/{name}", getattr(p, name), p.epoch)

    try:
        yield log
    finally:
        writer.close()
