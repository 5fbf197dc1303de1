"""Clusters on a real SLURM, with what goes wrong there: a private one on this machine, removed afterwards.

`make slurm` installs Debian's packages where they are missing, and runs this: the same commands on one process and in
jobs have to give the same files.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from validation.kills import contents

os.environ["PATH"] += ":/usr/sbin"  # where Debian has the daemons

CONFIGURATION = """\
ClusterName=ampsure
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=8192
PartitionName=open Nodes=ALL Default=YES
PartitionName=shut Nodes=ALL State=DOWN
"""
"""Of one node with two cores, which listens to this machine alone and needs neither root nor cgroups."""

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
        do: ... this is done in a shell.
    """

    what: str
    command: str
    jobs: int = 2
    words: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    after: str = ""
    do: str = ""


CANCEL = "scancel --me"
CASES = (
    Case("", "generate"),
    Case("", "grid"),
    Case("", "study true-amplitudes"),
    Case("all jobs cancelled", "study error-propagation", 4, after="fleet", do=CANCEL),
    Case("all jobs cancelled", "generate", 4, after="adapting", do=CANCEL),
    Case("a job of two workers, cancelled", "generate", 2, settings={"CORES": "2"}, after="adapting", do=CANCEL),
    Case(
        "partition down, then up", "generate", settings={"QUEUE": "shut"},
        after="PENDING (PartitionDown)", do="scontrol update partition=shut state=up",
    ),
    Case("no such partition", "generate", 0, "slurm refuses", {"QUEUE": "nowhere"}),
    Case("workers that cannot start", "generate", 2, "ended before a worker came", {"PYTHON": "/nowhere/python"}),
    Case(
        "jobs cancelled, others refused", "generate", 2, "slurm refuses",
        after="adapting", do=f"scontrol update partition=open state=drain; {CANCEL}",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Done:
    """How a command ended: its code, what it printed, its jobs, and the files it wrote."""

    code: int
    printed: str
    jobs: int
    files: dict[str, Any]

    def fault(self, case: Case, expected: Done) -> str:
        """What is wrong; nothing if empty."""
        if case.words and not (self.code == 2 and case.words in self.printed):
            return f"not refused: {self.code}"
        if not case.words and self.code:
            return f"exit code {self.code}"
        if not case.words and (other := [n for n, file in expected.files.items() if self.files.get(n) != file]):
            return f"other files: {', '.join(other)}"
        return "" if self.jobs == case.jobs else f"not {case.jobs} jobs"


@contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """A SLURM of one's own, for as long as the block runs; commands find it by the environment."""
    if missing := [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]:
        sys.exit(f"There is no {missing[0]} here: install Debian's packages slurm-wlm and munge (make slurm does).")
    folder.chmod(0o711)  # or munged refuses to work there
    (folder / "key").touch(0o600)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    with ExitStack() as sockets:
        ends = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [end.getsockname()[1] for end in ends]
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    settings = CONFIGURATION.format(folder=folder, host=host, user=user, ports=ports)
    (folder / "slurm.conf").write_text(settings)
    (folder / "jobqueue.yaml").write_text(
        json.dumps(
            {"jobqueue": {"slurm": {"interface": "lo", "memory": "2 GiB", "log-directory": str(folder / "jobs")}}}
        )
    )
    os.environ |= {"SLURM_CONF": f"{folder}/slurm.conf", "DASK_CONFIG": f"{folder}/jobqueue.yaml"}
    files = {
        "key-file": "key",
        "socket": "munge.socket",
        "pid-file": "munge.pid",
        "seed-file": "seed",
        "log-file": "log",
    }
    with ExitStack() as stack:
        for command in (
            ["munged", "--foreground", *(f"--{option}={folder / name}" for option, name in files.items())],
            ["slurmctld", "-D"],
            ["slurmd", "-D"],
        ):
            log = stack.enter_context((folder / f"{command[0]}.log").open("w"))
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
            wait(lambda: (folder / "munge.socket").exists(), folder)
        wait(lambda: answer("sinfo", "--noheader", "--format=%T", "--partition=open") == "idle", folder)
        stack.callback(wait, lambda: not answer("squeue", "--noheader"), folder)
        stack.callback(answer, "scancel", "--me")
        yield


def wait(condition: Callable[[], bool], folder: Path) -> None:
    """Until the condition holds; not forever."""
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            sys.exit("SLURM does not work here:\n" + "".join(path.read_text() for path in folder.glob("*.log")))
        time.sleep(0.2)


def answer(*command: str) -> str:
    """What a command of SLURM prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def run(folder: Path, case: Case, *where: str) -> Done:
    """Run the command of a case in a folder that holds events.h5."""
    for name in ("out", "jobs"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    environment = os.environ | {f"DASK_JOBQUEUE__SLURM__{name}": value for name, value in case.settings.items()}
    command, printed, do = (
        [sys.executable, "-m", "ampsure", *COMMANDS[case.command], *where],
        folder / "printed",
        case.do,
    )
    with (
        printed.open("w") as file,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file) as process,
    ):
        while process.poll() is None:
            time.sleep(0.5)
            if do and where and case.after in printed.read_text():
                answer("sh", "-c", do)
                do = ""
    jobs = len(list((folder / "jobs").glob("*.out")))
    return Done(process.returncode, " ".join(printed.read_text().split()), jobs, contents(folder / "out"))


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"  # as workers have
    console = Console(width=120)
    faults = 0
    with TemporaryDirectory() as name, slurm(folder := Path(name)):
        table = Table("command", "what happens", "jobs", "seconds", "", title=answer("sinfo", "--version"))
        expected = {}
        for command in COMMANDS:
            expected[command] = run(folder, Case("", command))
            assert expected[command].code == 0, expected[command].printed
            if command == "generate":
                shutil.copy(folder / "out/events.h5", folder)
        for case in CASES:
            console.print(f"{case.command}: {case.what or 'undisturbed'} ...")
            started = time.monotonic()
            one = ("--cluster", "slurm", "--workers", "1" if "CORES" in case.settings else "2")
            done = run(folder, case, *one)
            fault = done.fault(case, expected[case.command])
            if fault:
                console.print(done.printed, highlight=False, markup=False)
            faults += bool(fault)
            seconds = f"{time.monotonic() - started:.0f}"
            table.add_row(case.command, case.what, str(done.jobs), seconds, fault or "ok")
    console.print(table)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
