"""Two-stage unweighting: unbiased whatever the surrogate, with maxima that keep their promise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, norm

from ampsure import AmpsureError, fit, load
from ampsure.deploy import TwoStageSummary, adapted_sampler, learned_maximum, two_stage
from ampsure.deploy.two_stage import _median
from ampsure.generation import GenerationSummary, get_settings
from ampsure.generation.phase_space import ChiliSpace, CrossSection
from ampsure.generation.unweighting import maximum_weight
from ampsure.kinematics import pseudorapidity, transverse_momentum


@dataclass
class Biased:
    """A surrogate that is off by a factor between 0.8 and 4, which varies over phase space."""

    surrogate: Any

    @property
    def process(self):
        return self.surrogate.process

    def predict(self, momenta):
        p = self.surrogate.predict(momenta)
        mass = self.process.final_state_mass(momenta)
        factor = 0.8 + 3.2 / (1 + np.exp((mass - 180) / 30)) * np.exp(-np.abs(pseudorapidity(momenta[:, 4])) / 2)
        return replace(p, amplitude=factor * p.amplitude, sigma_tot=factor * p.sigma_tot)


@pytest.fixture(scope="module")
def trained(events):
    config = {"network": {"hidden": (64, 64)}, "posterior": {"members": 2}}
    return fit(events, "repulsive", config=config, epochs=100, batch_size=128, seed=1)


@pytest.fixture(scope="module")
def sampler(trained):
    return adapted_sampler(trained, 2000, seed=3)


@pytest.fixture(scope="module")
def reference(trained, sampler):
    """Momenta and exact weights of 100 000 points, and the cross section with its error."""
    process, settings = trained.process, get_settings("benchmark")
    cross_section = CrossSection(process, settings, ChiliSpace(process, settings))
    points, inverse_density = sampler.draw(100_000, np.random.default_rng(17))
    weights, momenta, _ = cross_section(points)
    weights = weights * inverse_density
    error = weights.std() / np.sqrt(len(weights))
    return momenta, weights[weights > 0], weights.mean(), error


def distributions(process, momenta):
    """Mass of the final state, pT of the gluon and the harder photon, pseudorapidity of the gluon."""
    photons = transverse_momentum(momenta[:, 2:4])
    yield process.final_state_mass(momenta)
    yield transverse_momentum(momenta[:, 4])
    yield photons.max(1)
    yield pseudorapidity(momenta[:, 4])


def p_values(process, momenta, weights, reference):
    """Of equality of normalised distributions, in 12 bins of equal cross section."""
    sure_momenta, sure_weights = reference[:2]
    for values, sure in zip(distributions(process, momenta), distributions(process, sure_momenta), strict=True):
        order = np.argsort(sure)
        share = np.cumsum(sure_weights[order]) / sure_weights.sum()
        edges = np.r_[-np.inf, sure[order][np.searchsorted(share, np.arange(1, 12) / 12)], np.inf]
        found = []
        for v, w in ((values, weights), (sure, sure_weights)):
            h, squares = (np.histogram(v, edges, weights=x)[0] for x in (w, w * w))
            h = h / w.sum()
            # of a ratio: the total fluctuates with the bin
            found.append((h, squares / w.sum() ** 2 * (1 - 2 * h) + h**2 * (w * w).sum() / w.sum() ** 2))
        (a, var_a), (b, var_b) = found
        # twelve bins that add up to one: the sum of squares has about eleven degrees of freedom
        yield chi2.sf(((a - b) ** 2 / (var_a + var_b)).sum() * 11 / 12, 11)


@pytest.mark.parametrize(
    ("biased", "options"),
    [
        (False, {}),
        (False, {"maximum": "learned"}),
        (True, {}),
        (True, {"maximum": "learned"}),  # sigma knows nothing of the bias
        (True, {"maximum": 0.4, "overweight": 0.2}),  # most events above both maxima
    ],
)
def test_unbiased(trained, sampler, reference, biased, options):
    surrogate = Biased(trained) if biased else trained
    n = 4000
    events = two_stage(surrogate, n, sampler=sampler, seed=5, **options)
    found = TwoStageSummary(**events.provenance["two_stage"])
    assert len(events) == n
    assert events.validated() is events
    np.testing.assert_allclose(events.amplitude[:50], events.process.amplitude(events.momenta[:50]), rtol=1e-9)
    # five cases of four distributions; 1e-3 each leaves 2 % for chance, and the seeds are fixed
    assert min(p_values(events.process, events.momenta, events.weights, reference)) > 1e-3
    sure, error = reference[2:]
    assert abs(found.cross_section - sure) < 4 * np.hypot(found.cross_section_error, error)
    # the weights are absolute: accepted ones, times w_max x_max, are the cross section too
    accepted = found.points * found.cut_efficiency * found.first_efficiency * found.second_efficiency
    total = events.weights.mean() * accepted / found.points * found.first_maximum * found.second_maximum
    spread = np.sqrt(np.square(events.weights).mean() / n) / events.weights.mean()
    assert abs(total / sure - 1) < 4 * np.hypot(spread, error / sure)
    assert found.effective_share == pytest.approx(events.effective_size / n)


def test_bias_would_be_seen(trained, sampler, reference):
    """The same events without the second stage's exact amplitudes: the test above has the power to notice."""
    bad = Biased(trained)
    events = two_stage(bad, 6000, exact=lambda p: _median(bad.predict(p))[0], sampler=sampler, seed=5, maximum=1.0)
    assert min(p_values(events.process, events.momenta, events.weights, reference)) < 1e-6
    assert events.provenance["two_stage"]["second_efficiency"] == 1.0


