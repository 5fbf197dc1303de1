"""Processes that share the members of an ensemble end where one process ends, and fail as one.

The tests start this file with torchrun, on the CPU: `_work` is what each process then does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ampsure
from ampsure import AmpsureError, cli
from ampsure.config import TrainingConfig, resolve
from ampsure.likelihoods import get_likelihood
from ampsure.networks import StackedMLP
from ampsure.posteriors import Ensemble
from ampsure.training import Engine, Training, TrainingData, TrainingInterrupted
from ampsure.training.ranks import Ranks, find_ranks

# Of weights and losses of order one. Products of matrices with fewer rows round differently, in the 16th digit. Adam
# keeps that; SOAP divides by roots of tiny eigenvalues and loses six to seven digits (measured: 6e-17 and 6e-10).
TOLERANCE = {"adam": 1e-13, "soap": 1e-7}


def _config(method: str, posterior: dict | None = None, **training) -> ampsure.config.Config:
    network = {"hidden": (8, 8), "precision": "float64"}
    settings = {"epochs": 4, "batch_size": 64, "seed": 1, "device": "cpu", **training}
    return resolve(
        method, "accurate", {"network": network, "posterior": {"members": 3, **(posterior or {})}}, **settings
    )


CASES = {
    "adam": [_config("repulsive", {"prior_scale": 1.0}, optimizer="adam")],
    "own batches": [_config("repulsive", {"beta": 0.0}, shared_batches=False, gradient_clip=1.0, early_stopping=1)],
    "global": [_config("repulsive-global", {"members": 4})],
    "joint": [_config("repulsive", {"systematic": "global-joint"}, optimizer="adam")],
    "recommended": [_config("recommended", {"members": 5}, optimizer="adam")],
    "fleet": [_config("repulsive", {"beta": beta}, seed=seed) for beta, seed in ((1.0, 1), (5.0, 2))],
}
RESUMED = {"soap": _config("repulsive", epochs=6), "adam": _config("recommended", epochs=6, optimizer="adam")}


def _weights(surrogates: list[ampsure.Surrogate]) -> np.ndarray:
    """All weights and losses of surrogates, one after the other."""
    networks = [
        n for s in surrogates for n in (*(stage.network for stage in s.earlier), s.network, s.sigma_network) if n
    ]
    networks += [s.calibration.networks for s in surrogates if s.calibration is not None]
    losses = [e["validation_loss"] for s in surrogates for h in s.history.values() for e in h]
    losses += [e["training_loss"] for s in surrogates for h in s.history.values() for e in h]
    return np.concatenate([*(p.flatten().numpy() for n in networks for p in n.parameters()), losses])


def _interrupted(events: ampsure.Events, folder: Path) -> None:
    """Leaves the states of trainings in the middle of the last stage; Ctrl-C reaches one process only."""

    def report(stage: str, progress: ampsure.training.Progress) -> None:
        if stage in ("members", "stage-2") and progress.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)

    for name, config in RESUMED.items():
        with pytest.raises(TrainingInterrupted, match=r"the state is in .*(members|stage-2)"):
            ampsure.fit(events, config=config, checkpoint=folder / name, report=report)


def _resumed(events: ampsure.Events, folder: Path) -> dict[str, np.ndarray]:
    return {name: _weights([ampsure.fit(events, config=c, checkpoint=folder / name)]) for name, c in RESUMED.items()}


def _one_diverges(ranks: Ranks) -> str:
    """What a process says if the loss of the last member, perhaps another's, is not finite."""
    network = StackedMLP(2, 2, hidden=(4,), members=3)
    with torch.no_grad():
        network.biases[0][-1] = torch.nan
    data = TrainingData(torch.zeros(40, 2), torch.zeros(40), torch.zeros(8, 2), torch.zeros(8))
    config = TrainingConfig(optimizer="adam", batch_size=20, epochs=2)
    training = Training(Ensemble(network, beta=0.0), get_likelihood("gaussian"), data, config)
    with pytest.raises(AmpsureError) as error:
        Engine(training, ranks=ranks).run()
    return str(error.value)


