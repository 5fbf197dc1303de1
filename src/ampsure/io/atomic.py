"""Write a file whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from ampsure.errors import AmpsureError

__all__ = ["check_writable", "locked", "make_folder", "replacing", "temporary_beside"]


@contextmanager
def temporary_beside(target: Path, suffix: str = "") -> Iterator[Path]:
    """A name for a file or folder next to `target`, `.ampsure-KEY-PROCESS-TOKEN`; what is left there is removed.

    A process that is killed cannot remove its own: the next one on this machine that writes the same target does.
    """
    key = sha256(f"{socket.gethostname()} {target.name}".encode(errors="surrogateescape")).hexdigest()[:12]
    for stale in target.parent.glob(f".ampsure-{key}-*"):
        if not _running(stale.name.split("-")[2]):
            _remove(stale)
    temporary = target.with_name(f".ampsure-{key}-{os.getpid()}-{token_hex(4)}{suffix}")
    try:
        yield temporary
    finally:
        _remove(temporary)


def _running(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):  # of somebody else, or no number
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary name next to `path`, with the same suffix: what is written there becomes `path` when the block ends.

    If the block raises, even on Ctrl-C, the old file stays as it was and the temporary one is removed.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with replacing(f"{folder}/answer.txt") as temporary:
    ...         _ = temporary.write_text("42")
    ...     os.listdir(folder)
    ['answer.txt']
    """
    target = check_writable(path)
    try:
        with temporary_beside(target, "".join(target.suffixes[-2:])[-20:]) as temporary:
            yield temporary
            os.replace(temporary, target)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "the disk may be full"
        raise AmpsureError(f"{path} cannot be written ({reason}): free some space or choose another folder.") from error


@contextmanager
def locked(*paths: Path) -> Iterator[None]:
    """Only one process at a time is in the block for any of the paths; it need not be here, nor end well.

    The file system has to know locks, as local ones and NFS do. That of `path` is the file `path.lock`, which stays.
    """
    with ExitStack() as stack:
        for path in sorted(paths):  # all in the same order, so that none wait for each other
            try:
                file = stack.enter_context(open(path.with_name(f"{path.name}.lock"), "w"))
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                reason = f"{error.strerror}: free some space or choose another folder"
                raise AmpsureError(f"{path} cannot be locked ({reason}).") from error
        yield


def make_folder(path: Path) -> Path:
    """The folder, made if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AmpsureError(f"The folder {path} cannot be made: choose another one.") from error
    return path


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Where a file of this name would be written, if it can be."""
    target = Path(os.path.realpath(path))  # a link stays a link
    try:
        target.stat()
    except (FileNotFoundError, NotADirectoryError):  # of its folder there is more to say below
        pass
    except OSError as error:  # too long a name, or a folder one may not look into
        raise AmpsureError(f"{path} cannot be written ({error.strerror}): choose another name or folder.") from error
    if target.is_dir():
        raise AmpsureError(f"{path} is a folder: give the name of a file to write.")
    if target.exists() and not target.is_file():
        raise AmpsureError(f"{path} is not a regular file: give another name to write to.")
    if not target.parent.is_dir():
        raise AmpsureError(f"There is no folder {target.parent} for {target.name}: create it or choose another one.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise AmpsureError(f"The folder {target.parent} is not writable: write {target.name} to another one.")
    return target
