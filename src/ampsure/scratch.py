"""Numbers in temporary files, for what is larger than memory: a `Column` is a tensor, or `Stored` and read in chunks.

What works on chunks takes both: `parts`, `each`, `lazily`, `sample`. A tensor is one part, so that for data in memory
they are the plain operations, to the bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampsure.errors import AmpsureError

__all__ = ["Column", "Scratch", "Stored", "each", "lazily", "mean_square", "parts", "sample"]

_CHUNK = 8192  # rows that go through a network at a time
_PART = 1 << 16  # rows of one part


class Stored:
    """Rows (N, ...) in a file, which is removed with the last object that reads it.

    Args:
        scratch: where columns made from this one go.
        device: where rows go when they are read.
        function: of rows, on the CPU, applied when they are read.
    """

    def __init__(
        self, file: _File, scratch: Scratch, device: torch.device, function: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._file, self.scratch, self.device, self._function = file, scratch, device, function

    def __len__(self) -> int:
        return self._file.n

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self), *self.host(0, 1).shape[1:]

    def host(self, start: int, stop: int) -> Tensor:
        """Rows in memory of the CPU."""
        rows = torch.from_numpy(self._file.read(start, min(stop, self._file.n)))
        return rows if self._function is None else self._function(rows)

    def split(self, size: int) -> Iterator[Tensor]:
        """All rows in order, as `Tensor.split`."""
        for start in range(0, len(self), size):
            yield self.host(start, start + size).to(self.device)

    def to(self, kind: torch.device | torch.dtype) -> Stored:
        """The same for another device, or in another precision."""
        if isinstance(kind, torch.device):
            return Stored(self._file, self.scratch, kind, self._function)
        return self.lazily(lambda rows: rows.to(kind))

    def lazily(self, function: Callable[[Tensor], Tensor]) -> Stored:
        """The same with a function of the rows applied."""
        before = self._function
        return Stored(
            self._file, self.scratch, self.device, function if before is None else lambda rows: function(before(rows))
        )


Column = Tensor | Stored
"""Rows (N, ...), in memory or in a file."""


def parts(column: Column) -> Iterable[Tensor]:
    """All rows, in parts that fit into memory; one part if they are there."""
    return (column,) if isinstance(column, Tensor) else column.split(_PART)


def sample(column: Column) -> Tensor:
    """Rows that stand for all where a sort is needed: all, or the first two windows if they are stored."""
    return column if isinstance(column, Tensor) else column.host(0, 2 * column.scratch.window).to(column.device)


def lazily(function: Callable[[Tensor], Tensor], column: Column) -> Column:
    """A function of each row, worked out at once in memory, and when it is read if it is stored."""
    return function(column) if isinstance(column, Tensor) else column.lazily(function)


def each(function: Callable[..., Tensor], *columns: Column) -> Column:
    """A function of chunks of columns of one length, put together; it may leave out rows."""
    chunks = (function(*chunk) for chunk in zip(*(column.split(_CHUNK) for column in columns), strict=True))
    stored = next((column for column in columns if isinstance(column, Stored)), None)
    return torch.cat(list(chunks)) if stored is None else stored.scratch.write(chunks, stored.device)


def mean_square(column: Column) -> Tensor:
    """Over all numbers of a column (N,)."""
    return torch.stack([len(part) / len(column) * part.square().mean() for part in parts(column)]).sum()


class Scratch:
    """A folder for stored columns, whose rows are in random order.

    Args:
        window: rows of a training that are in memory at a time. All else that is in memory is of about that size.
    """

    def __init__(self, folder: Path, window: int) -> None:
        self.window, self._folder, self._count = window, folder, 0

    @classmethod
    @contextmanager
    def made(cls, parent: Path | None, window: int) -> Iterator[Scratch]:
        """In a new folder, by default among the system's temporary ones, which is removed at the end."""
        try:
            with TemporaryDirectory(prefix="scratch-", dir=parent, ignore_cleanup_errors=True) as folder:
                yield cls(Path(folder), window)
        except OSError as error:
            where = parent or "the folder for temporary files (TMPDIR)"
            raise AmpsureError(
                f"Scratch files cannot be kept in {where} ({error.strerror}): free some space or choose another folder."
            ) from error

    def write(self, chunks: Iterable[Tensor], device: torch.device) -> Stored:
        """Chunks of rows, one after the other."""
        return self._write((chunk.cpu().numpy() for chunk in chunks), device)

    def ordered(self, given: Iterable[tuple[NDArray[np.int64], NDArray[np.float64]]], n: int) -> Stored:
        """n rows in the order of their places, given as (places (m,), rows (m, F)) in any order.

        Rows are dealt out to buckets by their place, and each bucket is put into order in memory.
        """
        size = max(self.window // 4, 1)
        buckets = [self._path() for _ in range(0, n, size)]
        for places, rows in given:
            order = np.argsort(places, kind="stable")
            table = np.column_stack([places, rows])[order]
            bounds = np.searchsorted(table[:, 0], np.arange(len(buckets) + 1) * size)
            for path, start, stop in zip(buckets, bounds[:-1], bounds[1:], strict=True):
                if stop > start:
                    with open(path, "ab") as file:
                        file.write(table[start:stop].data)
        width = 1 + rows.shape[1]

        def put_into_order() -> Iterator[NDArray[np.float64]]:
            for path in buckets:
                table = np.fromfile(path).reshape(-1, width)
                path.unlink()
                yield np.ascontiguousarray(table[np.argsort(table[:, 0]), 1:])

        return self._write(put_into_order(), torch.device("cpu"))

    def _write(self, chunks: Iterable[NDArray[Any]], device: torch.device) -> Stored:
        path, n = self._path(), 0
        with open(path, "wb") as file:
            for chunk in chunks:
                file.write(np.ascontiguousarray(chunk).data)
                n += len(chunk)
        return Stored(_File(path, n, chunk.shape[1:], chunk.dtype), self, device)

    def _path(self) -> Path:
        self._count += 1
        return self._folder / f"{self._count}.bin"


class _File:
    """n rows of one shape and kind, as they are in memory."""

    def __init__(self, path: Path, n: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.n, self._path, self._shape, self._dtype = n, path, shape, dtype
        self._width = int(np.prod(shape))
        weakref.finalize(self, path.unlink, missing_ok=True)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows, in memory of their own."""
        count, size = max(stop - start, 0) * self._width, self._dtype.itemsize
        rows = np.fromfile(self._path, self._dtype, count, offset=start * self._width * size)
        return rows.reshape(-1, *self._shape)
