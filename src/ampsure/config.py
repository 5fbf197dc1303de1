"""The configuration of a surrogate: typed, strict, complete; methods and recipes by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from ampsure.errors import AmpsureError
from ampsure.likelihoods import get_likelihood
from ampsure.networks import ACTIVATIONS
from ampsure.preprocessing import get_features

__all__ = ["DEFAULT_METHOD", "METHODS", "RECIPES", "Config", "resolve", "to_toml"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataConfig(_Section):
    """What is learned from.

    Args:
        path: file of events; unused where events are given.
        process: of a file that does not name one.
        invalid: "error" or "drop", see `ampsure.load`.
        signed: allow amplitudes that change sign.
        fractions: of training, validation and test events, drawn at random by `training.seed`.
        memory: GiB that training may take for events of a file; larger ones are read while training. By default half
            of what is available.
    """

    path: str | None = None
    process: str | None = None
    invalid: Literal["error", "drop"] = "error"
    signed: bool = False
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)
    memory: float | None = Field(None, gt=0)


class FeaturesConfig(_Section):
    """What the network sees: inputs by name (see `ampsure.preprocessing.FEATURES`), and the transformed target."""

    inputs: str = "invariants"
    target: Literal["log", "asinh"] = "log"


class NetworkConfig(_Section):
    """Shape and precision of every member."""

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field((128,) * 6, min_length=1)
    activation: str = "gelu"
    residual: bool = False
    precision: Literal["float32", "float64"] = "float32"


class LikelihoodConfig(BaseModel):
    """What the outputs mean: a likelihood by name and its options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "gaussian"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class PosteriorConfig(_Section):
    """How the weights are distributed.

    Args:
        name: one network, an ensemble, a Gaussian over weights learned in training ("variational"), or one around
            trained weights ("laplace").
        members: of an ensemble.
        beta: strength of the repulsion between members; 0 is a plain ensemble.
        prior_width: of the Gaussian prior of the weights.
        prior_scale: of the randomized priors of an ensemble: every member has a random network of its own, which does
            not learn, times this number, added to its outputs; 0 for none.
        structure: of a Laplace posterior: the weights of the "last-layer", or of all layers ("kfac").
        systematic: how an ensemble combines its systematic uncertainties: the mean of the variances, the inverse of
            the summed precisions, or one network for all, trained on the residuals of the mean afterwards or jointly.
            "held-out", for networks and ensembles, corrects the members' own by the residuals of validation events.
        sigma_hidden: layers of such a network; by default those of the members, or 3x64 for "held-out".
        lambda_sigma: weight of the joint loss of that network; by default the number of members.
        initial_width: of the weights of a variational posterior.
        samples, sample_seed: networks drawn from a variational or Laplace posterior for predictions, and their seed.
    """

    name: Literal["point", "ensemble", "variational", "laplace"] = "point"
    members: int = Field(1, ge=1)
    beta: float = Field(1.0, ge=0)
    prior_width: float = Field(1.0, gt=0, allow_inf_nan=True)
    prior_scale: float = Field(0.0, ge=0)
    structure: Literal["last-layer", "kfac"] = "last-layer"
    systematic: Literal["averaged", "inverse-variance", "global", "global-joint", "held-out"] = "averaged"
    sigma_hidden: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(None, min_length=1)
    lambda_sigma: float | None = Field(None, gt=0)
    initial_width: float = Field(1e-3, gt=0)
    samples: int = Field(32, ge=1)
    sample_seed: int = Field(0, ge=0)


class TrainingConfig(_Section):
    """How the weights are found.

    Args:
        stages: networks trained one after the other, each on what those before it left; the last one gives the
            uncertainties.
        shared_batches: all members see the same batches; needed for repulsion.
        gradient_clip: largest norm of a member's gradient; None for no limit.
        early_stopping: epochs without improvement of the validation loss after which training ends; None for never.
        device: "cpu", "cuda", or "auto".
        graphs: record the steps as CUDA graphs, which is faster; means nothing on the CPU.
    """

    stages: int = Field(1, ge=1)
    epochs: int = Field(100, ge=1)
    batch_size: int = Field(1024, ge=1)
    optimizer: Literal["adam", "adamw", "soap"] = "soap"
    learning_rate: float = Field(3e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    schedule: str = "one-cycle"
    gradient_clip: float | None = Field(None, gt=0)
    early_stopping: int | None = Field(None, ge=1)
    shared_batches: bool = True
    seed: int = Field(0, ge=0)
    device: str = "auto"
    graphs: bool = True


class Config(_Section):
    """Everything that decides a surrogate, but the data."""

    data: DataConfig = DataConfig()
    features: FeaturesConfig = FeaturesConfig()
    network: NetworkConfig = NetworkConfig()
    likelihood: LikelihoodConfig = LikelihoodConfig()
    posterior: PosteriorConfig = PosteriorConfig()
    training: TrainingConfig = TrainingConfig()


METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "mse": {"likelihood": {"name": "mse"}},
    "heteroscedastic": {"likelihood": {"name": "gaussian"}},
    "natural": {
        "likelihood": {"name": "natural"},
        "training": {"learning_rate": 1e-2},
    },  # slow: it grows with 1/sigma^2
    "mixture": {"likelihood": {"name": "mixture"}, "posterior": {"name": "ensemble", "members": 4}},
    "repulsive": {"likelihood": {"name": "gaussian"}, "posterior": {"name": "ensemble", "members": 4}},
    "repulsive-global": {
        "likelihood": {"name": "gaussian"},
        "posterior": {"name": "ensemble", "members": 4, "systematic": "global"},
    },
    "evidential": {"likelihood": {"name": "evidential"}},
    "evidential-regularised": {"likelihood": {"name": "evidential", "variant": "regularised"}},
    "evidential-mixture": {"likelihood": {"name": "evidential_mixture"}},
    "bayesian": {"likelihood": {"name": "gaussian"}, "posterior": {"name": "variational"}},
    "recommended": {
        "likelihood": {"name": "gaussian", "beta": 0.25, "outliers": 1e-3},
        "posterior": {"name": "ensemble", "members": 4, "systematic": "held-out"},
        "training": {"stages": 2},
    },
}
"""The methods of the paper, as points of likelihood x posterior; the last one goes beyond it."""

