"""Studies: the machinery at the smallest preset, and verdicts that follow the numbers and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

import ampsure
from ampsure import AmpsureError, cli
from ampsure.studies import PRESETS, STUDIES, Check, Estimate, Results, get_study, load_record, run_study, runner
from ampsure.studies.accuracy_size import fit as scaling_law
from ampsure.studies.repulsion import significance
from ampsure.studies.study import Verdict, estimate, ratio

pytestmark = pytest.mark.xdist_group("studies")  # one worker runs them all: they share their trainings

CLAIMS = [
    *("D1", "L1", "L2", "L3", *(f"R{k}" for k in range(1, 12)), *(f"E{k}" for k in range(1, 5))),
    *(*(f"B{k}" for k in range(1, 6)), *(f"P{k}" for k in range(1, 5)), *(f"G{k}" for k in range(1, 6)), "A1"),
    *("O1", "O2", "O3", "O4", "O5", "O6", "O7"),  # ours
]
NAMES = [
    "true-amplitudes",
    "likelihoods",
    "repulsion",
    "bias-table",
    "bias-members",
    "bias-binned",
    "ensemble-size",
    "ensemble-sigma",
    "mixture-weights",
    "evidential",
    "evidential-mixture",
    "box-smearing",
    "peaked-smearing",
    "peaked-pulls",
    "gap-accuracy",
    "gap-spectrum",
    "gap-uncertainty",
    "error-propagation",
    "accuracy-cost",
    "accuracy-size",
    "bias-remedies",
    "exam",
    "gap-methods",
]
SMOKE = PRESETS["smoke"]


@pytest.fixture(scope="module")
def smoke_events():
    return ampsure.generate("gg_yyg", SMOKE.events, preset="benchmark", seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("studies")


def test_every_claim_has_a_study():
    assert sorted(claim.id for study in STUDIES.values() for claim in study.claims) == sorted(CLAIMS)


def test_names_of_studies_stay():
    """They are typed on command lines and name files of results."""
    assert list(STUDIES) == NAMES


@pytest.mark.parametrize("name", STUDIES)
def test_smoke(name, smoke_events, folder):
    study = STUDIES[name]
    record = run_study(study, SMOKE, smoke_events, folder, folder / "cache", device="cpu")
    assert [v.claim for v in record.verdicts] == [claim.id for claim in study.claims]
    for verdict in record.verdicts:
        assert all(np.isfinite(check.found.value) for check in verdict.checks), verdict
        assert verdict.outcome in ("confirmed", "refuted", "inconclusive")
    stored = json.loads((folder / f"{name}-smoke.json").read_text())
    assert len(stored["cases"]) == len(study.grid(SMOKE))
    for case in stored["cases"]:
        assert case["trained"]["precision"] == "float32"
    for kind in ("pdf", "png"):
        assert (folder / f"{name}-smoke.{kind}").stat().st_size > 5000
    for table in study.tables(record.results):
        assert table.rows
        assert all(len(row) == len(table.header) for row in table.rows)


def test_a_study_goes_on_where_it_was(smoke_events, folder, monkeypatch):
    """What was measured is not trained again, and what was trained is not trained for another study."""
    study = get_study("gap-accuracy")
    run_study(study, SMOKE, smoke_events, folder, folder / "cache", device="cpu")

    def refuse(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(runner, "fit_many", refuse)
    again = run_study(study, SMOKE, smoke_events, folder, folder / "cache", device="cpu")
    other = run_study(get_study("gap-spectrum"), SMOKE, smoke_events, folder / "other", folder / "cache", device="cpu")
    assert len(other.results.cases) < len(again.results.cases)
    (folder / "other" / "gap-spectrum-smoke.json").write_text("{")
    with pytest.raises(AmpsureError, match="remove it"):
        load_record(get_study("gap-spectrum"), folder / "other" / "gap-spectrum-smoke.json")


def test_interrupted_studies_keep_their_results(smoke_events, tmp_path, monkeypatch):
    study = get_study("likelihoods")
    preset = replace(SMOKE, epochs=1)
    whole = run_study(study, preset, smoke_events, tmp_path / "whole", tmp_path / "cache", device="cpu")
    count, real = 0, runner.fit_many

    def counted(jobs, **options):
        nonlocal count
        count += len(jobs)
        if count > 6:
            raise KeyboardInterrupt
        return real(jobs, **options)

    monkeypatch.setattr(runner, "fit_many", counted)
    with pytest.raises(KeyboardInterrupt):
        run_study(study, preset, smoke_events, tmp_path / "part", tmp_path / "other", device="cpu")
    before, count = count, -100
    resumed = run_study(study, preset, smoke_events, tmp_path / "part", tmp_path / "other", device="cpu")
    assert count + 100 == len(whole.results.cases) - 4  # the first fleet of four was kept
    assert before == 8
    for a, b in zip(whole.results.cases, resumed.results.cases, strict=True):
        assert a["measured"] == b["measured"]


def test_some_cases_of_a_study_first(run, smoke_events, tmp_path, monkeypatch):
    """They are measured as in the whole study, and kept; what is measured again is no other than these."""
    monkeypatch.setitem(PRESETS, "smoke", replace(SMOKE, epochs=1))
    ampsure.save(smoke_events, tmp_path / "events.h5")
    command = ("study", "run", "likelihoods", "--data", "events.h5", "--device", "cpu")
    one, path = ("--where", "method=mse", "--where", "run=0"), tmp_path / "studies/likelihoods-smoke.json"
    code, out, _ = run(*command, *one)
    assert code == 0
    first = json.loads(path.read_text())
    assert f"{len(get_study('likelihoods').grid(SMOKE)) - len(first['cases'])} cases are missing" in out
    assert all(case["labels"].items() >= {"method": "mse", "run": 0}.items() for case in first["cases"])
    assert first["verdicts"] == []
    assert run(*command)[0] == 0
    whole = json.loads(path.read_text())
    assert all(case in whole["cases"] for case in first["cases"])
    assert len(whole["verdicts"]) == 3
    assert run(*command, *one, "--remeasure")[0] == 0
    assert json.loads(path.read_text())["cases"] == whole["cases"]
    for wrong, words in (
        ("method=msee", "method is one of mse"),
        ("methd=mse", "its cases have"),
        ("method", "--where takes LABEL=VALUE"),
    ):
        code, _, errors = run(*command, "--where", wrong)
        assert code == 2
        assert words in errors


def test_false_claims_are_refuted(smoke_events, tmp_path):
    """The same study on data without the claimed spread must say so."""
    flat = replace(smoke_events, truth=smoke_events.truth**0.2, amplitude=smoke_events.truth**0.2)
    study = get_study("true-amplitudes")
    (verdict,) = run_study(study, SMOKE, flat, tmp_path, tmp_path / "cache").verdicts
    assert verdict.outcome == "refuted"


def likelihood_results(mse: float, heteroscedastic: float, natural: float) -> Results:
    """Results of the study of likelihoods with made-up accuracies."""
    accuracies = {"mse": mse, "heteroscedastic": heteroscedastic, "natural": natural}
    return Results(
        [
            {
                "labels": {"method": method, "noise": noise, "run": run},
                "measured": {
                    "accuracy": {"mean": value * (1 + 0.01 * run)},
                    "sigma": {"systematic": {"spread": value}},
                },
            }
            for method, value in accuracies.items()
            for noise in (0.0, 0.05)
            for run in range(3)
        ]
    )


def test_verdicts_follow_the_numbers():
    order = get_study("likelihoods").claims[0]
    assert order.judge(likelihood_results(2.0, 1.0, 3.0)).outcome == "confirmed"
    assert order.judge(likelihood_results(1.0, 2.0, 3.0)).outcome == "refuted"
    assert order.judge(likelihood_results(1.0, 1.001, 3.0)).outcome == "inconclusive"


def ensemble_results(averaged: float, weighted: float, learned: float) -> Results:
    widths = {"averaged": averaged, "inverse-variance": weighted, "global": learned}
    measured = {name: {"pulls": {"systematic": {"width": width}}} for name, width in widths.items()}
    labels = ({"members": 128, "noise": noise, "run": run} for noise in (0.0, 0.05) for run in range(2))
    return Results([{"labels": label, "measured": measured} for label in labels])


def test_verdicts_of_calibration():
    zero_noise, _, noisy = get_study("ensemble-sigma").claims
    assert zero_noise.judge(ensemble_results(0.3, 2.0, 1.0)).outcome == "confirmed"
    assert zero_noise.judge(ensemble_results(0.3, 2.0, 1.5)).outcome == "refuted"
    assert noisy.judge(ensemble_results(1.0, 2.0, 1.0)).outcome == "confirmed"
    assert noisy.judge(ensemble_results(0.5, 2.0, 1.0)).outcome == "refuted"


def test_chance_alone_is_no_bias():
    """25 means of three or five runs around zero: hardly ever called a bias, and mostly called none."""
    rng = np.random.default_rng(3)
    for runs in (3, 5):
        checks = [Check("bias", significance(rng.standard_normal((25, runs))), high=2) for _ in range(300)]
        outcomes = [check.outcome for check in checks]
        assert outcomes.count("refuted") < 6
        assert outcomes.count("confirmed") > 200
        shifted = rng.standard_normal((25, runs)) + 1000
        assert Check("bias", significance(shifted), high=2).outcome == "refuted"


@pytest.mark.parametrize("floor", [0.0, 1e-5])
def test_the_exponent_is_that_above_the_floor(floor):
    rng = np.random.default_rng(4)
    cases = [
        {
            "labels": {"recipe": "accurate", "events": n, "run": run},
            "measured": {"accuracy": {"mean": (0.02 * (n / 1000) ** -1.2 + floor) * rng.lognormal(sigma=0.05)}},
        }
        for n in (3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
        for run in range(3)
    ]
    (_, found_power, log_floor), power = scaling_law(Results(cases), "accurate")
    assert found_power == power.value
    assert abs(power.value - 1.2) < 4 * power.error < 0.2
    assert np.exp(log_floor) == pytest.approx(floor, rel=0.2, abs=3e-7)


def test_small_ensembles_say_nothing_about_large_ones():
    two_peaks = get_study("ensemble-sigma").claims[1]
    flat = {"global": {"pull": {"systematic": list(stats.norm.pdf(np.linspace(-5, 5, 100)))}}}
    for members, outcome in ((32, "inconclusive"), (128, "refuted")):
        labels = [{"members": members, "noise": 0.0, "run": run} for run in range(2)]
        results = Results([{"labels": label, "measured": flat} for label in labels])
        assert two_peaks.judge(results).outcome == outcome


def test_results_of_an_older_version_are_named():
    with pytest.raises(AmpsureError, match="--remeasure"):
        Results([{"labels": {}, "measured": {"a": 1.0}}]).values("b.c")


def test_one_run_proves_nothing():
    check = Check("something", estimate([1.0]), 0, 2)
    assert check.outcome == "inconclusive"
    assert "one run" in str(check)
    with pytest.raises(AmpsureError, match="no results"):
        estimate([])


def test_errors_of_few_runs_cover_as_often_as_they_say():
    """A standard error covers in 68.3 % of all cases, from two runs on."""
    rng = np.random.default_rng(1)
    for n in (2, 3, 5):
        covered = []
        for _ in range(4000):
            found = estimate(rng.standard_normal(n))
            covered.append(abs(found.value) < found.error)
        assert np.mean(covered) == pytest.approx(0.683, abs=3 * np.sqrt(0.683 * 0.317 / 4000))


def test_ratio_against_monte_carlo():
    rng = np.random.default_rng(2)
    found = ratio(Estimate(10.0, 0.2), Estimate(5.0, 0.15))
    draws = rng.normal(10, 0.2, 100_000) / rng.normal(5, 0.15, 100_000)
    assert found.value == 2
    assert found.error == pytest.approx(draws.std(), rel=0.02)


@pytest.mark.parametrize(
    ("value", "error", "outcome"),
    [(1.0, 0.1, "confirmed"), (1.45, 0.1, "inconclusive"), (1.6, 0.1, "inconclusive"), (1.8, 0.1, "refuted")],
)
def test_a_check_needs_a_margin(value, error, outcome):
    check = Check("something", Estimate(value, error), 0.5, 1.5)
    assert check.outcome == outcome
    others = [Check("certain", Estimate(1.0, 0.0), 0.5, 1.5)]
    assert Verdict("X", "words", [check, *others]).outcome == outcome


def test_the_list_fits_into_a_narrow_terminal(run, monkeypatch):
    """Names are copied from it: none may be cut."""
    monkeypatch.setattr(cli.studies, "console", Console(width=80, force_terminal=False))
    _, out, _ = run("study", "list")
    assert all(name in out for name in (*STUDIES, *CLAIMS))
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_commands(run, smoke_events, tmp_path):
    code, out, _ = run("study", "list")
    assert code == 0
    assert all(name in out for name in STUDIES)
    assert all(claim in out for claim in CLAIMS)
    ampsure.save(smoke_events, tmp_path / "events.h5")
    code, out, _ = run("study", "run", "true-amplitudes", "--data", "events.h5")
    assert code == 0
    assert "D1" in out
    code, out, _ = run("study", "report")
    assert code == 0
    assert "D1" in (tmp_path / "studies/smoke-results.md").read_text()
    page = (tmp_path / "studies/smoke-report.html").read_text()
    assert "orders of magnitude" in page
    assert "<svg" in page
    assert run("study", "report", "--preset", "laptop")[0] == 2
    code, _, errors = run("study", "run", "box-smear")
    assert code == 2
    assert "did you mean 'box-smearing'" in errors
    assert run("study", "run", "likelihoods", "--preset", "huge")[0] == 2
    code, _, errors = run("study", "run", "likelihoods", "--data", "events.h5", "-o", "events.h5/results")
    assert code == 2
    assert "cannot be made" in errors
    np.savez(tmp_path / "own.npz", momenta=smoke_events.momenta[:100], amplitude=smoke_events.truth[:100])
    code, _, errors = run("study", "run", "true-amplitudes", "--data", "own.npz")
    assert code == 2
    assert "about the process gg_yyg" in errors
    assert run("study", "run", "true-amplitudes", "--data", "own.npz", "--process", "gg_yyg", "-o", "own")[0] == 0


def test_students_t_is_the_one_of_scipy():
    values = np.array([1.0, 1.3, 1.1])
    interval = stats.t.interval(0.6826895, 2, loc=values.mean(), scale=stats.sem(values))
    assert estimate(values).error == pytest.approx((interval[1] - interval[0]) / 2, rel=1e-4)
