"""What the documentation shows, runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import ampsure

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.skipif(not (DOCS / "deploy.md").exists(), reason="the documentation is not here")
def test_snippets_about_surrogates_in_other_programs(events, tmp_path, monkeypatch, capsys):
    """All in the folder that the page starts with."""
    monkeypatch.chdir(tmp_path)
    trained = ampsure.fit(events, "repulsive", config={"network": {"hidden": (16, 16)}}, epochs=2, seed=1)
    trained.save("runs/a")
    ampsure.save(events[:50], "events.h5")
    momenta = events.momenta[:10]
    np.save("momenta.npy", momenta)
    names: dict[str, object] = {"momenta": momenta}
    found = []
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "deploy.md").read_text(), re.DOTALL):
        exec(block, names)
        found.append(names.get("amplitude"))
    predicted = trained.predict(momenta).amplitude
    np.testing.assert_allclose(found[1], predicted, rtol=1e-6)  # of onnxruntime
    np.testing.assert_allclose(names["prediction"].amplitude, predicted, rtol=1e-5)  # of the C++ library
    assert "gg_yyg" in capsys.readouterr().out


@pytest.mark.skipif(not (DOCS / "deploy.md").exists(), reason="the documentation is not here")
def test_commands_about_surrogates_in_other_programs(run, tmp_path):
    """All commands of the page, with fewer events and epochs; what makes the surrogate goes first."""
    page = (DOCS / "deploy.md").read_text()
    found = re.findall(r"^    ampsure ((?:.*\\\n)*.*)", page, re.MULTILINE)
    commands = [shlex.split(command.replace("\\\n", "")) for command in found]
    assert len(commands) >= 9
    smaller = {"training.epochs=60": "training.epochs=5", "training.epochs=100": "training.epochs=5"}
    for command in sorted(commands, key=lambda c: c[0] not in ("generate", "train")):
        counts = {"10000": "1500" if command[0] == "generate" else "100"}
        code, out, err = run(*((counts | smaller).get(word, word) for word in command))
        assert (code, err) == (0, ""), f"{command}: {out}"
    for name in ("a.onnx", "a/libampsure_surrogate.so", "unweighted.h5", "weighted.lhe.gz", "mass.yaml", "runs/small"):
        assert (tmp_path / name).exists()
