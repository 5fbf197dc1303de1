"""Hyperparameter grids: one run for every combination of settings, judged by validation events."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import ampsure
from ampsure._version import versions
from ampsure.cluster import Cluster
from ampsure.config import Config, to_toml
from ampsure.errors import AmpsureError
from ampsure.evaluation import accuracy, as_json, negative_log_likelihood
from ampsure.events import Events
from ampsure.fitting import Report, fit
from ampsure.io import checksum, locked, make_folder, replacing
from ampsure.surrogate import Surrogate, load_surrogate
from ampsure.training import Progress

__all__ = ["Point", "Score", "combinations", "run_grid", "save_run", "write_table"]

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """One combination of settings.

    Args:
        settings: those that vary, by name, e.g. {"training.learning_rate": 1e-3}.
        config: all of them, with the file of events in `data.path`.
    """

    settings: dict[str, Any]
    config: Config

    @property
    def name(self) -> str:
        """The settings as the name of a folder.

        >>> Point({"training.epochs": 50, "network.hidden": [64, 64]}, Config()).name
        'training.epochs=50,network.hidden=64x64'
        """
        return ",".join(f"{name}={_plain(value)}" for name, value in self.settings.items())


@dataclass(frozen=True)
class Score:
    """A surrogate on its validation events, compared with the amplitudes it was given, not with a truth it was not.

    Args:
        mean, median: of |Delta|.
        nll: of the relative residual (A_NN - A)/A_NN and sigma_tot/A_NN; None without an uncertainty.
    """

    mean: float
    median: float
    nll: float | None


def combinations(vary: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """All combinations of values, by the name of the setting.

    >>> list(combinations({"a": [1, 2], "b": ["x"]}))
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'}]
    """
    for values in product(*vary.values()):
        yield dict(zip(vary, values, strict=True))


def run_grid(
    points: Sequence[Point],
    output: Path,
    *,
    cluster: Cluster | None = None,
    tell: Tell = lambda _: None,
    report: Report | None = None,
) -> dict[str, Score]:
    """Train every point in a folder of its own name in `output`, unless that is done; the same folders as one by one.

    Args:
        cluster: where to train; all workers see the files of events and `output`.
        tell: called with a sentence for each run.
        report: called with (run and stage, Progress) after every epoch.
    """
    names = [point.name for point in points]
    if len(set(names)) < len(names):
        raise AmpsureError(f"The grid has {max(names, key=names.count)!r} twice: give every value once.")
    make_folder(output)
    jobs = [(point.config, (output / point.name).resolve(), _path(point.config).resolve()) for point in points]
    scores: dict[str, Score] = {}
    if cluster is None:
        for name, job in zip(names, jobs, strict=True):
            scores[name] = _run(*job, report and _Named(report, name))
            tell(f"{len(scores)} of {len(points)}: {name}")
        return scores
    told = None if report is None else cluster.calling(report)
    futures = {cluster.submit(_run, *job, told and _Named(told, n)): n for n, job in zip(names, jobs, strict=True)}
    for future in cluster.completed(list(futures)):
        scores[futures[future]] = future.result()
        tell(f"{len(scores)} of {len(points)}: {futures[future]}")
    return scores


def write_table(points: Sequence[Point], scores: Mapping[str, Score], by: str, path: Path) -> list[Point]:
    """The points, best first; settings and scores are in the file, in the same order."""

    def value(point: Point) -> float:
        found = asdict(scores[point.name])[by]
        return inf if found is None else float(found)

    ranked = sorted(points, key=value)
    document = {
        "format": "ampsure-grid",
        "schema_version": 1,
        "sorted_by": by,
        "versions": versions(),
        "runs": [{"name": p.name, "settings": p.settings, "validation": scores[p.name]} for p in ranked],
    }
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(as_json(document), indent=1, allow_nan=False))
    return ranked


def save_run(surrogate: Surrogate, folder: Path) -> None:
    """A surrogate and its configuration, as `ampsure train` reads it."""
    with replacing(make_folder(folder) / "config.toml") as temporary:
        temporary.write_text(to_toml(surrogate.config))
    surrogate.save(folder)  # the last: with it the run is whole


@dataclass(frozen=True)
class _Named:
    """Tells of a stage with the name of the run."""

    report: Report
    name: str

    def __call__(self, stage: str, progress: Progress) -> None:
        self.report(f"{self.name}: {stage}", progress)


def _run(config: Config, folder: Path, data: Path, report: Report | None) -> Score:
    events, key = _loaded(data, data.stat().st_mtime_ns, config.data.process, config.data.invalid, config.data.signed)
    with locked(make_folder(folder.parent / ".locks") / folder.name):
        if (folder / "surrogate.json").exists():
            surrogate = load_surrogate(folder)
            if surrogate.config != config or surrogate.provenance["data"]["checksum"] != key:
                raise AmpsureError(f"{folder} was trained with other settings or events: choose another output.")
        else:
            surrogate = fit(events, config=config, checkpoint=folder / "checkpoint", report=report)
            save_run(surrogate, folder)
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    return _score(surrogate, events.split(config.training.seed, config.data.fractions)[1])


def _score(surrogate: Surrogate, validation: Events) -> Score:
    p = surrogate.predict(validation.momenta)
    found = accuracy(p.amplitude, validation.amplitude)
    nll = None
    if (p.sigma_tot > 0).all():
        nll = negative_log_likelihood((p.amplitude - validation.amplitude) / p.amplitude, p.sigma_tot / p.amplitude)
    return Score(found.mean, found.median, nll)


@lru_cache(maxsize=1)
def _loaded(data: Path, changed: int, process: str | None, invalid: str, signed: bool) -> tuple[Events, str]:
    """Events and their checksum, kept for the next run on the same ones."""
    events = ampsure.load(data, process=process, invalid=invalid, signed=signed)
    return events, checksum(events)


def _path(config: Config) -> Path:
    if config.data.path is None:
        raise AmpsureError("There are no events to learn from: give --data FILE or data.path in the configuration.")
    if not Path(config.data.path).is_file():
        raise AmpsureError(f"There is no file {config.data.path}: check its name.")
    return Path(config.data.path)


def _plain(value: Any) -> str:
    """Fit for a file name."""
    if isinstance(value, list):
        return "x".join(map(_plain, value))
    return re.sub(r"[^\w.+-]+", "_", value if isinstance(value, str) else json.dumps(value))
