"""Files of earlier versions load for ever, and files of later ones are refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

import ampsure
from ampsure import AmpsureError
from ampsure.studies import get_study, load_record
from ampsure.training.checkpoint import read_checkpoint

FIXTURES = Path(__file__).parent / "fixtures"
SURROGATES = sorted(path.parent for path in FIXTURES.glob("surrogate-*/*/surrogate.json"))


@pytest.mark.parametrize("suffix", [".h5", ".lhe", ".lhe.gz", ".npz", ".npy"])
def test_events_of_the_first_schema(suffix):
    expected = json.loads((FIXTURES / "events-1/expected.json").read_text())
    events = ampsure.load(FIXTURES / f"events-1/events{suffix}")
    assert len(events) == 12
    assert events.momenta[-1, -1].tolist() == expected["last_momentum"]
    if suffix != ".npy":
        assert ampsure.io.checksum(events) == expected["checksum"]
        assert events.process is ampsure.get_process("gg_yyg")
        assert events.provenance == {"note": "a fixture"}


def test_every_schema_of_surrogates_has_its_fixtures():
    assert {path.parent.name for path in SURROGATES} == {
        f"surrogate-{schema}" for schema in range(1, ampsure.surrogate.SCHEMA_VERSION + 1)
    }


@pytest.mark.parametrize("folder", SURROGATES, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_surrogates_predict_what_they_did(folder):
    """Schemas 1 and 2 were of a program that predicted in float32."""
    expected = json.loads((folder.parent / "expected.json").read_text())
    prediction = ampsure.load_surrogate(folder).predict(np.array(expected["momenta"]))
    rtol = 3e-5 if folder.parent.name in ("surrogate-1", "surrogate-2") else 1e-9
    for name, values in expected[folder.name].items():
        assert getattr(prediction, name) == pytest.approx(np.array(values), rel=rtol), name


def test_results_of_studies_of_the_first_schema():
    found = load_record(get_study("true-amplitudes"), FIXTURES / "study-1/true-amplitudes-smoke.json")
    assert found.verdicts[0].checks[0].found.value == pytest.approx(3.77, abs=0.5)
    found = load_record(get_study("error-propagation"), FIXTURES / "study-1/error-propagation-smoke.json")
    assert [verdict.claim for verdict in found.verdicts] == ["A1"]


def test_checkpoints_of_the_first_schema():
    state = read_checkpoint(FIXTURES / "checkpoint-1/members.safetensors")
    assert state["step"] == 56
    assert len(state["courses"][0]["history"]) == 2
    assert state["weights"][0].shape == (1, 180)


# what a later version writes


def newer_h5(path: Path) -> None:
    path.write_bytes((FIXTURES / "events-1/events.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = 99


def newer_lhe(path: Path) -> None:
    path.write_text((FIXTURES / "events-1/events.lhe").read_text().replace('schema_version="1"', 'schema_version="99"'))


def newer_npz(path: Path) -> None:
    with np.load(FIXTURES / "events-1/events.npz") as stored:
        np.savez(path, **stored, schema_version=99)


@pytest.mark.parametrize("write", [newer_h5, newer_lhe, newer_npz])
def test_newer_events(write, tmp_path):
    path = tmp_path / f"events.{write.__name__.partition('_')[2]}"
    write(path)
    with pytest.raises(AmpsureError, match=r"newer ampsure \(schema 99\): update ampsure"):
        ampsure.load(path)


def test_an_npz_carries_its_schema(events, tmp_path):
    ampsure.save(events, tmp_path / "events.npz")
    with np.load(tmp_path / "events.npz") as stored:
        assert stored["schema_version"] == 1


def test_newer_surrogates(tmp_path):
    for name in ("surrogate.json", "weights.safetensors"):
        (tmp_path / name).write_bytes((FIXTURES / "surrogate-3/mse" / name).read_bytes())
    description = json.loads((tmp_path / "surrogate.json").read_text())
    (tmp_path / "surrogate.json").write_text(json.dumps({**description, "schema_version": 99}))
    with pytest.raises(AmpsureError, match=r"newer ampsure \(schema 99\): update ampsure"):
        ampsure.load_surrogate(tmp_path)


def test_newer_results_of_studies(tmp_path):
    found = json.loads((FIXTURES / "study-1/true-amplitudes-smoke.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**found, "schema_version": 99}))
    with pytest.raises(AmpsureError, match=r"newer ampsure \(schema 99\): update ampsure"):
        load_record(get_study("true-amplitudes"), tmp_path / "study.json")


def test_newer_checkpoints(tmp_path):
    with safe_open(FIXTURES / "checkpoint-1/members.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {**file.metadata(), "schema_version": "99"}
    save_file(tensors, tmp_path / "members.safetensors", metadata)
    with pytest.raises(AmpsureError, match="newer ampsure: update ampsure, or remove it to start again"):
        read_checkpoint(tmp_path / "members.safetensors")