def test_a_bad_surrogate_costs_time_alone(trained, sampler):
    good, bad = (
        TwoStageSummary(**two_stage(s, 2000, sampler=sampler, seed=5).provenance["two_stage"])
        for s in (trained, Biased(trained))
    )
    assert good.second_efficiency > 0.8
    assert bad.second_efficiency < 0.7
    assert bad.exact_evaluations > 1.3 * good.exact_evaluations
    for found in (good, bad):
        assert found.exact_evaluations == pytest.approx(1 / found.second_efficiency)
        assert found.surrogate_evaluations == pytest.approx(1 / found.second_efficiency / found.first_efficiency)
    # an amplitude that costs much more than all else: the gain is the ratio of exact evaluations
    plain = GenerationSummary(1.0, 0.0, 1000, 0.8, 0.05, 0.0, 2000.0, 0.0)
    gain = good.gain(plain, 2000, t_exact=1.0, t_surrogate=0.0)
    assert gain == pytest.approx(0.8 / 0.05 / good.exact_evaluations * good.effective_share)
    # and of the paper's formula, times the ratio of effective sizes
    t_full, t_surr = 1.5, 0.6  # per point inside the cuts, 0.5 of it phase space
    plain = replace(plain, cut_efficiency=good.cut_efficiency, unweighting_efficiency=0.05 * good.cut_efficiency)
    formula = 1 / (
        (t_surr / t_full) * 0.05 / (good.first_efficiency * good.second_efficiency)
        + 1.0 / t_full * 0.05 / good.second_efficiency
    )
    gain = good.gain(plain, 2000, t_exact=1.0, t_surrogate=0.1, t_phase_space=0.5 * good.cut_efficiency)
    assert gain == pytest.approx(formula * good.effective_share)


