"""HDF5 (.h5, .hdf5), the native format: everything `Events` hold, compressed without loss.

One dataset for each of `momenta` (N, n, 4) and the columns (N,); truth, noise, weights and trainable are left out where
they are what `Events` fill in. Attributes of the file: `format`, `schema_version`, `process` and `provenance` (JSON),
and the `checksum` of the function below. `Writer` appends to a new file, `EventFile` reads one in parts: neither holds
more than a part in memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from ampsure.errors import AmpsureError
from ampsure.events import Events, split_indices
from ampsure.processes import Process

from . import checks
from .checks import ARRAYS, reading

__all__ = ["PART", "Columns", "EventFile", "Writer", "checksum", "iterate", "read", "write"]

FORMAT = "ampsure-events"
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_ROWS = 4096  # events in a chunk: about half a megabyte
PART = 8 * _ROWS
"""Events read or written at a time, where memory is bounded; whole chunks."""

_FILLED_IN: dict[str, Any] = {"noise": 0.0, "weights": 1.0, "trainable": True}


def checksum(events: Events | EventFile) -> str:
    """SHA-256 of the events: for each of `ARRAYS` its name and its numbers, little-endian in C order.

    It is the same for the same events in every format; process and provenance do not enter.
    """
    if isinstance(events, EventFile):
        return events.checksum
    digest = hashlib.sha256()
    for name in ARRAYS:
        digest.update(name.encode())
        _add(digest, getattr(events, name))
    return digest.hexdigest()


def _add(digest: Any, column: Any) -> None:
    """Numbers of an array or a dataset, to a hash."""
    for start in range(0, len(column), PART):
        chunk = np.ascontiguousarray(column[start : start + PART])
        digest.update(chunk.astype(chunk.dtype.newbyteorder("<"), copy=False).data)


def read(path: Path, process: Process | None = None) -> Events:
    """The whole file, compared with its checksum."""
    with reading(path, "an HDF5 file"), h5py.File(path, "r") as file:
        (events,) = _parts(path, file, None, process)
        _compare(path, file, checksum(events))
        return events


def iterate(path: Path, size: int, process: Process | None = None) -> Iterator[Events]:
    """`size` events at a time; the checksum is compared after the last."""
    with reading(path, "an HDF5 file"), h5py.File(path, "r") as file:
        digest = hashlib.sha256(ARRAYS[0].encode())
        for part in _parts(path, file, size, process):
            _add(digest, part.momenta)
            yield part
        _compare(path, file, _with_columns(digest, file))


def write(events: Events, path: Path) -> None:
    with Writer(path) as file:
        file.append(events)


class EventFile:
    """The events of a file that may be larger than memory: what `Events` say of themselves, and parts of them.

    Args:
        process: overrides what the file says, as in `ampsure.load`.
        signed: allow amplitudes that change sign.
    """

    def __init__(self, path: str | os.PathLike[str], *, process: Process | None = None, signed: bool = False) -> None:
        self.path, self._signed = Path(path), signed
        with reading(self.path, "an HDF5 file"), h5py.File(self.path, "r") as file:
            first = next(_parts(self.path, file, 1, process))
            self._n = len(file["momenta"])
            self.checksum = _text(file, "checksum")
            """As the file has it; compared whenever all parts have been read."""
        self.process, self.provenance = first.process, first.provenance

    def __len__(self) -> int:
        return self._n

    def parts(self) -> Iterator[Events]:
        """All events in order, `PART` at a time, each of them valid."""
        start = 0
        for part in iterate(self.path, PART, self.process):
            stop = start + len(part)
            yield part.validated(signed=self._signed, source=f"{self.path.name}[{start}:{stop}]")
            start = stop

    def take(self, indices: NDArray[np.int64]) -> Events:
        """These events, in this order; they have to fit into memory."""
        order = np.argsort(indices, kind="stable")
        wanted, start, found = indices[order], 0, []
        for part in self.parts():
            first, last = np.searchsorted(wanted, (start, start + len(part)))
            found.append(part[wanted[first:last] - start])
            start += len(part)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return Events.concatenate(found)[place]

    def split_indices(
        self, seed: int, fractions: tuple[float, float, float]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """As of `Events`; takes 16 bytes an event."""
        with reading(self.path, "an HDF5 file"), h5py.File(self.path, "r") as file:
            trainable = np.asarray(_column(file, "trainable")[:])
        return split_indices(trainable, seed, fractions)


class Columns:
    """A new HDF5 file whose datasets grow, compressed; where the disk is full, `OSError` is raised once and for all."""

    def __init__(self, path: Path) -> None:
        self._sink = _Sink(path)
        # older layouts have no checksums of their own
        self.file = h5py.File(self._sink, "w", libver=("v110", "v110"))

    def extend(self, name: str, values: NDArray[Any], *, start: int = 0, fill: Any = None) -> None:
        """Append values (n, ...) to a dataset, which is made if it is not there, with `start` rows of `fill`."""
        if name not in self.file:
            shape, chunks = values.shape[1:], (_ROWS, *values.shape[1:])
            options = {"compression": "gzip", "compression_opts": 4, "shuffle": True, "fillvalue": fill}
            rows = (start, *shape), (None, *shape)
            self.file.create_dataset(name, rows[0], values.dtype, maxshape=rows[1], chunks=chunks, **options)
        dataset = self.file[name]
        n = len(dataset)
        dataset.resize(n + len(values), axis=0)
        dataset[n:] = values
        self._sink.check()

    def describe(self, **texts: str) -> None:
        """Attributes of the file."""
        self.file.attrs["schema_version"] = checks.SCHEMA_VERSION
        for name, text in texts.items():
            self.file.attrs[name] = np.bytes_(text)  # of fixed length; HDF5 may hang where a variable one is damaged

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            with suppress(*(() if self._sink.error is None else (Exception,))):  # HDF5 may miss what was not written
                self.file.close()
            self._sink.close()
        if kind is None or issubclass(kind, Exception):  # which may be HDF5's way to say the same
            self._sink.check()

    def finish(self) -> None:
        """What is known only at the end."""


class Writer(Columns):
    """Appends parts of events to a new file; the provenance is that of the last one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._digest = hashlib.sha256(ARRAYS[0].encode())
        self._n = 0
        self._process: Process | None = None
        self.provenance: dict[str, Any] = {}

    def __len__(self) -> int:
        return self._n

    def append(self, events: Events) -> None:
        self._process, self.provenance = self._process or events.process, events.provenance
        if events.process != self._process:
            raise AmpsureError("Events of different processes cannot be put into one file.")
        trivial = checks.trivial_columns(events)
        for name in ARRAYS:
            if name == "truth" and name not in trivial and name not in self.file:
                for start in range(0, self._n, PART):  # until now it was the amplitude
                    self.extend(name, self.file["amplitude"][start : min(start + PART, self._n)])
            if name not in trivial or name in self.file:
                self.extend(name, getattr(events, name), start=self._n, fill=_FILLED_IN.get(name))
        self.count(events)

    def count(self, events: Events) -> None:
        """Events that have come into the file."""
        _add(self._digest, events.momenta)
        self._n += len(events)

    def finish(self) -> None:
        if self._process is None:
            raise AmpsureError("There are no events to write.")
        self.describe(
            format=FORMAT,
            process=checks.to_json(self._process.to_dict()),
            provenance=checks.to_json(self.provenance),
            checksum=_with_columns(self._digest, self.file),
        )


