"""`fit` makes a surrogate from events, `fit_many` many at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ampsure._version import versions
from ampsure.calibration import Calibration, VarianceCorrection, calibration_inputs
from ampsure.config import DEFAULT_METHOD, Config, resolve
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.generation.settings import Cuts
from ampsure.io import checksum, make_folder
from ampsure.likelihoods import Likelihood, get_likelihood
from ampsure.likelihoods.base import bounded
from ampsure.likelihoods.mse import MSE
from ampsure.networks import StackedMLP
from ampsure.noise import NoiseProfile, find_noise
from ampsure.posteriors import Ensemble, Point, Posterior, Variational, neighbours
from ampsure.preprocessing import Standardization, get_features, get_target
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
_NINE_TENTHS = 2.705543454  # of squared pulls are below
_FAR = 8.0  # standard deviations
_RANDOM = 10**6  # from the seeds of members to those of their randomized priors
_PAIRS = 8  # of neighbours, where a single network has to know what it does not know


def fit(
    events: Events,
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
    return fit_many([(events, config)], checkpoint=checkpoint, report=report and (lambda _, *told: report(*told)))[0]


@enough_memory()
def fit_many(
    jobs: Sequence[tuple[Events, Config]],
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
        fittings = {job: _fitting(sources[id(jobs[job][0])], jobs[job][1], ranks) for job in fleet}
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


def fleets(jobs: Sequence[tuple[Events, Config]], ranks: Ranks | None = None) -> Iterator[list[int]]:
    """Numbers of jobs with the same settings, but for those a fleet may mix, as many as memory allows."""
    ranks = ranks or Ranks()
    groups: dict[str, list[int]] = {}
    for job, (_, config) in enumerate(jobs):
        groups.setdefault(alike(config), []).append(job)
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
    return sha256("".join(source.checksum + config.model_dump_json() for source, config in jobs).encode()).hexdigest()


def _check_same(fingerprint: str, ranks: Ranks) -> None:
    own = torch.tensor([*bytes.fromhex(fingerprint)])
    if ranks.any(not torch.equal(ranks.agreed(own), own)):
        raise AmpsureError("The processes have different events or settings: give all of them the same.")


class _Source:
    """Events, and what trainings on them have in common: worked out once, when first asked for."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._features: dict[tuple[str, torch.device], Tensor] = {}

    @cached_property
    def checksum(self) -> str:
        return checksum(self.events)

    def features(self, name: str, device: torch.device) -> Tensor:
        """(N, F) of all events, float64, on the device."""
        if (name, device) not in self._features:
            function, process = get_features(name), self.events.process
            chunks = torch.from_numpy(self.events.momenta).split(100_000)
            self._features[name, device] = torch.cat([function(m.to(device), process) for m in chunks])
        return self._features[name, device]