def test_maxima_keep_their_promise(trained, sampler):
    """Excess shares of the order asked for; the learned maximum against the measured one."""
    share = 2e-3
    measured, learned = (
        TwoStageSummary(
            **two_stage(trained, 12_000, sampler=sampler, seed=5, maximum=m, overweight=share).provenance["two_stage"]
        )
        for m in ("measured", "learned")
    )
    for found in (measured, learned):  # few events make up the excess: a factor of three is chance
        assert share / 3 < found.first_overweight < 3 * share
        assert share / 3 < found.second_overweight < 3 * share
    assert learned.pilot_exact_evaluations == 0 < measured.pilot_exact_evaluations
    # half of all x are within 0.2 % of one, and the largest of 2000 about 1.3
    assert learned.second_maximum == pytest.approx(measured.second_maximum, abs=0.03)


def test_learned_maximum_is_that_of_drawn_ratios():
    rng = np.random.default_rng(1)
    weights, width = rng.exponential(size=1000), rng.uniform(0.01, 0.4, 1000)
    x = np.exp(width * rng.standard_normal((400, 1000)))
    every = np.broadcast_to(weights, x.shape).ravel()
    for share in (1e-3, 1e-2, 0.2):
        drawn = maximum_weight(x.ravel(), share * float((every * x.ravel()).sum()), every)
        assert learned_maximum(weights, width, share) == pytest.approx(drawn, rel=0.02)
    # one width: the closed form
    v = 0.2**2
    k = np.log(learned_maximum(np.ones(3), np.full(3, 0.2), 0.01))
    excess = np.exp(v / 2) * norm.cdf((v - k) / 0.2) - np.exp(k) * norm.cdf(-k / 0.2)
    assert excess == pytest.approx(0.01 * np.exp(v / 2), rel=1e-5)


def test_median_and_width_follow_from_mean_and_sigma(trained, flat_events):
    """So that libraries and graphs, which give no more than these, can take the place of the surrogate."""
    median, width = _median(trained.predict(flat_events.momenta))
    expected = trained.predict(flat_events.momenta, linear=True)
    np.testing.assert_allclose(median, expected.amplitude, rtol=1e-12)
    np.testing.assert_allclose(width, expected.sigma_tot / expected.amplitude, rtol=1e-9)


def test_refusals(trained, events):
    with pytest.raises(AmpsureError, match="'measured', 'learned' or a positive number"):
        two_stage(trained, 10, maximum="guessed")
    with pytest.raises(AmpsureError, match="at least one event"):
        two_stage(trained, 0)
    with pytest.raises(AmpsureError, match="number of events must be an integer"):
        two_stage(trained, 10.5)
    with pytest.raises(AmpsureError, match="seed must be an integer"):
        two_stage(trained, 10, seed=1.5)
    with pytest.raises(AmpsureError, match="needs a parton density"):
        two_stage(trained, 10, density=None)
    unknown = replace(events.process, name="other", exact=None)
    with pytest.raises(AmpsureError, match="No exact amplitude"):
        two_stage(trained, 10, process=unknown)
    negative = Biased(trained)
    negative.predict = lambda p: replace(trained.predict(p), amplitude=-np.ones(len(p)))
    with pytest.raises(AmpsureError, match="positive"):
        two_stage(negative, 10)


def test_command(trained, tmp_path, run):
    trained.save(tmp_path / "run")
    code, out, err = run("unweight", "run", "-n", 200, "--seed", 4, "--maximum", "learned", "-o", "a.h5")
    assert code == 0, err
    assert "exact amplitudes per event" in out
    events = load(tmp_path / "a.h5")
    assert len(events) == 200
    assert events.provenance["command"]["maximum"] == "learned"
    same = two_stage(trained, 200, seed=4, maximum="learned")
    np.testing.assert_array_equal(same.momenta, events.momenta)  # the seed decides
    for arguments, message in (
        (("-o", "no/a.h5"), "no folder"),
        (("-o", "b.h5", "--set", "enregy=1"), "Unknown setting 'enregy'"),
        (("-o", "b.h5", "-n", 0), "at least one event"),
    ):
        code, _, err = run("unweight", "run", *arguments)
        assert code == 2
        assert message in err
    assert not (tmp_path / "b.h5").exists()
