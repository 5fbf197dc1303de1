"""Files: what is saved comes back to the bit, and what is not a file of events is met with one sentence."""

from __future__ import annotations

import gzip
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ampsure.errors import AmpsureError, InvalidEventsError
from ampsure.events import COLUMNS, Events
from ampsure.io import FORMATS, checksum, load, replacing, save, stream
from ampsure.processes import Process, get_process, process

FULL = [suffix for suffix in FORMATS if suffix != ".npy"]  # the formats that hold everything
TOP = Process("gg_ttg", (21, 21, 6, -6, 21), (0, 0, 173.0, 173.0, 0))
PROVENANCE = {"seed": 1, "note": "<event> --> & ]]> \" ' \u00e9 \0", "cuts": {"pt": [20.0, 1e-300]}, "none": None}


def make_momenta(n: int, masses: tuple[float, ...] = (0, 0, 0), seed: int = 1) -> NDArray[np.float64]:
    """Random momenta of legs with these masses, balanced by two massless beams along z: (n, 2 + len(masses), 4)."""
    p = np.random.default_rng(seed).normal(scale=50, size=(n, len(masses), 3))
    p[:, -1, :2] = -p[:, :-1, :2].sum(1)
    outgoing = np.concatenate([np.sqrt(np.square(p).sum(-1) + np.square(masses))[..., None], p], -1)
    total = outgoing.sum(1)
    plus, minus = (total[:, 0] + total[:, 3]) / 2, (total[:, 0] - total[:, 3]) / 2
    zero = np.zeros(n)
    beams = np.stack([np.stack([plus, zero, zero, plus], -1), np.stack([minus, zero, zero, -minus], -1)], 1)
    return np.concatenate([beams, outgoing], 1)


def make_events(n: int = 20, process: Process = TOP, seed: int = 1, **columns: Any) -> Events:
    """Events of which no column is trivial."""
    rng = np.random.default_rng(seed)
    default: dict[str, Any] = {
        "amplitude": rng.lognormal(sigma=9, size=n),
        "truth": rng.lognormal(sigma=9, size=n),
        "noise": rng.random(n),
        "weights": rng.normal(size=n),
        "trainable": rng.random(n) < 0.5,
        "provenance": PROVENANCE,
    }
    return Events(make_momenta(n, process.masses[2:], seed), process=process, **(default | columns))


def plain(events: Events) -> Events:
    """What a .npy can hold."""
    return Events(events.momenta, events.amplitude)


def assert_same(a: Events, b: Events) -> None:
    for name in ("momenta", *COLUMNS):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert checksum(a) == checksum(b)
    assert (a.process, a.provenance) == (b.process, b.provenance)


def fails(path: Path, match: str = ".", **options: Any) -> str:
    """The one sentence `load` raises, which names the file."""
    with pytest.raises(AmpsureError, match=match) as caught:
        load(path, **options)
    sentence = str(caught.value)
    assert path.name in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


# round trips


@pytest.mark.parametrize("suffix", FULL)
@pytest.mark.parametrize("trivial", [False, True])
def test_round_trip(tmp_path: Path, suffix: str, trivial: bool) -> None:
    events = make_events(provenance=PROVENANCE)
    if trivial:
        events = replace(plain(events), process=events.process)
    save(events, tmp_path / f"events{suffix}")
    assert_same(load(tmp_path / f"events{suffix}"), events)


@pytest.mark.parametrize("suffix", FULL)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    positive=st.tuples(*[st.floats(min_value=5e-324, allow_infinity=False)] * 2),
    noise=st.floats(min_value=0, allow_infinity=False),
    weight=st.floats(allow_nan=False, allow_infinity=False),
    text=st.text(),
)
def test_any_number_comes_back(
    suffix: str, seed: int, positive: tuple[float, float], noise: float, weight: float, text: str
) -> None:
    amplitude, truth = positive
    columns = {"amplitude": amplitude, "truth": truth, "noise": noise, "weights": weight}
    arrays: dict[str, Any] = {name: np.array([1.0, value]) for name, value in columns.items()}
    events = make_events(2, seed=seed, **arrays, provenance={"text": text})
    with TemporaryDirectory() as folder:
        save(events, Path(folder) / f"events{suffix}")
        assert_same(load(Path(folder) / f"events{suffix}"), events)


