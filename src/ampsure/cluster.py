"""Work on other processes and machines, through Dask (the extra `ampsure[dask]`).

`connect` gives a `Cluster`, to which functions are submitted as to a pool of threads. What a worker was doing when it
was lost is done again by another one; a task that has lost several workers is given up.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
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
_BATCH_SYSTEMS = {"slurm": ("SLURMCluster", "sbatch"), "htcondor": ("HTCondorCluster", "condor_submit")}


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
        refusals: list[str] = []
        client = _client(specification, workers, stack, refusals)
        tell(f"Waiting for the first worker ({specification}) ...")
        while not client.nthreads():
            if refusals:
                raise AmpsureError(f"{specification} refuses the jobs of jobqueue.yaml: {refusals[0]}.")
            time.sleep(0.2)
        _check_versions(client)
        try:
            yield Cluster(client)
        except distributed.scheduler.KilledWorker as error:
            reason = "perhaps it needs more memory than they have"
            raise AmpsureError(f"Workers died again and again of the same task: {reason}.") from error
        except (distributed.client.FutureCancelledError, distributed.comm.CommClosedError) as error:
            words = "when it is back, the same command goes on"
            raise AmpsureError(f"The scheduler ({specification}) was lost: {words}.") from error


def _client(specification: str, workers: int | None, stack: ExitStack, refusals: list[str]) -> Any:
    """A client of a cluster, both closed with the stack."""
    distributed = import_module("distributed")
    if "://" in specification:
        if workers is not None:
            raise AmpsureError(f"The cluster at {specification} has the workers it has: leave out their number.")
        try:
            client = distributed.Client(specification, timeout=_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise AmpsureError(f"No scheduler of Dask answers at {specification}: check the address.") from error
        return stack.enter_context(client)
    if specification == "local":
        n = workers or os.cpu_count() or 1
        cluster = distributed.LocalCluster(  # without a limit: there is one memory for all of them
            n_workers=n, threads_per_worker=1, memory_limit=0, dashboard_address=_ANY_PORT, silence_logs=logging.ERROR
        )
        stack.enter_context(cluster)
    elif specification in _BATCH_SYSTEMS:
        if workers is None:
            raise AmpsureError(f"Say how many workers to ask {specification} for (--workers).")
        cluster = stack.enter_context(batch_system(specification, refusals))
        cluster.adapt(minimum=workers, maximum=workers)  # which asks for another job when one has ended
    else:
        raise AmpsureError(f"There is no cluster {specification!r}: give {SPECIFICATIONS}.")
    return stack.enter_context(distributed.Client(cluster, set_as_default=False))


def batch_system(name: str, refusals: list[str]) -> Any:
    """Dask's cluster of a batch system, without jobs: every core of a job is one worker.

    Args:
        refusals: where the reasons are noted why jobs were not taken.
    """
    kind, command = _BATCH_SYSTEMS[name]
    system, config = getattr(_import("dask_jobqueue"), kind), import_module("dask").config
    if shutil.which(command) is None:
        raise AmpsureError(f"There is no command {command} here: run this where {name} takes jobs.")

    class Job(system.job_cls):  # type: ignore[misc, name-defined]
        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, ValueError, OSError) as error:
                refusals.append(str(error).strip().splitlines()[-1])
                self.status = import_module("distributed").Status.running  # in Dask's eyes: it would print a traceback

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
        return system(job_cls=Job, **options)


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


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise AmpsureError(f"Clusters need {name}: install it with pip install 'ampsure[dask]'.") from error
