"""`Surrogate`: an amplitude that knows how far it may be off; `load_surrogate` reads one back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from scipy.special import stdtrit
from torch import Tensor

from ampsure.calibration import Calibration
from ampsure.config import Config
from ampsure.errors import AmpsureError, InvalidEventsError
from ampsure.generation.settings import Cuts
from ampsure.io import temporary_beside
from ampsure.kinematics import Array
from ampsure.likelihoods import Likelihood, get_likelihood
from ampsure.likelihoods.base import lift
from ampsure.networks import StackedMLP
from ampsure.noise import NoiseProfile
from ampsure.posteriors import Variational, inverse_variance_mean, variance_of_neighbours
from ampsure.prediction import Intervals, Prediction
from ampsure.preprocessing import (
    AsinhTarget,
    LogTarget,
    Moments,
    Standardization,
    describe,
    get_features,
    get_target,
)
from ampsure.processes import Process
from ampsure.training.sigma import ResidualVariance

__all__ = ["Stage", "Surrogate", "load_surrogate"]

SCHEMA_VERSION = 5  # 2: stages; 3: their limits, calibration, holes, noise; 4: neighbours; 5: unbiased
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_CHUNK = 4096  # rows at a time: what stays in the cache
_ONE_SIGMA = 0.8413447461  # of a Gaussian is below one sigma
_SMALLEST_CHUNK = 16  # where a GPU has no room for more
_DRAWN = 2**31  # bytes of networks drawn from a posterior, as a file may ask for them


@dataclass(frozen=True)
class Stage:
    """Networks whose mean, held within +-limit, times a scale, is one term of the prediction.

    The limit is the largest mean they predict for their training events: a correction to earlier stages may not grow
    beyond all corrections ever made.

    They run in float64 whatever they were trained in: the next stage learns what they leave of the target, which must
    not change with the rounding errors of a machine.
    """

    network: StackedMLP
    likelihood: Likelihood
    scale: float
    limit: float = inf

    def of(self, out: Tensor, systematic: str) -> Tensor:
        """The term of outputs (E, B, n_outputs), in units of the standardised target: (B,)."""
        return self.scale * combine(out, self.likelihood, systematic)[0].clamp(-self.limit, self.limit)


@dataclass
class Surrogate:
    """A trained surrogate: features, members, likelihood and the way back to amplitudes.

    Args:
        scale, limit: of the standardised target that `network` predicts, see `Stage`.
        earlier: stages trained before `network`, which learned what they left over.
        sigma_network: learned sigma of the ensemble mean, if `config.posterior.systematic` asks for one.
        calibration: from held-out events, if it asks for that.
        neighbours: of the network of every stage, the last one's at the end, drawn from a Laplace posterior; none where
            members tell the statistical uncertainty.
        noise: found in narrow ranges, if amplitudes may be wrong (`likelihood.outliers`).
        unbiased: what the members give for a logarithm of the amplitude is that of its mean, not the mean of it.
        posterior: what the members were drawn from, if they can be drawn again (see `resampled`).
        cuts: of the training events, for the domain flag; None where they are not known.
        history: losses of every epoch, by stage.
        provenance: what it was trained on and with.
    """

    config: Config
    process: Process
    standardization: Standardization
    target: LogTarget | AsinhTarget
    likelihood: Likelihood
    network: StackedMLP
    scale: float = 1.0
    limit: float = inf
    unbiased: bool = False
    earlier: tuple[Stage, ...] = ()
    sigma_network: StackedMLP | None = None
    calibration: Calibration | None = None
    neighbours: tuple[StackedMLP, ...] = ()
    noise: NoiseProfile = field(default_factory=lambda: NoiseProfile(torch.zeros(0, 4, dtype=torch.float64)))
    posterior: Variational | None = None
    cuts: Cuts | None = None
    history: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.standardization.mean.device

    @torch.no_grad()
    def predict(
        self, momenta: Array, *, linear: bool = False, members: bool = False, parameters: bool = False
    ) -> Prediction:
        """Amplitudes and uncertainties of momenta (N, n, 4), numpy or torch; the answer is of the same kind.

        Args:
            linear: first-order error propagation instead of the exact one.
            members: return the members' predictions too.
            parameters: return the outputs of all members too.
        """
        try:
            given = momenta if isinstance(momenta, Tensor) else torch.from_numpy(np.array(momenta, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise InvalidEventsError("The momenta must be an array of real numbers (N, n, 4).") from error
        if given.ndim != 3 or given.shape[1:] != (self.process.n_legs, 4):
            n = self.process.n_legs
            raise InvalidEventsError(f"The momenta must have shape (N, {n}, 4), not {tuple(given.shape)}.")
        if not torch.isfinite(given).all():
            raise InvalidEventsError("Some momenta are not finite: remove these events before predicting.")

        def chunk(momenta: Tensor) -> list[Tensor]:
            moments, inside, y, variance, out, offset = self._predict(momenta, linear)
            kept = [*moments, inside, y, variance]
            if members:
                kept.append((offset + self.scale * self.likelihood.prediction(out).double()).T)
            if parameters:
                kept.append(out.double().transpose(0, 1))
            return [tensor.to(given.device) for tensor in kept]

        joined = self._by_chunks(chunk, given)
        extra = [tensor.transpose(0, 1) for tensor in joined[7:]]  # members first
        kind = (lambda tensor: tensor) if isinstance(momenta, Tensor) else Tensor.numpy

        amplitude, sigma_syst, sigma_stat, sigma_tot, in_domain = map(kind, joined[:5])
        return Prediction(
            amplitude,
            sigma_syst,
            sigma_stat,
            sigma_tot,
            in_domain,
            members=kind(extra.pop(0)) if members else None,
            parameters=kind(extra.pop(0)) if parameters else None,
            interval_of=Intervals(kind(joined[5]), kind(joined[6].sqrt()), self.target, *self._scores()),
        )

    def _scores(self) -> tuple[Tensor, int]:
        """Pulls of held-out events, and of how many they are; none without a calibration."""
        c = self.calibration
        return (torch.zeros(0, dtype=torch.float64), 0) if c is None else (c.scores, c.count)

    def _by_chunks(self, function: Callable[[Tensor], Sequence[Tensor]], momenta: Tensor) -> list[Tensor]:
        """What a function gives for chunks of momenta on the device, joined; smaller ones where memory is short."""
        parts: list[Sequence[Tensor]] = []
        start, size = 0, _CHUNK
        while start < len(momenta) or not parts:
            try:
                parts.append(function(momenta[start : start + size].to(self.device, torch.float64)))
                start += size
            except torch.OutOfMemoryError as error:
                if size <= _SMALLEST_CHUNK:
                    raise AmpsureError(
                        f"The memory of {self.device} does not even hold {size} events: free some of it, or predict"
                        " on the CPU (device='cpu', or --device cpu)."
                    ) from error
                size //= 2
        return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]

    def _predict(self, momenta: Tensor, linear: bool) -> tuple[Moments, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Moments of the amplitude, domain flag, standardised mean and total variance (B,), outputs, earlier stages.

        The outputs are (E, B, n_outputs), what is added to them (B,).
        """
        y, syst, stat, inside, out, offset = self._standardised(momenta)
        return self.target.moments(y, syst, stat, linear=linear), inside, y, syst + stat, out, offset

    @torch.no_grad()
    def standardised(self, momenta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of momenta (N, n, 4) mean, systematic and statistical variance (N,), and the members' means (E, N).

        All of the standardised target, which is Gaussian where the amplitude is not.
        """

        def chunk(momenta: Tensor) -> tuple[Tensor, ...]:
            mean, syst, stat, _, out, offset = self._standardised(momenta)
            return mean, syst, stat, (offset + self.scale * self.likelihood.prediction(out).double()).T

        mean, syst, stat, members = self._by_chunks(chunk, momenta)
        return mean, syst, stat, members.T

    def _standardised(self, momenta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Mean and both variances of the standardised target, then as `_predict`."""
        raw = get_features(self.config.features.inputs)(momenta, self.process)
        x, inside = self.standardization(raw), self.standardization.inside(raw)
        if self.cuts is not None:
            inside = inside & self.cuts.passed(momenta, self.process)
        systematic = self.config.posterior.systematic
        earlier = [stage.network(x) for stage in self.earlier]
        offset = torch.zeros_like(x[:, 0])
        for stage, outputs in zip(self.earlier, earlier, strict=True):
            offset = offset + stage.of(outputs, systematic)
        features, x = x, x.to(self.network.weights[0].dtype)
        out = self.network(x)
        mean, variance_syst, variance_stat = combine(out, self.likelihood, systematic)
        if self.sigma_network is not None:
            variance_syst = ResidualVariance().variance_syst(self.sigma_network(x))[0].double()
        mean, square = mean.clamp(-self.limit, self.limit), self.scale**2
        if self.calibration is not None:
            correction, variance_syst, variance_stat = self.calibration(x, variance_syst, variance_stat)
            mean = mean + correction
        doubt, everywhere = self.doubt
        if doubt:
            alone = doubt * self._alone([*earlier, out], features) / square
            if everywhere:
                variance_stat = variance_stat + alone
            else:
                variance_stat = torch.where(inside, variance_stat, torch.maximum(variance_stat, alone))
        variance_syst = variance_syst + self.noise(features) / square
        # nobody can know less than the spread of all amplitudes; a network that runs away would say so
        variances = [(square * v).clamp_max(1.0) for v in (variance_syst, variance_stat)]
        if self.unbiased:  # from the logarithm of the mean to the mean of the logarithm
            offset = offset - lift(variances[0] + variances[1], self.target.scale)
        return offset + self.scale * mean, variances[0], variances[1], inside, out, offset

    @property
    def doubt(self) -> tuple[float, bool]:
        """A factor to the statistical variance of a network alone, and whether that counts inside the domain too.

        Where nothing was learned, the errors of members need not be independent, and their mean is no better than each
        of them; that of an earlier stage is shared by all of the next. Few tell a variance badly: the factor is the one
        by which Student's t is wider than a Gaussian, so that 68.27 % of errors are within a sigma from any number.
        """
        if self.config.posterior.name == "laplace":
            return 1.0, True
        pairs = self.neighbours[-1].members // 2 if self.neighbours else self.network.members - 1
        if self.config.posterior.systematic != "held-out" or not pairs:
            return 0.0, False
        return float(stdtrit(pairs, _ONE_SIGMA)) ** 2, False

    def _alone(self, outputs: Sequence[Tensor], x: Tensor) -> Tensor:
        """Statistical variance of single networks, of all stages together, in units of the standardised target.

        Args:
            outputs: (E, B, n_outputs) of every stage.
            x: (B, F) float64.
        """
        total = torch.zeros_like(x[:, 0])
        stages = [(stage.likelihood, stage.scale) for stage in self.earlier] + [(self.likelihood, self.scale)]
        for k, (likelihood, scale) in enumerate(stages):
            if self.neighbours:
                variance = variance_of_neighbours(likelihood.prediction(self.neighbours[k](x)))
            else:
                members = likelihood.prediction(outputs[k]).double()
                variance = (members - members.mean(0)).square().sum(0) / (len(members) - 1)
            total = total + scale**2 * variance
        return total

    def resampled(self, samples: int, seed: int = 0) -> Surrogate:
        """The same surrogate with another number of networks drawn from its variational posterior.

        Args:
            seed: of the draw; the same one gives the same predictions.
        """
        if self.posterior is None:
            raise AmpsureError(
                "Only a variational posterior can be sampled: train with posterior.name = 'variational'."
            )
        if samples < 1 or seed < 0:
            raise AmpsureError(f"Give at least one sample and a seed that is not negative, not {samples} and {seed}.")
        section = self.config.posterior.model_copy(update={"samples": samples, "sample_seed": seed})
        config = self.config.model_copy(update={"posterior": section})
        network = self.posterior.members(samples, seed).requires_grad_(False)
        return replace(self, config=config, network=network.to(self.network.weights[0].dtype))

    def in_precision(self, precision: str) -> Surrogate:
        """A copy that predicts in "float64" or "float32", whatever it was trained in.

        Earlier stages and neighbours stay in float64.

        Surrogates come in float64, so that what they say does not depend on machine, batch or program. In float32 they
        are two to three times as fast, and amplitudes are good to about 1e-6; the statistical uncertainty, a small
        difference between members, loses more digits.
        """
        if precision not in _DTYPES:
            raise AmpsureError(f"Surrogates predict in 'float64' or 'float32', not in {precision!r}.")

        def converted(network: StackedMLP) -> StackedMLP:
            return deepcopy(network).to(_DTYPES[precision])

        earlier = tuple(replace(stage, network=deepcopy(stage.network)) for stage in self.earlier)
        copy = replace(self, network=converted(self.network), earlier=earlier, neighbours=deepcopy(self.neighbours))
        if self.sigma_network is not None:
            copy.sigma_network = converted(self.sigma_network)
        if self.calibration is not None:
            copy.calibration = replace(self.calibration, networks=converted(self.calibration.networks))
        return copy

    def to(self, device: str | torch.device) -> Surrogate:
        """The same surrogate on another device."""
        device = torch.device(device)
        self.network.to(device)
        stages = (stage.network for stage in self.earlier)
        for module in (self.sigma_network, self.posterior, *stages, *self.neighbours):
            if module is not None:
                module.to(device)
        self.standardization, self.noise = self.standardization.to(device), self.noise.to(device)
        if self.calibration is not None:
            c = self.calibration
            self.calibration = replace(c, networks=c.networks.to(device), standardization=c.standardization.to(device))
        return self

    @property
    def weights_checksum(self) -> str:
        """Of all weights and statistics, as they are saved."""
        return _tensor_checksum(self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        """What is saved in `weights.safetensors`."""
        tensors = {f"standardization.{k}": v for k, v in self.standardization.tensors().items()}
        tensors["noise"] = self.noise.ranges
        networks: dict[str, StackedMLP | None] = {f"earlier.{k}": stage.network for k, stage in enumerate(self.earlier)}
        networks |= {"network": self.network, "sigma_network": self.sigma_network}
        if self.posterior is not None:  # the members follow from it
            networks["network"] = None
            tensors |= {f"posterior.{k}": v for k, v in self.posterior.state_dict().items()}
        if self.calibration is not None:
            networks["calibration"] = self.calibration.networks
            tensors |= {f"calibration.{k}": v for k, v in self.calibration.standardization.tensors().items()}
            tensors["calibration.scores"] = self.calibration.scores
        for name, network in networks.items():
            weights = {} if network is None else network.state_dict()
            tensors |= {f"{name}.{k}": v.to(dtype_of(self.config)) for k, v in weights.items()}  # as they were trained
        for stage, network in enumerate(self.neighbours):
            tensors |= {f"neighbours.{stage}.{k}": v for k, v in network.state_dict().items()}
        return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder: `surrogate.json` (all but the weights) and `weights.safetensors`; whole or not at all."""
        folder, tensors = Path(os.path.realpath(path)), self._tensors()
        description = {
            "format": "ampsure-surrogate",
            "schema_version": SCHEMA_VERSION,
            "process": self.process.to_dict(),
            "config": self.config.model_dump(mode="json"),
            "likelihood": {"name": self.likelihood.name, "options": self.likelihood.options()},
            "target": describe(self.target),
            "network": _shape(self.network),
            "scale": self.scale,
            "limit": _finite(self.limit),
            "unbiased": self.unbiased,
            "earlier": [
                {
                    "network": _shape(stage.network),
                    "likelihood": {"name": stage.likelihood.name, "options": stage.likelihood.options()},
                    "scale": stage.scale,
                    "limit": _finite(stage.limit),
                }
                for stage in self.earlier
            ],
            "sigma_network": None if self.sigma_network is None else _shape(self.sigma_network),
            "neighbours": [_shape(network) for network in self.neighbours],
            "calibration": None
            if self.calibration is None
            else {
                "networks": _shape(self.calibration.networks),
                "shift": self.calibration.shift,
                "scale": self.calibration.scale,
                "count": self.calibration.count,
            },
            "cuts": None if self.cuts is None else self.cuts.model_dump(mode="json"),
            "weights_checksum": _tensor_checksum(tensors),
            "history": self.history,
            "provenance": self.provenance,
        }
        try:
            with temporary_beside(folder) as temporary:
                temporary.mkdir(parents=True)
                (temporary / "weights.safetensors").write_bytes(save(tensors))  # `save_file` lets nobody else read it
                (temporary / "surrogate.json").write_text(json.dumps(description, indent=1))
                if folder.is_dir():
                    for name in ("weights.safetensors", "surrogate.json"):  # without the last one it is no surrogate
                        os.replace(temporary / name, folder / name)
                else:
                    os.replace(temporary, folder)
        except OSError as error:
            reason = f"{error.strerror or error}: free some space or choose another folder"
            raise AmpsureError(f"The surrogate cannot be written to {folder} ({reason}).") from error
        except (SafetensorError, TypeError) as error:
            raise AmpsureError(f"The surrogate cannot be written to {folder}: {error}.") from error


def combine(out: Tensor, likelihood: Likelihood, systematic: str) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, systematic and statistical variance over the members, standardised: (E, B, n_outputs) -> 3 x (B,).

    The statistical variance is that of the members, as in the paper, or, where held-out events calibrate the error of
    their mean, the variance of the mean of independent members.
    """
    prediction = likelihood.prediction(out).double()
    syst, stat = likelihood.variance_syst(out).double(), likelihood.variance_stat(out).double()
    if len(out) == 1:
        return prediction[0], syst[0], stat[0]
    if systematic == "averaged":
        mean, variance = prediction.mean(0), syst.mean(0)
    else:  # the other sigmas belong to the same mean
        mean, variance = inverse_variance_mean(prediction, syst)
    if systematic != "held-out":
        return mean, variance, (prediction - mean).square().mean(0) + stat.mean(0)
    squares = (variance / syst).square()  # of the weights
    of_mean = (squares * (prediction - mean).square()).sum(0) / (1 - squares.sum(0)).clamp_min(1e-12)
    return mean, variance, of_mean + (squares * stat).sum(0)


def sum_of_stages(stages: Sequence[Stage], x: Tensor, systematic: str) -> Tensor:
    """What the stages predict together, in units of the standardised target: float64 (B, F) -> (B,)."""
    total = torch.zeros_like(x[:, 0])
    for stage in stages:
        total = total + stage.of(stage.network(x), systematic)
    return total


def load_surrogate(path: str | os.PathLike[str], device: str = "cpu") -> Surrogate:
    """A surrogate from its folder; schema, shapes and checksums are checked."""
    folder = Path(path)
    try:
        if not (folder / "surrogate.json").is_file():
            raise AmpsureError(f"There is no surrogate in {folder}: it has no surrogate.json.")
        description = json.loads((folder / "surrogate.json").read_text())
        if description["format"] != "ampsure-surrogate":
            raise AmpsureError(f"{folder / 'surrogate.json'} does not describe a surrogate.")
        if (schema := description["schema_version"]) > SCHEMA_VERSION:
            raise AmpsureError(f"{folder} was written by a newer ampsure (schema {schema}): update ampsure to read it.")
        if not (folder / "weights.safetensors").is_file():  # a pipe would be waited for
            raise AmpsureError(f"There are no weights in {folder}: copy the folder again.")
        tensors = load_file(folder / "weights.safetensors")
        if _tensor_checksum(tensors) != description["weights_checksum"]:
            raise AmpsureError(f"The weights in {folder} do not match their description: copy the folder again.")
        config = Config(**description["config"])
        likelihood = get_likelihood(description["likelihood"]["name"], **description["likelihood"]["options"])
        target = dict(description["target"])
        network, posterior = _members(description["network"], config, tensors)
        surrogate = Surrogate(
            config=config,
            process=Process.from_dict(description["process"]),
            standardization=Standardization(**{"holes": torch.zeros(0, 3), **_section(tensors, "standardization.")}),
            target=get_target(target.pop("name"))(**target),
            likelihood=likelihood,
            network=network,
            scale=description.get("scale", 1.0),  # schema 1 knew one stage
            limit=_limit(description),
            unbiased=_flag(description.get("unbiased", False)),
            earlier=tuple(
                Stage(
                    _network(stage["network"], config, _section(tensors, f"earlier.{k}.")).double(),
                    get_likelihood(stage["likelihood"]["name"], **stage["likelihood"]["options"]),
                    stage["scale"],
                    _limit(stage),
                )
                for k, stage in enumerate(description.get("earlier", []))
            ),
            neighbours=tuple(
                _network(shape, config, _section(tensors, f"neighbours.{k}."), torch.float64)
                for k, shape in enumerate(description.get("neighbours", []))
            ),
            posterior=posterior,
            noise=NoiseProfile(tensors.get("noise", torch.zeros(0, 4, dtype=torch.float64))),
            cuts=None if description["cuts"] is None else Cuts(**description["cuts"]),
            history=_checked_history(description["history"]),
            provenance=description["provenance"],
        )
        if not isinstance(surrogate.provenance, dict) or not isinstance(surrogate.provenance.get("data", {}), dict):
            raise AmpsureError(f"The provenance in {folder} is not a dictionary: copy the folder again.")
        if description["sigma_network"] is not None:
            weights = _section(tensors, "sigma_network.")
            surrogate.sigma_network = _network(description["sigma_network"], config, weights)
        if (calibration := description.get("calibration")) is not None:
            weights = _section(tensors, "calibration.")
            scores = weights.pop("scores")
            statistics = {name: weights.pop(name) for name in surrogate.standardization.tensors()}
            networks = _network(calibration.pop("networks"), config, weights)
            surrogate.calibration = Calibration(networks, Standardization(**statistics), scores=scores, **calibration)
        surrogate = surrogate.in_precision("float64")
        surrogate.predict(np.ones((1, surrogate.process.n_legs, 4)))  # whether all of it fits together
    except AmpsureError:
        raise
    except Exception as error:  # a parser, or any part of a surrogate, met something that no surrogate has
        raise AmpsureError(f"The surrogate in {folder} is damaged ({_words(error)}): copy the folder again.") from error
    return surrogate.to(find_device(device))


def _checked_history(history: Any) -> dict[str, list[dict[str, float]]]:
    """Losses by stage; figures are files with the names of the stages, which must not lead elsewhere."""
    if not all(stage.replace("-", "").isalnum() for stage in history):
        raise ValueError("the name of a stage of the training is no name")
    names = ("epoch", "training_loss", "validation_loss", "learning_rate")
    return {
        stage: [{name: float(epoch[name]) for name in names} | epoch for epoch in epochs]
        for stage, epochs in history.items()
    }


def _words(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _finite(limit: float) -> float | None:
    return limit if limit < inf else None  # JSON knows no infinity


def _limit(description: dict[str, Any]) -> float:
    limit = description.get("limit")  # None, or of a schema that had none
    return inf if limit is None else float(limit)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _shape(network: StackedMLP) -> dict[str, Any]:
    return {"widths": list(network.widths), "members": network.members}


def _network(
    shape: dict[str, Any], config: Config, weights: dict[str, Tensor], dtype: torch.dtype | None = None
) -> StackedMLP:
    layers = list(enumerate(pairwise(shape["widths"])))
    expected = {f"weights.{k}": (shape["members"], *both) for k, both in layers}
    expected |= {f"biases.{k}": (shape["members"], 1, width) for k, (_, width) in layers}
    if {name: tuple(tensor.shape) for name, tensor in weights.items()} != expected:  # before anything is made so large
        raise AmpsureError("The weights of a surrogate have other shapes than its description: copy its folder again.")
    n_inputs, *hidden, n_outputs = shape["widths"]
    network = StackedMLP(
        n_inputs,
        n_outputs,
        hidden=hidden,
        activation=config.network.activation,
        residual=config.network.residual,
        members=shape["members"],
        dtype=dtype or dtype_of(config),
    )
    network.load_state_dict(weights)
    return network.requires_grad_(False)


def _members(
    shape: dict[str, Any], config: Config, tensors: dict[str, Tensor]
) -> tuple[StackedMLP, Variational | None]:
    if config.posterior.name != "variational":
        return _network(shape, config, _section(tensors, "network.")), None
    if not (weights := _section(tensors, "posterior.")):  # schema 1 kept the members that were drawn
        return _network(shape, config, _section(tensors, "network.")), None
    means = _network({**shape, "members": 1}, config, _section(weights, "network."))
    posterior = variational(config, means)
    posterior.load_state_dict(weights)
    if (samples := config.posterior.samples) * 8 * sum(p.numel() for p in means.parameters()) > _DRAWN:
        raise AmpsureError(f"The surrogate asks for {samples} networks, which take too much memory: lower that number.")
    return posterior.requires_grad_(False).members().requires_grad_(False), posterior


def _section(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _tensor_checksum(tensors: dict[str, Tensor]) -> str:
    digest = sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


def dtype_of(config: Config) -> torch.dtype:
    return _DTYPES[config.network.precision]


def find_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise AmpsureError(f"Unknown device {name!r}; use 'cpu', 'cuda' or 'auto'.") from error
    if device.type not in ("cpu", "cuda"):
        raise AmpsureError(f"Unknown device {name!r}; use 'cpu', 'cuda' or 'auto'.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise AmpsureError(f"There is no CUDA device {name!r} here: use 'cpu'.")
    return device


def variational(config: Config, network: StackedMLP) -> Variational:
    p = config.posterior
    return Variational(
        network, prior_width=p.prior_width, initial_width=p.initial_width, samples=p.samples, seed=p.sample_seed
    )
