"""`fit` makes a surrogate from events, `fit_many` many at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampsure._version import versions
from ampsure.calibration import Calibration, VarianceCorrection, calibration_inputs
from ampsure.config import DEFAULT_METHOD, Config, resolve
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.generation.settings import Cuts
from ampsure.io import EventFile, checksum, load_or_open, make_folder
from ampsure.likelihoods import Likelihood, get_likelihood
from ampsure.likelihoods.base import bounded
from ampsure.likelihoods.mse import MSE
from ampsure.networks import StackedMLP
from ampsure.noise import NoiseProfile, find_noise
from ampsure.posteriors import Ensemble, Point, Posterior, Variational, neighbours
from ampsure.preprocessing import AsinhTarget, Features, LogTarget, Standardization, get_features, get_target
from ampsure.scratch import Column, Scratch, each, lazily, mean_square, parts, sample
from ampsure.surrogate import Stage, Surrogate, combine, dtype_of, find_device, sum_of_stages, variational
from ampsure.training import Engine, Progress, Training, TrainingData, enough_memory
from ampsure.training.fleet import SideBySide
from ampsure.training.ranks import Ranks, find_ranks
from ampsure.training.sigma import ResidualVariance, SigmaCompanion

__all__ = ["Report", "alike", "fit", "fit_many", "fleets", "largest_mean"]

Report = Callable[[str, Progress], None]
"""Told of progress: which stage, and how far it is."""

History = list[dict[str, float]]

_Wanted = tuple[str, list[Training]]
_FOLDS = 4  # of the validation events, where sigma is learned from them
_MEDIAN, _NINE_TENTHS = 0.4549364231, 2.705543454  # of squared pulls are below
_FEW = -5.0  # logarithm of the odds of being wrong, before anything is known of them
_FAR = 8.0  # standard deviations
_WINDOW = 1 << 20  # training events in memory, of those that are in a file, and at most so many for validation
_RANDOM = 10**6  # from the seeds of members to those of their randomized priors
_PAIRS = 8  # of neighbours, where a single network has to know what it does not know

Source = Events | EventFile
"""Events in memory or in a file."""

_Set = tuple[Column, Column]
"""Features (N, F) and targets (N,)."""

_KEPT: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (  # of training, validation and calibration: wrong, noisy
    lambda wrong, noisy: ~(wrong | noisy),
    lambda wrong, noisy: ~(wrong | noisy),
    lambda wrong, noisy: ~wrong | noisy,
)


def fit(
    events: Source | str | os.PathLike[str],
    method: str | None = None,
    *,
    config: Config | Mapping[str, Any] | None = None,
    recipe: str = "accurate",
    checkpoint: str | os.PathLike[str] | None = None,
    report: Report | None = None,
    **training: Any,
) -> Surrogate:
    """Train a surrogate on events.

    Processes started by `torchrun` share the members: all of them make the same call, and get the same surrogate.

    Args:
        events: in memory, or those of a file. A file that is larger than memory (see `data.memory`), and every
            `EventFile`, is read while training: docs/scale.md.
        method: one of `ampsure.config.METHODS`; by default the last one, "recommended".
        config: a full `Config`, or sections to change, e.g. `{"posterior": {"members": 8}}`.
        recipe: "accurate" or "paper".
        checkpoint: folder for the state of the training; the same call resumes from it.
        report: called with (stage, Progress) after every epoch.
        training: single settings of the training, e.g. `epochs=50, seed=1`.
    """
    if not isinstance(config, Config):
        config = resolve(method or DEFAULT_METHOD, recipe, config, **training)
    elif method is not None or training:
        raise AmpsureError("A full Config decides everything: give no method and no single settings besides it.")
    if isinstance(events, str | os.PathLike):
        d = config.data
        events = load_or_open(events, process=d.process, invalid=d.invalid, signed=d.signed, memory=d.memory)
    return fit_many([(events, config)], checkpoint=checkpoint, report=report and (lambda _, *told: report(*told)))[0]


@enough_memory()
def fit_many(
    jobs: Sequence[tuple[Source, Config]],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    report: Callable[[int, str, Progress], None] | None = None,
) -> list[Surrogate]:
    """Train surrogates, those at once which do the same on other events, with another seed or another repulsion.

    Each one is what `fit` would give, to rounding, but many small trainings fill a GPU that one leaves idle.

    Args:
        checkpoint: folder for the state of the trainings; the same call resumes from it.
        report: called with (number of the job, stage, Progress) after every epoch.
    """
    if not jobs:
        return []
    folder = None if checkpoint is None else make_folder(Path(checkpoint))
    ranks = find_ranks(find_device(jobs[0][1].training.device))
    surrogates: dict[int, Surrogate] = {}
    sources: dict[int, _Source] = {}  # jobs may share their events
    for events, _ in jobs:
        sources.setdefault(id(events), _Source(events))
    for fleet in fleets(jobs, ranks):
        fittings = {job: _fitting(sources[id(jobs[job][0])], jobs[job][1], ranks, folder) for job in fleet}
        stages = {job: next(fitting) for job, fitting in fittings.items()}
        while stages:
            together: dict[Any, dict[int, list[Training]]] = {}
            for job, (stage, trainings) in stages.items():
                told = partial(report, job, stage) if report is not None and ranks.leads else None
                first, *others = trainings
                together.setdefault((stage, first.kind()), {})[job] = [replace(first, report=told), *others]
            stages = {}
            for (stage, _), group in together.items():
                name = stage if len(jobs) == 1 else f"{stage}-{min(group)}"
                fingerprint = _fingerprint([(sources[id(jobs[job][0])], jobs[job][1]) for job in group])
                _check_same(fingerprint, ranks)
                engine = Engine(
                    *(training for trainings in group.values() for training in trainings),
                    checkpoint=None if folder is None else folder / f"{name}.safetensors",
                    fingerprint=fingerprint,
                    ranks=ranks,
                )
                engine.run()
                histories = iter(engine.histories)
                for job, trainings in group.items():
                    told_of = [next(histories) for _ in trainings]
                    try:
                        stages[job] = fittings[job].send(told_of)
                    except StopIteration as end:
                        surrogates[job] = end.value
    return [surrogates[job] for job in range(len(jobs))]


def fleets(jobs: Sequence[tuple[Source, Config]], ranks: Ranks | None = None) -> Iterator[list[int]]:
    """Numbers of jobs with the same settings, but for those a fleet may mix, as many as memory allows.

    Those with events in a file go alone.
    """
    ranks = ranks or Ranks()
    groups: dict[str, list[int]] = {}
    for job, (given, config) in enumerate(jobs):
        groups.setdefault(alike(config) if isinstance(given, Events) else f"{job}", []).append(job)
    for same in groups.values():
        device, config = find_device(jobs[same[0]][1].training.device), jobs[same[0]][1]
        room = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 2**31
        events, rows = max(len(jobs[job][0]) for job in same), config.posterior.members * config.training.batch_size
        values = 100 * events + 10 * rows * sum(config.network.hidden)  # features; activations, weights, moments
        most = max(room // (values * (8 if config.network.precision == "float64" else 4)), 1)
        most = int(ranks.agreed(torch.tensor(most)))
        yield from (same[start : start + most] for start in range(0, len(same), most))


def alike(config: Config) -> str:
    """The same for configurations that may share a fleet."""
    mixed: dict[str, Any] = {"data": True, "posterior": {"beta", "prior_width", "sample_seed"}, "training": {"seed"}}
    return config.model_dump_json(exclude=mixed)


def _fingerprint(jobs: Sequence[tuple[_Source, Config]]) -> str:
    keys = (source.checksum + config.model_dump_json(exclude={"data": {"memory"}}) for source, config in jobs)
    windows = {f"{_window(c)}" for source, c in jobs if isinstance(source.events, EventFile)}
    return sha256("".join([*keys, *windows]).encode()).hexdigest()


def _window(config: Config) -> int:
    """Training events in memory at a time, if they are in a file: less than 1/16 of the memory they may take."""
    limit = inf if config.data.memory is None else config.data.memory * 2**30 / 16 / 128
    return int(min(_WINDOW, limit))


def _check_same(fingerprint: str, ranks: Ranks) -> None:
    own = torch.tensor([*bytes.fromhex(fingerprint)])
    if ranks.any(not torch.equal(ranks.agreed(own), own)):
        raise AmpsureError("The processes have different events or settings: give all of them the same.")


class _Source:
    """Events, and what trainings on them have in common: worked out once, when first asked for."""

    def __init__(self, events: Source) -> None:
        self.events = events
        self._features: dict[tuple[str, torch.device], Tensor] = {}

    @cached_property
    def checksum(self) -> str:
        return checksum(self.events)

    def features(self, events: Events, name: str, device: torch.device) -> Tensor:
        """(N, F) of all events, float64, on the device."""
        if (name, device) not in self._features:
            function, process = get_features(name), events.process
            chunks = torch.from_numpy(events.momenta).split(100_000)
            self._features[name, device] = torch.cat([function(m.to(device), process) for m in chunks])
        return self._features[name, device]

    def prepared(self, config: Config, device: torch.device, scratch: Scratch | None) -> _Prepared:
        """The events as a training sees them; those of a file are shuffled into the scratch folder."""
        train, validation, _ = self.events.split_indices(config.training.seed, config.data.fractions)
        if not len(train) or not len(validation):
            raise AmpsureError("No events are left for training or validation: check the gap and the fractions.")
        raw: list[Column]
        amplitude: list[Column]
        if isinstance(self.events, Events):
            features = self.features(self.events, config.features.inputs, device)
            both = train, validation
            raw = [features[torch.from_numpy(part).to(device)] for part in both]
            amplitude = [torch.from_numpy(self.events.amplitude[part]) for part in both]
        else:
            assert scratch is not None
            validation = validation[: scratch.window]
            raw, amplitude = _shuffled(self.events, train, validation, get_features(config.features.inputs), scratch)
        standardization, target = Standardization.fit(raw[0]), get_target(config.features.target).fit(amplitude[0])
        x, x_validation = (lazily(standardization, part).to(device) for part in raw)
        y, y_validation = (lazily(target.transform, part).to(device) for part in amplitude)
        x_validation, y_validation = _resident((x_validation, y_validation))
        if not (torch.isfinite(x_validation).all() and torch.isfinite(y_validation).all()):
            raise AmpsureError(
                "Some validation events have no finite features or target: check them as the training events."
            )
        sizes = {"events": len(self.events), "training": len(train), "validation": len(validation)}
        sizes |= {} if scratch is None else {"window": scratch.window}
        return _Prepared(standardization, target, x, y, x_validation, y_validation, sizes)


@dataclass(frozen=True)
class _Prepared:
    """Standardised features (N, F) and targets (N,) in float64, and how they were standardised."""

    standardization: Standardization
    target: LogTarget | AsinhTarget
    x: Column
    y: Column
    x_validation: Tensor
    y_validation: Tensor
    sizes: dict[str, int]


def _shuffled(
    events: EventFile,
    train: NDArray[np.int64],
    validation: NDArray[np.int64],
    features: Features,
    scratch: Scratch,
) -> tuple[list[Column], list[Column]]:
    """Features and amplitudes of training events, stored in the random order of their indices, and of validation ones.

    The order is a uniformly random permutation of the file: whatever its order was, neighbours are now a random sample.
    """
    place = np.full(len(events), -1)
    place[train] = np.arange(len(train))
    place[validation] = len(train) + np.arange(len(validation))
    held_out = []

    def rows() -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        start = 0
        for part in events.parts():
            where = place[start : start + len(part)]
            start += len(part)
            momenta = torch.from_numpy(part.momenta[where >= 0])
            table = np.column_stack([features(momenta, events.process).numpy(), part.amplitude[where >= 0]])
            where = where[where >= 0]
            held_out.append((where[where >= len(train)], table[where >= len(train)]))
            yield where[where < len(train)], table[where < len(train)]

    table = scratch.ordered(rows(), len(train))
    order, last = (torch.from_numpy(np.concatenate(columns)) for columns in zip(*held_out, strict=True))
    last = last[order.argsort()]
    raw = [lazily(lambda rows: rows[:, :-1], table), last[:, :-1]]
    return raw, [each(lambda rows: rows[:, -1], table), last[:, -1]]


def _fitting(
    source: _Source, config: Config, ranks: Ranks, folder: Path | None
) -> Generator[_Wanted, list[History], Surrogate]:
    """Prepares the events, asks for trainings by name and is sent their histories, and makes a surrogate of it all."""
    events = source.events
    if len(events) < 20:
        raise AmpsureError(f"{len(events)} events are too few to learn from: give at least 20.")
    if config.posterior.members < ranks.size:
        raise AmpsureError(
            f"There is nothing to share: {ranks.size} processes, but posterior.members = {config.posterior.members}. "
            "Start fewer processes."
        )
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = find_device(config.training.device)
    with ExitStack() as stack:
        in_file = isinstance(events, EventFile)
        scratch = stack.enter_context(Scratch.made(folder, _window(config))) if in_file else None
        return (yield from _fitted(source, config, ranks, source.prepared(config, device, scratch), device))


def _fitted(
    source: _Source, config: Config, ranks: Ranks, prepared: _Prepared, device: torch.device
) -> Generator[_Wanted, list[History], Surrogate]:
    """The same, of events that are prepared."""
    systematic, stages, dtype = config.posterior.systematic, config.training.stages, dtype_of(config)
    sizes, n_inputs, x, y = dict(prepared.sizes), prepared.x.shape[1], prepared.x_validation, prepared.y_validation
    if systematic == "held-out" and len(y) < 2:
        raise AmpsureError("Sigma cannot be learned from a single validation event: check the gap and the fractions.")
    sigma = _sigma_posterior(config, n_inputs, dtype).to(device) if _has_sigma(config) else None
    companion = None
    history: dict[str, History] = {}
    earlier: tuple[Stage, ...] = ()
    sets: list[_Set] = [(prepared.x, prepared.y), (x, y), (x, y)]  # the last one for the calibration
    standardization, target = prepared.standardization.to(device), prepared.target
    noise = NoiseProfile(x.new_zeros(0, 4))
    del prepared  # what was filtered need not be kept
    for stage in range(stages):
        likelihood = get_likelihood(config.likelihood.name, **config.likelihood.options)
        posterior = _posterior(config, n_inputs, likelihood, dtype, stage).to(device)
        if systematic == "global-joint" and sigma is not None and stage + 1 == stages:
            companion = SigmaCompanion(sigma.network, config.posterior.lambda_sigma or config.posterior.members)
        left = [_left(earlier, *given, systematic) for given in sets]
        scale = float(mean_square(left[0]).sqrt()) if stage else 1.0
        if stage and isinstance(earlier[-1].likelihood, MSE):
            earlier[-1].likelihood.variance = (scale / earlier[-1].scale) ** 2
        seen = [(x.to(dtype), _scaled(y, scale).to(dtype)) for (x, _), y in zip(sets, left, strict=True)]
        name = "members" if stages == 1 else f"stage-{stage + 1}"
        data = TrainingData(*seen[0], *_resident(seen[1]))
        [history[name]] = yield name, [Training(posterior, likelihood, data, config.training, companion)]
        network = posterior.requires_grad_(False).members().requires_grad_(False)
        limit = largest_mean(network, likelihood, seen[0][0], systematic) if stage else inf
        if likelihood.outliers:  # there is nothing more to learn from them, unless they are noise
            missed = [_residual_and_variance(network, likelihood, *given, systematic) for given in seen]
            # agreed, or the next stage might differ in length
            wrong = [each(ranks.agreed, _wrong(likelihood, column)) for column in missed]
            square = scale**2 * sample(missed[0])[:, 0].square()
            found = find_noise(sample(sets[0][0]), sample(wrong[0]), square)
            noise = NoiseProfile(torch.cat([noise.ranges, found.ranges]))
            noisy = [each(ranks.agreed, _noisy(found, x)) for x, _ in sets]
            sizes["wrong"] = sizes.get("wrong", 0) + sum(
                int((w & ~n).sum()) for k in range(2) for w, n in zip(parts(wrong[k]), parts(noisy[k]), strict=True)
            )
            kept = [each(keep, *both) for keep, *both in zip(_KEPT, wrong, noisy, strict=True)]
            sets = [(each(_chosen, x, k), each(_chosen, y, k)) for (x, y), k in zip(sets, kept, strict=True)]
            seen = [(x.to(dtype), each(_chosen, y, k)) for (x, _), (_, y), k in zip(sets, seen, kept, strict=True)]
        if stage + 1 < stages:
            earlier += (Stage(network.double(), likelihood, scale, limit),)
    surrogate = Surrogate(
        config=config,
        process=source.events.process,
        standardization=standardization,
        target=target,
        likelihood=likelihood,
        network=network,
        scale=scale,
        limit=limit,
        earlier=earlier,
        noise=noise,
        posterior=posterior if isinstance(posterior, Variational) else None,
        cuts=_cuts(source.events),
        history=history,
    )
    if isinstance(likelihood, MSE):
        likelihood.variance = float(mean_square(_residuals(surrogate, *seen[1])))
    if sigma is not None and companion is None:
        residuals = [_residuals(surrogate, *given) for given in seen[:2]]
        with torch.no_grad():
            sigma.network.biases[-1] += mean_square(residuals[0]).log()
        on = TrainingData(seen[0][0], residuals[0], *_resident((seen[1][0], residuals[1])))
        [history["sigma"]] = yield "sigma", [Training(sigma, ResidualVariance(), on, config.training)]
    if sigma is not None:
        surrogate.sigma_network = sigma.network.requires_grad_(False)
    surrogate.neighbours = _neighbours(surrogate, sets[0][0])
    if systematic == "held-out":
        history["sigma"] = yield from _calibrate(surrogate, *_resident(seen[2]))
    surrogate.provenance = {
        "data": {"checksum": source.checksum, **sizes},
        "events": source.events.provenance,
        "versions": versions(),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "precision": config.network.precision,
    }
    return surrogate.in_precision("float64")


def _calibrate(surrogate: Surrogate, x: Tensor, y: Tensor) -> Generator[_Wanted, list[History], History]:
    """Learns a `Calibration` from events (N, F), (N,) that were not used in training, in random order."""
    config = surrogate.config
    residual, syst, stat = _moments(surrogate, x, y)
    n = len(y) - len(y) // 4  # the rest is for what these events have taught
    raw = calibration_inputs(x, syst, stat)
    standardization = Standardization.fit(raw[:n])
    besides = stat + surrogate.noise(x) / surrogate.scale**2
    seen, given = standardization(raw[:n]).to(x.dtype), torch.stack([residual, syst, besides], dim=1)
    folds = torch.arange(n, device=y.device) % min(_FOLDS, n)
    size = {
        "batch_size": min(config.training.batch_size, 1024, max(n // 20, 1)),
        "epochs": min(config.training.epochs, 60),
    }
    settings = config.training.model_copy(update=size)
    networks, trainings, likelihood = [], [], VarianceCorrection()
    typical = ((residual.square() / (syst + besides))[:n].median() / _MEDIAN).clamp(1e-20, 1e20)
    start = torch.stack([typical.log(), torch.full_like(typical, _FEW)]).cpu()
    for fold in range(int(folds.max()) + 1):
        network = _stack(config, seen.shape[1], 2, x.dtype, 1, config.training.seed + 1 + fold, _sigma_hidden(config))
        with torch.no_grad():
            network.biases[-1] += start
        networks.append(network.to(x.device))
        parts = [values[chosen] for chosen in (folds != fold, folds == fold) for values in (seen, given[:n])]
        trainings.append(Training(Point(networks[-1]), likelihood, TrainingData(*parts), settings))
    histories = yield "sigma", trainings
    stack = cast(StackedMLP, SideBySide(networks).joined).requires_grad_(False)
    learned = Calibration(stack.first_outputs(1).requires_grad_(False), standardization)
    with torch.no_grad():
        last = learned.inputs(x[n:], syst[n:], stat[n:]).to(x.dtype)
        all_of, each_of = (torch.cat([stack(c) for c in part.split(8192)], dim=1) for part in (last, seen))  # (K, N, 2)
        together = torch.stack([-bounded(all_of[..., 0]).neg().exp().mean(0).log(), all_of[..., 1].mean(0)], dim=1)
        alone = each_of.gather(0, folds[None, :, None].expand(1, -1, 2))[0]  # by the network that left an event out
        told, given = torch.cat([together, alone]), torch.cat([given[n:], given[:n]])
        pull = given[:, 0] / (bounded(told[:, 0]).exp() * given[:, 1] + given[:, 2]).sqrt()
        right = likelihood.right(told, given)
    if count := len(y) - n:
        learned = learned.settled(pull[:count], pull[count:], right)
    surrogate.calibration = learned
    return histories[0]


def _posterior(config: Config, n_inputs: int, likelihood: Likelihood, dtype: torch.dtype, stage: int = 0) -> Posterior:
    p, seed = config.posterior, config.training.seed + stage
    network = _stack(config, n_inputs, likelihood.n_outputs, dtype, p.members, seed)
    with torch.no_grad():
        network.biases[-1] += torch.tensor(likelihood.initial_bias(), dtype=dtype)
    if p.name == "ensemble":
        beta = p.beta if p.members > 1 else 0.0
        return Ensemble(network, beta, p.prior_width, prior_scale=p.prior_scale, seed=seed + _RANDOM)
    return variational(config, network) if p.name == "variational" else Point(network)


def _neighbours(surrogate: Surrogate, x: Column) -> tuple[StackedMLP, ...]:
    """Of every stage, from training features (N, F): for a Laplace posterior, or for a single network with holes."""
    p = surrogate.config.posterior
    single = p.systematic == "held-out" and p.members == 1 and len(surrogate.standardization.holes)
    if p.name != "laplace" and not single:
        return ()
    options: dict[str, Any] = {"structure": p.structure, "samples": p.samples, "seed": p.sample_seed}
    if single:
        options |= {"structure": "kfac", "samples": 2 * _PAIRS}
    stages = [(stage.network, stage.likelihood) for stage in surrogate.earlier]
    stages.append((surrogate.network, surrogate.likelihood))
    return tuple(neighbours(*stage, x, **options).requires_grad_(False) for stage in stages)


def _has_sigma(config: Config) -> bool:
    return config.posterior.systematic in ("global", "global-joint")


def _sigma_posterior(config: Config, n_inputs: int, dtype: torch.dtype) -> Point:
    return Point(_stack(config, n_inputs, 1, dtype, 1, config.training.seed + 1, _sigma_hidden(config)))


def _sigma_hidden(config: Config) -> tuple[int, ...]:
    posterior = config.posterior
    return posterior.sigma_hidden or ((64,) * 3 if posterior.systematic == "held-out" else config.network.hidden)


def _stack(
    config: Config,
    n_inputs: int,
    n_outputs: int,
    dtype: torch.dtype,
    members: int,
    seed: int,
    hidden: tuple[int, ...] | None = None,
) -> StackedMLP:
    network = config.network
    return StackedMLP(
        n_inputs,
        n_outputs,
        hidden=hidden or network.hidden,
        activation=network.activation,
        residual=network.residual,
        members=members,
        seed=seed,
        dtype=dtype,
    )


def _scaled(column: Column, unit: float) -> Column:
    return lazily(lambda values: values / unit, column)


def _resident(given: _Set) -> tuple[Tensor, Tensor]:
    """Held-out events, which are always in memory."""
    x, y = given
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    return x, y


def _chosen(values: Tensor, mask: Tensor) -> Tensor:
    return values[mask]


@torch.no_grad()
def _left(stages: Sequence[Stage], x: Column, y: Column, systematic: str) -> Column:
    """What the stages leave of the target, in float64: (N, F), (N,) -> (N,)."""
    return each(lambda x, y: y - sum_of_stages(stages, x, systematic), x, y) if stages else y


@torch.no_grad()
def largest_mean(network: StackedMLP, likelihood: Likelihood, x: Column, systematic: str) -> float:
    """Largest mean the members predict for events (N, F)."""
    return max(float(combine(network(chunk), likelihood, systematic)[0].abs().max()) for chunk in x.split(8192))


@torch.no_grad()
def _residual_and_variance(
    network: StackedMLP, likelihood: Likelihood, x: Column, y: Column, systematic: str
) -> Column:
    """Of events (N, F), (N,), as one member of all would have them: (N, 2)."""

    def found(x: Tensor, y: Tensor) -> Tensor:
        out = network(x)
        mean = combine(out, likelihood, systematic)[0].to(y.dtype)
        variance = likelihood.variance_syst(out).mean(0) + (likelihood.prediction(out) - mean).square().mean(0)
        return torch.stack([y - mean, variance], dim=1)

    return each(found, x, y)


def _wrong(likelihood: Likelihood, missed: Column) -> Column:
    """Which events are rather outliers than right (N,), from their residuals and variances (N, 2).

    Members are often too sure of events they were not trained on, which makes none of them wrong: the variance grows
    until nine tenths of the pulls are as small as they should be, so that nine of ten events are always right.
    """
    residual, variance = sample(missed).unbind(1)
    largest = (residual.square() / variance).sort().values[9 * len(residual) // 10]
    factor = float((largest / _NINE_TENTHS).clamp_min(1.0))

    def wrong(missed: Tensor) -> Tensor:
        residual, variance = missed[:, 0], missed[:, 1] * factor
        far = residual.square() > _FAR**2 * variance  # the others hardly disturb, and may be tails
        return far & (likelihood.wrong(residual, variance) > 0.5)

    return lazily(wrong, missed)


def _noisy(noise: NoiseProfile, x: Column) -> Column:
    """Which events (N, F) are in a noisy range, (N,)."""
    return lazily(lambda x: noise(x) > 0, x)


def _residuals(surrogate: Surrogate, x: Column, y: Column) -> Column:
    """y - mean of the last stage's members, (N,)."""
    return each(lambda x, y: _moments(surrogate, x, y)[0], x, y)


@torch.no_grad()
def _moments(surrogate: Surrogate, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y - mean of the last stage's members, their systematic and their statistical variance, (N,) each."""
    systematic, limit = surrogate.config.posterior.systematic, surrogate.limit
    parts = [combine(surrogate.network(chunk), surrogate.likelihood, systematic) for chunk in x.split(8192)]
    mean, syst, stat = (torch.cat([part[k] for part in parts]).to(y.dtype) for k in range(3))
    return y - mean.clamp(-limit, limit), syst, stat


def _cuts(events: Source) -> Cuts | None:
    settings = events.provenance.get("settings")
    try:
        return Cuts(**settings["cuts"]) if isinstance(settings, dict) else None
    except (KeyError, TypeError, ValueError):  # provenance is free in form
        return None
