"""Runs studies: trains what is not yet trained, measures what is not yet measured, judges the claims."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any

import ampsure
from ampsure._version import versions
from ampsure.calibration import REVISION
from ampsure.cluster import Cluster
from ampsure.config import Config
from ampsure.disturbances import disturb
from ampsure.errors import AmpsureError
from ampsure.evaluation import as_json
from ampsure.events import Events
from ampsure.fitting import Report, alike, fit_many, fleets
from ampsure.generation.generate import Report as GenerationReport
from ampsure.io import checksum, locked, make_folder, replacing
from ampsure.io.checks import reading
from ampsure.processes import get_process
from ampsure.report.style import save_figure
from ampsure.surrogate import Surrogate, find_device, load_surrogate
from ampsure.training import Progress

from .presets import Preset
from .study import Case, Results, Study, Verdict

__all__ = ["Record", "cost", "load_record", "run_studies", "run_study", "study_events"]

SCHEMA_VERSION = 1

# Settings younger than the first results: they count where they are used, so that results from before stay valid.
_NEW_SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"memory": None},
    "posterior": {"prior_scale": 0.0, "structure": "last-layer"},
}

Tell = Callable[[str], None]
Measure = Callable[[Surrogate, Events, Case], dict[str, Any]]


@dataclass
class Record:
    """A study: what was run, measured and found; there are verdicts when no case is missing."""

    study: str
    preset: str
    results: Results
    verdicts: list[Verdict]
    provenance: dict[str, Any]
    missing: int = 0


def study_events(
    preset: Preset, cache: Path, report: GenerationReport | None = None, cluster: Cluster | None = None
) -> Events:
    """The data of all studies at a preset, generated once."""
    path = make_folder(cache) / f"events-{preset.events}.h5"
    with locked(path):
        if not path.exists():
            generated = ampsure.generate("gg_yyg", preset.events, seed=1, cluster=cluster, report=report)
            ampsure.save(generated, path)
    return ampsure.load(path)


def run_study(
    study: Study,
    preset: Preset,
    events: Events,
    output: Path,
    cache: Path,
    *,
    where: Mapping[str, Any] | None = None,
    device: str = "auto",
    remeasure: bool = False,
    tell: Tell = lambda _: None,
    report: Report | None = None,
) -> Record:
    """Run a study, or go on with it; the record, the figure and its numbers are in `output` afterwards.

    Args:
        events: the undisturbed data.
        output: folder of results; cases measured there before are not repeated.
        cache: folder of trained surrogates, shared by all studies.
        where: labels of the cases to run now; figure and verdicts wait until none of the others is missing.
        remeasure: measure again what was measured before.
        tell: called with a sentence before each fleet of trainings.
    """
    run = _Run(study, preset, events, output, where or {}, remeasure)
    workers = 8 if find_device(device).type == "cuda" else 1  # a GPU leaves the cores idle

    def measure(group: dict[str, Case]) -> None:
        one = partial(_measure, study.measure, events=events, cache=cache, device=device)
        with ThreadPoolExecutor(workers) as pool:
            run.keep(dict(zip(group, pool.map(one, group, group.values()), strict=True)))

    there: dict[str, Case] = {}
    groups: list[dict[str, Case]] = []
    for fleet in _fleets(run.missing, events, device):
        absent = {key: case for key, case in fleet.items() if not _is_trained(key, cache)}
        if absent and _checkpoint(fleet, cache).exists():  # stopped while it was saved: it goes on as a whole
            absent = fleet
        elif not absent:
            rmtree(_checkpoint(fleet, cache), ignore_errors=True)
        there |= {key: case for key, case in fleet.items() if key not in absent}
        groups += [absent] if absent else []
    if there:
        measure(there)
    for number, fleet in enumerate(groups, start=1):
        tell(f"fleet {number} of {len(groups)}: {_size(fleet)}; first: {_words(next(iter(fleet.values())).labels)}")
        _train(fleet, events, cache, device, report and _Leader(report, f"fleet {number}"))
        measure(fleet)
    return run.finish()


def run_studies(
    studies: Iterable[Study],
    preset: Preset,
    events: Events,
    output: Path,
    cache: Path,
    cluster: Cluster,
    *,
    where: Mapping[str, Any] | None = None,
    device: str = "auto",
    remeasure: bool = False,
    tell: Tell = lambda _: None,
    report: Report | None = None,
) -> Iterator[Record]:
    """Run studies at once on a cluster, as `run_study` does one by one; gives records as studies end.

    The fleets are those of one process without a GPU, so that the results are, too. All workers see the cache, through
    which events and surrogates travel: a fleet that loses its worker goes on from the last state saved there.
    """
    cache, told = cache.resolve(), None if report is None else cluster.calling(report)
    data = make_folder(cache) / f"data-{checksum(events)[:20]}.h5"
    if not data.exists():
        ampsure.save(events, data)
    trained: dict[str, Any] = {}  # futures, by key
    measured: dict[Any, tuple[_Run, str]] = {}
    for study in studies:
        run = _Run(study, preset, events, output, where or {}, remeasure)
        new = {k: case for k, case in run.missing.items() if k not in trained and not _is_trained(k, cache)}
        for number, fleet in enumerate(_fleets(new, events, "cpu"), start=1):
            tell(f"{study.name}, fleet {number}: {_size(fleet)}")
            name = told and _Leader(told, f"{study.name}, fleet {number}")
            trained |= dict.fromkeys(fleet, cluster.submit(_train_there, fleet, data, cache, device, name))
        for key, case in run.missing.items():
            waiting = cluster.submit(_measure_there, study.measure, key, case, data, cache, device, trained.get(key))
            measured[waiting] = run, key
        if not run.missing:
            yield run.finish()
    for future in cluster.completed(list(measured)):
        run, key = measured.pop(future)
        run.keep({key: future.result()})
        if not run.missing:
            yield run.finish()


class _Run:
    """A study at work: what is measured stays measured."""

    def __init__(
        self, study: Study, preset: Preset, events: Events, output: Path, where: Mapping[str, Any], remeasure: bool
    ) -> None:
        if events.process != get_process("gg_yyg"):
            given = f"not {events.process.name!r}: give its events, or say --process gg_yyg if they are"
            raise AmpsureError(f"The studies are about the process gg_yyg, {given}.")
        self._study, self._preset, self._events, self._output = study, preset, events, make_folder(output)
        self._path = output / f"{study.name}-{preset.name}.json"
        self._data_key, cases = checksum(events), study.grid(preset)
        self._cases = [(case, _key(case, self._data_key)) for case in cases]
        wanted = {key: case for case, key in self._cases if where.items() <= case.labels.items()}
        if where and not wanted:
            raise AmpsureError(f"No case of study {study.name!r} has {_words(where)}; {_choice(cases, where)}.")
        known = _measured(self._path)
        self._known = {key: known[key] for key in known if not (remeasure and key in wanted)}
        self.missing = {key: case for key, case in wanted.items() if key not in self._known}

    def keep(self, measured: dict[str, dict[str, Any]]) -> None:
        """Measurements by key."""
        self._known |= measured
        self.missing = {key: case for key, case in self.missing.items() if key not in measured}
        self._write(self._results(), [])

    def finish(self) -> Record:
        results = self._results()
        if absent := len(self._cases) - len(results.cases):
            return Record(self._study.name, self._preset.name, results, [], {}, absent)
        results.data = (
            {} if self._study.measure_data is None else _rounded(as_json(self._study.measure_data(self._events)))
        )
        self._write(results, [claim.judge(results) for claim in self._study.claims])
        save_figure(self._study.figure(results), self._output / f"{self._study.name}-{self._preset.name}")
        record = load_record(self._study, self._path)
        assert record is not None
        return record

    def _results(self) -> Results:
        found = [(case, key) for case, key in self._cases if key in self._known]
        return Results([{**self._known[key], "key": key, "labels": case.labels} for case, key in found])

    def _write(self, results: Results, verdicts: list[Verdict]) -> None:
        _write(self._path, self._study, self._preset, results, verdicts, self._data_key)


def _is_trained(key: str, cache: Path) -> bool:
    return (cache / "trainings" / key / "surrogate.json").exists()


def _checkpoint(fleet: Iterable[str], cache: Path) -> Path:
    """Where the state of a fleet is kept, by the keys of its cases."""
    return cache / "trainings" / f"fleet-{sha256(''.join(fleet).encode()).hexdigest()[:20]}"


def _fleets(cases: dict[str, Case], events: Events, device: str) -> list[dict[str, Case]]:
    """Cases that are trained at once."""
    keys = list(cases)
    groups = fleets([(events, _on(case.config, device)) for case in cases.values()])
    return [{keys[job]: cases[keys[job]] for job in group} for group in groups]


def _size(fleet: dict[str, Case]) -> str:
    members = sum(case.config.posterior.members for case in fleet.values())
    return f"{len(fleet)} trainings, {members} networks at once"


def _choice(cases: Iterable[Case], where: Mapping[str, Any]) -> str:
    """What there is instead of labels that no case has."""
    labels = [case.labels for case in cases]
    for name in where:
        if there := dict.fromkeys(str(found[name]) for found in labels if name in found):
            if str(where[name]) not in there:
                return f"{name} is one of {', '.join(there)}"
        else:
            return f"its cases have {', '.join(dict.fromkeys(key for found in labels for key in found)) or 'no labels'}"
    return "each of these, but not together"


def _train(
    fleet: dict[str, Case],
    events: Events,
    cache: Path,
    device: str,
    report: Callable[[int, str, Progress], None] | None,
) -> None:
    """Trains alike cases at once and puts them into the cache, but for those that another process has put there."""
    folder = cache / "trainings"
    locks = make_folder(folder / "locks")
    with locked(*(locks / key for key in fleet)):
        checkpoint = _checkpoint(fleet, cache)
        if not checkpoint.exists():  # otherwise this fleet was interrupted, and goes on as it is
            fleet = {key: case for key, case in fleet.items() if not _is_trained(key, cache)}
        if not fleet:
            return
        started = time.monotonic()
        seen = {case.disturbances: disturb(events, case.disturbances) for case in fleet.values()}
        jobs = [(seen[case.disturbances], _on(case.config, device)) for case in fleet.values()]
        trained = fit_many(jobs, checkpoint=checkpoint, report=report)
        seconds = (time.monotonic() - started) / len(fleet)
        for key, surrogate in zip(fleet, trained, strict=True):
            surrogate.provenance["seconds"] = round(seconds, 2)
            surrogate.provenance["fleet"] = len(fleet)
            surrogate.save(folder / key)
        rmtree(checkpoint, ignore_errors=True)


@lru_cache(maxsize=1)
def _loaded(data: Path) -> Events:
    """Events under a name that says what is in the file."""
    return ampsure.load(data)


def _train_there(fleet: dict[str, Case], data: Path, cache: Path, device: str, report: Any) -> None:
    _train(fleet, _loaded(data), cache, device, report)


def _measure_there(
    measure: Measure, key: str, case: Case, data: Path, cache: Path, device: str, trained: None
) -> dict[str, Any]:
    """In a task that depends on the one which trains."""
    return _measure(measure, key, case, events=_loaded(data), cache=cache, device=device)


@dataclass(frozen=True)
class _Leader:
    """Tells of the first training of a fleet, since all of them advance together."""

    report: Report
    fleet: str

    def __call__(self, job: int, stage: str, progress: Progress) -> None:
        if job == 0:
            self.report(f"{self.fleet}: {stage}", progress)


def _on(config: Config, device: str) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update={"device": device})})


def _measure(measure: Measure, key: str, case: Case, *, events: Events, cache: Path, device: str) -> dict[str, Any]:
    surrogate = load_surrogate(cache / "trainings" / key, device)
    seen = disturb(events, case.disturbances)
    last = seen.split_indices(case.config.training.seed, case.config.data.fractions)[2]
    test = seen[last[-round(case.test_share * len(events)) :]]
    return {
        "measured": _rounded(as_json(measure(surrogate, test, case))),  # as it will be read again
        "trained": {
            "epochs": case.config.training.epochs,
            "hidden": case.config.network.hidden,
            "events": surrogate.provenance["data"]["training"],
            **{name: surrogate.provenance[name] for name in ("seconds", "fleet", "device", "precision", "versions")},
        },
    }


def _key(case: Case, data_key: str) -> str:
    """Of a training: the same for the same configuration and data, wherever it runs."""
    config = case.config.model_dump(mode="json", exclude={"training": {"device"}, "data": {"path"}})
    for section, settings in _NEW_SETTINGS.items():
        for name, default in settings.items():
            if config[section].get(name) == default:
                config[section].pop(name, None)
    described = [[type(d).__name__, asdict(d)] for d in case.disturbances]  # type: ignore[call-overload]
    learned = ["calibration", REVISION] if config["posterior"]["systematic"] == "held-out" else []
    text = json.dumps([config, described, data_key, *learned], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:20]


def _words(labels: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in labels.items())


def _measured(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    with reading(path, "results of a study"):
        return {case["key"]: {k: case[k] for k in ("measured", "trained")} for case in _read(path)["cases"]}


def _read(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError(path)
        found: dict[str, Any] = json.loads(path.read_text())
        if found["format"] != "ampsure-study":
            raise AmpsureError(f"{path} is no result of a study: remove it and run the study again.")
        if (schema := found["schema_version"]) > SCHEMA_VERSION:
            raise AmpsureError(f"{path} was written by a newer ampsure (schema {schema}): update ampsure to read it.")
    except AmpsureError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise AmpsureError(f"{path} is not a readable result of a study: remove it and run the study again.") from error
    return found


def _write(path: Path, study: Study, preset: Preset, results: Results, verdicts: list[Verdict], data_key: str) -> None:
    document = {
        "format": "ampsure-study",
        "schema_version": SCHEMA_VERSION,
        "study": study.name,
        "label": study.label,
        "preset": asdict(preset),
        "data_checksum": data_key,
        "versions": versions(),
        "verdicts": [
            {
                "claim": v.claim,
                "text": v.text,
                "outcome": v.outcome,
                "checks": [{**asdict(c), "outcome": c.outcome} for c in v.checks],
            }
            for v in verdicts
        ],
        "data": results.data,
        "cases": results.cases,
    }
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(_rounded(as_json(document)), allow_nan=False, separators=(",", ":")))


def _rounded(value: Any) -> Any:
    """With six digits, which is more than anything measured here has: files are a third as long."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def load_record(study: Study, path: Path) -> Record | None:
    """A study from its file, with verdicts as its claims are now; None if it is not finished."""
    found = _read(path)
    if not found.get("verdicts"):
        return None
    with reading(path, "results of a study"):
        results = Results(found["cases"], found["data"])
        provenance = {k: found[k] for k in ("preset", "data_checksum", "versions")}
        verdicts = [claim.judge(results) for claim in study.claims]
        _ = [(verdict.outcome, *map(str, verdict.checks)) for verdict in verdicts]  # now, while the file can be named
        return Record(study.name, found["preset"]["name"], results, verdicts, provenance)


