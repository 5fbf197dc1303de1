"""One network for an ensemble: what it keeps, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import ampsure
from ampsure import AmpsureError, fit, load_surrogate
from ampsure.deploy import distill
from ampsure.deploy.distill import _lesson
from ampsure.evaluation import pull_tot
from ampsure.likelihoods import Distilled
from ampsure.noise import NoiseProfile
from tests.test_surrogate import toy

CONFIG = {"network": {"hidden": (64, 64)}, "posterior": {"members": 3}}


@pytest.fixture(scope="module")
def teacher(events):
    return fit(events, "repulsive", config=CONFIG, epochs=60, batch_size=128, seed=1)


@pytest.fixture(scope="module")
def student(teacher, events):
    return distill(teacher, events, epochs=150)


@pytest.fixture(scope="module")
def unseen(events):
    """Events neither has seen."""
    return events[events.split_indices(1)[2]]


def test_the_price_is_small(teacher, student, unseen):
    """Accuracy, both uncertainties and the width of the pull, on 400 events."""
    a, b = (s.predict(unseen.momenta) for s in (teacher, student))
    distance = np.abs(np.log(b.amplitude / a.amplitude))
    assert np.median(distance) < 0.5 * np.median(a.sigma_tot / a.amplitude)
    error = [np.median(np.abs(p.amplitude / unseen.truth - 1)) for p in (a, b)]
    assert error[1] < 1.3 * error[0]  # medians of 400 are good to 6 % each
    # what was lost is in sigma_syst: it may only grow; sigma_stat is the teacher's
    assert 0.9 < np.median(b.sigma_syst / a.sigma_syst) < 1.5
    assert np.median(b.sigma_stat / a.sigma_stat) == pytest.approx(1, abs=0.15)
    pulls = [pull_tot(p.amplitude, p.sigma_tot, unseen.truth) for p in (a, b)]
    cores = [np.quantile(np.abs(pull), 0.68) for pull in pulls]
    assert cores[1] == pytest.approx(cores[0], rel=0.3)
    np.testing.assert_array_equal(a.in_domain, b.in_domain)


def test_it_is_one_network(teacher, student):
    assert student.network.members == 1
    assert student.config.posterior.name == "point"
    count = [sum(p.numel() for p in s.network.parameters()) for s in (teacher, student)]
    assert count[1] < count[0] / 2.9


def test_saved_and_loaded_as_any_other(student, unseen, tmp_path, run):
    student.save(tmp_path / "small")
    loaded = load_surrogate(tmp_path / "small")
    for name in ("amplitude", "sigma_syst", "sigma_stat", "sigma_tot", "in_domain"):
        a, b = (getattr(s.predict(unseen.momenta), name) for s in (student, loaded))
        np.testing.assert_array_equal(a, b)
    ampsure.save(unseen, tmp_path / "test.h5")
    code, out, _ = run("evaluate", "small", "--data", "test.h5")
    assert code == 0
    assert "statistical pull: mean, width" in out


@pytest.mark.parametrize("method", ["mse", "evidential", "bayesian", "repulsive-global"])
def test_any_surrogate_can_teach(method, events):
    """Whatever the likelihood and posterior, with stages or a calibration: what is learned are its predictions."""
    small = {"network": {"hidden": (32, 32)}, "training": {"epochs": 20, "batch_size": 128}}
    teacher = fit(events, method, config=small, seed=1)
    student = distill(teacher, events, stages=2)
    a, b = (s.predict(events.momenta) for s in (teacher, student))
    inside = a.in_domain
    off = np.log(b.amplitude / a.amplitude)[inside]
    assert np.sqrt(np.mean(off**2)) < np.log(events.truth).std() / 3
    assert np.isfinite(b.sigma_tot).all()
    if method == "mse":
        assert (b.sigma_stat < 1e-3 * b.amplitude).all()


def test_the_mean_of_a_lesson_has_no_edges_of_noise(events):
    small = {"network": {"hidden": (16, 16)}, "posterior": {"members": 2}}
    teacher = fit(events, "recommended", config=small, epochs=5, batch_size=128, seed=1)
    edges = torch.tensor([[0.0, 0.0, 0.5, 0.04 / teacher.target.scale**2]], dtype=torch.float64)
    momenta = torch.from_numpy(events.momenta)
    _, quiet = _lesson(teacher, momenta)
    _, noisy = _lesson(replace(teacher, noise=NoiseProfile(edges)), momenta)
    torch.testing.assert_close(noisy[:, 0], quiet[:, 0], rtol=0, atol=1e-12)
    assert (noisy[:, 1] > quiet[:, 1]).any()
    assert distill(teacher, events, epochs=1).unbiased


def test_what_is_not_learned_is_in_sigma_syst():
    """A student too small for its teacher: its total uncertainty still covers the teacher's mean."""
    events, _ = toy(4000, seed=1, slope=0.0)
    config = {"features": {"inputs": "energy"}, "network": {"hidden": (32, 32)}}
    teacher = fit(events, "heteroscedastic", config=config, epochs=60, batch_size=256, seed=1)
    student = distill(teacher, events, config={"network": {"hidden": (2,)}}, epochs=100)
    test, _ = toy(2000, seed=2, slope=0.0)
    momenta = torch.from_numpy(test.momenta)
    (mean, syst, stat, _), (_, of_teacher, _, _) = student.standardised(momenta), teacher.standardised(momenta)
    pull = (student.target.transform(torch.from_numpy(test.amplitude)) - mean) / (syst + stat).sqrt()
    assert float(pull.square().mean().sqrt()) == pytest.approx(1, abs=0.15)
    assert float((syst / of_teacher).median()) > 4


