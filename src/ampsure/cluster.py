"""Work on other processes and machines, through Dask (the extra `ampsure[dask]`).

`connect` gives a `Cluster`, to which functions are submitted as to a pool of threads. What a worker was doing when it
was lost is done again by another one; a task that has lost several workers is given up.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import ceil
from typing import Any, TypeVar

import torch

from ampsure._version import __version__, versions
from ampsure.errors import AmpsureError

__all__ = ["SPECIFICATIONS", "Cluster", "connect"]

SPECIFICATIONS = "'local', 'slurm', 'htcondor', or the address of a scheduler, e.g. tcp://host:8786"

T = TypeVar("T")
Tell = Callable[[str], None]

_SECONDS = 10.0  # to reach a scheduler
_PREEMPTIONS = 10  # of one task in a batch system, where jobs may end at any time
_MEMORY = 4 * 2**30  # bytes a worker in a batch system, unless jobqueue.yaml says otherwise
_DISK = "4 GB"  # the same, of HTCondor's jobs
_ANY_PORT = ":0"
_LOOK = 0.2  # seconds between two looks at the workers of a batch system
_ASK = 15.0  # seconds between two questions to it
_LOST = 20.0  # seconds without a worker after which a job that had some is lost
_HELD = "HELD (condor_q -hold says why)"
_CONDOR_STATE = f'{{"IDLE", "RUNNING", "REMOVED", "COMPLETED", "{_HELD}", "TRANSFERRING", "SUSPENDED"}}[JobStatus - 1]'
_REASON = re.compile(r"(?:.*ERROR: |.*\n)?(.+)", re.DOTALL)  # HTCondor's last error and what follows, or the last line
_BATCH_SYSTEMS = {  # Dask's class, what takes jobs, and what lists one's own as "ID STATE"
    "slurm": ("SLURMCluster", "sbatch", ("squeue", "--me", "--noheader", "--format=%A %T (%r)")),
    "htcondor": ("HTCondorCluster", "condor_submit", ("condor_q", "-af:j", _CONDOR_STATE)),
}


class Cluster:
    """Workers, each doing one thing at a time, on one core."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def slots(self) -> int:
        """How many tasks run at once, now."""
        return max(sum(map(int, self._client.nthreads().values())), 1)

    def share(self, value: T) -> T:
        """What stands for the value in `submit`: each worker gets it once, and again after a loss."""
        shared: T = self._client.submit(_same, value, pure=False)
        return shared

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A future of function(*arguments); futures among these are waited for, and stand for their results."""
        return self._client.submit(_task, function, *arguments, pure=False)

    def completed(self, futures: Iterable[Any]) -> Iterator[Any]:
        """The futures, as they are done."""
        return iter(import_module("distributed").as_completed(futures, loop=self._client.loop))

    def calling(self, function: Callable[..., None]) -> Callable[..., None]:
        """A function that tasks call to have this one called here."""
        caller = _Caller(f"ampsure-{self._client.id}-{id(function)}")
        self._client.subscribe_topic(caller.topic, lambda event: function(*pickle.loads(event[1])))
        return caller


@contextmanager
def connect(specification: str, workers: int | None = None, tell: Tell = lambda _: None) -> Iterator[Cluster]:
    """A cluster, for as long as the block runs.

    Args:
        specification: "local" for processes on this machine, "slurm" or "htcondor" for jobs of a batch system as Dask's
            jobqueue.yaml describes them, or the address of a scheduler that runs already.
        workers: how many processes to start; on this machine by default one a core.
        tell: called with a sentence before there is something to wait for.
    """
    distributed = _import("distributed")
    if workers is not None and workers < 1:
        raise AmpsureError(f"The number of workers must be positive, not {workers}.")
    with ExitStack() as stack:
        client, jobs = _client(specification, workers, stack, tell)
        tell(f"Waiting for the first worker ({specification}) ...")
        try:
            while not client.nthreads():
                time.sleep(0.2)
            _check_versions(client)
            yield Cluster(client)
        except distributed.scheduler.KilledWorker as error:
            reason = "perhaps it needs more memory than they have"
            raise AmpsureError(f"Workers died again and again of the same task: {reason}.") from error
        except Exception as error:
            if jobs and jobs.failure:
                raise AmpsureError(jobs.failure) from error
            if not isinstance(error, distributed.client.FutureCancelledError | distributed.comm.CommClosedError):
                raise
            words = "when it is back, the same command goes on"
            raise AmpsureError(f"The scheduler ({specification}) was lost: {words}.") from error


def _client(specification: str, workers: int | None, stack: ExitStack, tell: Tell) -> tuple[Any, _Jobs | None]:
    """A client of a cluster, both closed with the stack, and what looks after its jobs."""
    distributed = import_module("distributed")
    if "://" in specification:
        if workers is not None:
            raise AmpsureError(f"The cluster at {specification} has the workers it has: leave out their number.")

        class Client(distributed.Client):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                try:
                    super().__init__(specification, timeout=_SECONDS, set_as_default=False)
                except Exception:
                    self.status = "closed"  # or it would wait for itself when it goes, and print a traceback
                    raise

        try:
            client = Client()
        except (OSError, ValueError, TypeError, RuntimeError, ImportError) as error:  # TypeError: TLS without keys
            raise AmpsureError(f"No scheduler of Dask answers at {specification}: check the address.") from error
        return stack.enter_context(client), None
    if specification == "local":
        n = workers or os.cpu_count() or 1
        cluster = distributed.LocalCluster(  # without a limit: there is one memory for all of them
            n_workers=n, threads_per_worker=1, memory_limit=0, dashboard_address=_ANY_PORT, silence_logs=logging.ERROR
        )
        stack.enter_context(cluster)
        return stack.enter_context(distributed.Client(cluster, set_as_default=False)), None
    if specification not in _BATCH_SYSTEMS:
        raise AmpsureError(f"There is no cluster {specification!r}: give {SPECIFICATIONS}.")
    if workers is None:
        raise AmpsureError(f"Say how many workers to ask {specification} for (--workers).")
    cluster = stack.enter_context(batch_system(specification))
    client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
    return client, _Jobs(specification, client, workers, tell)


def batch_system(name: str) -> Any:
    """Dask's cluster of a batch system, without jobs: every core of a job is one worker."""
    kind, command, _ = _BATCH_SYSTEMS[name]
    config = _import("dask").config
    if name == "htcondor" and isinstance(config.get("jobqueue.htcondor.job-extra-directives", None), list):
        raise AmpsureError(  # which Dask may drop when the next line reads its defaults
            "jobqueue.yaml does not describe jobs of htcondor: job-extra-directives are NAME: VALUE there, not a list."
        )
    system = getattr(_jobqueue(), kind)
    status = import_module("distributed").Status
    if shutil.which(command) is None:
        raise AmpsureError(f"There is no command {command} here: run this where {name} takes jobs.")

    class Job(system.job_cls):  # type: ignore[misc, name-defined]
        seen: float | None = None  # when it last had a worker
        failure = ""  # why it will never have one

        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, ValueError, OSError) as error:
                reason = " ".join(_REASON.findall(str(error).strip())[0].split()).rstrip(".")
                self.failure = f"{name} refuses the jobs of jobqueue.yaml: {reason}."
                self.status = status.running  # in Dask's eyes: it would print a traceback

        async def close(self) -> None:
            await super().close()
            self.status = status.closed  # Dask itself relies on it being forgotten

    cores = config.get(f"jobqueue.{name}.cores", None) or 1
    options = {
        "cores": cores,
        "processes": cores,
        "memory": config.get(f"jobqueue.{name}.memory", None) or f"{cores * _MEMORY} B",
        "scheduler_options": {"dashboard_address": _ANY_PORT}
        | (config.get(f"jobqueue.{name}.scheduler-options", None) or {}),
    }
    if name == "htcondor":
        options["disk"] = config.get("jobqueue.htcondor.disk", None) or _DISK
    with config.set({"distributed.scheduler.allowed-failures": _PREEMPTIONS}):
        try:
            return system(job_cls=Job, **options)
        except (RuntimeError, ValueError, TypeError, OSError) as error:
            raise AmpsureError(f"jobqueue.yaml does not describe jobs of {name}: {error}.") from error


