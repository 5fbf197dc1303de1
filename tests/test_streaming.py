"""Data larger than memory: the same events, the same training, and no more memory than promised."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

import ampsure
from ampsure import AmpsureError, Events, scratch
from ampsure.cli import common
from ampsure.config import TrainingConfig
from ampsure.events import COLUMNS
from ampsure.io import EventFile, appending, checksum, load, load_or_open, save, stream
from ampsure.likelihoods import get_likelihood
from ampsure.memory import available_memory
from ampsure.networks import StackedMLP
from ampsure.posteriors import Ensemble
from ampsure.preprocessing import AsinhTarget, LogTarget, Standardization
from ampsure.scratch import Scratch
from ampsure.training import Engine, Training, TrainingData
from ampsure.training.engine import TrainingInterrupted
from ampsure.training.windows import Windows

CPU = torch.device("cpu")
SMALL = {"network": {"hidden": (16, 16)}}
SHORT = {"epochs": 3, "batch_size": 64, "seed": 1, "device": "cpu"}


@pytest.fixture
def folder(tmp_path):
    """For stored columns; trainings hold 320 rows in memory."""
    with Scratch.made(tmp_path, window=320) as made:
        yield made


def in_parts(events: Events, *cuts: int) -> list[Events]:
    return [events[a:b] for a, b in zip((0, *cuts), (*cuts, len(events)), strict=True)]


# files that grow


@pytest.mark.parametrize("cuts", [(), (1,), (700, 701, 2900), (1500,)])
@pytest.mark.parametrize("changed", [None, *COLUMNS[1:]])
def test_a_file_written_in_parts_is_the_file_written_at_once(flat_events, tmp_path, cuts, changed):
    events = replace(flat_events, weights=None, truth=None)
    if changed is not None:  # trivial in all parts but the last
        column = getattr(events, changed).copy()
        column[-2] = False if changed == "trainable" else 3.0
        events = replace(events, **{changed: column})
    with appending(tmp_path / "events.h5") as file:
        for part in in_parts(events, *cuts):
            file.append(part)
    read = load(tmp_path / "events.h5")  # compares the checksum
    assert checksum(read) == checksum(events)
    assert (read.process, read.provenance) == (events.process, events.provenance)
    with h5py.File(tmp_path / "events.h5") as file:
        assert set(file) == {"momenta", "amplitude", *([changed] if changed else [])}


def test_nothing_is_left_of_a_file_that_fails(flat_events, tmp_path):
    other = replace(flat_events, process=replace(flat_events.process, name="other"))
    with pytest.raises(AmpsureError, match="different processes"), appending(tmp_path / "a.h5") as file:  # noqa: PT012
        file.append(flat_events)
        file.append(other)
    with pytest.raises(AmpsureError, match="no events"), appending(tmp_path / "a.h5"):
        pass
    with pytest.raises(AmpsureError, match=r"name it \.h5"), appending(tmp_path / "a.npz"):
        pass
    assert os.listdir(tmp_path) == []


_FULL_DISK = """
import os, resource
import ampsure
from ampsure.io import appending, save_columns

