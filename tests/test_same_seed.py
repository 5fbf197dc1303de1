"""The same seed gives the same files on the same machine, command by command; numbers of seconds excepted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ampsure
from validation.kills import contents

FIXTURES = Path(__file__).parent / "fixtures"
SMALL = ("--set", "network.hidden=[4]", "--set", "training.epochs=2", "--set", "training.batch_size=100")
SIGMA = ("--set", "posterior.members=2", "--set", "posterior.sigma_hidden=[4]")
COMMANDS = {
    "generate": ("generate", "gg_yyg", "-n", "60", "--seed", "7", "-o", "OUT/x.h5"),
    "generate flat": ("generate", "gg_yyg", "-n", "60", "--seed", "7", "--sampling", "rambo", "-o", "OUT/x.lhe.gz"),
    "convert": ("convert", "events.h5", "OUT/x.npz"),
    "inspect": ("inspect", "events.h5", "-o", "OUT/x.pdf"),
    "disturb": ("disturb", "events.h5", "OUT/x.h5", "--uniform", "0.1", "--outliers", "--seed", "7"),
    "train": ("train", "--data", "events.h5", "-o", "OUT/run", *SMALL, *SIGMA),
    "train bayesian": ("train", "--data", "events.h5", "--method", "bayesian", "-o", "OUT/run", *SMALL),
    "audit": ("audit", "events.h5", "-o", "OUT/x.npz", "--clean", "OUT/c.h5", "--folds", "2", *SMALL, *SIGMA),
    "predict": ("predict", "bayesian", "events.h5", "--samples", "3", "--sample-seed", "7", "-o", "OUT/x.npz"),
    "evaluate": ("evaluate", "run", "--data", "events.h5"),
    "report": ("report", "run", "--data", "events.h5", "-o", "OUT/x.html"),
    "compare": ("compare", "run", "bayesian", "--data", "events.h5", "-o", "OUT/x.html"),
    "grid": (
        "grid", "--data", "events.h5", "--method", "heteroscedastic", "--vary", "training.seed=1,2",
        "-o", "OUT/grid", *SMALL,
    ),
    "histogram": ("histogram", "run", "--data", "events.h5", "-o", "OUT/x"),
    "reweight": ("reweight", "events.lhe", "--surrogate", "run", "-o", "OUT/x.lhe.gz", "--members"),
    "unweight": ("unweight", "run", "-n", "60", "--seed", "7", "-o", "OUT/x.h5"),
    "distill": ("distill", "run", "--data", "events.h5", "-o", "OUT/run", *SMALL),
    "export onnx": ("export", "run", "-o", "OUT/x.onnx"),
    "export umami": ("export", "run", "--format", "umami", "--no-build", "-o", "OUT/umami"),
    "study run": (
        "study", "run", "error-propagation", "--data", "events.h5", "--device", "cpu",
        "-o", "OUT/s", "--cache", "OUT/c",
    ),
    "study report": ("study", "report", "--preset", "smoke", "-o", "OUT"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_twice(name, run, tmp_path, flat_events):
    ampsure.save(flat_events[:300], tmp_path / "events.h5")
    ampsure.save(flat_events[:300], tmp_path / "events.lhe")
    for source, target in (("recommended", "run"), ("bayesian", "bayesian")):
        shutil.copytree(FIXTURES / "surrogate-3" / source, tmp_path / target)
    found = []
    for _ in range(2):
        (tmp_path / "OUT").mkdir()
        if name == "study report":
            shutil.copytree(FIXTURES / "study-1", tmp_path / "OUT", dirs_exist_ok=True)
        code, out, err = run(*COMMANDS[name])
        assert code == 0, err
        found.append({"printed": out} if name == "evaluate" else contents(tmp_path / "OUT"))
        shutil.rmtree(tmp_path / "OUT")
    first, second = found
    assert first
    assert first.keys() == second.keys()
    assert [file for file in first if first[file] != second[file]] == []
