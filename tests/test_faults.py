"""Full disks, closed folders, full GPUs, clocks that jump, kills, hostile files: one sentence, nothing half-done."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import ampsure
from ampsure import AmpsureError
from ampsure.config import resolve
from ampsure.deploy import export_umami
from ampsure.io import replacing
from ampsure.networks import StackedMLP
from ampsure.studies import get_study
from ampsure.studies.runner import load_record
from ampsure.training import engine
from ampsure.training.checkpoint import read_checkpoint

FIXTURES = Path(__file__).parent / "fixtures"
SMALL = ("--set", "network.hidden=[4]", "--set", "training.epochs=1", "--set", "training.batch_size=100")
SIGMA = ("--set", "posterior.members=2", "--set", "posterior.sigma_hidden=[4]")
WRITERS = {
    "generate": ("generate", "gg_yyg", "-n", "50", "--sampling", "rambo", "-o", "OUT/x.h5"),
    "inspect": ("inspect", "events.h5", "-o", "OUT/x.png"),
    "convert h5": ("convert", "events.h5", "OUT/x.h5"),
    "convert lhe": ("convert", "events.h5", "OUT/x.lhe"),
    "convert lhe.gz": ("convert", "events.h5", "OUT/x.lhe.gz"),
    "convert npz": ("convert", "events.h5", "OUT/x.npz"),
    "convert npy": ("convert", "plain.npz", "OUT/x.npy"),
    "disturb": ("disturb", "events.h5", "OUT/x.h5", "--uniform", "0.1"),
    "train": ("train", "--data", "events.h5", "-o", "OUT/run", *SMALL, *SIGMA),
    "predict": ("predict", "run", "events.h5", "-o", "OUT/x.npz"),
    "audit": ("audit", "events.h5", "-o", "OUT/x.npz", "--folds", "2", *SMALL, *SIGMA),
    "report": ("report", "run", "--data", "events.h5", "-o", "OUT/x.html"),
    "histogram": ("histogram", "run", "--data", "events.h5", "-o", "OUT/x"),
    "reweight": ("reweight", "events.lhe", "--surrogate", "run", "-o", "OUT/x.lhe.gz"),
    "distill": ("distill", "run", "--data", "events.h5", "-o", "OUT/run", *SMALL),
    "export onnx": ("export", "run", "-o", "OUT/x.onnx"),
    "export umami": ("export", "run", "--format", "umami", "--no-build", "-o", "OUT/umami"),
    "study run": ("study", "run", "true-amplitudes", "--data", "events.h5", "-o", "OUT/s", "--cache", "OUT/c"),
}
"""Commands that write, between them in every way there is; OUT is a folder in which they cannot."""


@pytest.fixture
def folder(tmp_path, flat_events):
    """What the commands read."""
    ampsure.save(flat_events[:300], tmp_path / "events.h5")
    ampsure.save(flat_events[:300], tmp_path / "events.lhe")
    ampsure.save(ampsure.Events(flat_events.momenta[:300], flat_events.amplitude[:300]), tmp_path / "plain.npz")
    shutil.copytree(FIXTURES / "surrogate-3/recommended", tmp_path / "run")
    return tmp_path


@contextmanager
def mounted(where: Path, *options: str):
    """A small file system in memory; only root may have one."""
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(where)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        if options:
            subprocess.run(["mount", "-o", ",".join(("remount", *options)), str(where)], check=True)
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)  # even if a file was left open


def assert_one_sentence(result: tuple[int, str, str], words: str) -> None:
    code, out, err = result
    assert code == 2, (out, err)
    assert re.fullmatch(rf"Error: [^\n]*{words}[^\n]*\.", err), err
    assert "Traceback" not in out


def test_full_disk(folder, run):
    with mounted(folder / "OUT") as out:
        with suppress(OSError):
            (out / "full").write_bytes(bytes(10**5))
        for command in WRITERS.values():
            assert_one_sentence(run(*command), "No space left on device")
            written = [path for path in out.rglob("*") if path.is_file()]
            assert written == [out / "full"], command
            for name in set(os.listdir(out)) - {"full"}:  # a folder alone holds nothing
                shutil.rmtree(out / name)


def test_read_only_folder(folder, run):
    with mounted(folder / "OUT", "ro") as out:
        for command in WRITERS.values():
            assert_one_sentence(run(*command), "(not writable|cannot be (made|written))")
            assert not os.listdir(out)


@contextmanager
def without_privileges():
    """As a user whom permissions bind."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_missing_permission(folder, flat_events):
    surrogate = ampsure.load_surrogate(folder / "run")
    (folder / "closed").mkdir()
    for path in (folder / "events.h5", folder / "events.lhe", folder / "plain.npz", folder / "run/surrogate.json"):
        path.chmod(0)
    folder.chmod(0o755)
    (folder / "closed").chmod(0o555)
    for parent in folder.parents:  # made by pytest for its user alone
        if parent.stat().st_uid == os.getuid() and str(parent) != "/" and not os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    try:
        with without_privileges():
            for name in ("events.h5", "events.lhe", "plain.npz"):
                with pytest.raises(AmpsureError, match=rf"{name} cannot be read \(Permission denied\): check the file"):
                    ampsure.load(folder / name)
            with pytest.raises(AmpsureError, match="Permission denied"):
                ampsure.load_surrogate(folder / "run")
            for write in (
                lambda: ampsure.save(flat_events, folder / "closed/x.h5"),
                lambda: surrogate.save(folder / "closed/run"),
                lambda: export_umami(surrogate, folder / "closed/umami", build=False),
            ):
                with pytest.raises(AmpsureError, match=r"not writable|Permission denied"):
                    write()
        assert not os.listdir(folder / "closed")
    finally:
        (folder / "closed").chmod(0o755)


