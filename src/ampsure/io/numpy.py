"""Numpy's own files; nothing in them is ever unpickled.

.npz: arrays `momenta` (N, n, 4) and `amplitude` (N,), optionally the other columns of `Events` (N,), and the JSON texts
`process` and `provenance`. .npy: the flat array (N, 4 n + 1) common in the field, a row being the momenta of all legs
and the amplitude; it has no place for a process or a provenance, and events with other columns to keep are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ampsure.errors import AmpsureError
from ampsure.events import Events
from ampsure.processes import Process

from .checks import ARRAYS, parts, process_of, provenance_of, reading, to_json, trivial_columns

__all__ = ["iterate", "read", "write"]


def read(path: Path, process: Process | None = None) -> Events:
    """The whole file."""
    (events,) = _parts(path, None, process)
    return events


def iterate(path: Path, size: int, process: Process | None = None) -> Iterator[Events]:
    """`size` events at a time; a .npy is mapped, a .npz loaded first."""
    return _parts(path, size, process)


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
        with open(path, "wb") as file:  # given a name, savez adds .npz to .NPZ
            np.savez(file, **arrays)


def _is_flat(path: Path) -> bool:
    return path.suffix.lower() == ".npy"


def _parts(path: Path, size: int | None, process: Process | None) -> Iterator[Events]:
    with reading(path, f"a {path.suffix.lower()} file of plain numbers"):
        if _is_flat(path):
            yield from parts(path, _map_flat(path), size, process, {})
        else:
            arrays = _load_archive(path)
            text = {name: _text(path, name, arrays.pop(name, None)) for name in ("process", "provenance")}
            process = process_of(path, process, text["process"])
            yield from parts(path, arrays, size, process, provenance_of(path, text["provenance"]))


def _map_flat(path: Path) -> dict[str, Any]:
    """(N, 4 n + 1) on disk -> momenta (N, n, 4) and amplitude (N,), without copying."""
    rows = np.lib.format.open_memmap(path, mode="r")
    if rows.ndim != 2 or rows.shape[1] < 13 or rows.shape[1] % 4 != 1:
        raise AmpsureError(
            f"{path.name} must hold an array (N, 4 n + 1), a row being the momenta of n >= 3 legs and the amplitude,"
            f" not {rows.shape}."
        )
    return {"momenta": rows[:, :-1].reshape(len(rows), -1, 4), "amplitude": rows[:, -1]}


def _load_archive(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise AmpsureError(f"{path.name} is a single array, not an archive: rename it to .npy.")
        with archive:
            return {name: archive[name] for name in (*ARRAYS, "process", "provenance") if name in archive.files}


def _text(path: Path, name: str, array: Any) -> str | None:
    if array is None:
        return None
    if array.ndim or array.dtype.kind != "U":
        raise AmpsureError(f"{name} in {path.name} must be a JSON text, not an array of {array.dtype}.")
    return str(array)
