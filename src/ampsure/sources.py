"""`TrainingSource`: events, in memory or in a file, as trainings see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampsure.config import Config
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.io import EventFile, checksum
from ampsure.preprocessing import AsinhTarget, Features, LogTarget, Standardization, get_features, get_target
from ampsure.scratch import Column, Scratch, each, lazily

__all__ = ["Prepared", "Source", "TrainingSource", "resident", "window_of"]

_WINDOW = 1 << 20  # training events in memory, of those that are in a file, and at most so many for validation

Source = Events | EventFile
"""Events in memory or in a file."""


class TrainingSource:
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

    def prepared(self, config: Config, device: torch.device, scratch: Scratch | None) -> Prepared:
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
        x_validation, y_validation = resident(x_validation, y_validation)
        if not (torch.isfinite(x_validation).all() and torch.isfinite(y_validation).all()):
            raise AmpsureError(
                "Some validation events have no finite features or target: check them as the training events."
            )
        sizes = {"events": len(self.events), "training": len(train), "validation": len(validation)}
        sizes |= {} if scratch is None else {"window": scratch.window}
        return Prepared(standardization, target, x, y, x_validation, y_validation, sizes)


@dataclass(frozen=True)
class Prepared:
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


def resident(x: Column, y: Column) -> tuple[Tensor, Tensor]:
    """Features (N, F) and targets (N,) of held-out events, which are always in memory."""
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    return x, y


def window_of(config: Config) -> int:
    """Training events in memory at a time, if they are in a file: less than 1/16 of the memory they may take."""
    limit = inf if config.data.memory is None else config.data.memory * 2**30 / 16 / 128
    return int(min(_WINDOW, limit))