# a GPU without memory


@pytest.fixture
def small_gpu(monkeypatch):
    """Networks that have no room for more than so many events at a time, as a list of one number."""
    room, real = [100], StackedMLP.forward

    def forward(self, x, **options):
        if x.shape[-2] > room[0]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(self, x, **options)

    monkeypatch.setattr(StackedMLP, "forward", forward)
    return room


def test_predictions_on_a_full_gpu_take_smaller_parts(flat_events, small_gpu):
    surrogate = ampsure.load_surrogate(FIXTURES / "surrogate-3/recommended")
    small_gpu[0] = 10**9
    whole = surrogate.predict(flat_events.momenta, members=True)
    standardised = surrogate.standardised(torch.from_numpy(flat_events.momenta))
    small_gpu[0] = 100
    parts = surrogate.predict(flat_events.momenta, members=True)
    for name in ("amplitude", "sigma_syst", "sigma_stat", "sigma_tot", "in_domain", "members"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)
    for a, b in zip(standardised, surrogate.standardised(torch.from_numpy(flat_events.momenta)), strict=True):
        assert torch.allclose(a, b, rtol=1e-12)
    small_gpu[0] = 10
    with pytest.raises(AmpsureError, match=r"does not even hold 16 events: free some of it, or predict on the CPU"):
        surrogate.predict(flat_events.momenta)


def test_training_on_a_full_gpu_says_what_to_do(flat_events, small_gpu, tmp_path, monkeypatch):
    config = resolve("heteroscedastic", "accurate", {"network": {"hidden": (4,)}}, epochs=2, batch_size=500)
    with pytest.raises(AmpsureError, match=r"not enough memory.*lower training.batch_size or posterior.members"):
        ampsure.fit(flat_events, config=config)

    def fill(stage, progress):
        small_gpu[0] = 100

    monkeypatch.setattr(engine, "_CHECKPOINT_SECONDS", 0.0)
    small_gpu[0] = 10**9
    for _ in range(2):  # the second one resumes: that it cannot go on is not the fault of the checkpoint
        with pytest.raises(AmpsureError, match="not enough memory"):
            ampsure.fit(flat_events, config=config, checkpoint=tmp_path, report=fill)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_that_is_really_full(flat_events):
    """The allocator itself refuses whatever needs a new block of more than a MiB."""
    total = torch.cuda.get_device_properties(0).total_memory
    size = {"network": {"hidden": (512, 512)}, "posterior": {"members": 2}}
    config = resolve("recommended", "accurate", size, epochs=1, batch_size=500)
    surrogate = ampsure.fit(flat_events, config=config)
    whole = surrogate.predict(flat_events.momenta)
    try:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 16 * 2**20) / total)
        parts = surrogate.predict(flat_events.momenta)
        with pytest.raises(AmpsureError, match="not enough memory"):
            ampsure.fit(flat_events, config=config)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    for name in ("amplitude", "sigma_syst", "sigma_stat", "sigma_tot", "in_domain"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-9)