def test_npy_round_trip(tmp_path: Path) -> None:
    events = plain(make_events())
    save(events, tmp_path / "events.npy")
    assert_same(load(tmp_path / "events.npy"), events)
    assert load(tmp_path / "events.npy", process=TOP).process == TOP


def test_npy_refuses_to_lose_columns(tmp_path: Path) -> None:
    with pytest.raises(AmpsureError, match="would lose noise, trainable, truth, weights"):
        save(make_events(), tmp_path / "events.npy")
    with pytest.raises(AmpsureError, match="would lose weights:"):
        save(replace(plain(make_events()), weights=np.full(20, 2.0)), tmp_path / "events.npy")
    assert not list(tmp_path.iterdir())


def test_registered_process_keeps_its_exact_amplitude(tmp_path: Path) -> None:
    for suffix in FULL:
        save(make_events(process=get_process("gg_yyg")), tmp_path / f"events{suffix}")
        assert load(tmp_path / f"events{suffix}").process.exact is not None


def test_decay_and_other_legs_in_lhe(tmp_path: Path) -> None:
    momenta = make_momenta(3)
    momenta = np.concatenate([momenta[:, :2].sum(1, keepdims=True), momenta[:, 2:]], 1)
    momenta[:, :, 1:] *= [1, 1, 0]  # a decay at rest needs a plane, here the transverse one
    momenta[:, 1:, 0] = np.linalg.norm(momenta[:, 1:, 1:], axis=-1)
    momenta[:, 0] = momenta[:, 1:].sum(1)
    momenta *= (1000 / momenta[:, 0, 0])[:, None, None]
    decay = Process("decay", (25, 22, 22, 22), (1000.0, 0, 0, 0), n_incoming=1)
    events = Events(momenta, np.ones(3), decay)
    save(events, tmp_path / "decay.lhe")
    assert_same(load(tmp_path / "decay.lhe"), events)


