"""What all formats check alike, so that every bad file is met with one sentence that names it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ampsure.errors import AmpsureError
from ampsure.events import COLUMNS, Events, guess_process
from ampsure.processes import Process

__all__ = [
    "ARRAYS",
    "SCHEMA_VERSION",
    "check_arrays",
    "check_schema",
    "check_unpacked",
    "parts",
    "process_of",
    "provenance_of",
    "reading",
    "to_json",
    "trivial_columns",
]

ARRAYS = ("momenta", *COLUMNS)
"""Names of all arrays of `Events`, in the order in which files hold them."""

SCHEMA_VERSION = 1
"""Of the files that carry one; a reader refuses what is newer than itself."""


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a parser raises on bad bytes into one sentence.

    Args:
        kind: what the file should be, e.g. "an LHE file".
    """
    try:
        yield
    except AmpsureError:
        raise
    except MemoryError as error:
        raise AmpsureError(f"{path.name} does not fit into memory: read it in parts with ampsure.io.stream.") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise AmpsureError(f"{path.name} cannot be read ({os.strerror(error.errno)}): check the file.") from error
        raise AmpsureError(
            f"{path.name} cannot be read as {kind}: it is cut off, damaged or something else; write it again."
        ) from error


def check_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Names, shapes and kinds of what becomes `Events`: numpy arrays, memory maps or HDF5 datasets."""
    for name in ("momenta", "amplitude"):
        if name not in arrays:
            raise AmpsureError(f"{path.name} has no array {name!r}: store momenta (N, n, 4) and amplitude (N,).")
    shape = arrays["momenta"].shape
    if len(shape) != 3 or shape[2] != 4 or shape[1] < 3:
        raise AmpsureError(f"The momenta in {path.name} must have shape (N, n, 4) with n >= 3, not {shape}.")
    if shape[0] == 0:
        raise AmpsureError(f"{path.name} holds no events: write at least one.")
    for name, array in arrays.items():
        if name != "momenta" and array.shape != shape[:1]:
            raise AmpsureError(f"{name} in {path.name} must have shape {shape[:1]}, not {array.shape}.")
        if array.dtype.kind not in ("biu" if name == "trainable" else "fiu"):
            wanted = "true or false" if name == "trainable" else "real numbers"
            raise AmpsureError(f"{name} in {path.name} must hold {wanted}, not {array.dtype}.")


def check_schema(path: Path, version: Any) -> None:
    if not isinstance(version, int | np.integer) or version < 1:
        raise AmpsureError(f"{path.name} has no valid schema version: it is damaged; write it again.")
    if version > SCHEMA_VERSION:
        raise AmpsureError(f"{path.name} was written by a newer ampsure (schema {version}): update ampsure to read it.")


def check_unpacked(path: Path, size: int) -> None:
    """Whether so many bytes may come out of this file: no events are compressed a hundred times, but traps are."""
    if size > 2**24 + 100 * path.stat().st_size:
        raise AmpsureError(f"{path.name} would unpack to {size:,} bytes, which no file of events of its size does.")


def parts(
    path: Path, arrays: Mapping[str, Any], size: int | None, process: Process | None, provenance: dict[str, Any]
) -> Iterator[Events]:
    """The arrays as `Events`, `size` at a time, or all at once if it is None; each part owns its memory."""
    check_arrays(path, arrays)
    n, n_legs = arrays["momenta"].shape[:2]
    if process is None:
        sample = np.asarray(arrays["momenta"][:1000], dtype=np.float64)
        process = guess_process(sample[np.isfinite(sample).all((1, 2))])
    if n_legs != process.n_legs:
        raise AmpsureError(
            f"{path.name} has events of {n_legs} legs, but process {process.name!r} has {process.n_legs}."
        )
    for start in range(0, n, size or n):
        part = slice(start, start + (size or n))
        columns = {name: np.array(array[part]) for name, array in arrays.items()}
        yield Events(process=process, provenance=dict(provenance), **columns)


def process_of(path: Path, given: Process | None, text: str | None) -> Process | None:
    """The process the caller gives, or else the one the file describes; they must have the same legs."""
    if text is None:
        return given
    try:
        stored = Process.from_dict(json.loads(text))
    except (AmpsureError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise AmpsureError(f"The process description in {path.name} is damaged: write the file again.") from error
    if given is None:
        return stored
    other = any(a and b and a != b for a, b in zip(given.pdg_ids, stored.pdg_ids, strict=False))
    if other or (given.n_legs, given.n_incoming) != (stored.n_legs, stored.n_incoming):
        raise AmpsureError(f"{path.name} holds {stored.label}, not {given.label}: give the right process or none.")
    return given


def provenance_of(path: Path, text: str | None) -> dict[str, Any]:
    try:
        provenance = json.loads("{}" if text is None else text)
    except (TypeError, ValueError) as error:
        raise AmpsureError(f"The provenance in {path.name} is damaged: write the file again.") from error
    if not isinstance(provenance, dict):
        raise AmpsureError(f"The provenance in {path.name} is not a dictionary: write the file again.")
    return provenance


def to_json(value: Any) -> str:
    """ASCII text, whatever the value contains."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise AmpsureError(f"The provenance must hold nothing but JSON values to be saved ({error}).") from error


def trivial_columns(events: Events) -> set[str]:
    """Columns that are, to the bit, what `Events` fills in if they are left out."""
    n = len(events)
    default = {"truth": events.amplitude, "noise": np.zeros(n), "weights": np.ones(n), "trainable": np.ones(n, bool)}
    return {name for name, column in default.items() if getattr(events, name).tobytes() == column.tobytes()}