DEFAULT_METHOD = "recommended"

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "features": {"inputs": "momenta+invariants"},
        "network": {"hidden": (128,) * 6, "residual": False},
        "training": {"optimizer": "adam", "learning_rate": 1e-3, "batch_size": 1024, "epochs": 1000},
    },
    "accurate": {
        "features": {"inputs": "folded"},
        "network": {"hidden": (128,) * 6, "residual": True},
        "training": {"optimizer": "soap", "learning_rate": 3e-3, "batch_size": 1024, "epochs": 100},
    },
}
"""How to train: the paper's table of hyperparameters, or what reaches the smallest error in the shortest time."""


def resolve(
    method: str | None = None, recipe: str = "accurate", *overrides: Mapping[str, Any] | None, **training: Any
) -> Config:
    """The full configuration: recipe, then method, then overrides by section, then single settings of the training.

    >>> resolve("repulsive", epochs=5, seed=1).posterior.members
    4
    """
    layers: list[Mapping[str, Any]] = [
        _by_name(RECIPES, recipe, "recipe"),
        _by_name(METHODS, method, "method") if method is not None else {},
        *(layer or {} for layer in overrides),
        {"training": training},
    ]
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, values in layer.items():
            if not isinstance(values, Mapping):
                raise AmpsureError(f"The configuration has no setting {section!r} outside a section.")
            if values.get("name") not in (None, merged.get(section, {}).get("name")):
                merged.pop(section, None)  # options of another likelihood or posterior do not carry over
            merged.setdefault(section, {}).update(values)
    try:
        config = Config(**merged)
    except ValidationError as error:
        raise AmpsureError(_explain(error)) from error
    _check(config)
    return config


def _check(config: Config) -> None:
    """What no single setting can tell."""
    from ampsure.training.schedules import get_schedule  # the engine imports this module

    try:
        config.model_dump_json()
    except PydanticSerializationError as error:
        raise AmpsureError("A setting, perhaps the name of a file, is not valid UTF-8: rename it.") from error
    get_likelihood(config.likelihood.name, **config.likelihood.options)
    get_features(config.features.inputs)
    get_schedule(config.training.schedule)
    if config.network.activation not in ACTIVATIONS:
        raise AmpsureError(f"Unknown activation {config.network.activation!r}; known are {', '.join(ACTIVATIONS)}.")
    p, fractions = config.posterior, config.data.fractions
    if (p.name not in ("ensemble", "laplace") and p.members > 1) or (
        p.name != "ensemble" and p.systematic not in ("averaged", "held-out")
    ):
        raise AmpsureError(
            "posterior.members and posterior.systematic are for posterior.name = 'ensemble' ('held-out' for 'point')."
        )
    if p.name in ("variational", "laplace") and p.systematic != "averaged":
        raise AmpsureError(f"posterior.systematic is 'averaged' for posterior.name = '{p.name}'.")
    if p.name == "laplace" and p.samples % 2:
        raise AmpsureError(f"A Laplace posterior is drawn from in pairs: posterior.samples is even, not {p.samples}.")
    if p.name != "ensemble" and p.prior_scale:
        raise AmpsureError("posterior.prior_scale is for posterior.name = 'ensemble'.")
    if p.name == "variational" and p.prior_width == float("inf"):
        raise AmpsureError("A variational posterior needs a finite posterior.prior_width.")
    if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-9:
        raise AmpsureError(f"data.fractions must be positive and add up to one, not {fractions}.")
    if not config.training.shared_batches and ((p.beta and p.members > 1) or p.systematic == "global-joint"):
        raise AmpsureError(
            "Repulsion and a joint sigma compare members on common events: keep training.shared_batches."
        )


def _by_name(table: Mapping[str, Any], name: str, kind: str) -> Any:
    if not isinstance(name, str):
        raise AmpsureError(f"A {kind} is given by its name, not {name!r}.")
    if name not in table:
        close = get_close_matches(name, table, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AmpsureError(f"Unknown {kind} {name!r}; known are {', '.join(table)}{hint}")
    return table[name]


def _explain(error: ValidationError) -> str:
    """One sentence for the first problem, naming the setting and the nearest known one."""
    problem = error.errors()[0]
    *parents, last = (str(part) for part in problem["loc"])
    where = ".".join([*parents, last])
    if problem["type"] != "extra_forbidden":
        return f"Setting {where!r}: {problem['msg']}."
    section = Config.model_fields[parents[0]].annotation if parents else Config
    known = list(section.model_fields) if isinstance(section, type) and issubclass(section, BaseModel) else []
    close = get_close_matches(last, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}."
    return f"Unknown setting {where!r}{hint}"


def to_toml(config: Config) -> str:
    """A configuration as TOML, which `ampsure train` reads."""
    lines = []
    for section, values in config.model_dump(mode="json").items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, float) and value == float("inf"):
        return "inf"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)  # strings, numbers, booleans and lists are alike in both
