"""What the documentation shows, runs, and the site is built without warnings."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad

import ampsure

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

pytestmark = pytest.mark.skipif(not (DOCS / "deploy.md").exists(), reason="the documentation is not here")

BLOCK = re.compile(r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```', re.DOTALL | re.MULTILINE)


@pytest.fixture
def follow(run):
    """Do what a page says, from top to bottom in one folder; gives the names of its Python blocks.

    Blocks with a title are files, bash blocks are commands. A comment of the page, `<!-- in the tests: "A" is "B" -->`,
    says what is smaller here.
    """

    def follow(page: str) -> dict[str, object]:
        text = (DOCS / page).read_text()
        (comment,) = re.findall(r"<!-- in the tests: (.*?) -->", text)
        for long, short in re.findall(r'"([^"]+)" is "([^"]+)"', comment):
            assert text.count(long) > 1, f"{page} does not contain {long!r}"
            text = text.replace(long, short)
        names: dict[str, object] = {}
        for kind, title, block in BLOCK.findall(text):
            if title:
                Path(title).write_text(block)
            elif kind == "python":
                exec(block, names)
            elif kind == "bash":
                for command in block.splitlines():
                    program, *arguments = shlex.split(command)
                    assert program == "ampsure"
                    code, out, err = run(*arguments)
                    assert (code, err) == (0, ""), f"{command}: {out}"
        return names

    return follow


def test_tutorial(follow, tmp_path):
    names = follow("tutorial.md")
    assert np.mean(names["inside"]) > 0.8  # of intervals for 90 %
    assert (tmp_path / "runs/a/report.html").exists()


def test_own_amplitudes(follow):
    names = follow("own-amplitude.md")
    _check_top(names["gg_tt"], names["TOP"])
    assert ampsure.load("signed.npz", signed=True).amplitude.min() < 0
    assert names["gate"].counts.points == len(names["momenta"])
    np.testing.assert_allclose(names["answers"], names["amplitude"], rtol=0.1)
    _check_three_photons(names["ee_yyy"], names["ee_yy"])


def _check_top(gg_tt, mass: float, s: float = 500.0**2, alpha_s: float = 0.118) -> None:
    """The amplitude of the page integrates to the cross section of g g > t t~ in closed form (Combridge)."""
    energy, beta, rho = np.sqrt(s) / 2, np.sqrt(1 - 4 * mass**2 / s), 4 * mass**2 / s

    def amplitude(cosine: float) -> float:
        top = energy * np.array([1, beta * np.sqrt(1 - cosine**2), 0, beta * cosine])
        beams = energy * np.array([[1.0, 0, 0, 1], [1, 0, 0, -1]])
        return float(gg_tt(np.array([[*beams, top, top * [1, -1, -1, -1]]]), alpha_s=alpha_s)[0])

    found = beta / (32 * np.pi * s) * quad(amplitude, -1, 1)[0]
    logarithm = (1 + rho + rho**2 / 16) * np.log((1 + beta) / (1 - beta))
    exact = np.pi * alpha_s**2 / (3 * s) * (logarithm - beta * (7 / 4 + 31 * rho / 16))
    assert found == pytest.approx(exact, rel=1e-9)


def _check_three_photons(ee_yyy, ee_yy, energy: float = 45.0, soft: float = 1e-5) -> None:
    """A soft photon makes the amplitude of the page that of two photons times the eikonal factor."""
    p, q = (energy * np.array([1.0, 0, 0, z]) for z in (1, -1))
    k = soft * np.array([1, 0.6, 0, 0.8])
    hard = energy * np.array([1, 0, 0.8, 0.6])
    back = hard * [1, -1, -1, -1]

    def product(a, b):
        return a[0] * b[0] - a[1:] @ b[1:]

    eikonal = 4 * np.pi / 137.036 * 2 * product(p, q) / product(p, k) / product(q, k)
    ratio = ee_yyy(np.array([[p, q, hard, back, k]]))[0] / ee_yy(np.array([[p, q, hard, back]]))[0]
    assert ratio == pytest.approx(eikonal, rel=1e-5)


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


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The documentation, built; warnings are errors."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    quiet = {"NO_MKDOCS_2_WARNING": "1"}  # about a successor of mkdocs
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | quiet)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


@pytest.mark.xdist_group("site")
def test_site_shows_every_page_and_needs_no_network(site):
    pages = [page.read_text() for page in site.rglob("index.html")]
    assert len(pages) == sum(1 for _ in DOCS.rglob("*.md"))
    for page in pages:
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]*)"', page)
        assert loaded == []
        for formula in re.findall(r"<math.*?</math>", page, re.DOTALL):
            assert "\\" not in formula  # a command of LaTeX that was not understood
        assert "arithmatex" not in page


@pytest.mark.xdist_group("site")
def test_reference_of_commands_and_names_is_complete(site):
    commands, python = ((site / name / "index.html").read_text() for name in ("commands", "api"))
    for command in ("generate", "train", "evaluate", "predict", "export", "study run", "config show"):
        assert f"<code>ampsure {command}</code>" in commands
    anchors = set(re.findall(r'id="([^"]+)"', python))
    rooms = ("", ".likelihoods", ".posteriors", ".preprocessing", ".disturbances", ".evaluation", ".deploy", ".report")
    for room in rooms:
        module = importlib.import_module(f"ampsure{room}")
        for name in module.__all__:
            thing = getattr(module, name)
            if getattr(thing, "__module__", "").startswith("ampsure"):  # a class or a function, and ours
                assert {f"{module.__name__}.{name}", f"{thing.__module__}.{name}"} & anchors, f"{name} is missing"


def test_versions_agree():
    """The lowest versions that are tested are the lowest allowed, and the citation names this version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][extra] for extra in ("lhe", "export", "dask"))
    allowed = dict(re.match(r"([\w-]+)>=([\d.]+)", d).groups() for d in sum(extras, project["dependencies"]))
    tested = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints-lowest.txt").read_text(), re.MULTILINE))
    del allowed["torch"]  # of constraints.txt
    assert {name: _padded(version) for name, version in allowed.items()} == {n: _padded(v) for n, v in tested.items()}
    assert f"\nversion: {ampsure.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_workflows_call_targets_that_exist():
    yaml = pytest.importorskip("yaml")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflows = list((ROOT / ".github/workflows").glob("*.yml"))
    assert {path.stem for path in workflows} == {"docs", "lint", "release", "tests"}
    for path in workflows:
        jobs = yaml.safe_load(path.read_text())["jobs"]
        steps = [step for job in jobs.values() for step in job["steps"]]
        made = [words for step in steps if (words := step.get("run", "").split())[:1] == ["make"]]
        assert made
        assert {target for _, *called in made for target in called} <= targets


def _padded(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))
