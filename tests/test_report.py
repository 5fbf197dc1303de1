"""Pages about surrogates: their numbers are those of the judgement, and what is text stays text."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

import ampsure
from ampsure import Process, fit
from ampsure.cli.common import parse_settings
from ampsure.config import METHODS, RECIPES, resolve
from ampsure.evaluation import judge
from ampsure.prediction import Prediction
from ampsure.report import (
    Examination,
    comparison_report,
    examine,
    page,
    surrogate_drawings,
    surrogate_report,
)
from ampsure.report.comparison import _marked
from ampsure.report.examination import PULL, SCORES, Metric, number, verdict_of
from ampsure.report.page import table
from ampsure.report.style import exponents, panels
from ampsure.report.surrogate import reproduce
from tests.test_events import two_to_two

pytestmark = pytest.mark.xdist_group("report")  # one worker runs them all: they share their runs
SMALL = {"network": {"hidden": (16, 16)}, "posterior": {"members": 2}}


@pytest.fixture(scope="module")
def folder(events, tmp_path_factory):
    """Events and two runs trained on them, with test events of their own."""
    folder = tmp_path_factory.mktemp("runs")
    ampsure.save(events, folder / "events.h5")
    for name, seed in (("a", 1), ("b", 2)):
        config = {**SMALL, "data": {"path": str(folder / "events.h5")}}
        fit(events, "repulsive", config=config, epochs=5, batch_size=128, seed=seed).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def examination(folder, events) -> Examination:
    surrogate = ampsure.load_surrogate(folder / "a")
    test = events.split(1)[2]
    return examine(surrogate, test, str(folder / "a"), f"the test part of {folder / 'events.h5'}")


def test_the_page_has_the_numbers_of_the_judgement(run, folder, examination):
    code, out, _ = run("report", folder / "a")
    assert code == 0
    assert "figures" in out
    html = (folder / "a" / "report.html").read_text()
    j = examination.judgement
    for sentence in j.verdict:
        assert page.text(exponents(sentence)) in html
        assert sentence in out
    numbers = [number(j.accuracy.mean, ".3g"), number(j.accuracy.quantile99, ".3g"), number(j.bias.sum_negative, ".3g")]
    for metric in SCORES:
        numbers.append(metric.written(examination))
    for kind in ("total", "systematic", "statistical"):
        numbers += [number(m.value(j.pulls[kind]), m.form) for m in PULL]
    for value in numbers:
        assert f"<td>{value}</td>" in html
    origin = examination.surrogate.provenance
    for fact in (origin["data"]["checksum"], examination.checksum, "g g &gt; a a g", *origin["versions"].values()):
        assert fact in html
    assert len(html) < 2_000_000
    links = set(re.findall(r"https?://[^\"'\s]+", html))
    assert links <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, not places

    names = {drawing.name for drawing in surrogate_drawings(examination)}
    assert {"deviation-size", "pulls", "coverage", "reliability", "across-mass", "training-members"} <= names
    for name in names:
        for suffix, start in ((".pdf", b"%PDF"), (".png", b"\x89PNG")):
            assert (folder / "a" / "figures" / f"{name}{suffix}").read_bytes().startswith(start)
        assert f'id="figure-{name}"' in html

    again = examine(examination.surrogate, examination.events, examination.name, examination.source)
    assert surrogate_report(again) == html  # the same run gives the same page


def test_curves_of_all_kinds_are_read_off_a_figure():
    figure, axes = panels(1, 2)
    axes[0, 0].errorbar([1, 2], [3, 4], [0.5, 0.25], linestyle="none", marker="o", label=r"$\sigma$ points")
    axes[0, 0].plot([1, 2, 4], [1, np.nan, 3], label="line")
    axes[0, 0].stairs([5, 6], [0, 1, 2], label="steps")
    axes[0, 0].axhline(1)
    axes[0, 0].set(xscale="log", xlim=(1, 4), xlabel="x")
    axes[0, 1].set(xscale="symlog")
    html = page.figure(figure, "kinds", "caption", "words")
    (panel,) = json.loads(re.search(r"json\">(.*)</script>", html)[1])
    curves = {curve["label"]: curve for curve in panel["curves"]}
    assert (panel["label"], panel["log"], panel["range"]) == ("x", True, [1, 4])
    assert [curve["kind"] for curve in curves.values()] == ["step", "points", "line"]
    assert curves["σ points"]["band"] == [[2.5, 3.75], [3.5, 4.25]]
    assert curves["line"]["y"] == [1, None, 3]
    for cell in ("<td>3 [2.5, 3.5]</td>", "<th scope=row>0 – 1</th><td>5</td>", "<td>–</td>"):
        assert cell in html


def test_what_is_text_stays_text(examination):
    nasty = "<script>alert(1)</script><!--"
    s = examination.surrogate
    process = Process(nasty, s.process.pdg_ids, s.process.masses, unit=f"$x {nasty}")
    surrogate = replace(s, process=process, provenance={**s.provenance, "device": nasty, "events": {"command": nasty}})
    events = replace(examination.events, process=process)
    name = f"runs/_$a$_{nasty}"
    judgement = judge(examination.prediction, events)
    odd = replace(examination, name=name, source=nasty, surrogate=surrogate, events=events, judgement=judgement)
    drawings = [drawing for drawing in surrogate_drawings(odd) if drawing.name == "across-amplitude"]
    for html in (surrogate_report(odd, drawings), comparison_report([odd, examination])):
        assert nasty not in html
        assert html.count("&lt;script&gt;alert(1)") > 2
        blocks = re.findall(r'<script type="application/json">(.*?)</script>', html)
        labels = [c["label"] for block in blocks for panel in json.loads(block) for c in panel["curves"]]
        assert html.count("<script") == len(blocks) + 1
    assert f"A: {name}" in labels


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("method", METHODS)
def test_the_command_trains_the_same(method, recipe):
    changed = {"posterior": {"members": 3}} if "posterior" in METHODS[method] and method != "bayesian" else {}
    config = resolve(method, recipe, {"data": {"path": "a b.h5"}}, changed, epochs=7, gradient_clip=1.5)
    _, command, *words = shlex.split(reproduce(config))
    assert command == "train"
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    settings = [value for key, value in zip(words[::2], words[1::2], strict=True) if key == "--set"]
    assert (pairs["--data"], pairs["--method"], pairs["--recipe"]) == ("a b.h5", method, recipe)
    assert resolve(method, recipe, parse_settings(settings), {"data": {"path": "a b.h5"}}) == config


def test_the_command_knows_what_no_method_is():
    config = resolve("evidential", "paper", {"posterior": {"name": "ensemble", "members": 2}})
    words = shlex.split(reproduce(config))
    settings = parse_settings([words[i + 1] for i, word in enumerate(words) if word == "--set"])
    assert resolve(words[words.index("--method") + 1], "paper", settings) == config


@pytest.mark.parametrize("n", [1, 30])
def test_few_events_make_a_page(examination, n):
    few = examine(examination.surrogate, examination.events[:n], "few")
    assert few.residual is None
    assert (few.reliability() is None) == (n == 1)
    assert "<figure" in surrogate_report(few)


def test_no_uncertainty_is_said(examination):
    zero = np.zeros(len(examination.events))
    prediction = replace(examination.prediction, sigma_syst=zero, sigma_stat=zero, sigma_tot=zero)
    judgement = judge(prediction, examination.events)
    bare = replace(examination, prediction=prediction, judgement=judgement)
    drawings = surrogate_drawings(bare)
    assert not {"pulls", "coverage", "reliability"} & {drawing.name for drawing in drawings}
    assert "no uncertainty</span>" in surrogate_report(bare, drawings[:3])
    both = comparison_report([bare, examination])
    assert "no uncertainty</span>" in both
    assert 'id="figure-coverage"' in both


@pytest.mark.parametrize(
    ("pulls", "mark"),
    [
        (lambda rng, x: rng.standard_normal(len(x)), "✓</span> calibrated</span>"),
        (lambda rng, x: 1.5 * rng.standard_normal(len(x)), "▲</span> overconfident</span>"),
        (lambda rng, x: 0.6 * rng.standard_normal(len(x)), "▼</span> underconfident</span>"),
        (lambda rng, x: rng.standard_t(3, len(x)) / 1.197, "calibrated core, heavy tails</span>"),
        (lambda rng, x: rng.uniform(-1.4648, 1.4648, len(x)), "calibrated core, light tails</span>"),
        (lambda rng, x: np.where(x > 0.9, 1.3, 0.97) * rng.standard_normal(len(x)), "not everywhere</span>"),
    ],
)
def test_the_badge_says_what_the_words_say(flat_events, pulls, mark):
    rank = np.argsort(np.argsort(flat_events.final_state_mass)) / len(flat_events)
    sigma = 0.01 * flat_events.truth
    amplitude = flat_events.amplitude + sigma * pulls(np.random.default_rng(1), rank)
    zero, inside = np.zeros(len(sigma)), np.ones(len(sigma), bool)
    judgement = judge(Prediction(amplitude, sigma, zero, sigma, inside), flat_events)
    assert mark in verdict_of(judgement), judgement.verdict


def test_predictions_that_are_not_finite_are_left_out(examination, monkeypatch):
    p = examination.prediction
    broken = replace(p, amplitude=np.where(np.arange(len(p.amplitude)) < 5, np.nan, p.amplitude))
    monkeypatch.setattr(type(examination.surrogate), "predict", lambda self, momenta: broken)
    found = examine(examination.surrogate, examination.events, "broken")
    assert len(found.events) == found.judgement.events == len(examination.events) - 5
    drawings = surrogate_drawings(found)
    assert "5 of the 400 predictions are not finite" in surrogate_report(found, drawings[:2])


def test_runs_side_by_side(run, folder, examination, tmp_path):
    code, out, _ = run("compare", folder / "a", folder / "b", "-o", "compare.html")
    assert code == 0
    html = (tmp_path / "compare.html").read_text()
    assert "tested on different events" in html
    assert examination.checksum[:12] in html
    assert html.count('class="verdict') == 2
    assert {"pull.pdf", "across-mass.png"} <= set(os.listdir(tmp_path / "compare-figures"))
    for run_name in ("a", "b"):
        assert f"{folder / run_name}:" in out

    two = [examine(examination.surrogate, examination.events, "x"), examination]
    assert "All runs were tested on the same events" in comparison_report(two)
    assert "★</span>" not in comparison_report(two)  # equal runs: none is better


@pytest.mark.parametrize(
    ("ideal", "values", "winner"), [(0, [0.3, -0.2, None], 1), (1, [0.4, 1.1, 3.0], 1), (-np.inf, [2, -1, -3], 2)]
)
def test_the_nearest_to_the_ideal_is_marked(ideal, values, winner):
    metric = Metric("m", lambda value: value, ".2f", ideal)
    assert [isinstance(cell, page.Html) for cell in _marked(metric, values)] == [k == winner for k in range(3)]
    chance = metric._replace(error=lambda _: 5.0)
    for unmarked in (_marked(chance, values), _marked(metric, [1.0, 1.0]), _marked(metric, [1.0, None])):
        assert not any(isinstance(cell, page.Html) for cell in unmarked)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report", "nothing"), "no surrogate in nothing"),
        (("report", "{a}", "-o", "x.pdf"), "written as .html"),
        (("report", "{a}", "-o", "missing/x.html"), "no folder"),
        (("report", "{a}", "--data", "nothing.h5"), "no file nothing.h5"),
        (("report", "{a}", "--data", "other.npz"), "4 legs"),
        (("report", "{a}", "-o", "."), "written as .html"),
        (("compare", "{a}"), "at least two"),
        (("compare", "{a}", "nothing"), "no surrogate in nothing"),
        (("compare", "{a}", "{b}", "--data", "other.npz"), "4 legs"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(run, folder, arguments, words):
    np.savez("other.npz", momenta=two_to_two(10, (0, 0, 0, 0), seed=1), amplitude=np.ones(10))
    before = sorted(os.listdir())
    code, out, err = run(*(a.format(a=folder / "a", b=folder / "b") for a in arguments))
    assert code == 2
    assert words in err
    assert "Traceback" not in out + err
    assert sorted(os.listdir()) == before


def test_figures_that_cannot_be_written_leave_no_page(run, folder, examination, tmp_path):
    examination.surrogate.save(tmp_path / "c")
    (tmp_path / "c" / "figures").write_text("in the way")
    code, _, err = run("report", "c")
    assert code == 2
    assert "no folder" in err
    assert not (tmp_path / "c" / "report.html").exists()


@pytest.mark.parametrize("command", ["report", "compare"])
def test_every_command_has_help_with_an_example(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"ampsure {command}" in out


def test_a_table_has_one_head_or_none():
    with_head, without = table([["a", 1]], ["", "found"]), table([["a", 1]])
    assert with_head.count("<thead>") == with_head.count("</thead>") == 1
    assert with_head.count("<tr>") == 2
    assert "thead" not in without
