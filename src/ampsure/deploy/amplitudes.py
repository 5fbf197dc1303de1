"""Exact amplitudes of other programs: a Python callable, a process on the other end of a pipe, a shared library."""

from __future__ import annotations

import ctypes
import os
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ampsure.errors import AmpsureError
from ampsure.kinematics import Array
from ampsure.prediction import Prediction

__all__ = ["ExternalProgram", "Predicts", "SharedLibrary", "UmamiLibrary", "evaluate", "to_numpy"]

Floats = NDArray[np.float64]
Exact = Callable[[Floats], Array]
"""Momenta (N, n, 4) -> squared amplitudes (N,)."""


_TOO_MUCH = "answered more numbers than it was asked for"


class Predicts(Protocol):
    """A `Surrogate`, or whatever predicts as one."""

    def predict(self, momenta: Array) -> Prediction: ...


def to_numpy(values: Any) -> NDArray[Any]:
    """An array of whatever was given, tensors of any device among it."""
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def evaluate(exact: Exact, momenta: Floats, *, signed: bool = True) -> Floats:
    """Exact amplitudes (N,) of momenta (N, n, 4), one finite number a point.

    Args:
        signed: allow negative ones.
    """
    if not len(momenta):
        return np.zeros(0)
    try:
        values = to_numpy(exact(momenta))
    except (TypeError, OverflowError) as error:
        raise AmpsureError(f"The exact amplitude cannot be evaluated: {error}.") from error
    if values.dtype.kind not in "fiu":
        raise AmpsureError(f"The exact amplitude must give real numbers, not {values.dtype}.")
    if values.shape != (len(momenta),):
        raise AmpsureError(f"The exact amplitude must give {len(momenta)} numbers, not an array {values.shape}.")
    bad = ~np.isfinite(values) if signed else ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        kind = "finite" if signed else "finite and not negative"
        raise AmpsureError(
            f"The exact amplitude must be {kind}, but it is not for {int(bad.sum())} of {len(bad)} points."
        )
    return values.astype(np.float64)


