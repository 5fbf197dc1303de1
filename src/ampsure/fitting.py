"""`fit` makes a surrogate from events, `fit_many` many at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from ampsure.calibration import REVISION
from ampsure.config import DEFAULT_METHOD, Config, resolve
from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.io import EventFile, load_or_open, make_folder
from ampsure.learning import learn
from ampsure.sources import Source, TrainingSource, window_of
from ampsure.surrogate import Surrogate, find_device
from ampsure.training import Engine, Progress, Training, enough_memory
from ampsure.training.ranks import Ranks, find_ranks

__all__ = ["Report", "alike", "fit", "fit_many", "fleets"]

Report = Callable[[str, Progress], None]
"""Told of progress: which stage, and how far it is."""


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
    sources: dict[int, TrainingSource] = {}  # jobs may share their events
    for events, _ in jobs:
        sources.setdefault(id(events), TrainingSource(events))
    for fleet in fleets(jobs, ranks):
        fittings = {job: learn(sources[id(jobs[job][0])], jobs[job][1], ranks, folder) for job in fleet}
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


def _fingerprint(jobs: Sequence[tuple[TrainingSource, Config]]) -> str:
    keys = (
        source.checksum
        + config.model_dump_json(exclude={"data": {"memory"}})
        + (f"calibration {REVISION}" if config.posterior.systematic == "held-out" else "")
        for source, config in jobs
    )
    windows = {f"{window_of(c)}" for source, c in jobs if isinstance(source.events, EventFile)}
    return sha256("".join([*keys, *windows]).encode()).hexdigest()


def _check_same(fingerprint: str, ranks: Ranks) -> None:
    own = torch.tensor([*bytes.fromhex(fingerprint)])
    if ranks.any(not torch.equal(ranks.agreed(own), own)):
        raise AmpsureError("The processes have different events or settings: give all of them the same.")