class _Jobs:
    """Keeps as many jobs in a batch system as give the number of workers.

    A job that ends is asked for again, but not if it was refused or ended before it had a worker: the next would, too.
    When no other is left, the client is closed, and with it all that wait for results end.

    Args:
        tell: called with a sentence when there is something to wait for.
    """

    failure = ""  # why there is nothing to wait for

    def __init__(self, name: str, client: Any, workers: int, tell: Tell) -> None:
        self._name, self._client, self._cluster, self._tell = name, client, client.cluster, tell
        self._number = ceil(workers / self._cluster.new_spec["options"]["processes"])
        self._told: set[str] = set()
        self._asked = time.monotonic()
        self._cluster.scale(jobs=self._number)
        self._running = import_module("distributed").Status.running
        looks = import_module("tornado.ioloop").PeriodicCallback(self._look, 1000 * _LOOK)
        self._cluster.periodic_callbacks["jobs"] = looks  # stopped when the cluster is closed
        self._cluster.loop.add_callback(looks.start)

    async def _look(self) -> None:
        if self._cluster.status != self._running:
            return
        here = {worker.name for worker in self._cluster.scheduler.workers.values()}
        jobs, now = dict(self._cluster.workers), time.monotonic()
        for name, job in jobs.items():
            group = {name + suffix for suffix in self._cluster.worker_spec[name].get("group", ())}
            if here & (group or {name}):
                job.seen = now
            elif group and job.seen and now - job.seen > _LOST:  # Dask itself does this for jobs of one worker
                self._cluster.workers.pop(name)
                await job.close()
                return
        waiting = [job for job in jobs.values() if not (job.seen or job.failure)]
        if waiting and now - self._asked > _ASK:
            self._asked = now
            await self._ask(waiting, bool(here))
        failures = [job.failure for job in jobs.values() if job.failure]
        if len(failures) == self._number and not here:
            self.failure = failures[0]
            await self._client.close()
            return
        for failure in failures:
            self._say(f"{failure} The other jobs go on.")
        if len(self._cluster.workers) < self._number and self._cluster.status == self._running:
            self._cluster.scale(jobs=self._number)  # which asks for those that are not there

    async def _ask(self, waiting: list[Any], others: bool) -> None:
        """What the batch system says about jobs without workers."""
        try:
            listed = await waiting[0]._call(_BATCH_SYSTEMS[self._name][2])
        except (RuntimeError, OSError):  # it does not answer, now
            return
        states = dict(line.split(maxsplit=1) for line in listed.splitlines())
        for job in waiting:
            if job.job_id not in states:
                words = "its output says why (log-directory in jobqueue.yaml says where)"
                job.failure = f"Job {job.job_id} of {self._name} ended before a worker came: {words}."
        found = Counter(states[job.job_id] for job in waiting if not job.failure)
        if found and not others:
            words = ", ".join(f"{n} {state}" for state, n in found.items())
            self._say(f"No worker is there. {self._name} says of its jobs: {words}. Ctrl-C takes them back.")

    def _say(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)