def _train(folder: Path, output: str, *settings: str, data: str = "events.h5") -> None:
    """`ampsure train`."""
    arguments = ["--data", str(folder / data), "--method", "repulsive", "-o", str(folder / output)]
    arguments += [part for s in ("network.hidden=[8]", "training.epochs=2", *settings) for part in ("--set", s)]
    sys.argv = ["ampsure", "train", *arguments]
    cli.main()


def _share(folder: Path, rank: int) -> None:
    events = ampsure.load(folder / "events.h5")
    for name, configs in CASES.items():
        np.save(folder / f"{name}-{rank}", _weights(ampsure.fit_many([(events, config) for config in configs])))
    _interrupted(events, folder / "state-of-2")
    (folder / f"diverged-{rank}").write_text(_one_diverges(find_ranks(torch.device("cpu"))))
    _train(folder, "run")


def _resume(folder: Path, rank: int) -> None:
    events = ampsure.load(folder / "events.h5")
    for state in ("state-of-1", "state-of-2"):
        np.savez(folder / f"{state}-{rank}", **_resumed(events, folder / state))
    _train(folder, "failed", "posterior.members=2")


def _fail(folder: Path, rank: int) -> None:
    _train(folder, "failed", data="missing.h5" if rank == 1 else "events.h5")


def _torchrun(processes: int, task: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    command += [__file__, task, folder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*map(str, command)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def _told(finished: subprocess.CompletedProcess[str]) -> list[str]:
    """Errors of ampsure, among those of torchrun."""
    return [line for line in finished.stderr.splitlines() if line.startswith("Error:")]


@pytest.fixture(scope="module")
def folder(flat_events, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    ampsure.save(flat_events[:600], folder / "events.h5")
    return folder


def test_processes_share_an_ensemble(folder):
    """Two train what one trains; a training goes on with another number of processes; errors are told once."""
    events = ampsure.load(folder / "events.h5")
    shared = _torchrun(2, "share", folder)
    assert shared.returncode == 0, shared.stderr
    for name, configs in CASES.items():
        alone = _weights(ampsure.fit_many([(events, config) for config in configs]))
        for rank in range(2):
            _assert_equal(np.load(folder / f"{name}-{rank}.npy"), alone, configs[0])
    assert "not finite at step 0" in (folder / "diverged-0").read_text()
    assert (folder / "diverged-0").read_text() == (folder / "diverged-1").read_text()
    assert shared.stdout.count("epoch 2/2") == shared.stdout.count("Trained in") == 1
    assert ampsure.load_surrogate(folder / "run").network.members == 4
    assert not (folder / "run" / "checkpoint").exists()

    shutil.copytree(folder / "state-of-2", folder / "state-for-1")
    states = [_resumed(events, folder / "state-for-1")]
    _interrupted(events, folder / "state-of-1")
    shared = _torchrun(3, "resume", folder)
    for state in ("state-of-1", "state-of-2"):
        states += [np.load(folder / f"{state}-{rank}.npz") for rank in range(3)]
    for name, config in RESUMED.items():
        undisturbed = _weights([ampsure.fit(events, config=config)])
        for state in states:
            _assert_equal(state[name], undisturbed, config)
    assert shared.returncode != 0
    [error] = _told(shared)
    assert "3 processes, but posterior.members = 2" in error
    assert not (folder / "failed" / "surrogate.json").exists()


def test_a_process_that_fails_ends_all_of_them(flat_events, tmp_path):
    ampsure.save(flat_events[:600], tmp_path / "events.h5")
    failed = _torchrun(2, "fail", tmp_path)
    assert failed.returncode != 0
    [error] = _told(failed)
    assert "missing.h5" in error


def _assert_equal(shared: np.ndarray, alone: np.ndarray, config: ampsure.config.Config) -> None:
    np.testing.assert_allclose(shared, alone, rtol=0, atol=TOLERANCE[config.training.optimizer])


if __name__ == "__main__":
    {"share": _share, "resume": _resume, "fail": _fail}[sys.argv[1]](Path(sys.argv[2]), int(os.environ["RANK"]))
