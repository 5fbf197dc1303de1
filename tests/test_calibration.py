"""Uncertainties from held-out events, and stages that keep within what they have seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ampsure import AmpsureError, fit, load_surrogate
from ampsure.config import resolve
from ampsure.evaluation import pulls_of
from ampsure.likelihoods import get_likelihood
from ampsure.surrogate import combine

CONFIG = {"network": {"hidden": (24, 24)}, "posterior": {"members": 3, "systematic": "held-out"}}


@pytest.fixture(scope="module")
def calibrated(events):
    return fit(events, "repulsive", config=CONFIG, epochs=30, batch_size=64, seed=1, stages=2)


def test_variance_of_the_mean_of_independent_members():
    rng = np.random.default_rng(1)
    sigma = np.array([0.5, 1.0, 2.0, 3.0])
    n = 200_000
    mean = torch.from_numpy(rng.standard_normal((n, 4)) * sigma).T
    log_variance = torch.from_numpy(np.log(sigma**2))[:, None].expand(4, n)
    found = combine(torch.stack([mean, log_variance], dim=-1), get_likelihood("gaussian"), "held-out")
    exact = 1 / np.sum(sigma**-2.0)
    spread = found[2].std() / np.sqrt(n)
    assert found[2].mean().item() == pytest.approx(exact, abs=4 * spread)
    assert found[0].var().item() == pytest.approx(exact, rel=4 * np.sqrt(2 / n))


def test_held_out_events_repair_sigma(calibrated, events):
    """The width of the pull is one within chance, which the sigma learned with the mean is not."""
    _, validation, test = events.split(1)
    error = np.sqrt(0.5 / len(validation) + 0.5 / len(test))
    width = pulls_of(calibrated.predict(test.momenta), test)["total"].std()
    assert abs(width - 1) < 4 * error
    learned = replace(calibrated, calibration=None).predict(test.momenta)
    assert abs(pulls_of(learned, test)["total"].std() - 1) > 6 * error


def test_calibration_is_saved(calibrated, events, tmp_path):
    calibrated.save(tmp_path / "run")
    loaded = load_surrogate(tmp_path / "run")
    a, b = (s.predict(events.momenta[:200]) for s in (calibrated, loaded))
    for name in ("amplitude", "sigma_syst", "sigma_stat"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert loaded.limit == calibrated.limit < float("inf")
    assert calibrated.earlier[0].limit == float("inf")


def test_a_later_stage_keeps_within_what_it_has_seen(calibrated, events):
    """With nothing seen, only the earlier stages are left."""
    first = replace(calibrated, limit=0.0, calibration=None).predict(events.momenta[:100], linear=True)
    whole = replace(calibrated, calibration=None).predict(events.momenta[:100], linear=True)
    reach = calibrated.target.scale * calibrated.scale * calibrated.limit
    assert 0 < np.abs(np.log(whole.amplitude / first.amplitude)).max() <= reach * (1 + 1e-9)


@pytest.mark.parametrize("method", ["mse", "heteroscedastic", "evidential", "mixture"])
def test_every_likelihood_can_be_calibrated(method, events):
    config = {"network": {"hidden": (16, 16)}, "posterior": {"systematic": "held-out"}}
    p = fit(events, method, config=config, epochs=3, batch_size=64, seed=1).predict(events.momenta[:100])
    assert np.isfinite(p.sigma_tot).all()
    assert (p.sigma_syst > 0).all()


def test_a_variational_posterior_has_its_own_sigma():
    with pytest.raises(AmpsureError, match="variational"):
        resolve("bayesian", "accurate", {"posterior": {"systematic": "held-out"}})