def cost(study: Study, preset: Preset, gpu: bool, where: Mapping[str, Any] | None = None) -> tuple[int, float]:
    """Number of trainings of a study and a rough guess of their seconds, nothing cached, alike ones at once.

    The rates are those of `python -m benchmarks.training` on two cores and on an H200.
    """
    groups: dict[str, list[Case]] = {}
    for case in study.grid(preset):
        if (where or {}).items() <= case.labels.items():
            groups.setdefault(alike(case.config), []).append(case)
    return sum(map(len, groups.values())), sum(_seconds(group, preset.events, gpu) for group in groups.values())


def _seconds(cases: list[Case], events: int, gpu: bool) -> float:
    """Of a fleet: every step has a fixed cost, and one that grows with the work of all networks in it."""
    fixed, rate = (1.7e-4, 7e13) if gpu else (3e-3, 2.5e10)  # seconds, floating-point operations a second
    longest, work = 0, 0.0
    for config in (case.config for case in cases):
        widths = (30, *config.network.hidden, 2)
        n_train = max(round(config.data.fractions[0] * events), 1)
        batch = min(config.training.batch_size, n_train)
        steps = config.training.stages * config.training.epochs * (n_train // batch)
        networks = config.posterior.members + (config.posterior.systematic != "averaged")
        work += 6 * sum(a * b for a, b in pairwise(widths)) * batch * networks * steps
        longest = max(longest, steps)
    return longest * fixed + work / rate
