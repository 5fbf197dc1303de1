"""Clusters: the same results as on one process, whatever happens to the workers, and one sentence without any."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from importlib import import_module

import dask
import numpy as np
import pytest

import ampsure
from ampsure import AmpsureError, cluster, grids
from ampsure.io import locked
from ampsure.studies import PRESETS, get_study, run_studies, run_study
from ampsure.threads import one_thread

pytestmark = pytest.mark.xdist_group("cluster")  # they share two workers

PRESET = replace(PRESETS["smoke"], epochs=2, runs=1)
RUN = """
setsid sh "$JOBS/job-$$.sh" >"$JOBS/job-$$.log" 2>&1 &
touch "$JOBS/$!.pid"
"""
LIST = """
for job in "$JOBS"/*.pid; do job=$(basename "$job" .pid); kill -0 $job && echo "$job%s"; done
true
"""
SCRIPTS = {
    "sbatch": f"""#!/bin/sh
test "$REFUSE" && {{ echo "sbatch: error: invalid partition specified: gpu" >&2; exit 1; }}
cp "$1" "$JOBS/job-$$.sh"
{RUN}
echo "Submitted batch job $!"
""",
    "squeue": f"#!/bin/sh{LIST % ' RUNNING (None)'}",
    "scancel": "#!/bin/sh\nkill -- -$1\n",
    "condor_submit": f"""#!/bin/sh
test "$REFUSE" && {{ printf "ERROR: No.\\nERROR: Error in expression:\\n\\tRequirements = ((\\n" >&2; exit 1; }}
sed -n "s/^Arguments = \\"-c '\\(.*\\)'\\"$/\\1/p" "$1" >"$JOBS/job-$$.sh"
{RUN}
echo "1 job(s) submitted to cluster $!."
""",
    "condor_q": f"#!/bin/sh{LIST % '.0 IDLE'}",
    "condor_rm": "#!/bin/sh\nkill -- -${1%.0}\n",
}
"""Of two batch systems, which run jobs as processes."""


@pytest.fixture(scope="module")
def workers():
    with cluster.connect("local", 2) as found:
        yield found


def kill_one(workers):
    """The death of a process, as the kernel brings it when memory is short."""
    os.kill(min(workers._client.run(os.getpid).values()), signal.SIGKILL)


class Once:
    """Kills a worker when it is first called with a stage of this name."""

    def __init__(self, workers, stage):
        self.workers, self.stage, self.done = workers, stage, threading.Event()

    def __call__(self, stage, *_):
        if self.stage in stage and not self.done.is_set():
            self.done.set()
            threading.Thread(target=kill_one, args=(self.workers,)).start()  # reports come from the client's loop


def test_generation_survives_a_lost_worker_to_the_bit(workers, events):
    killer = Once(workers, "unweighting")
    there = ampsure.generate("gg_yyg", 2000, seed=3, cluster=workers, report=killer)
    assert killer.done.is_set()
    for column in ("momenta", "amplitude", "weights"):
        np.testing.assert_array_equal(getattr(there, column), getattr(events, column))
    found, expected = (e.provenance["generation"] for e in (there, events))
    assert {**found, "seconds": 0} == {**expected, "seconds": 0}


def test_flat_generation_of_a_process_of_ones_own(workers):
    own = ampsure.Process("own", (21, 21, 22, 22, 22), (0,) * 5, exact=lambda p: p[:, 2, 0] * 1e-6)
    here, there = (ampsure.generate(own, 500, sampling="rambo", cluster=c) for c in (None, workers))
    np.testing.assert_array_equal(here.momenta, there.momenta)


def test_studies_survive_a_lost_worker_to_the_bit(workers, events, tmp_path):
    """Two studies that share trainings: each of these is trained once, and the numbers are those of one process."""
    studies = [get_study(name) for name in ("gap-accuracy", "gap-spectrum", "true-amplitudes")]
    few, a, b = events[:1000], tmp_path / "a", tmp_path / "b"
    with one_thread():
        here = {study.name: run_study(study, PRESET, few, a, a) for study in studies}
    killer, told = Once(workers, "members"), []
    ran = run_studies(studies, PRESET, few, b, b, workers, tell=told.append, report=killer)
    there = {record.study: record for record in ran}
    assert killer.done.is_set()
    assert set(there) == set(here)
    for name, record in here.items():
        assert [c["measured"] for c in there[name].results.cases] == [c["measured"] for c in record.results.cases]
        assert [v.outcome for v in there[name].verdicts] == [v.outcome for v in record.verdicts]
    keys = {case["key"] for record in here.values() for case in record.results.cases}
    assert sum(int(words.split(": ")[1].split()[0]) for words in told) == len(keys)
    for key in keys:
        weights = [(folder / "trainings" / key / "weights.safetensors").read_bytes() for folder in (a, b)]
        assert weights[0] == weights[1]
    told.clear()
    assert len(list(run_studies(studies[1:2], PRESET, few, b, b, workers, tell=told.append))) == 1
    assert not told


def test_grids_are_the_same_anywhere_and_not_repeated(workers, events, run, tmp_path, monkeypatch):
    ampsure.save(events[:1000], tmp_path / "events.h5")
    vary = ("--vary", "training.learning_rate=1e-3,1e-2", "--vary", "network.hidden=[16],[8,8]")
    smaller = ("--set", "training.epochs=2", "--set", "training.device=cpu")
    command = ("grid", "--data", "events.h5", "--method", "repulsive", *vary, *smaller)
    with one_thread():
        code, out, _ = run(*command, "-o", "here")
    assert code == 0
    assert "4 of 4" in out
    table = json.loads((tmp_path / "here/grid.json").read_text())["runs"]
    means = [entry["validation"]["mean"] for entry in table]
    assert means == sorted(means)
    best = ampsure.load_surrogate(tmp_path / "here" / table[0]["name"])
    validation = events[:1000].split(0)[1]
    deviation = best.predict(validation.momenta).amplitude / validation.amplitude - 1
    assert np.abs(deviation).mean() == pytest.approx(means[0], rel=1e-9)

    address = workers._client.scheduler.address
    assert run(*command, "-o", "there", "--cluster", address)[0] == 0
    assert json.loads((tmp_path / "there/grid.json").read_text())["runs"] == table

    monkeypatch.setattr(grids, "fit", lambda *_, **__: pytest.fail("trained again"))
    code, out, _ = run(*command, "-o", "here", "--by", "nll")
    assert code == 0
    ranks = [entry["validation"]["nll"] for entry in json.loads((tmp_path / "here/grid.json").read_text())["runs"]]
    assert ranks == sorted(ranks)
    code, _, errors = run(*command, "--set", "training.epochs=3", "-o", "here")
    assert code == 2
    assert "other settings" in errors
    assert run("evaluate", f"here/{table[0]['name']}")[0] == 0
    with one_thread():
        alone = ampsure.fit(events[:1000], config=best.config)
    np.testing.assert_array_equal(*(one.predict(validation.momenta).amplitude for one in (alone, best)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--vary", "training.epochs"), "NAME=VALUE,VALUE"),
        (("--vary", "epochs=1,2"), "NAME=VALUE,VALUE"),
        (("--vary", "training.epochs=1,1"), "twice"),
        (("--vary", "training.epochs=1", "--vary", "training.epochs=2"), "twice"),
        (("--vary", "training.epoch=1,2"), "did you mean 'epochs'"),
        (("--vary", "training.epochs=1,2", "--workers", 2), "--cluster"),
        (("--vary", "training.epochs=1,2", "--cluster", "moon"), "no cluster 'moon'"),
    ],
)
def test_bad_grids(run, events, tmp_path, arguments, words):
    ampsure.save(events[:100], tmp_path / "events.h5")
    code, _, errors = run("grid", "--data", "events.h5", *arguments, "-o", "out")
    assert code == 2
    assert words in errors


def test_no_cluster_is_one_sentence(run, monkeypatch):
    monkeypatch.setattr(cluster, "_SECONDS", 0.5)
    command = ("generate", "gg_yyg", "-n", 10, "-o", "a.h5", "--cluster")
    for where, words in (
        ("tcp://127.0.0.1:9", "No scheduler of Dask answers at tcp://127.0.0.1:9"),
        ("tcp://127.0.0.1", "No scheduler"),
        ("http://127.0.0.1:9", "No scheduler"),
        ("tls://127.0.0.1:9", "No scheduler"),
        ("slurm", "how many workers"),
    ):
        code, _, errors = run(*command, where)
        assert code == 2
        assert words in errors
        gc.collect()  # what Dask has left of a client waits, and tells of it, when it goes
    code, _, errors = run(*command, "tcp://127.0.0.1:9", "--workers", 3)
    assert code == 2
    assert "leave out" in errors
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, errors = run(*command, "slurm", "--workers", 2)
    assert code == 2
    assert "no command sbatch" in errors


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(AmpsureError, match=r"pip install 'ampsure\[dask\]'"), cluster.connect("local"):
        pass


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_that_kills_its_workers_is_given_up():
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(AmpsureError, match="died again and again"),
        cluster.connect("local", 1) as workers,
    ):
        workers.submit(die, 1).result()


def test_errors_of_tasks_come_home(workers):
    with pytest.raises(AmpsureError, match="two or more"):
        workers.submit(ampsure.generate, ampsure.Process("w", (21, 21, 25), (0, 0, 125.0), exact=len), 10).result()


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    for name, script in SCRIPTS.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    import_module("dask_jobqueue")  # with its defaults, before some are changed for a while
    monkeypatch.setenv("JOBS", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with dask.config.set({f"jobqueue.{name}.interface": "lo" for name in ("slurm", "htcondor")}):
        yield tmp_path


def taken_back(queue):
    """Whether jobs are gone, or go soon."""
    end = time.monotonic() + 30
    while (left := subprocess.run([queue], capture_output=True, check=True).stdout) and time.monotonic() < end:
        time.sleep(0.1)
    return not left


def lose(workers):
    """The end of a job with one worker."""
    nanny, worker = workers.submit(os.getppid).result(), workers.submit(os.getpid).result()
    os.kill(nanny, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize(
    ("system", "settings"),
    [
        ("slurm", ("#SBATCH -n 1\n", "--cpus-per-task=1\n", "--mem=4G\n", "--nthreads 1 ")),
        ("htcondor", ("--nthreads 1 ",)),
    ],
)
def test_jobs(jobs, system, settings):
    """Submitted, at work, asked for again when one is lost, and cancelled."""
    with cluster.connect(system, 1) as workers:
        time.sleep(1)  # or else the job was not yet seen to have a worker
        first = workers.submit(os.getpid).result()
        lose(workers)
        assert workers.submit(os.getpid).result() != first
        scripts = list(jobs.glob("job-*.sh"))
        assert len(scripts) == 2
    assert all(words in scripts[0].read_text() for words in settings)
    assert taken_back("squeue")


def test_every_core_of_a_job_is_a_worker(jobs):
    settings = {"cores": 4, "memory": "16 GiB", "queue": "long", "job-extra-directives": ["--gres=gpu:1"]}
    named = {f"jobqueue.slurm.{name}": value for name, value in settings.items()}
    with dask.config.set(named), cluster.batch_system("slurm") as system:
        script = system.job_script()
    for words in ("cpus-per-task=4\n", "mem=16G\n", "-p long\n", "gres=gpu:1\n", "--nthreads 1 ", "--nworkers 4 "):
        assert words in script


def test_description_of_jobs_of_htcondor(jobs):
    with cluster.batch_system("htcondor") as system:
        script = system.job_script()
    for words in ("RequestCpus = MY.DaskWorkerCores", "MY.DaskWorkerCores = 1", "--nthreads 1 "):
        assert words in script


@pytest.mark.parametrize(
    ("system", "reason"),
    [
        ("slurm", "sbatch: error: invalid partition specified: gpu"),
        ("htcondor", "Error in expression: Requirements = (("),
    ],
)
def test_refused_jobs_are_one_sentence(jobs, monkeypatch, system, reason):
    monkeypatch.setenv("REFUSE", "yes")
    words = re.escape(f"{system} refuses the jobs of jobqueue.yaml: {reason}.")
    with pytest.raises(AmpsureError, match=f"^{words}$"), cluster.connect(system, 2):
        pass


@pytest.mark.filterwarnings("ignore:unclosed cluster")  # Dask leaves one that it could not make
@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("memory", "lots", "lots"),
        ("interface", "ib77", "ib77"),
        ("job-extra-directives", ["--gres=gpu:1"], "not a list"),  # as SLURM's are
    ],
)
def test_bad_settings_of_jobs_are_one_sentence(jobs, setting, value, reason):
    words = f"jobqueue.yaml does not describe jobs of htcondor: .*{reason}"
    settings = dask.config.set({f"jobqueue.htcondor.{setting}": value})
    with settings, pytest.raises(AmpsureError, match=words), cluster.connect("htcondor", 1):
        pass


def test_an_interrupt_takes_jobs_back(jobs):
    """And is not taken for success, as Dask would have it."""
    (jobs / "python").write_text("#!/bin/sh\nsleep 100\n")
    (jobs / "python").chmod(0o755)
    setting = {"DASK_JOBQUEUE__HTCONDOR__INTERFACE": "lo", "DASK_JOBQUEUE__HTCONDOR__PYTHON": f"{jobs}/python"}
    command = ("generate", "gg_yyg", "-n", "10", "-o", f"{jobs}/a.h5", "--cluster", "htcondor", "--workers", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "ampsure", *command], env=os.environ | setting, stderr=subprocess.PIPE, text=True
    )
    with process:
        while not list(jobs.glob("*.pid")):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Interrupted" in errors
    assert taken_back("condor_q")


def test_jobs_refused_after_the_first_worker_are_one_sentence(jobs, monkeypatch):
    def use():
        with cluster.connect("slurm", 1) as workers:
            time.sleep(1)
            monkeypatch.setenv("REFUSE", "yes")
            lose(workers)
            workers.submit(os.getpid).result()

    refusal = pytest.raises(AmpsureError, match=r"slurm refuses .* invalid partition")
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "100 ms"}), refusal:
        use()


def test_jobs_that_wait_are_told(jobs, monkeypatch):
    monkeypatch.setattr(cluster, "_ASK", 0)
    told = []
    with (
        dask.config.set({"jobqueue.htcondor.job-script-prologue": ["sleep 3"]}),
        cluster.connect("htcondor", 2, told.append),
    ):
        pass
    assert "No worker is there. htcondor says of its jobs: 2 IDLE. Ctrl-C takes them back." in told


@pytest.mark.parametrize("system", ["slurm", "htcondor"])
def test_jobs_that_end_without_a_worker_are_one_sentence(jobs, monkeypatch, system):
    monkeypatch.setattr(cluster, "_ASK", 0)
    with (
        dask.config.set({f"jobqueue.{system}.job-script-prologue": ["exit 1"]}),
        pytest.raises(AmpsureError, match=rf"Job [\d.]+ of {system} ended before a worker came"),
        cluster.connect(system, 2),
    ):
        pass
    assert len(list(jobs.glob("job-*.sh"))) == 2


def test_jobs_of_several_workers(jobs, monkeypatch):
    """As many as it takes, whatever the number of workers; asked for again when all workers of one are lost."""
    monkeypatch.setattr(cluster, "_ASK", 0)
    monkeypatch.setattr(cluster, "_LOST", 0)
    told = []
    with dask.config.set({"jobqueue.slurm.cores": 2}), cluster.connect("slurm", 1, told.append) as workers:
        nanny = workers.submit(os.getppid).result()
        time.sleep(3)  # looks, which must not end the job: two workers are more than one
        assert workers.submit(os.getppid).result() == nanny
        os.killpg(os.getpgid(nanny), signal.SIGKILL)
        assert workers.submit(os.getppid).result() != nanny
    assert len(list(jobs.glob("job-*.sh"))) == 2
    assert "No worker is there. slurm says of its jobs: 1 RUNNING (None). Ctrl-C takes them back." in told


def test_locks_are_held_by_one_and_left_by_the_dead(tmp_path):
    order = []

    def enter():
        with locked(tmp_path / "b", tmp_path / "a"):
            order.append("other")

    with locked(tmp_path / "a"):
        thread = threading.Thread(target=enter)
        thread.start()
        time.sleep(0.1)  # however short, the other one must not be first
        order.append("one")
    thread.join()
    assert order == ["one", "other"]
    program = f"""
import os, sys, ampsure.cli
from pathlib import Path
from ampsure.io import locked
assert not {{"dask", "distributed", "dask_jobqueue"}} & set(sys.modules)  # which only clusters need
with locked(Path({str(tmp_path)!r}) / "a"):
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    with locked(tmp_path / "a"):
        pass
