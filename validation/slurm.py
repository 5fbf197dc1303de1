"""Clusters on a real SLURM, with what goes wrong there: a private one on this machine, removed afterwards.

`make slurm` installs Debian's packages where they are missing, and runs this.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from validation.jobs import Case, System, answer, daemon, main, ports, wait

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
PartitionName=closed Nodes=ALL State=DOWN
"""
"""Of one node with two cores, which listens to this machine alone and needs neither root nor cgroups."""

QUEUE = ("squeue", "--noheader")
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
    Case(
        "partition down, then Ctrl-C", "generate", 0, "nothing was written", {"QUEUE": "closed"},
        after="PENDING (PartitionDown)", do="kill -INT $PID", code=130,
    ),
    Case("no such partition", "generate", 0, "slurm refuses", {"QUEUE": "nowhere"}),
    Case("workers that cannot start", "generate", 2, "ended before a worker came", {"PYTHON": "/nowhere/python"}),
    Case(
        "jobs cancelled, others refused", "generate", 2, "slurm refuses",
        after="adapting", do=f"scontrol update partition=open state=drain; {CANCEL}",
    ),
)  # fmt: skip


@contextmanager
def slurm(folder: Path) -> Iterator[str]:
    """A SLURM of one's own, for as long as the block runs; commands find it by the environment."""
    if missing := [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]:
        sys.exit(f"There is no {missing[0]} here: install Debian's packages slurm-wlm and munge (make slurm does).")
    folder.chmod(0o711)  # or munged refuses to work there
    (folder / "key").touch(0o600)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=host, user=user, ports=ports(2)))
    os.environ["SLURM_CONF"] = f"{folder}/slurm.conf"
    files = {
        "key-file": "key",
        "socket": "munge.socket",
        "pid-file": "munge.pid",
        "seed-file": "seed",
        "log-file": "log",
    }
    munge = ["munged", "--foreground", *(f"--{option}={folder / name}" for option, name in files.items())]
    with ExitStack() as stack:
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D"]):
            stack.enter_context(daemon(folder, *command))
            wait((folder / "munge.socket").exists, folder)
        wait(lambda: answer("sinfo", "--noheader", "--format=%T", "--partition=open") == "idle", folder)
        stack.callback(wait, lambda: not answer(*QUEUE), folder)
        stack.callback(answer, "scancel", "--me")
        yield answer("sinfo", "--version")


if __name__ == "__main__":
    sys.exit(main(System("slurm", slurm, QUEUE, CASES)))