def test_loss_is_least_at_the_teacher():
    y = torch.tensor([[0.3, 0.04, 0.01]], dtype=torch.float64)
    best = torch.tensor([[[0.3, np.log(0.04), np.log(0.01)]]], dtype=torch.float64).requires_grad_()
    likelihood = Distilled()
    (gradient,) = torch.autograd.grad(likelihood.nll(best, y).sum(), best)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)
    torch.testing.assert_close(likelihood.variance_syst(best)[0], y[:, 1])
    torch.testing.assert_close(likelihood.variance_stat(best)[0], y[:, 2])
    # off in the mean, the best variance is larger by the square of that
    off = torch.tensor([[[0.5, np.log(0.04 + 0.04), np.log(0.01)]]], dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(likelihood.nll(off, y).sum(), off)
    assert abs(gradient[0, 0, 1]) < 1e-12


def test_command(events, teacher, tmp_path, run):
    teacher.save(tmp_path / "big")
    ampsure.save(events, tmp_path / "a.h5")
    settings = ("--set", "training.epochs=2", "--set", "network.hidden=[16]")
    code, out, _ = run("distill", "big", "--data", "a.h5", "-o", "small", *settings)
    assert code == 0
    assert "Distilled in" in out
    small = load_surrogate(tmp_path / "small")
    assert small.network.widths[1:] == (16, 3)
    assert small.provenance["teacher"]["config"]["posterior"]["members"] == 3
    assert small.config.data.path == "a.h5"
    assert run("evaluate", "small")[0] == 0  # on the test part, which neither has seen
    for arguments, message in (
        (("big", "--data", "a.h5", "-o", "small"), "finished surrogate"),
        (("big", "--data", "a.h5", "-o", "new", "--set", "posterior.members=2"), "cannot be changed"),
        (("big", "--data", "a.h5", "-o", "new", "--set", "training.epoch=2"), "Unknown setting"),
        (("big", "--data", "none.h5", "-o", "new"), "There is no file"),
    ):
        code, _, err = run("distill", *arguments)
        assert code == 2
        assert message in err
    assert not (tmp_path / "new").exists()


def test_momenta_are_enough(teacher, events):
    """Amplitudes of the events change nothing."""
    small = {"network": {"hidden": (8,)}}
    other = ampsure.Events(events.momenta, np.ones(len(events)), events.process)
    students = [distill(teacher, given, config=small, epochs=1) for given in (events, other, events.momenta)]
    expected, *found = (s.predict(events.momenta[:20]).amplitude for s in students)
    for amplitude in found:
        np.testing.assert_array_equal(amplitude, expected)


def test_refusals(teacher, events):
    four = ampsure.Events(toy(30, seed=1)[0].momenta, np.ones(30))
    with pytest.raises(AmpsureError, match="4 legs"):
        distill(teacher, four)
    with pytest.raises(AmpsureError, match="No events are left"):
        distill(teacher, events[:3])
    with pytest.raises(AmpsureError, match="learns from a surrogate"):
        fit(events, config={"likelihood": {"name": "distilled"}}, epochs=1)