def _check_versions(client: Any) -> None:
    """Another version of the code gives other results."""
    try:
        found = client.run(versions)
    except ImportError as error:
        raise AmpsureError("The workers cannot import ampsure: install it where they run.") from error
    for worker, there in found.items():
        if (version := there["ampsure"]) != __version__:
            raise AmpsureError(f"The worker {worker} has ampsure {version}, not {__version__}: install the same there.")


@dataclass(frozen=True)
class _Caller:
    """Called in a task, it sends its arguments to those who listen to the topic."""

    topic: str

    def __call__(self, *arguments: Any) -> None:
        import_module("distributed").get_worker().log_event(self.topic, pickle.dumps(arguments))


def _same(value: T) -> T:
    return value


def _task(function: Callable[..., T], *arguments: Any) -> T:
    torch.set_num_threads(1)  # the worker has one core, and sums in another order are other sums
    _keep_memory()
    return function(*arguments)


@cache
def _keep_memory() -> None:
    """As other processes do: Dask has workers return it at once, which makes exact amplitudes four times as slow."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # of glibc
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, as large as glibc lets them grow by itself
        libc.mallopt(-1, 2**26)


def _jobqueue() -> Any:
    """Dask's package of batch systems; when imported, it has Ctrl-C end programs as if they had succeeded."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        return _import("dask_jobqueue")
    finally:
        if signal.getsignal(signal.SIGINT) is not handler:
            signal.signal(signal.SIGINT, handler)


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise AmpsureError(f"Clusters need {name}: install it with pip install 'ampsure[dask]'.") from error