events = ampsure.load("few.h5")
for room in (0, 2000, 10_000, 100_000, 300_000, 350_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    for name, cuts in (("parts", (0, 1000, 1500, 3000)), ("all", (0, 3000))):
        try:
            with appending(f"{name}.h5") as file:
                for a, b in zip(cuts, cuts[1:]):
                    file.append(events[a:b])
        except ampsure.AmpsureError as error:
            print(error)
    try:
        save_columns([{"amplitude": events.amplitude}] * 30, "columns.h5", "x")
    except ampsure.AmpsureError as error:
        print(error)
print("end")
"""


def test_a_full_disk_is_one_sentence(flat_events, tmp_path):
    """HDF5 itself, told that the disk is full, may end with a segmentation fault; so it is never told.

    Here files may not grow beyond a size, which to a program is the same.
    """
    save(flat_events, tmp_path / "few.h5")
    assert (tmp_path / "few.h5").stat().st_size > 350_000
    done = subprocess.run([sys.executable, "-c", _FULL_DISK], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "end"
    assert len(lines) == 18
    assert all(
        f"{n}.h5 cannot be written (File too large)" in lines[k] for k, n in enumerate(["parts", "all", "columns"])
    )
    assert os.listdir(tmp_path) == ["few.h5"]


def test_a_stream_ends_with_the_checksum(flat_events, tmp_path):
    save(flat_events, tmp_path / "events.h5")
    with h5py.File(tmp_path / "events.h5", "r+") as file:
        file["weights"][5] *= 2
    parts = stream(tmp_path / "events.h5", 2000)
    assert len(next(parts)) == 2000
    with pytest.raises(AmpsureError, match="do not match its checksum"):
        list(parts)
    with pytest.raises(AmpsureError, match="do not match its checksum"):
        ampsure.fit(EventFile(tmp_path / "events.h5"), config=SMALL, checkpoint=tmp_path / "c", **SHORT)
    assert list((tmp_path / "c").iterdir()) == []


def test_a_stream_counts_what_it_drops(flat_events, tmp_path, run):
    amplitude = flat_events.amplitude.copy()
    amplitude[[3, 1000, 1001, -1]] = np.nan
    np.savez(tmp_path / "events.npz", momenta=flat_events.momenta, amplitude=amplitude)
    code, out, _ = run("convert", "events.npz", "events.h5", "--process", "gg_yyg", "--invalid", "drop")
    assert code == 0
    assert "2,996 events written" in out
    assert "4 invalid events" in out
    parts = list(stream(tmp_path / "events.npz", 1, invalid="drop"))  # most drop nothing, the last one everything
    dropped = {"events": 4, "reasons": {"the amplitude is not finite": 4}}
    assert parts[-1].provenance["dropped"] == dropped
    with h5py.File(tmp_path / "events.h5") as file:
        assert '"dropped": {"events": 4' in file.attrs["provenance"].decode()


def test_a_file_of_events_knows_what_events_know(flat_events, tmp_path):
    events = replace(flat_events, trainable=np.arange(3000) % 7 > 0)
    save(events, tmp_path / "events.h5")
    file = EventFile(tmp_path / "events.h5")
    assert (len(file), file.process, checksum(file)) == (3000, events.process, checksum(events))
    for ours, theirs in zip(
        file.split_indices(4, (0.5, 0.2, 0.3)), events.split_indices(4, (0.5, 0.2, 0.3)), strict=True
    ):
        assert np.array_equal(ours, theirs)
    chosen = np.array([2999, 5, 0, 1234])
    assert checksum(file.take(chosen)) == checksum(events[chosen])


def test_what_does_not_fit_is_opened(flat_events, tmp_path):
    save(flat_events, tmp_path / "events.h5")
    save(flat_events, tmp_path / "events.npz")
    assert isinstance(load_or_open(tmp_path / "events.h5"), Events)
    assert isinstance(load_or_open(tmp_path / "events.h5", memory=1e-3), EventFile)
    assert isinstance(load_or_open(tmp_path / "events.npz", memory=1e-3), Events)
    with pytest.raises(AmpsureError, match="convert --invalid drop"):
        load_or_open(tmp_path / "events.h5", memory=1e-3, invalid="drop")
    assert 2**28 < available_memory() < 2**50


# columns


def test_stored_columns_are_columns(folder, tmp_path):
    rows = torch.from_numpy(np.random.default_rng(1).standard_normal((20_000, 3)))
    stored = folder.write(rows.split(999), CPU)
    assert stored.shape == (20_000, 3)
    assert torch.equal(torch.cat(list(stored.split(777))), rows)
    doubled = scratch.lazily(lambda r: 2 * r, stored).to(torch.float32)
    assert torch.equal(doubled.host(7, 11), (2 * rows[7:11]).float())
    picked = scratch.each(lambda a, b: a[b[:, 0] > 0], stored, doubled)
    assert torch.equal(torch.cat(list(picked.split(5000))), rows[rows[:, 0] > 0])
    assert len(os.listdir(next(tmp_path.iterdir()))) == 2
    del stored, doubled, picked  # and their files
    assert os.listdir(next(tmp_path.iterdir())) == []


def test_a_full_disk_for_scratch_is_one_sentence(tmp_path):
    def fill():
        with Scratch.made(tmp_path, 10) as made:
            made._path = lambda: "/dev/full"
            made.write([torch.zeros(100_000)], CPU)

    with pytest.raises(AmpsureError, match="No space left on device"):
        fill()
    assert os.listdir(tmp_path) == []


def test_rows_are_put_into_order(folder):
    places, rows = np.random.default_rng(2).permutation(1000), np.random.default_rng(3).random((1000, 2))
    stored = folder.ordered(((places[k : k + 130], rows[k : k + 130]) for k in range(0, 1000, 130)), 1000)
    assert np.array_equal(stored.host(0, 1000).numpy(), rows[np.argsort(places)])


def test_statistics_in_parts_are_those_of_all(folder, monkeypatch):
    raw = torch.from_numpy(np.random.default_rng(4).lognormal(size=(5000, 3)))
    raw[:, 2] = 7.0
    expected = Standardization.fit(raw)
    monkeypatch.setattr(scratch, "_PART", 600)
    folder.window = 5000  # a sample of all
    stored = folder.write(raw.split(512), CPU)
    for name, values in Standardization.fit(stored).tensors().items():
        torch.testing.assert_close(values, getattr(expected, name), rtol=1e-13, atol=0)
    for target in (LogTarget, AsinhTarget):
        found, all_at_once = (
            target.fit(column).parameters() for column in (stored.lazily(lambda r: r[:, 0]), raw[:, 0])
        )
        assert found == pytest.approx(all_at_once, rel=1e-13)
    with pytest.raises(AmpsureError, match="positive amplitudes"):
        LogTarget.fit(stored.lazily(lambda r: r[:, 0] - 0.5))
    with pytest.raises(AmpsureError, match="equal"):
        LogTarget.fit(stored.lazily(lambda r: r[:, 2]))


# windows


@pytest.mark.parametrize("n", [50, 320, 960, 1003])
def test_every_event_once_an_epoch_in_an_order_of_its_own(folder, n):
    batch = 10
    column = folder.write(torch.arange(n, dtype=torch.float64).split(100), CPU)
    windows = Windows(column, column, batch, epochs=3, seed=1)
    orders = []
    for epoch in range(3):
        seen = []
        for number in range(len(windows)):
            windows.load(epoch, number)
            rows = windows.x[: windows.rows(number)].clone()
            assert torch.equal(rows, windows.y[: len(rows)])
            assert number + 1 == len(windows) or len(rows) % batch == 0  # no batch is lost but the last
            seen.append(rows)
        orders.append(torch.cat(seen))
        assert torch.equal(orders[-1].sort().values, torch.arange(n, dtype=torch.float64))
    windows.close()
    if n > 320:
        assert not torch.equal(orders[0], orders[1])
        windows = Windows(column, column, batch, epochs=3, seed=1)
        windows.load(2, 1)  # in the middle: the order follows from the seed
        assert torch.equal(windows.x[: windows.rows(1)], orders[2][windows.size : windows.size + windows.rows(1)])
        windows.close()


def _training(folder, window, **options):
    folder.window = window
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((1100, 3))).float()
    y = torch.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
    columns = (x[:1000], y[:1000]) if window is None else (folder.write([c[:1000]], CPU) for c in (x, y))
    data = TrainingData(*columns, x[1000:], y[1000:])
    config = TrainingConfig(**{"epochs": 4, "batch_size": 30, "seed": 1, "optimizer": "adam", **options})
    posterior = Ensemble(StackedMLP(3, 2, hidden=(8, 8), members=2, seed=5), beta=0.0)
    return Training(posterior, get_likelihood("gaussian"), data, config)


@pytest.mark.parametrize("shared", [True, False])
def test_one_window_is_training_in_memory(folder, shared):
    trainings = [_training(folder, window, shared_batches=shared) for window in (None, 4000)]
    for training in trainings:
        Engine(training).run()
    for ours, theirs in zip(*(t.posterior.parameters() for t in trainings), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("steps", [1, 33, 40, 70])
def test_windows_resume_with_the_same_bits(folder, tmp_path, steps):
    whole = _training(folder, 250, shared_batches=False)
    Engine(whole).run()
    path = tmp_path / "state.safetensors"
    first = Engine(_training(folder, 250, shared_batches=False), checkpoint=path)
    while first.step < steps:
        if due := first.advance():
            first._end_epoch(due)
    with pytest.raises(TrainingInterrupted):
        first._stop()
    again = _training(folder, 250, shared_batches=False)
    Engine(again, checkpoint=path).run()
    for ours, theirs in zip(whole.posterior.parameters(), again.posterior.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_trainings_side_by_side_are_in_memory(folder):
    with pytest.raises(AmpsureError, match="on events in memory"):
        Engine(_training(folder, 250), _training(folder, 250))


# from a file to a surrogate


@pytest.mark.parametrize(
    ("method", "changed"),
    [
        ("recommended", {}),
        ("repulsive-global", {}),
        ("mse", {}),
        ("heteroscedastic", {"posterior": {"name": "laplace"}}),
    ],
)
def test_a_file_that_fits_one_window_trains_as_in_memory(flat_events, tmp_path, method, changed):
    events = ampsure.disturbances.disturb(flat_events, [ampsure.disturbances.Outliers()], seed=1)
    save(events, tmp_path / "events.h5")
    config = {**SMALL, **changed}
    ours = ampsure.fit(EventFile(tmp_path / "events.h5"), method, config=config, checkpoint=tmp_path / "c", **SHORT)
    theirs = ampsure.fit(events, method, config=config, **SHORT)
    assert ours.weights_checksum == theirs.weights_checksum
    assert ours.provenance["data"].items() >= theirs.provenance["data"].items()
    assert not list((tmp_path / "c").glob("scratch-*"))


def test_an_ordered_file_is_shuffled(flat_events, tmp_path):
    """Whatever the order of the file, neighbours in the scratch folder are a random sample of it."""
    ordered = flat_events[np.argsort(flat_events.amplitude)]
    save(ordered, tmp_path / "events.h5")
    config = {**SMALL, "data": {"memory": 1e-3}}
    surrogate = ampsure.fit(tmp_path / "events.h5", "heteroscedastic", config=config, **SHORT)
    assert surrogate.provenance["data"]["window"] < 600
    in_memory = ampsure.fit(ordered, "heteroscedastic", config=SMALL, **SHORT)
    ours, theirs = (s.history["members"][-1]["validation_loss"] for s in (surrogate, in_memory))
    assert ours == pytest.approx(theirs, abs=0.05)


def test_commands_on_a_file_larger_than_memory(flat_events, tmp_path, run, monkeypatch):
    monkeypatch.setattr(common, "_TESTED", 200)
    save(flat_events, tmp_path / "events.h5")
    settings = ["network.hidden=[16]", "training.epochs=2", "training.device=cpu", "data.memory=0.001"]
    code, out, _ = run("train", "--data", "events.h5", "-o", "a", *(word for s in settings for word in ("--set", s)))
    assert code == 0
    assert "3,000 events are too many for memory" in out
    code, out, _ = run("evaluate", "a")
    assert code == 0
    assert "200 test events" in out
    assert "a random 200 of the 600 events of the test part of events.h5" in " ".join(out.split())
    for output in ("out.h5", "out.npz"):
        code, out, _ = run("predict", "a", "events.h5", "-o", output)
        assert code == 0
        assert "3,000 predictions" in out
    expected = ampsure.load_surrogate("a").predict(flat_events.momenta)
    with h5py.File("out.h5") as file, np.load("out.npz") as arrays:
        assert file.attrs["format"] == b"ampsure-predictions"
        for name in ("amplitude", "sigma_syst", "sigma_stat", "sigma_tot", "in_domain"):
            assert np.array_equal(file[name][:], arrays[name])
            assert np.array_equal(file[name][:], getattr(expected, name))
    code, _, err = run("predict", "a", "events.h5", "-o", "out.txt")
    assert (code, "written as .npz or .h5" in err) == (2, True)


_CAMPAIGN = """
import resource, sys
import ampsure
from ampsure.io import appending

few = ampsure.load("few.h5")
settings = {"network": {"hidden": (8,)}, "posterior": {"members": 2}}
training = {"epochs": 1, "batch_size": 4096, "device": "cpu"}
ampsure.fit(few, config=settings, **training).predict(few.momenta)  # whatever that takes
with open("/proc/self/status") as file:
    taken = next(1024 * int(line.split()[1]) for line in file if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (taken + int(sys.argv[1]) * 2**20,) * 2)
with appending("many.h5") as file:
    for _ in range(100):
        file.append(few)
ampsure.fit("many.h5", config={**settings, "data": {"memory": 0.05}}, checkpoint="c", **training)
print("streamed")
try:
    ampsure.fit(ampsure.load("many.h5"), config=settings, **training)
except (MemoryError, RuntimeError, ampsure.AmpsureError):
    print("not in memory")
"""


def test_memory_is_bounded(flat_events, tmp_path):
    """300 000 events, which take 270 MiB in memory, with 160 MiB more than a training on 3000 events takes.

    The limit is one on data, private to the process, whether or not it is resident; nothing is mapped from files.
    """
    save(flat_events, tmp_path / "few.h5")
    done = subprocess.run(
        [sys.executable, "-c", _CAMPAIGN, "160"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["streamed", "not in memory"], done.stderr
