"""`distill`: an ensemble into one network that carries its mean and both of its uncertainties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampsure._version import versions
from ampsure.config import resolve
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.io import checksum
from ampsure.learning import largest_mean
from ampsure.likelihoods import Distilled
from ampsure.likelihoods.base import lift
from ampsure.networks import StackedMLP
from ampsure.posteriors import Point
from ampsure.preprocessing import get_features
from ampsure.surrogate import Stage, Surrogate, dtype_of, find_device, sum_of_stages
from ampsure.training import Engine, Progress, Training, TrainingData, enough_memory

__all__ = ["distill"]

Floats = NDArray[np.float64]

_SMALLEST = 1e-16  # variance: of a teacher without an uncertainty of that kind


@enough_memory()
def distill(
    teacher: Surrogate,
    events: Events | Floats,
    *,
    config: Mapping[str, Any] | None = None,
    report: Callable[[str, Progress], None] | None = None,
    **training: Any,
) -> Surrogate:
    """One network, or one a stage, that predicts what a surrogate predicts: amplitude, sigma_syst and sigma_stat.

    It learns from the teacher's predictions: amplitudes of the events are not looked at, so that plain momenta will
    do, and more of them can be had for nothing. Features, target and domain are the teacher's; what is lost of the mean
    is added to sigma_syst.

    Args:
        teacher: any surrogate.
        events: whose momenta are learned from, or momenta (N, n, 4); split as for a training.
        config: sections of the teacher's configuration to change, e.g. `{"network": {"hidden": (64, 64)}}`; features,
            likelihood and posterior are given.
        report: called with (stage, Progress) after every epoch.
        training: single settings of the training, e.g. `epochs=50, seed=1`.
    """
    if not isinstance(events, Events):
        events = Events(events, teacher.predict(events).amplitude, teacher.process)
    if events.process.n_legs != teacher.process.n_legs:
        raise AmpsureError(f"The events have {events.process.n_legs} legs, the surrogate {teacher.process.n_legs}.")
    if fixed := {"features", "likelihood", "posterior"} & set(config or {}):
        raise AmpsureError(f"The {min(fixed)} of a distilled surrogate cannot be changed: leave the section out.")
    kept = teacher.config.model_dump(include={"data", "features", "network", "training"})
    given = {"likelihood": {"name": Distilled.name}, "posterior": {"name": "point"}}
    settings = resolve(None, "accurate", kept, given, config, **training)
    device, dtype = find_device(settings.training.device), dtype_of(settings)
    parts = events.split_indices(settings.training.seed, settings.data.fractions)[:2]
    if not all(map(len, parts)) or len(parts[0]) < 2:
        raise AmpsureError("No events are left for training or validation: give more of them.")
    x, y, x_validation, y_validation = (
        tensor.to(device) for part in parts for tensor in _lesson(teacher, torch.from_numpy(events.momenta[part]))
    )
    history: dict[str, list[dict[str, float]]] = {}
    earlier: tuple[Stage, ...] = ()
    for stage in range(stages := settings.training.stages):
        left, left_validation = (_left(earlier, *part) for part in ((x, y), (x_validation, y_validation)))
        scale = float(left[:, 0].square().mean().sqrt()) if stage else 1.0
        units = left.new_tensor([scale, scale**2, scale**2])
        lesson = (left / units).to(dtype)
        data = TrainingData(*(t.to(dtype) for t in (x, lesson, x_validation, left_validation / units)))
        network = StackedMLP(
            x.shape[1],
            Distilled.n_outputs,
            hidden=settings.network.hidden,
            activation=settings.network.activation,
            residual=settings.network.residual,
            seed=settings.training.seed + stage,
            output_bias=[0.0, 0.0, float(lesson[:, 2].double().log().mean())],  # the mean is off by one at first
            dtype=dtype,
        ).to(device)
        name = "members" if stages == 1 else f"stage-{stage + 1}"
        told = None if report is None else partial(report, name)
        engine = Engine(Training(Point(network), Distilled(), data, settings.training, report=told))
        engine.run()
        [history[name]] = engine.histories
        network.requires_grad_(False)
        limit = largest_mean(network, Distilled(), data.x_train, "averaged") if stage else inf
        if stage + 1 < stages:
            earlier += (Stage(network.double(), Distilled(), scale, limit),)
    student = Surrogate(
        config=settings,
        process=teacher.process,
        standardization=teacher.standardization.to(device),
        target=teacher.target,
        likelihood=Distilled(),
        network=network,
        scale=scale,
        limit=limit,
        unbiased=teacher.unbiased,
        earlier=earlier,
        cuts=teacher.cuts,
        history=history,
        provenance={
            "data": {"checksum": checksum(events), "events": len(events)}
            | {"training": len(parts[0]), "validation": len(parts[1])},
            "events": events.provenance,
            "versions": versions(),
            "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
            "precision": settings.network.precision,
            "teacher": {"config": teacher.config.model_dump(mode="json"), **teacher.provenance},
        },
    )
    return student.in_precision("float64")


@torch.no_grad()
def _lesson(teacher: Surrogate, momenta: Tensor) -> tuple[Tensor, Tensor]:
    """Features (N, F), and mean and both variances of the teacher's standardised target (N, 3)."""
    features = get_features(teacher.config.features.inputs)
    raw = torch.cat([features(m.to(teacher.device), teacher.process) for m in momenta.split(100_000)])
    mean, syst, stat, _ = teacher.standardised(momenta)
    if teacher.unbiased:  # the smooth one of both means
        mean = mean + lift(syst + stat, teacher.target.scale)
    return teacher.standardization(raw), torch.stack([mean, *(v.clamp_min(_SMALLEST) for v in (syst, stat))], dim=1)


@torch.no_grad()
def _left(stages: tuple[Stage, ...], x: Tensor, y: Tensor) -> Tensor:
    """The lesson with what the stages know of the mean taken off: (N, F), (N, 3) -> (N, 3)."""
    known = torch.cat([sum_of_stages(stages, chunk, "averaged") for chunk in x.split(8192)])
    return torch.stack([y[:, 0] - known, y[:, 1], y[:, 2]], dim=1)
