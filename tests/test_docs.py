"""What the documentation shows, runs."""

from __future__ import annotations

import re
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