# a clock that jumps


def test_a_clock_that_jumps_changes_nothing(flat_events, tmp_path, monkeypatch):
    config = resolve("heteroscedastic", "accurate", {"network": {"hidden": (4,)}}, epochs=3, batch_size=500)
    undisturbed = ampsure.fit(flat_events, config=config)
    jumps = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: 2e9 * (next(jumps) % 2))  # 1970, 2033, 1970, ...
    monkeypatch.setattr(engine, "_CHECKPOINT_SECONDS", 0.0)
    told = []
    surrogate = ampsure.fit(flat_events, config=config, checkpoint=tmp_path, report=lambda _, p: told.append(p))
    assert surrogate.weights_checksum == undisturbed.weights_checksum
    assert all(0 <= p.seconds_left < 1e6 and p.events_per_second > 0 for p in told)
    ampsure.save(flat_events, tmp_path / "a.npz")
    ampsure.save(flat_events, tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_nothing_measures_time_with_a_clock_that_can_be_set():
    for path in Path(ampsure.__file__).parent.rglob("*.py"):
        assert not re.search(r"time\.time\(|datetime|localtime|gmtime", path.read_text()), path


# kills


def test_temporary_files_of_dead_processes_are_swept(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    names = []
    for pid in (process.pid, os.getpid()):
        with replacing(tmp_path / "x.h5") as temporary:
            temporary.touch()
            names.append(temporary.name.replace(f"-{os.getpid()}-", f"-{pid}-"))
        (tmp_path / names[-1]).write_bytes(b"half")
    (tmp_path / ".ampsure-something-else").touch()
    with replacing(tmp_path / "x.h5") as temporary:
        temporary.touch()
    assert sorted(os.listdir(tmp_path)) == sorted([".ampsure-something-else", names[1], "x.h5"])


def test_temporary_files_of_other_machines_stay(tmp_path, monkeypatch):
    with replacing(tmp_path / "x.h5") as temporary:
        temporary.touch()
        name = temporary.name.replace(f"-{os.getpid()}-", "-99999999-")
    (tmp_path / name).touch()
    real = socket.gethostname()
    monkeypatch.setattr(socket, "gethostname", lambda: real + "-2")
    with replacing(tmp_path / "x.h5") as temporary:
        temporary.touch()
    assert sorted(os.listdir(tmp_path)) == sorted([name, "x.h5"])


def campaign(module: str, *arguments: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert not found.returncode, found.stdout + found.stderr


def test_killed_commands_leave_nothing_half_written():
    """The short form of `python -m validation.kills`."""
    campaign("validation.kills", "--times", "3")


def test_hostile_files():
    """The short form of `python -m validation.fuzz`."""
    campaign("validation.fuzz", "--mutated", "1500", "--made", "500")


# traps


def npz_bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("momenta.npy", "w") as entry:
        entry.write(bytes(2**26))


def npz_with_code(path):
    np.savez(path, momenta=np.array([Payload()], dtype=object), amplitude=np.ones(1))


def npy_without_end(path):
    np.lib.format.open_memmap(path, "w+", shape=(1, 21))
    path.write_bytes(path.read_bytes().replace(b"(1, 21)", b"(1000000000000, 21)"))


def npy_of_nothing(path):
    """Items without a size: so many of them take no bytes, but time without end."""
    np.lib.format.open_memmap(path, "w+", shape=(1, 5, 4))
    path.write_bytes(path.read_bytes().replace(b"<f8", b"|S0").replace(b"(1, 5, 4)", b"(10000000000, 5, 4)"))


def gz_bomb(path):
    path.write_bytes(gzip.compress(b"<LesHouchesEvents>" + b" " * 2**26, 1))


def laughs(path):
    """Entities of entities of entities: 10^9 of them."""
    entities = "".join(f'<!ENTITY a{k} "{f"&a{k - 1};" * 10}">' for k in range(1, 10))
    document = f'<!DOCTYPE x [<!ENTITY a0 "ha">{entities}]><LesHouchesEvents version="3.0"><header>&a9;</header>'
    path.write_text(document)


def h5_bomb(path):
    path.write_bytes((FIXTURES / "events-1/events.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        del file["momenta"]
        file.create_dataset("momenta", (2**40, 5, 4), "f8", chunks=(4096, 5, 4), compression="gzip")


def h5_of_another_file(path):
    path.write_bytes((FIXTURES / "events-1/events.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        del file["noise"]
        file.create_dataset("noise", (12,), "f8", external=[("/etc/passwd", 0, 96)])


class Payload:
    """What a pickle could do."""

    def __reduce__(self):
        return os.mkdir, ("code-was-run",)


@pytest.mark.parametrize(
    ("write", "suffix", "words"),
    [
        (npz_bomb, ".npz", "would unpack to"),
        (npz_with_code, ".npz", "cannot be read as a .npz file of plain numbers"),
        (npy_without_end, ".npy", "cannot be read as a .npy file of plain numbers"),
        (npy_of_nothing, ".npy", "cannot be read as a .npy file of plain numbers"),
        (gz_bomb, ".lhe.gz", "would unpack to"),
        (laughs, ".lhe", "cannot be read as an LHE file"),
        (h5_bomb, ".h5", "would unpack to"),
        (h5_of_another_file, ".h5", "needs other files or programs to be read"),
    ],
)
def test_traps(write, suffix, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / f"trap{suffix}")
    with pytest.raises(AmpsureError, match=words):
        ampsure.load(tmp_path / f"trap{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == [f"trap{suffix}"]


def test_names_that_are_no_text_are_refused(flat_events, tmp_path):
    """JSON may hold halves of letters, which no terminal and no font can show."""
    path, events = tmp_path / "x.npz", flat_events[:10]
    for name in ("name", "unit"):
        process = json.dumps({**events.process.to_dict(), name: "\ud800"})
        np.savez(path, momenta=events.momenta, amplitude=events.amplitude, process=process)
        with pytest.raises(AmpsureError, match=r"process description in x\.npz is damaged"):
            ampsure.load(path)


def test_pipes_are_not_waited_for(folder, tmp_path):
    for path, words in ((folder / "run/weights.safetensors", "no weights"), (tmp_path / "state", "not a file")):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        with pytest.raises(AmpsureError, match=words):
            ampsure.load_surrogate(folder / "run") if words == "no weights" else read_checkpoint(path)
    os.mkfifo(tmp_path / "study.json")
    with pytest.raises(AmpsureError, match="not a readable result"):
        load_record(get_study("true-amplitudes"), tmp_path / "study.json")


def test_full_memory(run, flat_events, tmp_path, monkeypatch):
    """Both ways in which it is told."""
    ampsure.save(flat_events[:100], tmp_path / "x.h5")
    networks = ("--set", "network.hidden=[4]", "--set", "posterior.members=2")

    def no_memory(*_, **__):
        return torch.empty(2**58)

    monkeypatch.setattr(StackedMLP, "__init__", no_memory)
    assert_one_sentence(run("train", "--data", "x.h5", *networks, "-o", "a"), "not enough memory")
    monkeypatch.setattr(StackedMLP, "__init__", lambda *_, **__: np.empty(2**58))
    assert_one_sentence(run("train", "--data", "x.h5", *networks, "-o", "b"), "not enough memory")


def test_numbers_without_end_in_a_provenance(flat_events, run, tmp_path):
    generation = {"cross_section": 10**400, "cross_section_error": 1}
    shutil.copytree(FIXTURES / "surrogate-3/recommended", tmp_path / "run")
    ampsure.save(replace(flat_events[:100], provenance={"generation": generation}), tmp_path / "x.h5")
    for command in (("inspect", "x.h5"), ("histogram", "run", "--data", "x.h5", "-o", "x")):
        code, _, err = run(*command)
        assert code == 0, err


def test_shapes_that_are_not_those_of_the_weights_are_not_believed(folder):
    description = json.loads((folder / "run/surrogate.json").read_text())
    description["network"] = {"widths": [9, 10**6, 10**6, 2], "members": 1000}
    (folder / "run/surrogate.json").write_text(json.dumps(description))
    with pytest.raises(AmpsureError, match="other shapes than its description"):
        ampsure.load_surrogate(folder / "run")


# what files say never becomes a path or a program


def test_names_from_files_stay_names(folder, run):
    """A surrogate and events whose every name would like to be a path elsewhere."""
    evil = "../../../evil"
    description = json.loads((folder / "run/surrogate.json").read_text())
    description["process"] |= {"name": evil, "unit": evil}
    description["provenance"] |= {"device": evil, "events": {"command": {"name": evil, "process": evil}}}
    (folder / "run/surrogate.json").write_text(json.dumps(description))
    events = ampsure.load(folder / "events.h5")
    evil_process = replace(events.process, name=evil, unit=evil, exact=None)
    provenance = {"source": evil, "command": {"name": evil}, "disturbances": evil, "history": evil}
    ampsure.save(replace(events, process=evil_process, provenance=provenance), folder / "events.h5")
    (folder / "OUT").mkdir()
    before = {path for path in folder.parent.rglob("*") if "OUT" not in path.parts}
    for name in ("inspect", "convert lhe", "disturb", "predict", "histogram", "export umami"):
        code, _, err = run(*WRITERS[name])
        assert code == 0, (name, err)
    assert {path for path in folder.parent.rglob("*") if "OUT" not in path.parts} == before
    description["history"][evil] = description["history"]["sigma"]  # reports would call a figure so
    (folder / "run/surrogate.json").write_text(json.dumps(description))
    assert_one_sentence(run("predict", "run", "events.h5", "-o", "OUT/y.npz"), "is damaged .* is no name")


# what is around a command


@pytest.mark.parametrize("name", WRITERS)
def test_names_that_are_too_long(folder, run, name):
    """Of what is written; a name that cannot even be asked about is no bug."""
    long = [argument.replace("OUT/", 300 * "x") for argument in WRITERS[name]]
    before = {path for path in folder.rglob("*") if path.is_file()}
    assert_one_sentence(run(*long), "(File name too long|cannot be made)")
    assert {path for path in folder.rglob("*") if path.is_file()} == before


def test_surrogates_with_names_that_are_too_long(run):
    assert_one_sentence(run("predict", 300 * "x", "events.h5", "-o", "x.npz"), "File name too long")


def program(*arguments: str, stdout: int = subprocess.PIPE, **variables: str) -> tuple[int, str, str]:
    """`ampsure ARGUMENTS` as a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "ampsure", *arguments]
    found = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})
    return found.returncode, found.stdout or "", " ".join(found.stderr.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", [("study", "list"), ("config", "show")])
def test_output_to_a_full_disk(command):
    with open("/dev/full", "w") as full:
        assert_one_sentence(program(*command, stdout=full.fileno()), "No space left on device")


def test_terminals_that_do_not_know_all_letters():
    code, out, err = program("study", "list", PYTHONIOENCODING="ascii")
    assert code == 0, err
    assert out.isascii()


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "many"}, {"WORLD_SIZE": "2"}, {"WORLD_SIZE": "2", "RANK": "0"}])
def test_processes_that_nobody_started(run, monkeypatch, variables):
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for command in (("study", "list"), ("train", "--data", "events.h5")):
        assert_one_sentence(run(*command), "start them with torchrun, or unset WORLD_SIZE")
