"""Clusters on a real batch system, with what goes wrong there: a private one on this machine, removed afterwards.

The same commands on one process and in jobs have to give the same files. `validation.slurm` and `validation.htcondor`
bring the daemons, and the cases.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from validation.kills import contents

GENERATE = ("generate", "gg_yyg", "-n", "3000", "--seed", "1", "-o", "out/events.h5")
GRID = (
    "grid", "--data", "events.h5", "-o", "out", "--vary", "training.learning_rate=1e-3,1e-2",
    "--set", "network.hidden=[8,8]", "--set", "training.epochs=3", "--set", "training.device=cpu",
)  # fmt: skip
STUDY = ("--data", "events.h5", "--device", "cpu", "-o", "out", "--cache", "out/cache")
COMMANDS = {
    "generate": GENERATE,
    "grid": GRID,
    "study true-amplitudes": ("study", "run", "true-amplitudes", *STUDY),
    "study error-propagation": ("study", "run", "error-propagation", *STUDY),
}


@dataclass(frozen=True)
class Case:
    """A command in jobs, and what should come of it.

    Args:
        what: happens.
        command: name of the command.
        jobs: how many there should have been.
        words: of the error it should end with; without, it should write what one process writes.
        settings: of jobqueue.yaml.
        after: once this is printed ...
        do: ... this is done in a shell, where $PID is the command's.
        code: it ends with, if there are words.
    """

    what: str
    command: str
    jobs: int = 2
    words: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    after: str = ""
    do: str = ""
    code: int = 2


@dataclass(frozen=True)
class System:
    """A batch system.

    Args:
        name: of it.
        start: starts it in a folder, says its version, and stops it; commands find it by the environment.
        queue: command that lists its jobs.
        cases: to run.
        settings: of jobqueue.yaml, in all cases.
    """

    name: str
    start: Callable[[Path], AbstractContextManager[str]]
    queue: tuple[str, ...]
    cases: tuple[Case, ...]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """How a command ended: its code, what it printed, its jobs, and the files it wrote."""

    code: int
    printed: str
    jobs: int
    files: dict[str, Any]

    def fault(self, case: Case, expected: Done) -> str:
        """What is wrong; nothing if empty."""
        if case.words and not (self.code == case.code and case.words in self.printed):
            return f"not refused: {self.code}"
        if not case.words and self.code:
            return f"exit code {self.code}"
        if not case.words and (other := [n for n, file in expected.files.items() if self.files.get(n) != file]):
            return f"other files: {', '.join(other)}"
        if case.after not in self.printed:
            return f"not told: {case.after}"
        return "" if self.jobs == case.jobs else f"not {case.jobs} jobs"


def ports(number: int) -> list[int]:
    """Ports of this machine that are free."""
    with ExitStack() as sockets:
        ends = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [end.getsockname()[1] for end in ends]


@contextmanager
def daemon(folder: Path, *command: str) -> Iterator[None]:
    """A process in the background, for as long as the block runs, and not longer than this one, however that ends."""
    with (folder / f"{command[0]}.log").open("w") as log:
        mortal = ("setpriv", "--pdeathsig", "TERM", *command)
        process = subprocess.Popen(mortal, stdout=log, stderr=log, start_new_session=True)  # Ctrl-C is for this one
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def holds(condition: Callable[[], object]) -> bool:
    """Whether the condition does, within a minute."""
    end = time.monotonic() + 60
    while not (held := bool(condition())) and time.monotonic() < end:
        time.sleep(0.2)
    return held


def wait(condition: Callable[[], object], folder: Path) -> None:
    """Until the condition holds; not forever."""
    if not holds(condition):
        logs = "".join(path.read_text() for path in folder.glob("*.log"))
        sys.exit(f"The batch system does not do here what it should:\n{logs}")


def answer(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def run(folder: Path, case: Case, system: System | None = None) -> Done:
    """Run the command of a case in a folder that holds events.h5, in jobs of the system or else in one process."""
    for name in ("out", "jobs"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    command, environment, do = [sys.executable, "-m", "ampsure", *COMMANDS[case.command]], os.environ.copy(), ""
    if system:
        command += ["--cluster", system.name, "--workers", "1" if "CORES" in case.settings else "2"]
        prefix = f"DASK_JOBQUEUE__{system.name.upper()}__"
        environment |= {prefix + name: value for name, value in case.settings.items()}
        do = case.do
    printed = folder / "printed"
    with (
        printed.open("w") as file,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file) as process,
    ):
        try:
            while process.poll() is None:
                time.sleep(0.5)
                if do and case.after in " ".join(printed.read_text().split()):
                    answer("sh", "-c", f"PID={process.pid}; {do}")
                    do = ""
        finally:
            process.terminate()
    jobs = len(list((folder / "jobs").glob("*.out")))
    return Done(process.returncode, " ".join(printed.read_text().split()), jobs, contents(folder / "out"))


def main(system: System) -> int:
    """Run the cases on a batch system, and print a table; 1 if something was wrong."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Terminated."))  # which ends the daemons, too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background, here and by commands
    os.environ["OMP_NUM_THREADS"] = "1"  # as workers have
    console = Console(width=120)
    faults = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        settings = {
            "interface": "lo",
            "scheduler-options": {"dashboard_address": "127.0.0.1:0"},  # or the whole network could look at it
            "worker-extra-args": ["--dashboard-address", "127.0.0.1:0"],
            "memory": "2 GiB",
            "log-directory": f"{folder}/jobs",
            **system.settings,
        }
        (folder / "jobqueue.yaml").write_text(json.dumps({"jobqueue": {system.name: settings}}))
        os.environ["DASK_CONFIG"] = f"{folder}/jobqueue.yaml"
        with system.start(folder) as version:
            table = Table("command", "what happens", "jobs", "seconds", "", title=version)
            expected = {}
            for command in COMMANDS:
                expected[command] = run(folder, Case("", command))
                assert expected[command].code == 0, expected[command].printed
                if command == "generate":
                    shutil.copy(folder / "out/events.h5", folder)
            for case in system.cases:
                console.print(f"{case.command}: {case.what or 'undisturbed'} ...")
                started = time.monotonic()
                done = run(folder, case, system)
                seconds = f"{time.monotonic() - started:.0f}"
                fault = done.fault(case, expected[case.command])
                if not holds(lambda: not answer(*system.queue)):
                    fault = "jobs are left"
                if fault:
                    console.print(done.printed, highlight=False, markup=False)
                faults += bool(fault)
                table.add_row(case.command, case.what, str(done.jobs), seconds, fault or "ok")
    console.print(table)
    return int(faults > 0)
