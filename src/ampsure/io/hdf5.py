"""HDF5 (.h5, .hdf5), the native format: everything `Events` hold, compressed without loss.

One dataset for each of `momenta` (N, n, 4) and the columns (N,); truth, noise, weights and trainable are left out where
they are what `Events` fill in. Attributes of the file: `format`, `schema_version`, `process` and `provenance` (JSON),
and the `checksum` of the function below.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.processes import Process

from . import checks
from .checks import ARRAYS, reading

__all__ = ["checksum", "iterate", "read", "write"]

FORMAT = "ampsure-events"
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_ROWS = 4096  # events in a chunk: about half a megabyte


def checksum(events: Events) -> str:
    """SHA-256 of the events: for each of `ARRAYS` its name and its numbers, little-endian in C order.

    It is the same for the same events in every format; process and provenance do not enter.
    """
    digest = hashlib.sha256()
    for name in ARRAYS:
        column = getattr(events, name)
        digest.update(name.encode())
        for start in range(0, len(column), _ROWS):
            chunk = np.ascontiguousarray(column[start : start + _ROWS])
            digest.update(chunk.astype(chunk.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def read(path: Path, process: Process | None = None) -> Events:
    """The whole file, compared with its checksum."""
    with reading(path, "an HDF5 file"), h5py.File(path, "r") as file:
        (events,) = _parts(path, file, None, process)
        if checksum(events) != _text(file, "checksum"):
            raise AmpsureError(f"{path.name} is damaged: its contents do not match its checksum; write it again.")
        return events


def iterate(path: Path, size: int, process: Process | None = None) -> Iterator[Events]:
    """`size` events at a time. The checksum is not compared: it would take the whole file before the first event."""
    with reading(path, "an HDF5 file"), h5py.File(path, "r") as file:
        yield from _parts(path, file, size, process)


def write(events: Events, path: Path) -> None:
    texts = {
        "format": FORMAT,
        "process": checks.to_json(events.process.to_dict()),
        "provenance": checks.to_json(events.provenance),
        "checksum": checksum(events),
    }
    trivial = checks.trivial_columns(events)
    columns = {name: getattr(events, name) for name in ARRAYS if name not in trivial}
    image = BytesIO()  # HDF5 itself does not survive a full disk: it may crash the interpreter
    with h5py.File(image, "w", libver=("v110", "v110")) as file:  # older layouts have no checksums of their own
        file.attrs["schema_version"] = checks.SCHEMA_VERSION
        for name, text in texts.items():
            file.attrs[name] = np.bytes_(text)  # of fixed length; HDF5 may hang where a variable one is damaged
        for name, column in columns.items():
            chunks = (min(_ROWS, len(column)), *column.shape[1:])
            file.create_dataset(name, data=column, chunks=chunks, compression="gzip", compression_opts=4, shuffle=True)
    path.write_bytes(image.getbuffer())


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
