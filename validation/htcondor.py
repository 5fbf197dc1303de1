"""Clusters on a real HTCondor, with what goes wrong there: a private one on this machine, removed afterwards.

`make htcondor` brings Debian's HTCondor into build/condor where none is installed, and runs this.
"""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from validation.jobs import Case, System, answer, daemon, main, ports, wait

BUILT = Path(__file__).resolve().parents[1] / "build/condor/usr"
os.environ["PATH"] += f":/usr/sbin:{BUILT}/bin:{BUILT}/sbin"

CONFIGURATION = """\
DAEMON_LIST = MASTER, COLLECTOR, NEGOTIATOR, SCHEDD, STARTD
RELEASE_DIR = {release}
LIB = {release}/lib
LIBEXEC = {libexec}
LOCAL_DIR = {folder}
LOG = {folder}/log
SPOOL = {folder}/spool
EXECUTE = {folder}/execute
LOCK = {folder}/lock
RUN = {folder}/run
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{port}
USE_SHARED_PORT = True
SHARED_PORT_PORT = {port}
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = False
ENABLE_IPV6 = False
SEC_DEFAULT_AUTHENTICATION = REQUIRED
SEC_DEFAULT_AUTHENTICATION_METHODS = FS
ALLOW_ADMINISTRATOR = {user}@*
ALLOW_DAEMON = {user}@*
ALLOW_WRITE = {user}@*
ALLOW_READ = {user}@*
NUM_CPUS = 2
MEMORY = 8192
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
START = True
RUNBENCHMARKS = False
SUSPEND = False
PREEMPT = False
KILL = False
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
UPDATE_INTERVAL = 5
STARTD_ATTRS = Open
Open = False
SUBMIT_REQUIREMENT_NAMES = Small
SUBMIT_REQUIREMENT_Small = RequestCpus <= 2
SUBMIT_REQUIREMENT_Small_REASON = "no machine has so many cores"
"""
"""Of one machine with two cores, which listens to this machine alone; jobs may wait for it to be `Open`."""

SETTINGS = {"job-extra-directives": {"getenv": "True"}}
"""Of jobqueue.yaml: as SLURM's, jobs have this environment, in which OpenBLAS may be told what to compute with."""

QUEUE = ("condor_q", "-af:j", "Owner")
DIRECTIVES = "JOB_EXTRA_DIRECTIVES__"
CONFIGURE = "echo '{}' >>$CONDOR_CONFIG; condor_reconfig"
REMOVE = "condor_rm -all"
CASES = (
    Case("", "generate"),
    Case("", "grid"),
    Case("", "study true-amplitudes"),
    Case("workers in folders of their own", "grid", settings={f"{DIRECTIVES}SHOULD_TRANSFER_FILES": "YES"}),
    Case("all jobs removed", "study error-propagation", 4, after="fleet", do=REMOVE),
    Case("all jobs removed", "generate", 4, after="adapting", do=REMOVE),
    Case("all jobs put on hold", "generate", 4, after="adapting", do="condor_hold -all"),
    Case("a job of two workers, removed", "generate", 2, settings={"CORES": "2"}, after="adapting", do=REMOVE),
    Case(
        "no machine for a while", "generate", settings={f"{DIRECTIVES}REQUIREMENTS": "TARGET.Open"},
        after="2 IDLE", do=CONFIGURE.format("Open = True"),
    ),
    Case(
        "on hold, then released", "generate", settings={f"{DIRECTIVES}HOLD": "True"},
        after="2 HELD (condor_q -hold says why)", do="condor_release -all",
    ),
    Case(
        "on hold, then Ctrl-C", "generate", 0, "nothing was written", {f"{DIRECTIVES}HOLD": "True"},
        after="2 HELD", do="kill -INT $PID", code=130,
    ),
    Case("more cores than any job may have", "generate", 0, "htcondor refuses", {"CORES": "3"}),
    Case("workers that cannot start", "generate", 2, "ended before a worker came", {"PYTHON": "/nowhere/python"}),
    Case(
        "jobs removed, others refused", "generate", 2, "htcondor refuses",
        after="adapting", do=f"{CONFIGURE.format('MAX_JOBS_SUBMITTED = 0')}; {REMOVE}",
    ),
)  # fmt: skip


@contextmanager
def htcondor(folder: Path) -> Iterator[str]:
    """An HTCondor of one's own, for as long as the block runs; commands find it by the environment."""
    master = shutil.which("condor_master")
    if master is None:
        sys.exit("There is no condor_master here: install HTCondor (make htcondor brings one).")
    release = Path(master).resolve().parents[1]
    for name in ("log", "spool", "execute", "lock", "run"):
        (folder / name).mkdir()
    libexec = release / "libexec/condor"
    (folder / "condor_config").write_text(
        CONFIGURATION.format(
            folder=folder,
            release=release,
            libexec=libexec if libexec.is_dir() else release / "libexec",
            user=pwd.getpwuid(os.getuid()).pw_name,
            port=ports(1)[0],
        )
    )
    os.environ["CONDOR_CONFIG"] = f"{folder}/condor_config"
    with ExitStack() as stack:
        stack.enter_context(daemon(folder, "condor_master", "-f"))
        wait(
            lambda: answer("condor_status", "-af", "Activity") == "Idle" and answer("condor_status", "-schedd"), folder
        )
        stack.callback(wait, lambda: not answer(*QUEUE), folder)
        stack.callback(answer, "condor_rm", "-all")
        yield answer("condor_version").splitlines()[0].strip("$ ")


if __name__ == "__main__":
    if os.getuid() == 0:  # whose jobs HTCondor refuses: one's own processes and files, under another name
        nobody = str(pwd.getpwnam("nobody").pw_uid)
        os.execvp("unshare", ["unshare", "--user", f"--map-user={nobody}", sys.executable, "-m", "validation.htcondor"])
    sys.exit(main(System("htcondor", htcondor, QUEUE, CASES, SETTINGS)))