def _fitting(source: _Source, config: Config, ranks: Ranks) -> Generator[_Wanted, list[History], Surrogate]:
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
    device, dtype = find_device(config.training.device), dtype_of(config)
    train, validation, _ = events.split_indices(config.training.seed, config.data.fractions)
    if not len(train) or not len(validation):
        raise AmpsureError("No events are left for training or validation: check the gap and the fractions.")
    if config.posterior.systematic == "held-out" and len(validation) < 2:
        raise AmpsureError("Sigma cannot be learned from a single validation event: check the gap and the fractions.")
    raw = source.features(config.features.inputs, device)
    raw_train, raw_validation = (raw[torch.from_numpy(part).to(device)] for part in (train, validation))
    standardization = Standardization.fit(raw_train)
    target = get_target(config.features.target).fit(torch.from_numpy(events.amplitude[train]))
    x, y, x_validation, y_validation = (
        tensor.to(device)
        for part, values in ((train, raw_train), (validation, raw_validation))
        for tensor in (standardization(values), target.transform(torch.from_numpy(events.amplitude[part])))
    )
    if not (torch.isfinite(x_validation).all() and torch.isfinite(y_validation).all()):
        raise AmpsureError(
            "Some validation events have no finite features or target: check them as the training events."
        )
    sizes = {"events": len(events), "training": len(train), "validation": len(validation)}
    del raw, raw_train, raw_validation  # many trainings may wait for each other
    systematic, stages = config.posterior.systematic, config.training.stages
    sigma = _sigma_posterior(config, x.shape[1], dtype).to(device) if _has_sigma(config) else None
    companion = None
    history: dict[str, History] = {}
    earlier: tuple[Stage, ...] = ()
    parts = [(x, y), (x_validation, y_validation), (x_validation, y_validation)]  # the last one for the calibration
    noise = NoiseProfile(x.new_zeros(0, 4))
    for stage in range(stages):
        likelihood = get_likelihood(config.likelihood.name, **config.likelihood.options)
        posterior = _posterior(config, x.shape[1], likelihood, dtype, stage).to(device)
        if systematic == "global-joint" and sigma is not None and stage + 1 == stages:
            companion = SigmaCompanion(sigma.network, config.posterior.lambda_sigma or config.posterior.members)
        left = [_left(earlier, *part, systematic) for part in parts]
        scale = float(left[0].square().mean().sqrt()) if stage else 1.0
        if stage and isinstance(earlier[-1].likelihood, MSE):
            earlier[-1].likelihood.variance = (scale / earlier[-1].scale) ** 2
        seen = [(part[0].to(dtype), (y / scale).to(dtype)) for part, y in zip(parts, left, strict=True)]
        name = "members" if stages == 1 else f"stage-{stage + 1}"
        data = TrainingData(*seen[0], *seen[1])
        [history[name]] = yield name, [Training(posterior, likelihood, data, config.training, companion)]
        network = posterior.requires_grad_(False).members().requires_grad_(False)
        limit = largest_mean(network, likelihood, seen[0][0], systematic) if stage else inf
        if likelihood.outliers:  # there is nothing more to learn from them, unless they are noise
            wrong, square = zip(*(_wrong(network, likelihood, *part, systematic) for part in seen), strict=True)
            wrong = tuple(ranks.agreed(mask) for mask in wrong)  # or the next stage might differ in length
            found = find_noise(parts[0][0], wrong[0], scale**2 * square[0])
            noise = NoiseProfile(torch.cat([noise.ranges, found.ranges]))
            noisy = [ranks.agreed(found(x) > 0) for x, _ in parts]
            lost = [(w & ~n).sum() for w, n in zip(wrong[:2], noisy, strict=False)]
            sizes["wrong"] = sizes.get("wrong", 0) + int(lost[0] + lost[1])
            kept = ~wrong[0], ~(wrong[1] | noisy[1]), ~wrong[2] | noisy[2]
            parts, seen = ([(p[0][k], p[1][k]) for p, k in zip(both, kept, strict=True)] for both in (parts, seen))
        if stage + 1 < stages:
            earlier += (Stage(network.double(), likelihood, scale, limit),)
    surrogate = Surrogate(
        config=config,
        process=events.process,
        standardization=standardization.to(device),
        target=target,
        likelihood=likelihood,
        network=network,
        scale=scale,
        limit=limit,
        earlier=earlier,
        noise=noise,
        posterior=posterior if isinstance(posterior, Variational) else None,
        cuts=_cuts(events),
        history=history,
    )
    if isinstance(likelihood, MSE):
        likelihood.variance = float(_residuals(surrogate, *seen[1])[0].square().mean())
    if sigma is not None and companion is None:
        residuals = [_residuals(surrogate, *part)[0] for part in seen]
        with torch.no_grad():
            sigma.network.biases[-1] += residuals[0].square().mean().log()
        on = TrainingData(seen[0][0], residuals[0], seen[1][0], residuals[1])
        [history["sigma"]] = yield "sigma", [Training(sigma, ResidualVariance(), on, config.training)]
    if sigma is not None:
        surrogate.sigma_network = sigma.network.requires_grad_(False)
    surrogate.neighbours = _neighbours(surrogate, parts[0][0])
    if systematic == "held-out":
        history["sigma"] = yield from _calibrate(surrogate, *seen[2])
    surrogate.provenance = {
        "data": {"checksum": source.checksum, **sizes},
        "events": events.provenance,
        "versions": versions(),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "precision": config.network.precision,
    }
    return surrogate.in_precision("float64")


