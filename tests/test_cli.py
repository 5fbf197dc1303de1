"""The command line, as a user meets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import ampsure


@pytest.fixture
def file(events, tmp_path):
    path = tmp_path / "events.h5"
    ampsure.save(events, path)
    return path


def test_generate_writes_events_and_says_what_it_found(run, tmp_path):
    code, out, _ = run("generate", "gg_yyg", "-n", 500, "--seed", 5, "--sampling", "rambo", "-o", "flat.h5")
    assert code == 0
    for words in ("cross section", "pb", "inside the cuts", "unweighting efficiency", "above the maximum", "Kish"):
        assert words in out
    events = ampsure.load(tmp_path / "flat.h5")
    expected = ampsure.generate("gg_yyg", 500, seed=5, sampling="rambo")
    np.testing.assert_array_equal(events.momenta, expected.momenta)
    assert events.provenance["command"]["seed"] == 5
    assert events.provenance["versions"]["ampsure"] == ampsure.__version__


def test_settings_are_overridden(run, tmp_path):
    arguments = ("--sampling", "rambo", "--set", "cuts.pt_jet=60", "--set", "energy=2000", "--set", "density=cteq5l")
    code, _, _ = run("generate", "gg_yyg", "-n", 200, *arguments, "-o", "hard.npz")
    assert code == 0
    events = ampsure.load(tmp_path / "hard.npz")
    assert ampsure.kinematics.transverse_momentum(events.momenta[:, 4]).min() > 60
    assert events.provenance["settings"]["energy"] == 2000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "gg_hh", "-o", "x.h5"), "Unknown process 'gg_hh'"),
        (("generate", "gg_yyg", "-o", "x.root"), "unknown suffix"),
        (("generate", "gg_yyg", "-o", "missing/x.h5"), "no folder"),
        (("generate", "gg_yyg", "-n", "0", "-o", "x.h5"), "must be positive"),
        (("generate", "gg_yyg", "-n", str(10**15), "-o", "x.h5"), "more than there is memory"),
        (("generate", "gg_yyg", "--set", "cuts.pt_jets=3", "-o", "x.h5"), "did you mean 'cuts.pt_jet'"),
        (("generate", "gg_yyg", "--set", "energy", "-o", "x.h5"), "NAME=VALUE"),
        (("generate", "gg_yyg", "--set", "cuts=3", "--set", "cuts.pt_jet=3", "-o", "x.h5"), "twice"),
        (("generate", "gg_yyg", "--set", "preset=lhc", "-o", "x.h5"), "Unknown setting 'preset'"),
        (("generate", "gg_yyg", "--set", "couplings.n_flavours=7", "-o", "x.h5"), "n_flavours must be 1 to 6"),
        (("generate", "gg_yyg", "--set", f"energy={'9' * 5000}", "-o", "x.h5"), "energy"),
        (("generate", "gg_yyg", "-o", "x.npy"), "no room for the weights"),
        (("generate", "gg_yyg", "--set", "density=cteq7", "-o", "x.h5"), "No parton density"),
        (("inspect", "nothing.h5"), "no file nothing.h5"),
        (("convert", "nothing.h5", "x.npz"), "no file nothing.h5"),
        (("disturb", "events.h5", "x.h5"), "at least one of"),
        (("disturb", "events.h5", "x.h5", "--uniform", "-1"), "must be a positive number"),
        (("inspect", "events.h5", "-o", "x.docx"), ".png, .pdf or .svg"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(run, file, arguments, words):
    before = sorted(os.listdir())
    code, out, err = run(*arguments)
    assert code == 2
    assert words in err
    assert "Traceback" not in out + err
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    "arguments", [("generate",), ("generate", "gg_yyg", "-n", "many", "-o", "x.h5"), ("nonsense",)]
)
def test_wrong_usage_is_code_2(run, arguments):
    assert run(*arguments)[0] == 2


@pytest.mark.parametrize("command", ["generate", "inspect", "convert", "disturb"])
def test_every_command_has_help_with_an_example(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"ampsure {command}" in out


def test_version(run):
    assert run("--version")[1].strip() == f"ampsure {ampsure.__version__}"


def test_inspect_summarises_and_draws(run, file, tmp_path):
    code, out, _ = run("inspect", "events.h5", "-o", "overview.png")
    assert code == 0
    for words in ("g g > a a g", "2,000", "orders of magnitude", "GeV", "cross section"):
        assert words in out
    picture = (tmp_path / "overview.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000


def test_provenance_and_names_of_any_form_are_only_text(run, events, tmp_path):
    odd = events[:50]
    for k, provenance in enumerate(
        ({"command": "my script"}, {"generation": {"seed": 1}}, {"dropped": 3}, {"command": {"a": "[/x]"}})
    ):
        odd.provenance = provenance
        ampsure.save(odd, tmp_path / f"[red]{k}.run.h5")
        code, out, _ = run("inspect", f"[red]{k}.run.h5")
        assert code == 0
        assert f"[red]{k}.run.png" in out
    assert run("convert", "[red]3.run.h5", "x.npz")[0] == 0
    assert ampsure.load(tmp_path / "x.npz").provenance["history"][0]["command"] == "convert"


def test_inspect_warns_of_invalid_events(run, events, tmp_path):
    momenta = np.concatenate([events.momenta[:100], events.momenta[:1]])
    momenta[7, 0] = [500, 300, 0, 400]
    np.savez(tmp_path / "odd.npz", momenta=momenta, amplitude=np.append(events.amplitude[:100], 1.0))
    code, out, _ = run("inspect", "odd.npz")
    assert code == 0
    assert "do not balance" in out
    assert "1 events repeat others" in out
    assert (tmp_path / "odd.png").exists()
    code, _, err = run("convert", "odd.npz", "odd.h5")
    assert code == 2
    assert "Event 7" in err
    code, out, _ = run("convert", "odd.npz", "odd.h5", "--invalid", "drop")
    assert code == 0
    assert "Dropped 1 invalid" in out
    assert len(ampsure.load(tmp_path / "odd.h5")) == 100
    assert "Dropped" not in run("convert", "odd.h5", "again.h5")[1]


@pytest.mark.parametrize("suffix", [".lhe", ".lhe.gz", ".npz", ".h5"])
def test_convert_there_and_back(run, file, events, tmp_path, suffix):
    assert run("convert", "events.h5", f"other{suffix}")[0] == 0
    assert run("convert", f"other{suffix}", "back.h5")[0] == 0
    back = ampsure.load(tmp_path / "back.h5")
    for name in ("momenta", "amplitude", "weights"):
        np.testing.assert_array_equal(getattr(back, name), getattr(events, name))
    assert back.process == events.process


def test_disturb_keeps_the_truth(run, file, events, tmp_path):
    code, out, _ = run("disturb", "events.h5", "noisy.h5", "--box", "0.1", "20", "--gap", "10", "--seed", "4")
    assert code == 0
    assert "BoxSmearing: 0 amplitudes" in out
    assert "left to tests alone" in out
    noisy = ampsure.load(tmp_path / "noisy.h5")
    np.testing.assert_array_equal(noisy.truth, events.truth)
    inside = np.abs(events.final_state_mass - 200) < 20
    np.testing.assert_array_equal(noisy.noise > 0, inside)
    np.testing.assert_array_equal(noisy.amplitude != noisy.truth, inside)
    assert not noisy.trainable[np.abs(events.final_state_mass - 200) < 10].any()
    assert run("inspect", "noisy.h5")[0] == 0


def test_interrupt_leaves_nothing_behind(tmp_path):
    command = [
        sys.executable,
        "-m",
        "ampsure",
        "generate",
        "gg_yyg",
        "-n",
        "500000",
        "-o",
        str(tmp_path / "big.h5"),
    ]

    def listen() -> None:  # tests may run in the background, where Ctrl-C is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, preexec_fn=listen, **pipes)
    assert process.stdout is not None
    assert "adapting" in process.stdout.readline()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert "nothing was written" in err
    assert process.returncode in (130, -signal.SIGINT)  # the same to a shell; which one is up to the interpreter
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == []
