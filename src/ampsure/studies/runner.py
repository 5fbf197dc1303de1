"""Runs studies: trains what is not yet trained, measures what is not yet measured, judges the claims."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any

import ampsure
from ampsure._version import versions
from ampsure.config import Config
from ampsure.disturbances import disturb
from ampsure.errors import AmpsureError
from ampsure.evaluation import as_json
from ampsure.events import Events
from ampsure.fitting import Report, alike, fit_many, fleets
from ampsure.generation.generate import Report as GenerationReport
from ampsure.io import checksum, make_folder, replacing
from ampsure.processes import get_process
from ampsure.report.style import save_figure
from ampsure.surrogate import find_device, load_surrogate
from ampsure.training import Progress

from .presets import Preset
from .study import Case, Results, Study, Verdict

__all__ = ["Record", "cost", "load_record", "run_study", "study_events"]

SCHEMA_VERSION = 1

Tell = Callable[[str], None]


@dataclass
class Record:
    """A finished study: what was run, measured and found."""

    study: str
    preset: str
    results: Results
    verdicts: list[Verdict]
    provenance: dict[str, Any]


def study_events(preset: Preset, cache: Path, report: GenerationReport | None = None) -> Events:
    """The data of all studies at a preset, generated once."""
    path = cache / f"events-{preset.events}.h5"
    if not path.exists():
        make_folder(cache)
        events = ampsure.generate("gg_yyg", preset.events, preset="benchmark", seed=1, report=report)
        ampsure.save(events, path)
    return ampsure.load(path)


def run_study(
    study: Study,
    preset: Preset,
    events: Events,
    output: Path,
    cache: Path,
    *,
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
        remeasure: measure again what was measured before.
        tell: called with a sentence before each fleet of trainings.
    """
    if events.process != get_process("gg_yyg"):
        given = f"not {events.process.name!r}: give its events, or say --process gg_yyg if they are"
        raise AmpsureError(f"The studies are about the process gg_yyg, {given}.")
    make_folder(output)
    cases, data_key = study.grid(preset), checksum(events)
    path = output / f"{study.name}-{preset.name}.json"
    known = {} if remeasure else _measured(path)
    keys = [_key(case, data_key) for case in cases]
    missing = {key: case for case, key in zip(cases, keys, strict=True) if key not in known}
    for group in _train(missing, events, cache, device, tell, report):
        measure = partial(_measure, study, missing, events=events, cache=cache, device=device)
        workers = 8 if find_device(device).type == "cuda" else 1  # a GPU leaves the cores idle
        with ThreadPoolExecutor(workers) as pool:
            known.update(zip(group, pool.map(measure, group), strict=True))
        measured = [case for case in zip(cases, keys, strict=True) if case[1] in known]
        _write(path, study, preset, _results(measured, known), [], data_key)  # what is measured stays measured
    results = _results(zip(cases, keys, strict=True), known)
    results.data = {} if study.measure_data is None else as_json(study.measure_data(events))
    verdicts = [claim.judge(results) for claim in study.claims]
    _write(path, study, preset, results, verdicts, data_key)
    save_figure(study.figure(results), output / f"{study.name}-{preset.name}")
    record = load_record(study, path)
    assert record is not None
    return record


def _results(cases: Iterable[tuple[Case, str]], known: dict[str, dict[str, Any]]) -> Results:
    return Results([{**known[key], "key": key, "labels": case.labels} for case, key in cases])


def _train(
    missing: dict[str, Case], events: Events, cache: Path, device: str, tell: Tell, report: Report | None
) -> Iterator[list[str]]:
    """Trains what is not in the cache, alike trainings at once; gives keys of surrogates that are there."""
    folder = cache / "trainings"
    there = [key for key in missing if (folder / key / "surrogate.json").exists()]
    if there:
        yield there
    keys = [key for key in missing if key not in there]
    configs = [_on(missing[key].config, device) for key in keys]
    groups = list(fleets([(events, config) for config in configs]))
    for number, group in enumerate(groups, start=1):
        members = sum(configs[job].posterior.members for job in group)
        count = f"{len(group)} trainings, {members} networks at once"
        tell(f"fleet {number} of {len(groups)}: {count}; first: {_words(missing[keys[group[0]]])}")
        checkpoint = folder / f"fleet-{sha256(''.join(keys[job] for job in group).encode()).hexdigest()[:20]}"
        leader = None if report is None else _leader(report, f"fleet {number}")
        started = time.monotonic()
        disturbances = [missing[keys[job]].disturbances for job in group]
        seen = {d: disturb(events, d) for d in disturbances}  # shared by all that see the same
        jobs = [(seen[d], configs[job]) for d, job in zip(disturbances, group, strict=True)]
        trained = fit_many(jobs, checkpoint=checkpoint, report=leader)
        seconds = (time.monotonic() - started) / len(group)
        for job, surrogate in zip(group, trained, strict=True):
            surrogate.provenance["seconds"] = round(seconds, 2)
            surrogate.provenance["fleet"] = len(group)
            surrogate.save(folder / keys[job])
        rmtree(checkpoint, ignore_errors=True)
        yield [keys[job] for job in group]


def _leader(report: Report, fleet: str) -> Callable[[int, str, Progress], None]:
    """Tells of the first training of a fleet, since all of them advance together."""

    def told(job: int, stage: str, progress: Progress) -> None:
        if job == 0:
            report(f"{fleet}: {stage}", progress)

    return told


def _on(config: Config, device: str) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update={"device": device})})


def _measure(
    study: Study, cases: dict[str, Case], key: str, *, events: Events, cache: Path, device: str
) -> dict[str, Any]:
    case = cases[key]
    surrogate = load_surrogate(cache / "trainings" / key, device)
    seen = disturb(events, case.disturbances)
    last = seen.split_indices(case.config.training.seed, case.config.data.fractions)[2]
    test = seen[last[-round(case.test_share * len(events)) :]]
    return {
        "measured": as_json(study.measure(surrogate, test, case)),
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
    described = [[type(d).__name__, asdict(d)] for d in case.disturbances]  # type: ignore[call-overload]
    text = json.dumps([config, described, data_key], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:20]


def _words(case: Case) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.labels.items())


def _measured(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    return {case["key"]: {k: case[k] for k in ("measured", "trained")} for case in _read(path)["cases"]}


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if found["format"] != "ampsure-study" or found["schema_version"] > SCHEMA_VERSION:
            raise AmpsureError(f"{path} is no result of a study that this version can read.")
    except (OSError, ValueError, KeyError, TypeError) as error:
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
    if not found["verdicts"]:
        return None
    results = Results(found["cases"], found["data"])
    provenance = {k: found[k] for k in ("preset", "data_checksum", "versions")}
    verdicts = [claim.judge(results) for claim in study.claims]
    return Record(study.name, found["preset"]["name"], results, verdicts, provenance)


def cost(study: Study, preset: Preset, gpu: bool) -> tuple[int, float]:
    """Number of trainings of a study and a rough guess of their seconds, nothing cached, alike ones at once.

    The rates are those of `python -m benchmarks.training` on two cores and on an H200.
    """
    groups: dict[str, list[Case]] = {}
    for case in study.grid(preset):
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