def _calibrate(surrogate: Surrogate, x: Tensor, y: Tensor) -> Generator[_Wanted, list[History], History]:
    """Learns a `Calibration` from events (N, F), (N,) that were not used in training, in random order."""
    config = surrogate.config
    residual, syst, stat = _residuals(surrogate, x, y)
    n = len(y) - len(y) // 4  # the rest is for what these events have taught
    raw = calibration_inputs(x, syst, stat)
    standardization = Standardization.fit(raw[:n])
    besides = stat + surrogate.noise(x) / surrogate.scale**2
    seen, target = standardization(raw[:n]).to(x.dtype), torch.stack([residual, syst, besides], dim=1)[:n]
    folds = torch.arange(n, device=y.device) % min(_FOLDS, n)
    size = {
        "batch_size": min(config.training.batch_size, 1024, max(n // 20, 1)),
        "epochs": min(config.training.epochs, 60),
    }
    settings = config.training.model_copy(update=size)
    networks, trainings = [], []
    for fold in range(int(folds.max()) + 1):
        network = _stack(config, seen.shape[1], 1, x.dtype, 1, config.training.seed + 1 + fold, _sigma_hidden(config))
        with torch.no_grad():
            network.biases[-1] += (residual.square() / (syst + besides))[:n].mean().clamp(1e-20, 1e20).log().cpu()
        networks.append(network.to(x.device))
        parts = [values[chosen] for chosen in (folds != fold, folds == fold) for values in (seen, target)]
        trainings.append(Training(Point(networks[-1]), VarianceCorrection(), TrainingData(*parts), settings))
    histories = yield "sigma", trainings
    stack = cast(StackedMLP, SideBySide(networks).joined).requires_grad_(False)
    learned = Calibration(stack, standardization)
    with torch.no_grad():
        _, corrected, _ = learned(x[n:], syst[n:].double(), stat[n:].double())
        pull = residual[n:] / (corrected + besides[n:]).sqrt()
        factor = bounded(stack(seen)[..., 0]).exp().gather(0, folds[None])[0]  # of the network that left an event out
        crossed = residual[:n] / (factor * syst[:n] + besides[:n]).sqrt()
    surrogate.calibration = learned.settled(pull, crossed) if len(pull) else learned
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


def _neighbours(surrogate: Surrogate, x: Tensor) -> tuple[StackedMLP, ...]:
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


@torch.no_grad()
def _left(stages: Sequence[Stage], x: Tensor, y: Tensor, systematic: str) -> Tensor:
    """What the stages leave of the target, in float64: (N, F), (N,) -> (N,)."""
    return y - torch.cat([sum_of_stages(stages, chunk, systematic) for chunk in x.split(8192)])


@torch.no_grad()
def largest_mean(network: StackedMLP, likelihood: Likelihood, x: Tensor, systematic: str) -> float:
    """Largest mean the members predict for events (N, F)."""
    return max(float(combine(network(chunk), likelihood, systematic)[0].abs().max()) for chunk in x.split(8192))


@torch.no_grad()
def _wrong(network: StackedMLP, likelihood: Likelihood, x: Tensor, y: Tensor, systematic: str) -> tuple[Tensor, Tensor]:
    """Which of events (N, F), (N,) are rather outliers than right, and squares of their residuals, (N,) each.

    Members are often too sure of events they were not trained on, which makes none of them wrong: the variance grows
    until nine tenths of the pulls are as small as they should be, so that nine of ten events are always right.
    """
    parts = []
    for chunk, target in zip(x.split(8192), y.split(8192), strict=True):
        out = network(chunk)
        mean = combine(out, likelihood, systematic)[0].to(y.dtype)
        variance = likelihood.variance_syst(out).mean(0) + (likelihood.prediction(out) - mean).square().mean(0)
        parts.append(torch.stack([target - mean, variance]))
    residual, variance = torch.cat(parts, dim=1)
    square = residual.square()
    largest = (square / variance).sort().values[9 * len(y) // 10]
    variance = variance * (largest / _NINE_TENTHS).clamp_min(1.0)
    far = square > _FAR**2 * variance  # the others hardly disturb, and may be tails
    return far & (likelihood.wrong(residual, variance) > 0.5), square


@torch.no_grad()
def _residuals(surrogate: Surrogate, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y - mean of the last stage's members, their systematic and their statistical variance, (N,) each."""
    systematic, limit = surrogate.config.posterior.systematic, surrogate.limit
    parts = [combine(surrogate.network(chunk), surrogate.likelihood, systematic) for chunk in x.split(8192)]
    mean, syst, stat = (torch.cat([part[k] for part in parts]).to(y.dtype) for k in range(3))
    return y - mean.clamp(-limit, limit), syst, stat


def _cuts(events: Events) -> Cuts | None:
    settings = events.provenance.get("settings")
    try:
        return Cuts(**settings["cuts"]) if isinstance(settings, dict) else None
    except (KeyError, TypeError, ValueError):  # provenance is free in form
        return None