class ExternalProgram:
    r"""An amplitude computed by a program that reads momenta from its input and writes amplitudes to its output.

    The program starts with the first points and serves one request after the other until its input ends. As text:

        request   N n                                   answer   N
                  E px py pz of n legs, on one line              A
                  ... N lines                                    ... N lines

    In binary, all little-endian: int64 N, int64 n, N n 4 float64; and back int64 N, N float64. Its output has to be
    flushed after each answer; what it writes to its error stream is quoted if it fails.

    Args:
        command: program and arguments, as a list or one line.
        binary: speak binary, which is faster and keeps every bit; text has 17 digits.
        batch: most points in a request.
        timeout: seconds until a request has to be answered.
    """

    def __init__(
        self, command: str | Sequence[str], *, binary: bool = False, batch: int = 1000, timeout: float = 600.0
    ) -> None:
        if batch < 1 or not timeout > 0:
            raise AmpsureError(f"A program is given at least one point and some time, not {batch} and {timeout} s.")
        self.command = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
        if not self.command:
            raise AmpsureError("There is no program to run: give its name.")
        self._binary, self._batch, self._timeout = binary, batch, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._lock = threading.Lock()  # one conversation at a time

    def __call__(self, momenta: Floats) -> Floats:
        """Amplitudes (N,) of momenta (N, n, 4)."""
        momenta = np.ascontiguousarray(momenta, np.float64)
        parts = [momenta[start : start + self._batch] for start in range(0, len(momenta), self._batch)]
        with self._lock:
            try:
                return np.concatenate([self._ask(part) for part in parts]) if parts else np.zeros(0)
            except BaseException:  # what is left in the pipes belongs to this request
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self.close()

    def close(self) -> None:
        """End the program; the next call starts it again."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):  # it may have ended by itself
                os.killpg(process.pid, signal.SIGKILL)  # what it started, too
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):  # bytes it never read
                        stream.close()
            process.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _ask(self, momenta: Floats) -> Floats:
        n, legs = momenta.shape[:2]
        try:
            if self._binary:
                request = np.array([n, legs], "<i8").tobytes() + momenta.astype("<f8", copy=False).tobytes()
                values = np.frombuffer(self._exchange(request, lambda head: _binary_length(head, n)), "<f8")[1:]
            else:
                rows = [" ".join(map(repr, row)) for row in momenta.reshape(n, -1).tolist()]
                request = "\n".join([f"{n} {legs}", *rows, ""]).encode()
                lines = self._exchange(request, lambda head: _text_length(head, n)).split(b"\n")
                values = np.array([float(line) for line in lines[1:-1]])
        except ValueError as error:
            if isinstance(error, AmpsureError):
                raise
            raise self._failure(f"did not answer as it should: {error}") from error
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            raise self._failure(f"gave amplitudes that are not finite for {bad} of {n} points")
        return values.astype(np.float64)

    def _exchange(self, request: bytes, length: Callable[[bytes], int | None]) -> bytes:
        """Write the request and read the answer, at the same time: either pipe may be full."""
        running, process = self._process is not None, self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        source, sink = process.stdin.fileno(), process.stdout.fileno()
        asked, answer, deadline = memoryview(request), bytearray(), time.monotonic() + self._timeout
        with selectors.DefaultSelector() as pipes:
            pipes.register(sink, selectors.EVENT_READ)
            if running and pipes.select(0):  # what came late of the last answer would be taken for this one
                raise self._failure(_TOO_MUCH) if os.read(sink, 1) else self._died()
            pipes.register(source, selectors.EVENT_WRITE)
            while (whole := length(bytes(answer))) is None or len(answer) < whole:
                ready = pipes.select(deadline - time.monotonic())
                if time.monotonic() >= deadline:
                    raise self._failure(f"did not answer within {self._timeout:g} s")
                for key, _ in ready:
                    if key.fd == sink:
                        if not (piece := os.read(sink, 1 << 16)):
                            raise self._died()
                        answer += piece
                    else:
                        try:
                            asked = asked[os.write(source, asked[: 1 << 16]) :]
                        except BrokenPipeError:
                            raise self._died() from None
                        if not asked:
                            pipes.unregister(source)
            extra = len(answer) > whole or any(key.fd == sink and os.read(sink, 1) for key, _ in pipes.select(0))
        if extra:
            raise self._failure(_TOO_MUCH)
        return bytes(answer)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._errors = TemporaryFile()  # noqa: SIM115  # lives as long as the program
            pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
            try:
                self._process = subprocess.Popen(self.command, bufsize=0, start_new_session=True, **pipe)
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise AmpsureError(f"The program {self.command[0]!r} cannot be started: {reason}.") from error
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                os.set_blocking(stream.fileno(), False)
        return self._process

    def _died(self) -> AmpsureError:
        assert self._process is not None
        try:
            code = self._process.wait(10)  # its output ends before it does
        except subprocess.TimeoutExpired:
            return self._failure("closed its output before it had answered")
        return self._failure(f"ended with code {code} before it had answered")

    def _failure(self, what: str) -> AmpsureError:
        said = ""
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read()[-2000:].decode(errors="replace").split("\n")
            said = next((f' (its last words: "{line.strip()}")' for line in reversed(lines) if line.strip()), "")
        return AmpsureError(f"The program {self.command[0]!r} {what}{said}.")


def _binary_length(answer: bytes, n: int) -> int | None:
    """Bytes of the whole answer that starts like this, as far as that is known."""
    if len(answer) < 8:
        return None
    if (count := int(np.frombuffer(answer, "<i8", 1)[0])) != n:
        raise ValueError(f"it announced {count} numbers for {n} points")
    return 8 + 8 * n


def _text_length(answer: bytes, n: int) -> int | None:
    lines = answer.split(b"\n")
    if len(lines) < 2:
        return None
    if (count := int(lines[0])) != n:
        raise ValueError(f"it announced {count} numbers for {n} points")
    return sum(map(len, lines[: n + 1])) + n + 1 if len(lines) > n + 1 else None


class SharedLibrary:
    """An amplitude in a shared library, as a C function `void f(const double* momenta, int64_t n, double* out)`.

    The momenta are n times (E, px, py, pz) of all legs, contiguous; the function fills n numbers.

    Args:
        path: of the library.
        function: its name in there.
    """

    def __init__(self, path: str | os.PathLike[str], function: str = "amplitude") -> None:
        self._function = _symbol(_opened(path), path, function)
        self._function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        self._function.restype = None

    def __call__(self, momenta: Floats) -> Floats:
        """Amplitudes (N,) of momenta (N, n, 4)."""
        momenta = np.ascontiguousarray(momenta, np.float64)
        out = np.full(len(momenta), np.nan)  # where the function forgets a point
        self._function(momenta.ctypes.data, len(momenta), out.ctypes.data)
        return out


class UmamiLibrary:
    """An amplitude in a shared library with the UMAMI interface of MadGraph 7 (momenta in, matrix element out).

    Args:
        path: of the library.
        card: parameter card it is initialised with.
    """

    def __init__(self, path: str | os.PathLike[str], card: str | os.PathLike[str] = "") -> None:
        library, self._path, self._card = _opened(path), Path(path), card
        initialize, self._evaluate, self._free, meta = (
            _symbol(library, path, f"umami_{name}") for name in ("initialize", "matrix_element", "free", "get_meta")
        )
        self._handle, legs, self._lock = ctypes.c_void_p(), ctypes.c_int(), threading.Lock()
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        self._evaluate.argtypes = [pointer, size, size, size, size, pointer, pointer, size, pointer, pointer]
        self._free.argtypes = [pointer]
        self._check(meta(1, ctypes.byref(legs)), "tell its number of legs")
        self.n_legs = legs.value
        self._check(initialize(ctypes.byref(self._handle), os.fsencode(card)), "be initialised")

    def __call__(self, momenta: Floats) -> Floats:
        """Amplitudes (N,) of momenta (N, n, 4)."""
        momenta = to_numpy(momenta)
        if momenta.shape[1:] != (self.n_legs, 4):
            raise AmpsureError(f"{self._path.name} takes momenta (N, {self.n_legs}, 4), not {momenta.shape}.")
        n = len(momenta)
        columns = np.ascontiguousarray(momenta.transpose(2, 1, 0), np.float64)  # the event index runs fastest
        out, key = np.full(n, np.nan), ctypes.c_int(0)
        given, taken = (ctypes.c_void_p * 1)(columns.ctypes.data), (ctypes.c_void_p * 1)(out.ctypes.data)
        keys = ctypes.byref(key)
        with self._lock:  # a handle is for one thread
            status = self._evaluate(self._handle, n, n, 0, 1, keys, given, 1, keys, taken)
        self._check(status, "evaluate these points")
        return out

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._free(self._handle)

    def __reduce__(self) -> tuple[type[UmamiLibrary], tuple[Path, str | os.PathLike[str]]]:
        return UmamiLibrary, (self._path, self._card)  # copies have handles of their own

    def _check(self, status: int, what: str) -> None:
        if status:
            raise AmpsureError(f"{self._path.name} cannot {what}: UMAMI status {status}.")


def _opened(path: str | os.PathLike[str]) -> ctypes.CDLL:
    if not Path(path).is_file():
        raise AmpsureError(f"There is no shared library {path}: check its name.")
    try:
        return ctypes.CDLL(os.path.abspath(path))
    except OSError as error:
        raise AmpsureError(f"{path} is not a shared library that can be loaded here ({error}).") from error


def _symbol(library: ctypes.CDLL, path: str | os.PathLike[str], name: str) -> Any:
    try:
        return getattr(library, name)
    except AttributeError as error:
        raise AmpsureError(f"The library {Path(path).name} has no function {name!r}: check its name.") from error