class _Sink(FileIO):
    """A file that never fails to write: HDF5 does not survive a full disk, and may crash the interpreter.

    The first error is kept, and everything after it is forgotten; `check` raises it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self.error is None and len(rest):
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def _parts(path: Path, file: Any, size: int | None, process: Process | None) -> Iterator[Events]:
    if _text(file, "format") != FORMAT:
        raise AmpsureError(
            f"{path.name} is an HDF5 file, but not one of ampsure: store momenta and amplitude as .npz and load that."
        )
    checks.check_schema(path, _attribute(file, "schema_version", h5py.h5t.TypeIntegerID))
    datasets = {name: _dataset(path, file, name) for name in ARRAYS if file.id.links.exists(name.encode())}
    checks.check_unpacked(path, sum(8 * prod(dataset.shape) for dataset in datasets.values()))
    process = checks.process_of(path, process, _text(file, "process"))
    provenance = checks.provenance_of(path, _text(file, "provenance"))
    yield from checks.parts(path, datasets, size, process, provenance)


def _column(file: Any, name: str) -> Any:
    """A column as a dataset, or as what `Events` fill in for it."""
    if name in file or name in ("momenta", "amplitude"):
        return file[name]
    if name == "truth":
        return file["amplitude"]
    return np.broadcast_to(np.asarray(_FILLED_IN[name]), len(file["amplitude"]))


def _with_columns(digest: Any, file: Any) -> str:
    """The checksum, given the hash of the momenta."""
    for name in ARRAYS[1:]:
        digest.update(name.encode())
        _add(digest, _column(file, name))
    return str(digest.hexdigest())


def _compare(path: Path, file: Any, found: str) -> None:
    if found != _text(file, "checksum"):
        raise AmpsureError(f"{path.name} is damaged: its contents do not match its checksum; write it again.")


def _dataset(path: Path, file: Any, name: str) -> Any:
    """Numbers that lie in this file, in chunks that may be unpacked, with filters that HDF5 has built in."""
    wanted = np.dtype(bool if name == "trainable" else np.float64)
    here = isinstance(file.get(name, getlink=True), h5py.HardLink)
    dataset = file[name] if here else None
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None or dataset.dtype != wanted:
        raise AmpsureError(f"{name} in {path.name} is not a dataset of {wanted}: write the file again.")
    properties = dataset.id.get_create_plist()
    filters = {properties.get_filter(k)[0] for k in range(properties.get_nfilters())}
    if dataset.is_virtual or dataset.external or not filters <= _FILTERS:
        raise AmpsureError(f"{name} in {path.name} needs other files or programs to be read: write the file again.")
    checks.check_unpacked(path, 8 * prod(dataset.chunks or ()))
    return dataset


def _text(file: Any, name: str) -> str:
    text = _attribute(file, name, h5py.h5t.TypeStringID)
    return text.decode() if isinstance(text, bytes) else ""


def _attribute(file: Any, name: str, kind: type) -> Any:
    """An attribute of this kind, None otherwise; texts of variable length too, on which HDF5 may hang if damaged."""
    if name not in file.attrs:
        return None
    found = file.attrs.get_id(name).get_type()
    if not isinstance(found, kind) or (isinstance(found, h5py.h5t.TypeStringID) and found.is_variable_str()):
        return None
    return file.attrs[name]
