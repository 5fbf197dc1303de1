"""SIGKILL at random moments of generate, train, study and export: nothing half-written passes for whole.

Every command is run once undisturbed. Then it is started again and again and killed, in turns at a random moment of
that duration and before a random one of its operations on files, since few moments are spent on them. What it leaves
is read: every file is whole, or is a temporary one and says so by its name. Then the same command runs to its end, and
all files have to be those of the undisturbed run; numbers of seconds excepted.

`python -m validation.kills` kills each command 50 times and prints a table. Commands run in forks of one process, which
has imported everything already; trainings save their state at every epoch, instead of every minute.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import torch
from rich.console import Console
from rich.table import Table

import ampsure
from ampsure import cli
from ampsure.errors import AmpsureError
from ampsure.training import engine
from ampsure.training.checkpoint import read_checkpoint

TEMPORARY = ".ampsure-"
"""How names of files begin that are not yet whole."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "generate": ("generate", "gg_yyg", "-n", "2000", "--sampling", "rambo", "--workers", "1", "-o", "out/events.h5"),
    "train": (
        "train", "--data", "events.h5", "-o", "out/run", "--set", "network.hidden=[8,8]", "--set", "training.epochs=8",
        "--set", "training.batch_size=64", "--set", "posterior.members=2", "--set", "posterior.sigma_hidden=[8]",
    ),
    "study": (
        "study", "run", "error-propagation", "--data", "events.h5", "--device", "cpu", "-o", "out/studies",
        "--cache", "out/cache",
    ),
    "export onnx": ("export", "run", "-o", "out/a.onnx"),
    "export umami": ("export", "run", "--format", "umami", "--no-build", "-o", "out/umami"),
}  # fmt: skip
"""Command lines, for a folder that holds events.h5 and a surrogate run/; they write to out/."""


@dataclass
class Tally:
    """What kills of one command came to.

    Args:
        seconds: of the undisturbed run.
        killed: runs that were killed before they ended.
        left: what they left: no result, temporary files, some results, all of them.
        faults: what should not have been.
    """

    seconds: float
    killed: int
    left: Counter[str]
    faults: list[str]


def prepare(folder: Path) -> None:
    """What the commands work on; not generated here, since a process with threads must not fork."""
    shutil.copytree(Path(__file__).parents[1] / "tests/fixtures/surrogate-3/recommended", folder / "run")
    finish(("generate", "gg_yyg", "-n", "300", "--sampling", "rambo", "-o", "events.h5"), folder)


