"""`learn` asks for the trainings that make a surrogate of events, one stage after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ampsure._version import versions
from ampsure.calibration import Calibration, Pulls, VarianceCorrection, calibration_inputs
from ampsure.config import Config
from ampsure.errors import AmpsureError
from ampsure.generation.settings import Cuts
from ampsure.io import EventFile
from ampsure.likelihoods import Likelihood, get_likelihood
from ampsure.likelihoods.base import bounded
from ampsure.likelihoods.gaussian import AmplitudeMean, Gaussian
from ampsure.likelihoods.mse import MSE
from ampsure.networks import StackedMLP
from ampsure.noise import NoiseProfile, find_noise
from ampsure.posteriors import Ensemble, Point, Posterior, Variational, neighbours
from ampsure.preprocessing import LogTarget, Standardization
from ampsure.scratch import Column, Scratch, each, lazily, mean_square, parts, sample
from ampsure.sources import Prepared, Source, TrainingSource, resident, window_of
from ampsure.surrogate import Stage, Surrogate, combine, dtype_of, find_device, sum_of_stages, variational
from ampsure.training import Training, TrainingData
from ampsure.training.fleet import SideBySide
from ampsure.training.ranks import Ranks
from ampsure.training.sigma import ResidualVariance, SigmaCompanion

__all__ = ["History", "Wanted", "largest_mean", "learn"]

History = list[dict[str, float]]

Wanted = tuple[str, list[Training]]
"""Trainings to be run together, and what to call them."""

_FOLDS = 4  # of the validation events, where sigma is learned from them
_MEDIAN, _NINE_TENTHS = 0.4549364231, 2.705543454  # of squared pulls are below
_FEW = -5.0  # logarithm of the odds of being wrong, before anything is known of them
_FAR = 8.0  # standard deviations
_RANDOM = 10**6  # from the seeds of members to those of their randomized priors
_PAIRS = 8  # of neighbours, where a single network has to know what it does not know

_Set = tuple[Column, Column]
"""Features (N, F) and targets (N,)."""

_KEPT: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (  # of training, validation and calibration: wrong, noisy
    lambda wrong, noisy: ~(wrong | noisy),
    lambda wrong, noisy: ~(wrong | noisy),
    lambda wrong, noisy: ~wrong | noisy,
)


def learn(
    source: TrainingSource, config: Config, ranks: Ranks, folder: Path | None
) -> Generator[Wanted, list[History], Surrogate]:
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
        scratch = stack.enter_context(Scratch.made(folder, window_of(config))) if in_file else None
        return (yield from _learned(source, config, ranks, source.prepared(config, device, scratch), device))


def _learned(
    source: TrainingSource, config: Config, ranks: Ranks, prepared: Prepared, device: torch.device
) -> Generator[Wanted, list[History], Surrogate]:
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
    unbiased = systematic == "held-out" and config.likelihood.name == Gaussian.name and isinstance(target, LogTarget)
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
        learned, given = likelihood, seen[:2]
        if unbiased and isinstance(likelihood, Gaussian):
            columns = partial(_with, exponent=target.scale * scale)
            learned, given = AmplitudeMean(likelihood), [(x, lazily(columns, y)) for x, y in given]
        data = TrainingData(*given[0], *resident(*given[1]))
        [history[name]] = yield name, [Training(posterior, learned, data, config.training, companion)]
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
        unbiased=unbiased,
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
        on = TrainingData(seen[0][0], residuals[0], *resident(seen[1][0], residuals[1]))
        [history["sigma"]] = yield "sigma", [Training(sigma, ResidualVariance(), on, config.training)]
    if sigma is not None:
        surrogate.sigma_network = sigma.network.requires_grad_(False)
    surrogate.neighbours = _neighbours(surrogate, sets[0][0])
    if systematic == "held-out":
        history["sigma"] = yield from _calibrate(surrogate, *resident(*seen[2]))
    surrogate.provenance = {
        "data": {"checksum": source.checksum, **sizes},
        "events": source.events.provenance,
        "versions": versions(),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "precision": config.network.precision,
    }
    return surrogate.in_precision("float64")


def _calibrate(surrogate: Surrogate, x: Tensor, y: Tensor) -> Generator[Wanted, list[History], History]:
    """Learns a `Calibration` from events (N, F), (N,) that were not used in training, in random order."""
    config = surrogate.config
    residual, syst, stat = _moments(surrogate, x, y)
    n = len(y) - len(y) // 4  # the rest is for what these events have taught
    raw = calibration_inputs(x, syst, stat)
    standardization = Standardization.fit(raw[:n])
    besides = stat + surrogate.noise(x) / surrogate.scale**2
    exponent = surrogate.target.scale * surrogate.scale if surrogate.unbiased else 0.0
    seen = standardization(raw[:n]).to(x.dtype)
    given = torch.stack([residual, syst, besides, torch.full_like(residual, exponent)], dim=1)
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
        crossed = each_of.gather(0, folds[None, :, None].expand(1, -1, 2))[0]  # by the network that left an event out
        told, given = torch.cat([together, crossed]), torch.cat([given[n:], given[:n]])
        right = likelihood.right(told, given)
        count = len(y) - n
        pull, alone = (likelihood.pull(out, given[: out.shape[-2]]) for out in (told, all_of))
    if count:
        lifted = likelihood.exponent(told, given)[:count] if exponent else None
        learned = learned.settled(pull[:count], Pulls(pull[count:], alone, right), lifted)
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


def _with(y: Tensor, exponent: float) -> Tensor:
    """What `AmplitudeMean` sees, of targets (N,): (N, 2)."""
    return torch.stack([y, torch.full_like(y, exponent)], dim=1)


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
