"""Les Houches event files (.lhe, .lhe.gz), through pylhe (the extra `ampsure[lhe]`).

A leg is a particle of status -1 (incoming) or +1 (outgoing); others are skipped. The event weight is XWGTUP; amplitude,
truth, noise and trainable are weights named so, in the group "ampsure"; process and provenance are JSON in the header's
element <ampsure>. Numbers have 17 digits, so that they come back to the bit. Colour flow, scale and couplings are not
known to `Events`: their fields say so (0, -1), and a parton shower needs them from elsewhere.

`with_weights` copies a file, with all it has, and adds weights of any name; `named_weights` reads them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import NDArray

from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.kinematics import find_collinear, find_invalid
from ampsure.processes import Process, get_process, list_processes

from .checks import SCHEMA_VERSION, check_schema, check_unpacked, parts, process_of, provenance_of, reading, to_json

__all__ = ["WeightGroup", "declared_weights", "iterate", "named_weights", "read", "with_weights", "write"]

NAMED = ("amplitude", "truth", "noise", "trainable")
"""The columns that travel as named weights."""

_LONGEST_LINE = 2**26

_EXACT = {  # pylhe's own formats keep 9 digits
    "eventinfo": "{nparticles:3d} {pid:6d} {weight: .16e} {scale: .16e} {aqed: .16e} {aqcd: .16e}",
    "particle": "{id:5d} {status:3d} {mother1:3d} {mother2:3d} {color1:3d} {color2:3d}"
    " {px: .16e} {py: .16e} {pz: .16e} {e: .16e} {m: .16e} {lifetime: .1e} {spin: .1e}",
    "initinfo": "{beamA:6d} {beamB:6d} {energyA: .16e} {energyB: .16e} {PDFgroupA:5d} {PDFgroupB:5d}"
    " {PDFsetA:5d} {PDFsetB:5d} {weightingStrategy:5d} {numProcesses:5d}",
    "procinfo": "{xSection: .16e} {error: .16e} {unitWeight: .16e} {procId:5d}",
}


_DECLARED = {  # where weights are declared, whichever comes first, and what becomes of it
    b"</initrwgt>": b"%s</initrwgt>",
    b"</header>": b"<initrwgt>\n%s</initrwgt>\n</header>",
    b"<header/>": b"<header>\n<initrwgt>\n%s</initrwgt>\n</header>",
    b"<init>": b"<header>\n<initrwgt>\n%s</initrwgt>\n</header>\n<init>",
}


class _Weight(float):
    """A number that keeps all its digits where pylhe asks for five."""

    def __format__(self, spec: str) -> str:
        return float.__repr__(self)


def read(path: Path, process: Process | None = None) -> Events:
    """The whole file."""
    return Events.concatenate(iterate(path, 100_000, process))


def iterate(path: Path, size: int, process: Process | None = None) -> Iterator[Events]:
    """`size` events at a time.

    The process is the one given, or the one in the header, or the registered one with the particles of the first event,
    or made of these. Events without a weight "amplitude" get the exact amplitude of the process if it is known.
    """
    pylhe = import_pylhe()
    with reading(path, "an LHE file"), _open_to_read(path) as file:
        with _warnings_are_errors():
            content = pylhe.LHEFile.frombuffer(file)
            first = next(content.events, None)
        if first is None:
            raise AmpsureError(f"{path.name} holds no events: write at least one.")
        process, provenance = _describe(path, content.header, first, process)
        names = [name for name in NAMED if name in first.weights] if "amplitude" in first.weights else []
        if not names:
            provenance = {**provenance, "amplitude": _exact_source(path, process)}
        rows = _rows(path, chain([first], content.events), process, names)
        while len(table := _table(rows, size, 4 * process.n_legs + 1 + len(names))):
            yield from parts(path, _columns(table, process, names), None, process, provenance)


def write(events: Events, path: Path) -> None:
    pylhe = import_pylhe()
    note = ElementTree.Element("ampsure", schema_version=str(SCHEMA_VERSION))
    note.text = to_json({"process": events.process.to_dict(), "provenance": events.provenance})
    weights = [pylhe.LHEInitRWGTWeight(id=name, name=name) for name in NAMED]
    group = pylhe.LHEInitRWGTWeightGroup(name="ampsure", weights=weights)
    header = pylhe.LHEHeader(initrwgt=pylhe.LHEInitRWGT(entries=[group]), extra_elements=[note])
    content = pylhe.LHEFile(init=_init(pylhe, events), header=header, events=_lhe_events(pylhe, events))
    with _open_to_write(path) as file:
        content.write(file, pylhe.LHEXMLFormat(**_EXACT))


class WeightGroup(NamedTuple):
    """Named weights that belong together.

    Args:
        name: of the group.
        combine: how an analysis makes an uncertainty of them: "envelope", "gaussian" or "none".
        weights: id -> what it is, in words.
    """

    name: str
    combine: str
    weights: Mapping[str, str]

    def to_xml(self) -> str:
        lines = [f"<weight id={quoteattr(i)}> {escape(words)} </weight>" for i, words in self.weights.items()]
        head = f"<weightgroup name={quoteattr(self.name)} combine={quoteattr(self.combine)}>"
        return "\n".join([head, *lines, "</weightgroup>", ""])


def named_weights(path: str | os.PathLike[str]) -> dict[str, NDArray[np.float64]]:
    """All weights of <rwgt> or <weights> by their id, (N,) each; nan where an event has no such weight."""
    pylhe, path = import_pylhe(), Path(path)
    with reading(path, "an LHE file"), _open_to_read(path) as file, _warnings_are_errors():
        rows = [event.weights for event in pylhe.LHEFile.frombuffer(file).events]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, np.nan) for row in rows], np.float64) for name in names}


def declared_weights(path: Path) -> set[str]:
    """Ids of the weights that the header or the first event names."""
    pylhe = import_pylhe()
    with reading(path, "an LHE file"), _open_to_read(path) as file, _warnings_are_errors():
        content = pylhe.LHEFile.frombuffer(file)
        first = next(content.events, None)
        header = set(content.header.initrwgt.list_weights_ids()) if content.header else set()
    return header | (set(first.weights) if first is not None else set())


def with_weights(source: Path, target: Path, groups: list[WeightGroup], rows: Iterable[Mapping[str, float]]) -> None:
    """Copy a file and give its events further named weights, declared in <initrwgt>; all else stays to the byte.

    Args:
        rows: for each event its weights by id, of all groups.
    """
    new = [name for group in groups for name in group.weights]
    declaration = "".join(group.to_xml() for group in groups).encode()
    added, rest, declared, inside = 0, iter(rows), False, False
    with reading(source, "an LHE file"), _open_to_read(source) as old, _open_to_write(target) as text:
        file: Any = text.buffer  # type: ignore[attr-defined]  # below the text are bytes
        for line in old:
            if not declared:
                tag = next((tag for tag in _DECLARED if tag in line), None)
                declared = tag is not None
                line = line if tag is None else line.replace(tag, _DECLARED[tag] % declaration, 1)
            begin, end = line.find(b"<event"), line.find(b"</event>")
            inside = inside or (begin >= 0 and (end < 0 or begin < end))
            again = line.rfind(b"<event") > end >= 0  # the next one begins where this one ends
            for tag, form in ((b"</rwgt>", b"%s</rwgt>"), (b"</event>", b"<rwgt>\n%s</rwgt>\n</event>")):
                if inside and tag in line:
                    weights = next(rest, None)
                    if weights is None or not declared or line.count(b"</event>") > 1:
                        raise AmpsureError(f"{source.name} has events in places that are not those of an LHE file.")
                    lines = "".join(f"<wgt id={quoteattr(name)}>{weights[name]!r}</wgt>\n" for name in new)
                    line = line.replace(tag, form % lines.encode(), 1)
                    added, inside = added + 1, False
            inside = inside or again
            file.write(line)
        if next(rest, None) is not None or not added:
            raise AmpsureError(f"{source.name} has fewer events than it seemed to have: write it again.")


def _init(pylhe: Any, events: Events) -> Any:
    """Beams, protons for partons, and the cross section.

    Generated events know both: weights are then relative (strategy 3). Of others the largest energies and the mean
    weight are taken (strategy -4: weights of any sign, whose mean is the cross section).
    """
    incoming = [2212 if i == 21 or 0 < abs(i) < 7 else i for i in events.process.pdg_ids[: events.process.n_incoming]]
    energies = events.momenta[:, : len(incoming), 0].max(0).tolist()
    (beam_a, beam_b), (energy_a, energy_b) = [*incoming, 0][:2], [*energies, 0.0][:2]
    with np.errstate(all="ignore"):  # weights may be anything a file holds
        mean, error = events.weights.mean(), events.weights.std() / np.sqrt(len(events))
        largest = np.abs(events.weights).max()
    strategy = -4
    try:
        found, settings = events.provenance["generation"], events.provenance["settings"]
        mean, error, largest = float(found["cross_section"]), float(found["cross_section_error"]), 1.0
        energy_a = energy_b = float(settings["energy"]) / 2
        strategy = 3
    except (KeyError, TypeError, ValueError):  # provenance is free in form
        pass
    info = pylhe.LHEInitInfo(beam_a, beam_b, energy_a, energy_b, -1, -1, -1, -1, strategy, 1)  # PDF -1: of the event
    run = pylhe.LHEProcInfo(xSection=mean, error=error, unitWeight=largest, procId=1)
    return pylhe.LHEInit(initInfo=info, procInfo=[run], generators=[])


def _lhe_events(pylhe: Any, events: Events) -> Iterator[Any]:
    p = events.process
    heads = [(i, -1, 0, 0, 0, 0) for i in p.pdg_ids[: p.n_incoming]]  # id, status, mothers, colours
    heads += [(i, 1, 1, p.n_incoming, 0, 0) for i in p.pdg_ids[p.n_incoming :]]
    for k in range(len(events)):
        particles = [
            pylhe.LHEParticle(*head, px, py, pz, e, mass, 0.0, 9.0)  # spin 9: not known
            for head, mass, (e, px, py, pz) in zip(heads, p.masses, events.momenta[k].tolist(), strict=True)
        ]
        info = pylhe.LHEEventInfo(p.n_legs, 1, float(events.weights[k]), -1.0, -1.0, -1.0)
        yield pylhe.LHEEvent(info, particles, weights={name: _Weight(getattr(events, name)[k]) for name in NAMED})


def _describe(path: Path, header: Any, first: Any, given: Process | None) -> tuple[Process, dict[str, Any]]:
    """Process and provenance: from our note in the header, or from the first event."""
    notes = [element for element in (header.extra_elements if header else []) if element.tag == "ampsure"]
    if notes:
        check_schema(path, int(notes[0].attrib["schema_version"]))
        note = json.loads(notes[0].text)
        process = process_of(path, given, json.dumps(note["process"]))
        return process, provenance_of(path, json.dumps(note["provenance"]))  # type: ignore[return-value]  # not None
    return given or _recognise(path, _legs(first)), {}


def _recognise(path: Path, legs: list[Any]) -> Process:
    ids, masses = tuple(leg.id for leg in legs), tuple(abs(leg.m) for leg in legs)
    n_incoming = sum(leg.status == -1 for leg in legs)
    if not 0 < n_incoming < len(legs):
        raise AmpsureError(f"The first event of {path.name} needs incoming and outgoing particles (status -1 and 1).")
    for known in map(get_process, list_processes()):
        same_legs = (known.pdg_ids, known.n_incoming) == (ids, n_incoming)
        if same_legs and np.allclose(known.masses, masses, rtol=1e-6, atol=1e-6):
            return known
    return Process("unknown", ids, masses, n_incoming)


def _legs(event: Any) -> list[Any]:
    """Incoming, then outgoing particles, each in the order of the file."""
    return [p for p in event.particles if p.status == -1] + [p for p in event.particles if p.status == 1]


def _rows(path: Path, events: Iterable[Any], process: Process, names: list[str]) -> Iterator[list[float]]:
    """For each event its momenta, its weight and the named weights, 4 n + 1 + len(names) numbers."""
    status = [-1] * process.n_incoming + [1] * (process.n_legs - process.n_incoming)
    for k, event in enumerate(events):
        legs = _legs(event)
        same = all(known in (0, leg.id) for known, leg in zip(process.pdg_ids, legs, strict=False))
        if not same or [leg.status for leg in legs] != status:
            raise AmpsureError(
                f"Event {k} of {path.name} has the particles {_words(legs)}, which is not {process.label}:"
                " keep events of one process, in one order, in a file."
            )
        if event.eventinfo.nparticles != len(event.particles) or not event.weights.keys() >= set(names):
            raise AmpsureError(
                f"Event {k} of {path.name} lacks a particle or a weight of {names}: write the file again."
            )
        momenta = [x for leg in legs for x in (leg.e, leg.px, leg.py, leg.pz)]
        yield [*momenta, event.eventinfo.weight, *(event.weights[name] for name in names)]


def _words(legs: list[Any]) -> str:
    return " > ".join(" ".join(str(leg.id) for leg in legs if leg.status == status) for status in (-1, 1))


def _table(rows: Iterator[list[float]], size: int, width: int) -> NDArray[np.float64]:
    """The next `size` rows or fewer, (N, width)."""
    with _warnings_are_errors():
        return np.fromiter(islice(rows, size), dtype=np.dtype((np.float64, width)))


def _columns(table: NDArray[np.float64], process: Process, names: list[str]) -> dict[str, Any]:
    """What `_rows` yields, (N, 4 n + 1 + len(names)), as arrays by name."""
    momenta, others = np.split(table, [4 * process.n_legs], axis=1)
    columns: dict[str, Any] = {"momenta": momenta.reshape(len(table), -1, 4)}
    columns |= zip(("weights", *names), others.T, strict=True)
    if "trainable" in columns:
        columns["trainable"] = columns["trainable"] != 0
    if "amplitude" not in columns:
        columns["amplitude"] = _amplitude(columns["momenta"], process)
    return columns


def _exact_source(path: Path, process: Process) -> str:
    if process.exact is None:
        raise AmpsureError(
            f"{path.name} has no weight named 'amplitude', and the exact amplitude of {process.label} is not known:"
            " add the weight, or register the process with ampsure.register_process."
        )
    return f"exact, of process {process.name}, computed from {path.name}"


def _amplitude(momenta: NDArray[np.float64], process: Process) -> NDArray[np.float64]:
    """The exact amplitude, NaN where it is not defined: (N, n, 4) -> (N,)."""
    good = ~find_invalid(momenta, process.masses, process.n_incoming, beams_along_z=True)[0]
    good[good] = ~find_collinear(momenta[good])
    amplitude = np.full(len(momenta), np.nan)
    amplitude[good] = process.amplitude(momenta[good])
    return amplitude


def import_pylhe() -> Any:
    try:
        import pylhe
    except ImportError as error:
        raise AmpsureError("LHE files need pylhe: install it with pip install 'ampsure[lhe]'.") from error
    return pylhe


@contextmanager
def _warnings_are_errors() -> Iterator[None]:
    """pylhe ends quietly, with a warning, where a file is cut off; events would be lost."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


class _Unpacked(gzip.GzipFile):
    """A compressed file that may be a trap: neither all of it nor one line is longer than in any file of events."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        super().__init__(fileobj=file)
        self._path = path

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        check_unpacked(self._path, self.tell())
        return data

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(_LONGEST_LINE)
        check_unpacked(self._path, self.tell())
        if len(line) == _LONGEST_LINE:
            raise AmpsureError(f"{self._path.name} has a line of more than {_LONGEST_LINE:,} bytes: write it again.")
        return line


@contextmanager
def _open_to_read(path: Path) -> Iterator[IO[bytes]]:
    with open(path, "rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not compressed:
            yield file
            return
        with _Unpacked(path, file) as unpacked:
            yield unpacked  # type: ignore[misc]  # a reader of bytes in all but name


@contextmanager
def _open_to_write(path: Path) -> Iterator[IO[str]]:
    """Plain or compressed; neither a date nor the temporary name gets into the file."""
    with ExitStack() as stack:
        file: Any = stack.enter_context(open(path, "wb"))
        if path.suffix.lower() == ".gz":
            file = stack.enter_context(gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(file, "ascii", newline="\n"))
