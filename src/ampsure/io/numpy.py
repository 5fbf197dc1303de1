"""Numpy's own files; nothing in them is ever unpickled.

.npz: arrays `momenta` (N, n, 4) and `amplitude` (N,), optionally the other columns of `Events` (N,), the JSON texts
`process` and `provenance`, and `schema_version` if ampsure wrote it. .npy: the flat array (N, 4 n + 1) common in the
field, a row being the momenta of all legs and the amplitude; it has no place for a process, a provenance or a schema,
and events with other columns to keep are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np

from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.processes import Process

from .checks import (
    ARRAYS,
    SCHEMA_VERSION,
    check_schema,
    check_unpacked,
    parts,
    process_of,
    provenance_of,
    reading,
    to_json,
    trivial_columns,
)

__all__ = ["iterate", "read", "read_momenta", "write"]


def read(path: Path, process: Process | None = None) -> Events:
    """The whole file."""
    (events,) = _parts(path, None, process)
    return events


def iterate(path: Path, size: int, process: Process | None = None) -> Iterator[Events]:
    """`size` events at a time; a .npy is mapped, a .npz loaded first."""
    return _parts(path, size, process)


def read_momenta(path: Path) -> Any:
    """The array of a .npy, or the array `momenta` of a .npz, whatever its shape is."""
    with reading(path, f"a {path.suffix.lower()} file of plain numbers"):
        if _is_flat(path):
            return np.array(_map(path))
        if "momenta" not in (arrays := _load_archive(path, ("momenta",))):
            raise AmpsureError(f"{path.name} has no array 'momenta': store momenta (N, n, 4).")
        return arrays["momenta"]


def write(events: Events, path: Path) -> None:
    if _is_flat(path):
        lost = sorted({"truth", "noise", "weights", "trainable"} - trivial_columns(events))
        if lost:
            raise AmpsureError(
                f"A .npy file holds momenta and amplitude, and would lose {', '.join(lost)}: save as .npz."
            )
        np.save(path, np.column_stack([events.momenta.reshape(len(events), -1), events.amplitude]), allow_pickle=False)
    else:
        arrays: dict[str, Any] = {name: getattr(events, name) for name in ARRAYS}
        arrays |= {"process": to_json(events.process.to_dict()), "provenance": to_json(events.provenance)}
        arrays["schema_version"] = SCHEMA_VERSION
        with open(path, "wb") as file:  # given a name, savez adds .npz to .NPZ
            np.savez(file, **arrays)


def _is_flat(path: Path) -> bool:
    return path.suffix.lower() == ".npy"


def _parts(path: Path, size: int | None, process: Process | None) -> Iterator[Events]:
    with reading(path, f"a {path.suffix.lower()} file of plain numbers"):
        if _is_flat(path):
            yield from parts(path, _map_flat(path), size, process, {})
        else:
            arrays = _load_archive(path, (*ARRAYS, "process", "provenance", "schema_version"))
            if "schema_version" in arrays:  # it was not there from the beginning, and is not in files from elsewhere
                version = arrays.pop("schema_version")
                check_schema(path, None if version.ndim else version[()])
            text = {name: _text(path, name, arrays.pop(name, None)) for name in ("process", "provenance")}
            process = process_of(path, process, text["process"])
            yield from parts(path, arrays, size, process, provenance_of(path, text["provenance"]))


def _map_flat(path: Path) -> dict[str, Any]:
    """(N, 4 n + 1) on disk -> momenta (N, n, 4) and amplitude (N,), without copying."""
    rows = _map(path)
    if rows.ndim != 2 or rows.shape[1] < 13 or rows.shape[1] % 4 != 1:
        raise AmpsureError(
            f"{path.name} must hold an array (N, 4 n + 1), a row being the momenta of n >= 3 legs and the amplitude,"
            f" not {rows.shape}."
        )
    return {"momenta": rows[:, :-1].reshape(len(rows), -1, 4), "amplitude": rows[:, -1]}


def _map(path: Path) -> Any:
    with open(path, "rb") as file:
        _check_header(file, path.stat().st_size)
    return np.lib.format.open_memmap(path, mode="r")


def _check_header(file: IO[bytes], size: int) -> None:
    """Whether a file of so many bytes has room for the array of its header: numpy would make it before it looks."""
    head = BytesIO(file.read(2**16))
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = readers[np.lib.format.read_magic(head)](head)
    if min(shape, default=0) < 0 or prod(shape) * max(dtype.itemsize, 1) > size - head.tell():
        raise ValueError(f"an array of {dtype} {shape} in {size} bytes")


def _load_archive(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Those of the arrays that are there; none is larger than it says, and all of them not larger than they may be."""
    with open(path, "rb") as file:
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise AmpsureError(f"{path.name} is a single array, not an archive: rename it to .npy.")
        with ZipFile(file) as archive:
            there = {name: f"{name}.npy" for name in names if f"{name}.npy" in archive.namelist()}
            check_unpacked(path, sum(archive.getinfo(entry).file_size for entry in there.values()))
            return {name: _unpack(archive, entry) for name, entry in there.items()}


def _unpack(archive: ZipFile, entry: str) -> Any:
    with archive.open(entry) as file:
        _check_header(file, archive.getinfo(entry).file_size)
    with archive.open(entry) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _text(path: Path, name: str, array: Any) -> str | None:
    if array is None:
        return None
    if array.ndim or array.dtype.kind != "U":
        raise AmpsureError(f"{name} in {path.name} must be a JSON text, not an array of {array.dtype}.")
    return str(array)