def test_same_events_give_the_same_file(tmp_path: Path) -> None:
    for suffix in (".h5", ".lhe.gz"):
        save(make_events(), tmp_path / f"a{suffix}")
        save(make_events(), tmp_path / f"b{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_upper_case_suffix(tmp_path: Path) -> None:
    for suffix in FULL:
        save(make_events(), tmp_path / f"EVENTS{suffix.upper()}")
        assert_same(load(tmp_path / f"EVENTS{suffix.upper()}"), make_events())
    assert len(list(tmp_path.iterdir())) == len(FULL)


# the same files, read without our code


def test_hdf5_without_ampsure(tmp_path: Path) -> None:
    events = make_events(5000)
    save(events, tmp_path / "events.h5")
    with h5py.File(tmp_path / "events.h5") as file:
        assert file.attrs["format"] == b"ampsure-events"
        assert file.attrs["schema_version"] == 1
        assert json.loads(file.attrs["process"]) == TOP.to_dict()
        assert json.loads(file.attrs["provenance"]) == PROVENANCE
        assert set(file) == {"momenta", *COLUMNS}
        for name in file:
            assert np.array_equal(file[name][:], getattr(events, name))
            assert file[name].compression == "gzip"
            assert file[name].chunks[0] == 4096
    save(plain(events), tmp_path / "plain.h5")
    with h5py.File(tmp_path / "plain.h5") as file:
        assert set(file) == {"momenta", "amplitude"}


@pytest.mark.parametrize("suffix", [".lhe", ".lhe.gz"])
def test_lhe_without_ampsure(tmp_path: Path, suffix: str) -> None:
    pylhe = pytest.importorskip("pylhe")
    events = make_events()
    save(events, tmp_path / f"events{suffix}")
    content = pylhe.LHEFile.fromfile(tmp_path / f"events{suffix}", generator=False)
    init = content.init.initInfo
    assert (init.beamA, init.beamB, init.numProcesses, len(content.init.procInfo)) == (2212, 2212, 1, 1)
    assert init.energyA == events.momenta[:, 0, 0].max()
    assert init.energyB == events.momenta[:, 1, 0].max()
    assert content.init.procInfo[0].xSection == events.weights.mean()
    assert content.header.initrwgt.list_weights_ids() == ["amplitude", "truth", "noise", "trainable"]
    assert len(content.events) == len(events)
    for k, event in enumerate(content.events):
        assert event.eventinfo.nparticles == 5
        assert event.eventinfo.weight == events.weights[k]
        assert tuple(p.id for p in event.particles) == TOP.pdg_ids
        assert tuple(p.m for p in event.particles) == TOP.masses
        assert [p.status for p in event.particles] == [-1, -1, 1, 1, 1]
        assert [[p.e, p.px, p.py, p.pz] for p in event.particles] == events.momenta[k].tolist()
        assert event.weights == {
            name: getattr(events, name)[k] for name in ("amplitude", "truth", "noise", "trainable")
        }
        assert [event.mother_indices(p) for p in event.particles] == [[], [], [0, 1], [0, 1], [0, 1]]


def test_numpy_without_ampsure(tmp_path: Path) -> None:
    events = make_events()
    save(events, tmp_path / "events.npz")
    with np.load(tmp_path / "events.npz", allow_pickle=False) as file:
        assert all(np.array_equal(file[name], getattr(events, name)) for name in ("momenta", *COLUMNS))
        assert json.loads(str(file["process"])) == TOP.to_dict()
        assert json.loads(str(file["provenance"])) == PROVENANCE
    save(plain(events), tmp_path / "events.npy")
    rows = np.load(tmp_path / "events.npy", allow_pickle=False)
    assert rows.shape == (20, 21)
    assert np.array_equal(rows[:, :-1].reshape(20, 5, 4), events.momenta)
    assert np.array_equal(rows[:, -1], events.amplitude)


# files from elsewhere


def test_minimal_npz_with_a_massive_leg(tmp_path: Path) -> None:
    momenta = make_momenta(50, (173.0, 173.0, 0.0))
    np.savez(tmp_path / "events.npz", momenta=momenta, amplitude=np.ones(50), unrelated=np.array("text"))
    events = load(tmp_path / "events.npz")
    assert events.process.n_incoming == 2
    assert events.process.masses == pytest.approx((0, 0, 173, 173, 0))
    assert np.array_equal(events.weights, np.ones(50))
    assert events.trainable.all()
    assert not events.noise.any()
    assert load(tmp_path / "events.npz", process=TOP).process is TOP
    fails(tmp_path / "events.npz", "off its mass shell", process=get_process("gg_yyg"))


def test_other_dtypes_become_float64(tmp_path: Path) -> None:
    events = plain(make_events())
    np.savez(
        tmp_path / "a.npz", momenta=events.momenta.astype(">f8"), amplitude=np.arange(1, 21), trainable=[0, 1] * 10
    )
    loaded = load(tmp_path / "a.npz")
    assert np.array_equal(loaded.momenta, events.momenta)
    assert loaded.momenta.dtype == np.dtype("=f8")
    assert loaded.trainable.tolist() == [False, True] * 10
    assert loaded.amplitude.dtype == np.float64


def foreign_lhe(path: Path, ids: tuple[int, ...], momenta: NDArray[np.float64], masses: tuple[float, ...]) -> None:
    """As another program might write it: nine digits, an intermediate particle, outgoing legs first, comments."""
    blocks = []
    for event in momenta:
        order = [*range(2, len(ids)), 0, 1]
        lines = [
            f"{ids[i]} {-1 if i < 2 else 1} 0 0 501 502 {event[i, 1]:.9e} {event[i, 2]:.9e} {event[i, 3]:.9e}"
            f" {event[i, 0]:.9e} {masses[i]:.9e} 0. 9."
            for i in order
        ]
        lines.insert(1, "23 2 1 2 0 0 1. 2. 3. 100. 91. 0. 9.")
        blocks.append(
            "<event>\n" + "\n".join([f"{len(lines)} 1 2.5 91. 0.0078 0.118", *lines, "# comment"]) + "\n</event>"
        )
    init = "<init>\n2212 2212 6500. 6500. 0 0 247000 247000 -4 1\n1. 0.1 1. 1\n</init>"
    path.write_text("\n".join(['<LesHouchesEvents version="3.0">', init, *blocks, "</LesHouchesEvents>"]))


def test_foreign_lhe_gets_the_exact_amplitude(tmp_path: Path) -> None:
    momenta, yyg = make_momenta(10), get_process("gg_yyg")
    foreign_lhe(tmp_path / "events.lhe", yyg.pdg_ids, momenta, yyg.masses)
    events = load(tmp_path / "events.lhe")
    assert events.process is yyg
    assert np.allclose(events.momenta, momenta, rtol=1e-8)
    assert np.array_equal(events.amplitude, yyg.amplitude(events.momenta))
    assert np.array_equal(events.weights, np.full(10, 2.5))
    assert events.provenance == {"amplitude": "exact, of process gg_yyg, computed from events.lhe"}


def test_foreign_lhe_with_invalid_events(tmp_path: Path) -> None:
    momenta, yyg = make_momenta(10), get_process("gg_yyg")
    momenta[3, 2] *= 1.1
    momenta[4, 2:, 1:3] = 0  # collinear
    momenta[4, 2:, 0] = abs(momenta[4, 2:, 3])
    momenta[4, 0, [0, 3]] = momenta[4, 2:][momenta[4, 2:, 3] > 0, 0].sum()
    momenta[4, 1] = momenta[4, 2:].sum(0) - momenta[4, 0]
    foreign_lhe(tmp_path / "events.lhe", yyg.pdg_ids, momenta, yyg.masses)
    fails(tmp_path / "events.lhe", "Event 3 of events.lhe is invalid: incoming and outgoing momenta do not balance")
    events = load(tmp_path / "events.lhe", invalid="drop")
    assert len(events) == 8
    assert events.provenance["dropped"]["reasons"]["the amplitude is not finite"] == 2


def test_foreign_lhe_without_a_known_amplitude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, momenta = tmp_path / "events.lhe", make_momenta(10, TOP.masses[2:])
    foreign_lhe(path, TOP.pdg_ids, momenta, TOP.masses)
    fails(path, "no weight named 'amplitude', and the exact amplitude of g g > t t~ g is not known")
    known = replace(TOP, exact=lambda p: p[:, 0, 0])
    assert np.allclose(load(path, process=known).amplitude, momenta[:, 0, 0])
    monkeypatch.setitem(process._REGISTRY, known.name, known)
    assert load(path).process is known
    fails(path, "which is not g g > a a g", process=get_process("gg_yyg"))


def test_foreign_lhe_with_an_amplitude_makes_its_process(tmp_path: Path) -> None:
    path = tmp_path / "events.lhe"
    foreign_lhe(path, TOP.pdg_ids, make_momenta(3, TOP.masses[2:]), TOP.masses)
    text = path.read_text().replace("# comment\n", "<rwgt><wgt id='amplitude'>0.5</wgt></rwgt>\n")
    path.write_text(text)
    events = load(path)
    assert events.process == replace(TOP, name="unknown")
    assert np.array_equal(events.truth, [0.5] * 3)
    path.write_text(text.replace("<wgt id='amplitude'>0.5</wgt>", "", 2).replace("amplitude", "x"))
    fails(path, "no weight named 'amplitude'")
    head, _, tail = text.rpartition("amplitude")
    path.write_text(head + "other" + tail)
    fails(path, "Event 2 of events.lhe lacks")


def test_lhe_of_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "events.lhe"
    save(make_events(process=get_process("gg_yyg")), path)
    head, _, tail = path.read_text().rpartition("   22   1")
    path.write_text(head + "   23   1" + tail)
    fails(path, "Event 19 of events.lhe has the particles 21 21 > 22 23 21, which is not g g > a a g")
    path.write_text(head.rpartition("\n")[0] + tail)
    fails(path, "Event 19 of events.lhe")


def test_process_and_file_disagree(tmp_path: Path) -> None:
    for suffix in FULL:
        path = tmp_path / f"events{suffix}"
        save(make_events(process=TOP), path)
        fails(path, "holds g g > t t~ g, not g g > a a g", process=get_process("gg_yyg"))
        other = replace(TOP, name="mine")
        assert load(path, process=other).process is other


# validation


def bad_events() -> Events:
    events = make_events(30)
    events.amplitude[4], events.momenta[7, 2, 0], events.weights[11], events.amplitude[12] = -1, np.nan, np.inf, np.nan
    return events


@pytest.mark.parametrize("suffix", FULL)
def test_drop_and_signed(tmp_path: Path, suffix: str) -> None:
    path, bad = tmp_path / f"events{suffix}", bad_events()
    save(bad, path)
    assert "Event 4 of" in fails(path, "the amplitude is not positive")
    fails(path, "Event 7 of .* a momentum is not finite", signed=True)
    assert_same(load(path, invalid="drop"), bad.validated(invalid="drop"))
    assert len(load(path, invalid="drop", signed=True)) == 27
    with pytest.raises(InvalidEventsError, match=r"Event 1 of .*\[6:9\]"):
        list(stream(path, 3, signed=True))
    parts = list(stream(path, 1, invalid="drop"))
    assert len(parts) == 26
    with pytest.raises(AmpsureError, match="invalid must be"):
        load(path, invalid="ignore")


def test_nothing_valid(tmp_path: Path) -> None:
    save(make_events(amplitude=-np.ones(20)), tmp_path / "events.h5")
    fails(tmp_path / "events.h5", "No event of events.h5 is valid", invalid="drop")
    with pytest.raises(AmpsureError, match=r"No event of events\.h5 is valid"):
        list(stream(tmp_path / "events.h5", 7, invalid="drop"))


# streaming


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("size", [1, 7, 20, 1000])
def test_streaming_equals_loading(tmp_path: Path, suffix: str, size: int) -> None:
    path = tmp_path / f"events{suffix}"
    save(plain(make_events()) if suffix == ".npy" else make_events(), path)
    parts = list(stream(path, size))
    assert [len(part) for part in parts] == [min(size, 20 - k) for k in range(0, 20, size)]
    assert all(part.momenta.flags.owndata and part.momenta.flags.writeable for part in parts)
    assert_same(Events.concatenate(parts), load(path))


def test_a_stream_may_be_left(tmp_path: Path) -> None:
    for suffix in FULL:
        save(make_events(), tmp_path / f"events{suffix}")
        parts = stream(tmp_path / f"events{suffix}", 3)
        assert len(next(parts)) == 3
        save(make_events(5), tmp_path / f"events{suffix}")
        del parts
        assert len(load(tmp_path / f"events{suffix}")) == 5


def test_stream_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(AmpsureError, match=r"There is no file .*missing.h5"):
        stream(tmp_path / "missing.h5")
    save(make_events(), tmp_path / "events.h5")
    with pytest.raises(AmpsureError, match="at least 1"):
        stream(tmp_path / "events.h5", 0)


# broken files


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    "content", [b"", b"\0", b"not a file of events\n" * 50, b"\x1f\x8b garbage", b"PK\x03\x04 garbage"]
)
def test_something_else(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"events{suffix}"
    path.write_bytes(content)
    fails(path)
    with pytest.raises(AmpsureError):
        list(stream(path))


@pytest.mark.parametrize("suffix", FORMATS)
def test_cut_off(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"events{suffix}"
    save(plain(make_events()) if suffix == ".npy" else make_events(), path)
    content = path.read_bytes()
    for keep in np.linspace(0, len(content) - 20, 30).astype(int):
        path.write_bytes(content[:keep])
        fails(path)


@pytest.mark.parametrize("suffix", [".h5", ".lhe.gz", ".npz"])
def test_damaged(tmp_path: Path, suffix: str) -> None:
    """A flipped byte either is in nobody's way or is found."""
    path, events, rng, found = tmp_path / f"events{suffix}", make_events(200), np.random.default_rng(1), 0
    save(events, path)
    content = path.read_bytes()
    for position in rng.integers(len(content), size=60):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        try:
            assert checksum(load(path)) == checksum(events)
        except AmpsureError:
            found += 1
    assert found > 30


@pytest.mark.parametrize("suffix", [".h5", ".lhe", ".npz", ".npy"])
def test_another_format_under_this_suffix(tmp_path: Path, suffix: str) -> None:
    for other in FORMATS:
        if FORMATS[other] is not FORMATS[suffix] or {suffix, other} == {".npz", ".npy"}:
            save(plain(make_events()), tmp_path / f"events{other}")
            os.replace(tmp_path / f"events{other}", tmp_path / f"events{suffix}")
            fails(tmp_path / f"events{suffix}")


def edit_hdf5(path: Path, change: Any) -> None:
    save(make_events(), path)
    with h5py.File(path, "r+") as file:
        change(file)


def _replace_dataset(name: str, data: Any) -> Any:
    def change(file: Any) -> None:
        del file[name]
        file[name] = data

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda file: file.attrs.clear(), "not one of ampsure"),
        (lambda file: file.attrs.create("format", [1, 2]), "not one of ampsure"),
        (lambda file: file.attrs.create("schema_version", 2), r"newer ampsure \(schema 2\): update ampsure"),
        (lambda file: file.attrs.create("schema_version", "x"), "no valid schema version"),
        (lambda file: file.attrs.create("process", "{}"), "process description in .* is damaged"),
        (lambda file: file.attrs.create("process", [1, 2]), "process description in .* is damaged"),
        (lambda file: file.attrs.create("provenance", "{"), "provenance in .* is damaged"),
        (lambda file: file.attrs.create("provenance", np.bytes_("[]")), "not a dictionary"),
        (lambda file: file.attrs.create("provenance", "{}"), "provenance in .* is damaged"),  # of variable length
        (lambda file: file.attrs.create("checksum", "0"), "do not match its checksum"),
        (lambda file: file["truth"].__setitem__(3, 1.0), "do not match its checksum"),
        (lambda file: file.__delitem__("noise"), "do not match its checksum"),
        (lambda file: file.__delitem__("amplitude"), "no array 'amplitude'"),
        (_replace_dataset("amplitude", np.ones(3)), r"amplitude in .* must have shape \(20,\), not \(3,\)"),
        (_replace_dataset("amplitude", np.ones(20, "f4")), "not a dataset of float64"),
        (_replace_dataset("momenta", np.ones((20, 20))), r"must have shape \(N, n, 4\)"),
        (_replace_dataset("momenta", np.ones((20, 4, 4))), "4 legs, but process 'gg_ttg' has 5"),
        (_replace_dataset("momenta", np.ones((0, 5, 4))), "holds no events"),
    ],
)
def test_hdf5_with_a_fault(tmp_path: Path, change: Any, sentence: str) -> None:
    edit_hdf5(tmp_path / "events.h5", change)
    fails(tmp_path / "events.h5", sentence)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"momenta": None}, "no array 'momenta'"),
        ({"amplitude": None}, "no array 'amplitude'"),
        ({"amplitude": np.ones((20, 1))}, r"amplitude in .* must have shape \(20,\), not \(20, 1\)"),
        ({"amplitude": np.ones(20, complex)}, "real numbers, not complex128"),
        ({"amplitude": np.array(["1"] * 20)}, "real numbers"),
        ({"amplitude": np.array([1.0] * 20, object)}, "plain numbers"),
        ({"momenta": np.ones((20, 5, 4), bool)}, "real numbers, not bool"),
        ({"momenta": np.ones((20, 5, 3))}, r"must have shape \(N, n, 4\)"),
        ({"momenta": np.ones((20, 2, 4))}, r"n >= 3"),
        ({"momenta": np.ones((0, 5, 4)), "amplitude": np.ones(0)}, "holds no events"),
        ({"weights": np.ones(19)}, "weights in"),
        ({"trainable": np.ones(20)}, "true or false"),
        ({"process": np.array("{")}, "process description"),
        ({"process": np.array('{"name": "x"}')}, "process description"),
        ({"process": np.ones(3)}, "must be a JSON text"),
        ({"provenance": np.array("3")}, "not a dictionary"),
    ],
)
def test_npz_with_a_fault(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    events = plain(make_events())
    arrays = {"momenta": events.momenta, "amplitude": events.amplitude} | change
    np.savez(tmp_path / "events.npz", **{name: array for name, array in arrays.items() if array is not None})
    fails(tmp_path / "events.npz", sentence)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.ones((20, 5, 4)), r"array \(N, 4 n \+ 1\).* not \(20, 5, 4\)"),
        (np.ones((20, 20)), r"not \(20, 20\)"),
        (np.ones((20, 9)), "n >= 3"),
        (np.ones((0, 21)), "events.npy"),
        (np.ones((20, 21), complex), "real numbers"),
        (np.full((20, 21), "a"), "real numbers"),
        (np.ones((20, 21), object), "plain numbers"),
        (np.full((20, 21), np.nan), "not finite"),
    ],
)
def test_npy_with_a_fault(tmp_path: Path, array: NDArray[Any], sentence: str) -> None:
    np.save(tmp_path / "events.npy", array)
    fails(tmp_path / "events.npy", sentence)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("</LesHouchesEvents>", "", "cut off"),
        ('schema_version="1"', 'schema_version="2"', "newer ampsure"),
        ('schema_version="1"', 'schema_version="x"', "cannot be read as an LHE file"),
        ('{"process"', '{"process', "cannot be read as an LHE file"),
        ('"masses"', '"mass"', "process description"),
        ("<init>", "<initial>", "cannot be read as an LHE file"),
        ("  5      1", "  6      1", "Event 0 of events.lhe lacks a particle"),
        ("  5      1", "inf      1", "cannot be read as an LHE file"),
        ("   21  -1", "   21  two", "cannot be read as an LHE file"),
    ],
)
def test_lhe_with_a_fault(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    path = tmp_path / "events.lhe"
    save(make_events(), path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    fails(path, sentence)


def test_lhe_without_events(tmp_path: Path) -> None:
    path = tmp_path / "events.lhe"
    foreign_lhe(path, (), np.ones((0, 5, 4)), ())
    fails(path, "holds no events")
    text = path.read_text().replace(
        "</init>", "</init>\n<event>\n 1 1 1. 1. 1. 1.\n 21 -1 0 0 0 0 0 0 1 1 0 0 9\n</event>"
    )
    path.write_text(text)
    fails(path, "incoming and outgoing particles")


def test_lhe_needs_pylhe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(make_events(), tmp_path / "events.lhe")
    monkeypatch.setitem(sys.modules, "pylhe", None)
    for attempt in (lambda: load(tmp_path / "events.lhe"), lambda: save(make_events(), tmp_path / "events.lhe")):
        with pytest.raises(AmpsureError, match=r"pip install 'ampsure\[lhe\]'"):
            attempt()


def test_lhe_suffix_and_compression_are_independent(tmp_path: Path) -> None:
    save(make_events(), tmp_path / "events.lhe")
    (tmp_path / "packed.lhe").write_bytes(gzip.compress((tmp_path / "events.lhe").read_bytes()))
    assert_same(load(tmp_path / "packed.lhe"), make_events())


def test_names(tmp_path: Path) -> None:
    fails(tmp_path / "missing.h5", "There is no file")
    (tmp_path / "folder.h5").mkdir()
    fails(tmp_path / "folder.h5", "is a folder")
    (tmp_path / "events.root").touch()
    fails(tmp_path / "events.root", r"unknown suffix: known are .h5, .hdf5, .lhe, .lhe.gz, .npy, .npz\.")
    with pytest.raises(AmpsureError, match="unknown suffix"):
        save(make_events(), tmp_path / "events.gz")


# saving


def test_where_nothing_can_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.h5").mkdir()
    os.mkfifo(tmp_path / "pipe.h5")
    for name, match in (
        ("folder.h5", "is a folder"),
        ("no/x.h5", "There is no folder"),
        ("pipe.h5", "not a regular file"),
    ):
        with pytest.raises(AmpsureError, match=match):
            save(make_events(), tmp_path / name)
    with pytest.raises(AmpsureError, match=r"no events to write to x\.h5"):
        save(make_events()[:0], tmp_path / "x.h5")
    with pytest.raises(AmpsureError, match="JSON values"):
        save(make_events(provenance={"x": np.float32(1)}), tmp_path / "x.npz")
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write anywhere
    with pytest.raises(AmpsureError, match="is not writable"):
        save(make_events(), tmp_path / "x.h5")
    assert sorted(os.listdir(tmp_path)) == ["folder.h5", "pipe.h5"]


class Interrupted(Events):
    """Events at which somebody presses Ctrl-C when a field is asked for the n-th time."""

    countdown = sys.maxsize

    def __getattribute__(self, name: str) -> Any:
        if name in ("momenta", *COLUMNS, "process", "provenance"):
            Interrupted.countdown -= 1
            if Interrupted.countdown < 0:
                raise KeyboardInterrupt
        return super().__getattribute__(name)


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, old, new = tmp_path / f"events{suffix}", plain(make_events(3)), plain(make_events(3, seed=2))
    save(old, path)
    before = path.read_bytes()
    interrupted = Interrupted(new.momenta, new.amplitude, new.process)
    n_interrupts = 0
    while True:
        monkeypatch.setattr(Interrupted, "countdown", n_interrupts)
        try:
            save(interrupted, path)
            break
        except KeyboardInterrupt:
            n_interrupts += 1
            assert os.listdir(tmp_path) == [path.name]
            assert path.read_bytes() == before
    assert n_interrupts > 3
    assert os.listdir(tmp_path) == [path.name]
    assert_same(load(path), new)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError(28, "x")])
def test_replacing_is_all_or_nothing(tmp_path: Path, error: Any) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    expected = AmpsureError if isinstance(error, OSError) else error
    with pytest.raises(expected) as caught, replacing(path) as temporary:  # noqa: PT012
        assert (temporary.suffix, temporary.parent) == (".txt", path.parent)
        temporary.write_text("half")
        raise error
    assert expected is not AmpsureError or "No space left on device" in str(caught.value)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_replacing_writes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link.h5").symlink_to(tmp_path / "data" / "real.h5")
    save(make_events(), tmp_path / "link.h5")
    assert (tmp_path / "link.h5").is_symlink()
    assert len(load(tmp_path / "data" / "real.h5")) == 20


def test_lhe_states_the_cross_section_and_beams_of_generated_events(events, tmp_path):
    pylhe = pytest.importorskip("pylhe")
    save(events, tmp_path / "e.lhe")
    init = pylhe.LHEFile.fromfile(tmp_path / "e.lhe", generator=False).init
    found = events.provenance["generation"]
    assert init.procInfo[0].xSection == found["cross_section"]
    assert init.procInfo[0].error == found["cross_section_error"]
    assert init.initInfo.energyA == init.initInfo.energyB == 500.0
    assert init.initInfo.weightingStrategy == 3
