"""Events in files: `load`, `save` and `stream`, by suffix HDF5, LHE or numpy.

Files larger than memory are HDF5: `appending` writes them part by part, an `EventFile` reads them that way.

Round trips are exact to the bit. What a file holds is checked before it becomes `Events`, and every failure is an
`AmpsureError` of one sentence that names the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.memory import available_memory
from ampsure.processes import Process, get_process

from . import hdf5, lhe, numpy
from .atomic import check_writable, locked, make_folder, replacing, temporary_beside
from .hdf5 import PART, Columns, EventFile, Writer, checksum

__all__ = [
    "FORMATS",
    "PART",
    "EventFile",
    "appending",
    "check_target",
    "checksum",
    "load",
    "load_or_open",
    "locked",
    "make_folder",
    "replacing",
    "save",
    "save_columns",
    "stream",
    "temporary_beside",
]


class Format(Protocol):
    """A module of this package that knows a kind of file."""

    def read(self, path: Path, process: Process | None = None) -> Events: ...

    def iterate(self, path: Path, size: int, process: Process | None = None) -> Iterator[Events]: ...

    def write(self, events: Events, path: Path) -> None: ...


FORMATS: dict[str, Format] = {
    ".h5": hdf5,
    ".hdf5": hdf5,
    ".lhe": lhe,
    ".lhe.gz": lhe,
    ".npy": numpy,
    ".npz": numpy,
}
"""Suffix -> the module that reads and writes it."""


def load(
    path: str | os.PathLike[str], *, process: Process | str | None = None, invalid: str = "error", signed: bool = False
) -> Events:
    """All events of a file, each of them valid.

    Args:
        process: overrides what the file says, but must have the same legs; without either, two legs come in and the
            masses are read off the momenta.
        invalid, signed: see `Events.validated`.
    """
    path, file_format = _existing(path)
    events = file_format.read(path, get_process(process) if isinstance(process, str) else process)
    valid = events.validated(invalid=invalid, signed=signed, source=path.name)
    if not len(valid):
        raise _nothing_valid(path)
    return valid


def load_or_open(
    path: str | os.PathLike[str],
    *,
    process: Process | str | None = None,
    invalid: str = "error",
    signed: bool = False,
    memory: float | None = None,
) -> Events | EventFile:
    """All events of a file, or, where training on them in memory would take too much of it, the HDF5 file itself.

    Args:
        process, invalid, signed: see `load`.
        memory: GiB that may be taken; by default half of what is available.
    """
    existing, file_format = _existing(path)
    if file_format is hdf5:
        limit = available_memory() / 2 if memory is None else memory * 2**30
        file = EventFile(existing, process=get_process(process) if isinstance(process, str) else process, signed=signed)
        if len(file) * 8 * 4 * file.process.n_legs * _COPIES > limit:
            if invalid != "error":
                raise AmpsureError(
                    f"{existing.name} is larger than memory, and its invalid events cannot be dropped on the way:"
                    " run ampsure convert --invalid drop first."
                )
            return file
    return load(path, process=process, invalid=invalid, signed=signed)


@contextmanager
def appending(path: str | os.PathLike[str]) -> Iterator[Writer]:
    """A new HDF5 file that takes `Events` part by part, by `append`: whole or not at all, in bounded memory."""
    if _format(Path(path)) is not hdf5:
        raise AmpsureError(f"Events are appended to HDF5 files alone, not to {Path(path).name}: name it .h5.")
    with replacing(path) as temporary, Writer(temporary) as file:
        yield file


def save(events: Events, path: str | os.PathLike[str]) -> None:
    """Write events in the format the suffix names, whole or not at all.

    A .npy keeps neither process nor provenance; every other format keeps everything.
    """
    file_format = _format(Path(path))
    if not len(events):
        raise AmpsureError(f"There are no events to write to {Path(path).name}.")
    with replacing(path) as temporary:
        file_format.write(events, temporary)


def save_columns(parts: Iterable[Mapping[str, NDArray[Any]]], path: str | os.PathLike[str], kind: str) -> None:
    """Write arrays by name that come in parts: as HDF5 in bounded memory, or as .npz, for which all are put together.

    Args:
        kind: of the contents, e.g. "ampsure-predictions"; an attribute of an HDF5 file.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".npz", ".h5", ".hdf5"):
        raise AmpsureError(f"{Path(path).name} has an unknown suffix: write .npz or .h5.")
    with replacing(path) as temporary:
        if suffix == ".npz":
            given = [dict(part) for part in parts]
            columns: dict[str, Any] = {name: np.concatenate([part[name] for part in given]) for name in given[0]}
            np.savez(temporary, **columns)
            return
        with Columns(temporary) as file:
            file.describe(format=kind)
            for part in parts:
                for name, values in part.items():
                    file.extend(name, values)


def check_target(path: str | os.PathLike[str]) -> None:
    """Whether events could be saved under this name: its format is known and its folder can be written to."""
    if _format(Path(path)) is lhe:
        lhe.import_pylhe()
    check_writable(path)


def stream(
    path: str | os.PathLike[str],
    size: int = 100_000,
    *,
    process: Process | None = None,
    invalid: str = "error",
    signed: bool = False,
) -> Iterator[Events]:
    """The events of a file, at most `size` at a time, in bounded memory (but a .npz is loaded whole); see `load`.

    What a part says of dropped events is about all of the file that has been read.
    """
    path, file_format = _existing(path)
    if size < 1:
        raise AmpsureError(f"The size of a part must be at least 1, not {size}.")
    return _validated(path, file_format.iterate(path, size, process), invalid, signed)


def _validated(path: Path, parts: Iterator[Events], invalid: str, signed: bool) -> Iterator[Events]:
    start = n_valid = 0
    dropped: dict[str, Any] = {"events": 0, "reasons": {}}
    for part in parts:
        stop = start + len(part)
        valid = part.validated(invalid=invalid, signed=signed, source=f"{path.name}[{start}:{stop}]")
        start, n_valid = stop, n_valid + len(valid)
        if len(valid) < len(part):
            found = valid.provenance["dropped"]["reasons"]
            dropped["events"] += len(part) - len(valid)
            dropped["reasons"].update({name: dropped["reasons"].get(name, 0) + n for name, n in found.items()})
        if dropped["events"]:
            valid.provenance["dropped"] = dropped
        if len(valid):
            yield valid
    if not n_valid:
        raise _nothing_valid(path)


_COPIES = 6  # memory of a training, in units of its momenta: their columns, features, and what becomes of them


def _existing(path: str | os.PathLike[str]) -> tuple[Path, Format]:
    path = Path(path)
    if os.path.isdir(path):
        raise AmpsureError(f"{path} is a folder: give the name of a file of events.")
    if not os.path.exists(path):
        raise AmpsureError(f"There is no file {path}: check its name.")
    if not os.path.isfile(path):
        raise AmpsureError(f"{path} is not a regular file: give the name of a file of events.")
    return path, _format(path)


def _format(path: Path) -> Format:
    for suffix, file_format in FORMATS.items():
        if path.name.lower().endswith(suffix):
            return file_format
    raise AmpsureError(f"{path.name} has an unknown suffix: known are {', '.join(FORMATS)}.")


def _nothing_valid(path: Path) -> AmpsureError:
    return AmpsureError(f"No event of {path.name} is valid: load it with invalid='error' to see why.")