def start(arguments: tuple[str, ...], folder: Path, at: int = -1) -> int:
    """A process that runs a command in a folder, silently; its id.

    Args:
        at: number of the operation on files before which it is killed.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(os.open(folder / "errors", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.chdir(folder)
        operations = _count_operations(folder / "out", at)
        sys.argv = ["ampsure", *arguments]
        cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
        (folder / "operations").write_text(str(next(operations)))
    finally:
        os._exit(code)


def _count_operations(folder: Path, at: int) -> Iterator[int]:
    """Counts what this process does to files below a folder from now on, and kills it at number `at`."""
    operations = count()

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")
        changes = changes or (event == "open" and bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)))
        here = changes and isinstance(arguments[0], str | os.PathLike)
        if here and folder in Path(os.path.abspath(arguments[0])).parents and next(operations) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)
    return operations


def finish(arguments: tuple[str, ...], folder: Path) -> float:
    """Run a command to its end; gives its seconds."""
    started = time.monotonic()
    _, status = os.waitpid(start(arguments, folder), 0)
    if status:
        raise AssertionError(f"{' '.join(arguments)} ended with {status}: {(folder / 'errors').read_text()}")
    return time.monotonic() - started


def contents(folder: Path) -> dict[str, Any]:
    """All files below a folder by name, as far as the same command writes the same."""
    return {str(path.relative_to(folder)): content(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def content(path: Path) -> Any:
    """Of a file: its bytes, but for numbers of seconds."""
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text()))
    if path.suffix == ".h5":
        events = ampsure.load(path)
        with h5py.File(path) as file:
            schema = int(file.attrs["schema_version"])
        return schema, ampsure.io.checksum(events), events.process, _timeless(events.provenance)
    if path.name.endswith((".lhe", ".lhe.gz")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return re.sub(rb'"seconds": [\d.e-]+', b"", text)
    return path.read_bytes()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k != "seconds"}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def whole(path: Path, undisturbed: dict[str, Any], name: str) -> bool:
    """Whether a file is one of the undisturbed run, or a state on the way that its reader takes."""
    try:
        if path.suffix == ".safetensors" and (
            path.parent.name == "checkpoint" or path.parent.name.startswith("fleet-")
        ):
            return bool(read_checkpoint(path))
        if path.suffix == ".json" and "studies" in path.parts:  # with fewer results
            found = json.loads(path.read_text())
            return bool(found["format"] == "ampsure-study")
        return bool(content(path) == undisturbed[name])
    except (AmpsureError, KeyError, ValueError):
        return False


def kill(name: str, times: int, folder: Path, rng: Random) -> Tally:
    """Kill a command at random moments, look at what it leaves, and run it to its end."""
    arguments, out = COMMANDS[name], folder / "out"
    out.mkdir()
    tally = Tally(finish(arguments, folder), 0, Counter(), [])
    undisturbed, operations = contents(out), int((folder / "operations").read_text())
    for number in count():
        if tally.killed == times:
            break
        shutil.rmtree(out)
        out.mkdir()
        if number % 2:
            at = rng.randrange(operations)
            moment, child = f"before operation {at} of {operations}", start(arguments, folder, at)
        else:
            seconds = rng.uniform(0, tally.seconds)
            moment, child = f"after {seconds:.3f} s", start(arguments, folder)
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):  # it had ended
            continue
        tally.killed += 1
        files = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
        temporary = {n for n in files if any(part.startswith(TEMPORARY) for part in Path(n).parts)}
        there = set(files) & set(undisturbed)
        state = "all" if there == set(undisturbed) else "some results" if there else "no result"
        if temporary:
            state = "temporary files"
        tally.left[state] += 1
        broken = [n for n in files if n not in temporary and not whole(files[n], undisturbed, n)]
        tally.faults += [f"{name}, kill {number} {moment}: {n} is neither whole nor temporary" for n in broken]
        try:
            finish(arguments, folder)
        except AssertionError as error:
            if "holds a finished surrogate" not in str(error):  # killed after its work
                tally.faults.append(f"{name}, kill {number} {moment}: {error}")
        again = contents(out)
        different = sorted(n for n in undisturbed.keys() | again.keys() if undisturbed.get(n) != again.get(n))
        if different:
            tally.faults.append(f"{name}, kill {number} {moment}: after a rerun, other: {different}")
    shutil.rmtree(out)
    return tally


def run(times: int, only: str = "") -> dict[str, Tally]:
    """All commands, each killed so many times."""
    torch.set_num_threads(1)
    engine._CHECKPOINT_SECONDS = 0.0
    with TemporaryDirectory() as folder:
        prepare(Path(folder))
        return {name: kill(name, times, Path(folder), Random(name)) for name in COMMANDS if only in name}


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill commands at random moments.")
    parser.add_argument("--times", type=int, default=50, help="kills of each command")
    parser.add_argument("--only", default="", help="commands with this in their name")
    arguments = parser.parse_args()
    started = time.monotonic()
    tallies = run(arguments.times, arguments.only)
    states = ("no result", "temporary files", "some results", "all")
    table = Table("command", "seconds", "killed", *(f"left: {state}" for state in states), "faults")
    for name, tally in tallies.items():
        counts = [str(n) for n in (tally.killed, *(tally.left[state] for state in states), len(tally.faults))]
        table.add_row(name, f"{tally.seconds:.1f}", *counts)
    Console(width=120).print(table)
    for tally in tallies.values():
        print(*tally.faults, sep="\n", end="\n" if tally.faults else "")
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(any(tally.faults for tally in tallies.values()))


if __name__ == "__main__":
    main()
