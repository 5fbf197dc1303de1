"""Numbers of a judgement against definitions, closed forms and simulations; its words against made-up faults."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import integrate, stats

from ampsure import AmpsureError, Events
from ampsure.evaluation import (
    BinnedReach,
    Observable,
    accuracy,
    as_json,
    bias,
    bin_edges,
    binned,
    calibration_error,
    coverage,
    crps,
    judge,
    negative_log_likelihood,
    observables,
    predictability,
    pull_stat,
    pull_syst,
    pull_tot,
    pulls_of,
    region_ratio,
    relative_deviation,
    summarise_pull,
)
from ampsure.evaluation import judgement as rooms
from ampsure.prediction import Prediction

POSITIVE = st.floats(1e-3, 1e3)
PULLS = hnp.arrays(np.float64, st.integers(1, 50), elements=st.floats(-10, 10))
NOISE = 0.01


def made_up(events, *, scale=1.0, offset=0.0, draws=None, seed=0) -> tuple[Prediction, Events]:
    """Events with noise of 1 %, and a prediction of them.

    Args:
        scale: sigma over what it should be, a number or (N,).
        offset: of the prediction, in units of the noise.
        draws: (N,) deviations in units of the noise; Gaussian by default.
    """
    rng = np.random.default_rng(seed)
    gaussian, network = rng.normal(size=(2, len(events)))
    truth, noise = events.truth, NOISE * np.abs(events.truth)
    stat = 0.1 * noise * scale
    syst = noise * scale * np.ones(len(events))
    prediction = truth + noise * (0.1 * network + offset)
    seen = truth + noise * (gaussian if draws is None else draws)
    total, inside = np.hypot(syst, stat), np.ones(len(events), bool)
    return Prediction(prediction, syst, stat, total, inside), replace(events, amplitude=seen)


def words(prediction: Prediction, events: Events) -> str:
    return " ".join(judge(prediction, events).verdict)


def significance(deviation, error):
    return np.abs(deviation) / error


@pytest.fixture(scope="module")
def many(flat_events) -> Events:
    """9000 events: the same ones, three times."""
    return Events.concatenate([flat_events] * 3)


# --- accuracy ---------------------------------------------------------------------------------------------------------


def test_accuracy_of_gaussian_deviations():
    """Mean, median and quantiles of |Delta| are those of a half-normal distribution."""
    n, sigma, shift = 40_000, 0.02, 0.001
    expected = stats.foldnorm(shift / sigma, scale=sigma)
    truth = np.random.default_rng(1).lognormal(-10, 3, n)
    found = accuracy(truth * (1 + np.random.default_rng(2).normal(shift, sigma, n)), truth)
    assert significance(found.mean - expected.mean(), expected.std() / np.sqrt(n)) < 4
    for level, quantile in ((0.5, found.median), (0.9, found.quantile90), (0.99, found.quantile99)):
        error = np.sqrt(level * (1 - level) / n) / expected.pdf(expected.ppf(level))
        assert significance(quantile - expected.ppf(level), error) < 4
    assert significance(found.bias - shift, found.bias_error) < 4
    assert found.bias_error == pytest.approx(sigma / np.sqrt(n), rel=4 / np.sqrt(2 * n))
    assert found.quantile99 < found.maximum < expected.isf(1e-4 / n)


def test_error_of_the_bias_of_few_events():
    """Squared, it is the variance of the bias on average, even for three events; one event has none."""
    draws = 1 + np.random.default_rng(0).normal(0, 0.1, (4000, 3))
    found = [accuracy(row, np.ones(3)) for row in draws]
    squares = np.square([f.bias_error for f in found])
    assert significance(squares.mean() - 0.1**2 / 3, squares.std() / np.sqrt(len(squares))) < 4
    assert np.isnan(accuracy(np.array([1.1]), np.ones(1)).bias_error)


@given(PULLS)
def test_underestimates_and_overestimates_make_up_the_deviation(delta):
    found, n = bias(delta), len(delta)
    assert found.sum_negative <= 0 <= found.sum_positive
    assert found.sum_positive + found.sum_negative == pytest.approx(delta.sum(), abs=1e-9)
    assert found.sum_positive - found.sum_negative == pytest.approx(np.abs(delta).sum(), abs=1e-9)
    assert found.share_positive * n + found.share_negative * n + (delta == 0).sum() == pytest.approx(n)


def test_deviation_from_nothing_is_not_finite():
    delta = relative_deviation(np.array([1.0, 0.0, 2.0]), np.array([0.0, 0.0, 1.0]))
    np.testing.assert_array_equal(delta, [np.inf, np.nan, 1.0])
    found = accuracy(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([0.0, 1.0, 1.0, 1.0, 1.0]))
    assert (found.mean, found.median, found.maximum) == (np.inf, 3.0, np.inf)


# --- pulls ------------------------------------------------------------------------------------------------------------


def test_every_pull_has_its_own_reference(flat_events):
    """Total and systematic against what was seen, statistical against the truth; so do their sizes."""
    n = len(flat_events)
    pulls = pulls_of(*made_up(flat_events, seed=1))
    prediction, events = made_up(flat_events, seed=1)
    stat, seen = prediction.amplitude - events.truth, prediction.amplitude - events.amplitude
    np.testing.assert_array_equal(pulls["statistical"], stat / prediction.sigma_stat)
    np.testing.assert_array_equal(pulls["systematic"], seen / prediction.sigma_syst)
    np.testing.assert_array_equal(pulls["total"], seen / prediction.sigma_tot)
    for name in ("total", "statistical"):
        assert stats.kstest(pulls[name], "norm").pvalue > 1e-3
    assert significance(pulls["systematic"].std() - np.sqrt(1.01), 1 / np.sqrt(2 * n)) < 4


@given(PULLS, st.integers(-60, 60), POSITIVE)
def test_pulls_have_no_unit(values, power, sigma):
    unit = 2.0**power  # scales without rounding
    for pull in (pull_tot, pull_syst, pull_stat):
        expected = pull(values, np.full_like(values, sigma), np.ones_like(values))
        np.testing.assert_array_equal(
            pull(unit * values, np.full_like(values, unit * sigma), np.full_like(values, unit)), expected
        )


DISTRIBUTIONS = {
    "unit Gaussian": stats.norm(),
    "too wide": stats.norm(0, 1.5),
    "shifted": stats.norm(0.5, 0.8),
    "uniform": stats.uniform(-2, 4),
    "heavy": stats.t(12),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_summary_of_known_distributions(name):
    """All numbers of a summary, within the statistical error that the distribution itself gives them."""
    n, law = 50_000, DISTRIBUTIONS[name]
    pull = law.rvs(n, random_state=np.random.default_rng(7))
    found = summarise_pull(pull)
    mean, variance, _, excess = (float(m) for m in law.stats("mvsk"))
    assert significance(found.mean - mean, np.sqrt(variance / n)) < 4
    assert significance(found.width**2 - variance, variance * np.sqrt((excess + 2) / n)) < 4
    assert found.kurtosis == pytest.approx(stats.kurtosis(pull, fisher=False), rel=1e-12)
    assert abs(found.kurtosis - (3 + excess)) < (0.4 if name == "heavy" else 4 * np.sqrt(24 / n))
    for limit, share in (
        (0.25, found.within_quarter),
        (1, found.coverage68),
        (2, found.coverage95),
        (3, found.coverage99),
        (found.core, 0.6826895),
    ):
        expected = law.cdf(limit) - law.cdf(-limit)
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / n) + 1 / n
    grid = np.linspace(-8, 8, 100_001)
    assert found.ks == pytest.approx(np.abs(law.cdf(grid) - stats.norm.cdf(grid)).max(), abs=2 / np.sqrt(n))
    assert (found.ks_significance > 1e-3) == (name == "unit Gaussian")


def test_distance_by_hand():
    """The largest step between the empirical distribution and the Gaussian one, from above and from below."""
    pull = np.sort(np.random.default_rng(3).normal(0.2, 1.1, 137))
    steps, gaussian = np.arange(138) / 137, stats.norm.cdf(pull)
    expected = max((steps[1:] - gaussian).max(), (gaussian - steps[:-1]).max())
    assert summarise_pull(pull).ks == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n", [10, 300, 12_000])
def test_significance_is_uniform_for_unit_gaussians(n):
    """Also beyond the size from which on it is asymptotic."""
    draws = np.random.default_rng(n).normal(size=(100, n))
    assert stats.kstest([summarise_pull(row).ks_significance for row in draws], "uniform").pvalue > 1e-3


def test_summary_of_senseless_pulls():
    """Infinite pulls leave the shares right; one event, or many alike, have no kurtosis worth a warning."""
    found = summarise_pull(np.array([0.1, -0.5, 1.5, np.inf, -np.inf]))
    assert (found.within_quarter, found.coverage68, found.coverage99) == (0.2, 0.4, 0.6)
    assert not np.isfinite(found.width)
    assert 0 < found.ks < 1
    one = summarise_pull(np.array([0.3]))
    assert (one.mean, one.width, one.core) == (0.3, 0.0, 0.3)
    assert np.isnan(one.kurtosis)
    alike = summarise_pull(np.full(7, 0.1))
    assert alike.width < 1e-15
    assert not pull_tot(np.ones(1), np.full(1, 1e-320), np.zeros(1)) < np.inf


def test_pulls_without_a_sigma():
    """Infinite, or nothing at all for a perfect prediction; no warning in either case."""
    np.testing.assert_array_equal(pull_tot(np.array([1.0, 1.0, 2.0]), np.zeros(3), np.array([0.5, 2.0, 2.0])),
                                  [np.inf, -np.inf, np.nan])  # fmt: skip


# --- scores -----------------------------------------------------------------------------------------------------------


@given(PULLS, hnp.arrays(np.float64, st.integers(1, 10), elements=st.floats(0, 1)))
def test_coverage_counts_and_rises(pull, levels):
    found = coverage(pull, levels)
    expected = [np.mean(np.abs(pull) < stats.norm.ppf((1 + level) / 2)) for level in levels]
    np.testing.assert_array_equal(found.shares, expected)
    assert (np.diff(found.shares[np.argsort(levels)]) >= 0).all()


def test_coverage_of_infinite_pulls():
    found = coverage(np.array([0.0, 1.0, np.inf, -np.inf]), [0.0, 0.5, 0.99, 1.0])
    np.testing.assert_array_equal(found.shares, [0, 0.25, 0.5, 0.5])


def test_coverage_errors_are_those_of_repetitions():
    levels, n, repetitions = np.array([0.1, 0.5, 0.9]), 200, 2000
    draws = np.random.default_rng(4).normal(size=(repetitions, n))
    shares = np.array([coverage(row, levels).shares for row in draws])
    errors = coverage(draws[0], levels).errors
    assert (significance(shares.mean(0) - levels, errors / np.sqrt(repetitions)) < 4).all()
    np.testing.assert_allclose(shares.std(0), errors, rtol=4 / np.sqrt(2 * repetitions))


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_calibration_error_of_a_wrong_scale(factor):
    """Sigma is `factor` times what it should be: |1 - 1/factor|; if it is right, what chance gives."""
    n, bins = 40_000, 20
    sigma = np.random.default_rng(5).lognormal(0, 2, n)
    residual = sigma * np.random.default_rng(6).normal(size=n)
    error = calibration_error(residual, factor * sigma, bins)
    # |rms - 1| of n/bins Gaussians is half-normal of width sqrt(bins/2n), here averaged over the bins
    chance = stats.halfnorm(scale=np.sqrt(bins / (2 * n)))
    expected = abs(1 - 1 / factor) or chance.mean()
    assert chance.mean() == pytest.approx(0.56 * np.sqrt(bins / n), rel=0.01)
    # within a bin the sigmas differ, and the largest count most: there the errors are larger than that
    assert significance(error - expected, 2 * chance.std() / np.sqrt(bins)) < 4


def test_calibration_error_by_quantiles():
    """The same from scipy's binned statistic between quantiles of sigma."""
    rng = np.random.default_rng(8)
    sigma = rng.permutation(np.linspace(0.1, 3, 1000))
    residual = rng.normal(size=1000)
    edges = np.quantile(sigma, np.linspace(0, 1, 11))
    square, _, _ = stats.binned_statistic(sigma, [sigma**2, residual**2], "mean", edges)
    expected = np.mean(np.abs(1 - np.sqrt(square[1] / square[0])))
    assert calibration_error(residual, sigma, 10) == pytest.approx(expected, rel=1e-12)


@given(st.floats(-8, 8), POSITIVE)
@settings(max_examples=30)
def test_crps_is_the_integral_that_defines_it(pull, sigma):
    """The integral of (F(y) - [y > x])^2 over y."""
    low, _ = integrate.quad(lambda y: stats.norm.cdf(y) ** 2, -np.inf, pull, epsabs=1e-12)
    high, _ = integrate.quad(lambda y: stats.norm.sf(y) ** 2, pull, np.inf, epsabs=1e-12)
    assert crps(np.array([pull * sigma]), np.array([sigma])) == pytest.approx(sigma * (low + high), rel=1e-7)


def test_scores_of_the_right_and_the_wrong_sigma():
    """Both have the values of a Gaussian of the right width, and are smallest there: they are proper."""
    n = 50_000
    sigma = np.random.default_rng(9).lognormal(0, 1, n)
    residual = sigma * np.random.default_rng(10).normal(size=n)
    assert negative_log_likelihood(residual, sigma) == pytest.approx(-stats.norm.logpdf(residual, 0, sigma).mean())
    assert crps(residual / sigma, np.ones(n)) == pytest.approx(1 / np.sqrt(np.pi), abs=4 * 0.6 / np.sqrt(n))
    for score in (negative_log_likelihood, crps):
        right = score(residual, sigma)
        assert right < min(score(residual, 0.8 * sigma), score(residual, 1.25 * sigma))


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_too_few_scores_reach_to_infinity(level):
    """The k-th of n scores covers k/(n + 1): a bin needs level/(1 - level) events at least."""
    needed = round(level / (1 - level))
    pull, where = np.arange(1.0, 2 * needed), np.r_[np.zeros(needed), np.ones(needed - 1)]
    found = BinnedReach.of(-pull, where, np.array([0.5]))(np.array([0.4, 0.5, 7.0]), level)
    assert found.tolist() == [needed, np.inf, np.inf]


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, np.nan])
def test_levels_are_probabilities(level):
    with pytest.raises(AmpsureError, match="between 0 and 1"):
        BinnedReach.of(np.ones(3), np.ones(3), np.array([]))(np.ones(2), level)


def test_bins_of_scores_that_make_no_sense():
    for edges in ([1.0, 1.0], [2.0, 1.0], [np.nan], [0.0, np.inf]):
        with pytest.raises(AmpsureError, match="finite and grow"):
            BinnedReach.of(np.ones(3), np.ones(3), np.array(edges))
    bad = np.array([1.0, np.nan, 1.0])
    for pull, where in ((bad, np.ones(3)), (np.ones(3), bad), (np.ones(3), np.ones(2))):
        with pytest.raises(AmpsureError, match="one each for every event"):
            BinnedReach.of(pull, where, np.array([0.5]))


# --- bins -------------------------------------------------------------------------------------------------------------


@given(st.data())
def test_bins_are_those_of_numpy_and_scipy(data):
    """With many values exactly on edges, below the first and beyond the last of them."""
    n = data.draw(st.integers(1, 40))
    x = data.draw(hnp.arrays(np.int64, n, elements=st.integers(-2, 8))).astype(float)
    values = data.draw(hnp.arrays(np.float64, n, elements=st.floats(-10, 10)))
    edges = np.array(sorted(data.draw(st.sets(st.integers(-3, 9), min_size=2))), float)
    found = binned(x, values, edges, bootstrap=5)
    count, _ = np.histogram(x, edges)
    np.testing.assert_array_equal(found.count, count)
    expected = [np.nan] * len(count)
    if count.sum():
        expected, _, _ = stats.binned_statistic(x, values, "median", edges)
    np.testing.assert_allclose(found.value, expected, rtol=1e-12)
    for array in (found.value, found.low, found.high):
        np.testing.assert_array_equal(np.isnan(array), count == 0)
    filled = count > 0
    assert (found.low <= found.high)[filled].all()


@given(PULLS)
def test_one_bin_is_everything(values):
    x = np.arange(len(values), dtype=float)
    found = binned(x, values, np.array([0.0, max(len(values) - 1.0, 0.5)]), np.mean, bootstrap=0)
    assert found.count.tolist() == [len(values)]
    assert found.value[0] == found.low[0] == found.high[0] == pytest.approx(values.mean(), abs=1e-12)


@pytest.mark.parametrize(("statistic", "truth"), [(np.median, np.log(2)), (np.mean, 1.0)], ids=["median", "mean"])
def test_bands_hold_the_truth_as_often_as_they_say(statistic, truth):
    """A thousand bins of exponential values are a thousand repetitions."""
    repetitions, n, level = 1000, 150, 0.6827
    values = np.random.default_rng(11).exponential(size=repetitions * n)
    found = binned(np.repeat(np.arange(repetitions) + 0.5, n), values, np.arange(repetitions + 1.0), statistic)
    held = np.mean((found.low <= truth) & (truth <= found.high))
    # a quantile of 100 resamplings is itself uncertain, which costs about one per cent
    assert abs(held - level) < 0.01 + 3 * np.sqrt(level * (1 - level) / repetitions)


def test_band_of_a_large_bin():
    """Resampled in parts: as wide as sqrt(pi/2)/sqrt(n), the error of a median."""
    n = 30_000
    found = binned(np.zeros(n), np.random.default_rng(12).normal(size=n), np.array([0.0, 1.0]), bootstrap=400)
    expected = np.sqrt(np.pi / 2 / n)
    assert (found.high - found.low)[0] / 2 == pytest.approx(expected, rel=0.2)
    assert abs(found.value[0]) < 4 * expected


def test_level_of_the_band():
    x, values = np.zeros(200), np.random.default_rng(0).normal(size=200)
    narrow, wide = (
        binned(x, values, np.array([-1.0, 1.0]), np.mean, level=p, bootstrap=2000) for p in (0.6827, 0.9545)
    )
    assert (wide.high - wide.low)[0] == pytest.approx(2 * (narrow.high - narrow.low)[0], rel=0.1)


@given(hnp.arrays(np.float64, st.integers(1, 50), elements=st.floats(1e-6, 1e6)), st.integers(1, 30), st.booleans())
def test_edges_hold_all_events(x, bins, logarithmic):
    edges = bin_edges(x, bins, logarithmic=logarithmic, tail=0.0)
    assert len(edges) == bins + 1
    assert (np.diff(edges) >= 0).all()
    assert edges[-1] > edges[0]
    assert binned(x, x, edges, bootstrap=0).count.sum() == len(x)


def test_edges_leave_the_tails_out():
    x = np.random.default_rng(0).exponential(size=20_000)
    for logarithmic in (False, True):
        edges = bin_edges(x, 40, logarithmic=logarithmic, tail=0.01)
        steps = np.diff(np.log(edges) if logarithmic else edges)
        np.testing.assert_allclose(steps, steps[0], rtol=1e-9)
        assert np.mean(x < edges[0]) == pytest.approx(0.01, abs=1e-3)
        assert np.mean(x > edges[-1]) == pytest.approx(0.01, abs=1e-3)
    assert bin_edges(np.append(x, -1.0), 40, logarithmic=True).min() > 0  # one outlier is in the tail


@pytest.mark.parametrize("x", [np.array([-1.0, 2.0]), np.zeros(5), -np.ones(5)], ids=str)
def test_no_logarithm_of_negative_numbers(x):
    with pytest.raises(AmpsureError, match="positive"):
        bin_edges(x, 4, logarithmic=True)
    assert binned(x, x, bin_edges(x, 4, tail=0.0), bootstrap=0).count.sum() == len(x)


@pytest.mark.parametrize(("value", "width"), [(0.0, 1e-6), (-0.3, 1e-6), (50.0, 5e-5)])
def test_bins_of_a_single_value_are_narrow(value, width):
    edges = bin_edges(np.full(4, value), 2)
    assert edges[0] == value
    assert np.diff(edges) == pytest.approx(width / 2, rel=1e-6)


def test_region_ratio_and_its_error():
    """The ratio of medians of exponential values is that of their scales; its error is that of repetitions."""
    rng, inside, n = np.random.default_rng(13), np.arange(1000) < 200, 100
    scales = np.where(inside, 3.0, 1.0)
    found = [region_ratio(rng.exponential(scales), inside, bootstrap=100, seed=k) for k in range(n)]
    values = np.array([ratio.value for ratio in found])
    assert significance(values.mean() - 3, values.std() / np.sqrt(n)) < 4
    assert np.mean([ratio.error for ratio in found]) == pytest.approx(values.std(), rel=4 / np.sqrt(2 * n))
    mean = region_ratio(np.array([1.0, 5.0, 2.0]), np.array([True, True, False]), np.mean)
    assert mean.value == 1.5


def test_region_without_events():
    for inside, where in ((True, "inside"), (False, "outside")):
        with pytest.raises(AmpsureError, match=f"All 3 events are {where} of the region"):
            region_ratio(np.ones(3), np.full(3, inside))
    assert region_ratio(np.array([1.0, 0.0]), np.array([True, False])).value == np.inf


# --- what a second network finds --------------------------------------------------------------------------------------


@dataclass
class Left:
    """A residual, and how much of it can be learned."""

    signal: float
    noise: float

    @property
    def share(self) -> float:
        return self.signal**2 / (self.signal**2 + self.noise**2)


@pytest.mark.parametrize("left", [Left(0, 1), Left(1, 1), Left(1, 0.1)], ids=str)
def test_predictability_is_the_share_of_signal(left):
    rng = np.random.default_rng(14)
    x = rng.normal(size=(2000, 2))
    wave = np.sqrt(2) * np.sin(2 * x[:, 0] + rng.uniform(0, 2 * np.pi)) if left.signal else 0.0
    residual = 1e-7 * (left.signal * wave + left.noise * rng.normal(size=2000))
    found = predictability(torch.from_numpy(x), residual)
    assert abs(found.value - left.share) < 4 * found.error + 0.06 * left.share  # a small network is not perfect
    assert 0 < found.error < 0.05


def test_constant_residuals_are_predictable():
    found = predictability(torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)), np.full(1000, 0.3))
    assert found.value > 0.98


def test_predictability_follows_from_what_it_is_given():
    """Its seed, the size of its network and its epochs; ten residuals are enough, in any unit."""
    rng = np.random.default_rng(3)
    x, residual = torch.from_numpy(rng.normal(size=(10, 2))), rng.normal(size=10)
    found = predictability(x, residual)
    assert predictability(x, residual) == found
    assert predictability(x, 2.0**-20 * residual) == found
    for options in ({"seed": 1}, {"hidden": (8,)}, {"epochs": 1}):
        assert predictability(x, residual, **options) != found


def test_no_more_than_all_of_it_is_predictable():
    """Rare, large residuals, all of them a bias, whatever share of them is in the half that is judged."""
    x = torch.zeros(2000, 1)
    x[::50] = 5.0
    for seed in range(3):
        found = predictability(x, 1e-3 * x[:, 0].numpy().astype(float), seed=seed)
        assert 0.99 < found.value <= 1.0


@pytest.mark.parametrize("residual", [np.array([]), np.ones(9), np.zeros(100)], ids=len)
def test_too_little_to_learn_from(residual):
    with pytest.raises(AmpsureError, match="ten residuals"):
        predictability(torch.zeros(len(residual), 2), residual)


# --- judgement --------------------------------------------------------------------------------------------------------


def test_a_judgement_holds_the_numbers_of_the_functions(flat_events):
    prediction, events = made_up(flat_events, scale=1.3, offset=0.4)
    found, n = judge(prediction, events, bins=7), len(flat_events)
    delta = prediction.amplitude / events.truth - 1
    assert found.accuracy.mean == pytest.approx(np.abs(delta).mean())
    assert found.bias.sum_positive == pytest.approx(delta[delta > 0].sum())
    pull = (prediction.amplitude - events.amplitude) / prediction.sigma_tot
    assert found.pulls["total"] == summarise_pull(pull)
    assert found.nll == pytest.approx(
        -stats.norm.logpdf(pull).mean() + np.log(prediction.sigma_tot / prediction.amplitude).mean()
    )
    assert found.coverage.shares[24] == np.mean(np.abs(pull) < stats.norm.ppf(0.75))
    relative = [x / prediction.amplitude for x in (prediction.amplitude - events.amplitude, prediction.sigma_tot)]
    assert (found.calibration_error, found.crps) == pytest.approx((calibration_error(*relative), crps(*relative)))
    assert found.accuracy == accuracy(prediction.amplitude, events.truth)
    for part in found.observables:
        x, edges = part.observable.values, part.deviation.edges
        assert len(edges) == 8
        k = int(np.argmax(part.core.count))
        inside = (x >= edges[k]) & (x < edges[k + 1])
        assert part.core.count.sum() >= 0.997 * n
        assert part.deviation.value[k] == pytest.approx(np.median(np.abs(delta[inside])))
        assert part.bias.value[k] == pytest.approx(delta[inside].mean())
        assert part.core.value[k] == pytest.approx(np.quantile(np.abs(pull[inside]), 0.6827), rel=1e-3)
        for name, sigma in (("systematic", prediction.sigma_syst), ("statistical", prediction.sigma_stat)):
            assert part.sigma[name].value[k] == pytest.approx(np.median((sigma / prediction.amplitude)[inside]))


def test_units_of_the_amplitude_do_not_matter(flat_events):
    prediction, events = made_up(flat_events[:500])
    unit = 2.0**-70
    scaled = Prediction(*(unit * getattr(prediction, name) for name in ("amplitude", "sigma_syst", "sigma_stat")),
                        unit * prediction.sigma_tot, prediction.in_domain)  # fmt: skip
    other = replace(events, amplitude=unit * events.amplitude, truth=unit * events.truth)
    one, two = judge(prediction, events), judge(scaled, other)
    assert (one.accuracy, one.bias, one.pulls) == (two.accuracy, two.bias, two.pulls)
    assert (one.calibration_error, one.crps, one.nll) == pytest.approx((two.calibration_error, two.crps, two.nll))
    for a, b in zip(one.observables, two.observables, strict=True):
        np.testing.assert_array_equal(a.core.count, b.core.count)


def test_observables_of_the_benchmark(flat_events):
    found = {o.name: o for o in observables(flat_events)}
    assert list(found) == ["amplitude", "mass", "pt3", "pt4", "pt5"]
    px, py = flat_events.momenta[:, 4, 1], flat_events.momenta[:, 4, 2]
    np.testing.assert_allclose(found["pt5"].values, np.hypot(px, py), rtol=1e-12)
    total = flat_events.momenta[:, 2:].sum(1)
    mass = np.sqrt(total[:, 0] ** 2 - np.square(total[:, 1:]).sum(1))
    np.testing.assert_allclose(found["mass"].values, mass, rtol=1e-9)
    constant = replace(flat_events, truth=np.full(len(flat_events), 1e-5))
    assert [o.name for o in observables(constant)] == ["mass", "pt3", "pt4", "pt5"]
    for truth in (-flat_events.truth, np.where(np.arange(len(flat_events)), flat_events.truth, 0.0)):
        assert not observables(replace(flat_events, truth=truth))[0].logarithmic
    alone = flat_events.momenta.copy()
    alone[:, 2, 1:3] = 0.0  # a leg along the beam, always
    assert "pt3" not in [o.name for o in observables(replace(flat_events, momenta=alone))]


def test_observables_have_the_same_axes_in_other_units(flat_events):
    small = observables(replace(flat_events, momenta=1e-6 * flat_events.momenta))
    assert [(o.name, o.logarithmic) for o in small] == [(o.name, o.logarithmic) for o in observables(flat_events)]


def test_how_observables_are_written(flat_events):
    found = observables(flat_events)
    assert [o.label for o in found] == [
        "A / GeV^-2", "m(a a g) / GeV", "pT(a, leg 3) / GeV", "pT(a, leg 4) / GeV", "pT(g, leg 5) / GeV",
    ]  # fmt: skip
    assert replace(found[0], unit="").label == "A"
    assert [o.logarithmic for o in found] == [True, False, True, True, True]
    resting = flat_events.momenta.copy()
    resting[0, 2, 1:3] = 0.0  # one event without transverse momentum, which has no logarithm
    pts = {o.name: o.logarithmic for o in observables(replace(flat_events, momenta=resting))}
    assert (pts["pt3"], pts["pt4"]) == (False, True)


# --- and in words -----------------------------------------------------------------------------------------------------


def test_calibrated(many):
    sentence = words(*made_up(many))
    percent = re.fullmatch(r"Calibrated within (\d) % overall\.", sentence)
    assert percent
    assert 1 <= int(percent[1]) <= 5  # one standard error of the core is one per cent


@pytest.mark.parametrize(("off", "percent"), [(0.0, 1), (0.004, 1), (0.0298, 3), (0.0302, 4)])
def test_percentages_are_rounded_up(flat_events, off, percent):
    """The pulls of perfect predictions are the quantiles of a Gaussian, whose width is off by so much."""
    quantiles = stats.norm.ppf((np.arange(len(flat_events)) + 0.5) / len(flat_events))
    raw = summarise_pull(quantiles)
    pull = np.random.default_rng(0).permutation(quantiles) * (1 - off) / min(raw.core, raw.width)
    truth, sigma = flat_events.truth, NOISE * flat_events.truth
    prediction = Prediction(truth, sigma, np.zeros(len(truth)), sigma, np.ones(len(truth), bool))
    found = judge(prediction, replace(flat_events, amplitude=truth - sigma * pull))
    assert found.verdict[0] == f"Calibrated within {percent} % overall."
    assert all(set(part.sigma) == {"systematic"} for part in found.observables)


@pytest.mark.parametrize("law", [stats.norm(), stats.t(3, scale=1 / 1.197)], ids=["Gaussian", "heavy tails"])
def test_calibrated_surrogates_are_not_blamed_for_ranges(flat_events, law):
    """With hundreds of bins some are off by three standard errors: chance, not a fault."""
    draws = law.rvs((6, 600), random_state=np.random.default_rng(0))
    spoken = [words(*made_up(flat_events[:600], draws=row)) for row in draws]
    assert sum("of the events" in sentences for sentences in spoken) <= 1  # one in a hundred is allowed


@pytest.mark.parametrize(("scale", "word"), [(0.5, "Overconfident"), (2.0, "Underconfident")])
def test_wrong_everywhere(many, scale, word):
    """Said once, with the factor, and not again for every range."""
    (sentence,) = judge(*made_up(many, scale=scale)).verdict
    factor, share = re.match(rf"{word} overall: errors are ([\d.]+) times .* (\d+\.\d) % instead", sentence).groups()
    n, expected = len(many), 2 * stats.norm.cdf(scale) - 1
    assert float(factor) == pytest.approx(1 / scale, rel=4 * 0.962 / np.sqrt(n), abs=0.005)
    assert significance(float(share) / 100 - expected, np.sqrt(expected * (1 - expected) / n)) < 4.5


@pytest.mark.parametrize(("scale", "word", "opposite"), [(0.5, "Over", "Under"), (2.0, "Under", "Over")])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_wrong_above_an_amplitude(many, scale, word, opposite, share):
    """Named within one bin, whether or not so many events are concerned that the pull is off overall."""
    threshold = np.quantile(many.truth, 1 - share)
    prediction, events = made_up(many, scale=np.where(many.truth > threshold, scale, 1.0))
    sentences = judge(prediction, events).verdict
    (found,) = [s for s in sentences if re.match(rf"{word}confident above A = ", s)]
    low, named = re.search(r"above A = (\S+) GeV\^-2 \((\S+) % of the events", found).groups()
    edges = bin_edges(many.truth, logarithmic=True)
    assert abs(np.log(float(low) / threshold)) < 1.05 * np.log(edges[1] / edges[0])
    assert float(named) / 100 == pytest.approx(share, abs=0.03)
    assert not any(s.startswith(opposite) for s in sentences)


@pytest.mark.parametrize(("scale", "word"), [(0.5, "Overconfident"), (2.0, "Underconfident")])
def test_wrong_in_a_window_of_the_mass(many, scale, word):
    mass = many.final_state_mass
    low, high = np.quantile(mass, [0.4, 0.6])
    sentences = words(*made_up(many, scale=np.where((mass > low) & (mass < high), scale, 1.0)))
    found = re.search(
        rf"{word} for m\(a a g\) from (\S+) GeV to (\S+) GeV \([\d.]+ % of the events; (.*?)\)", sentences
    )
    width = np.diff(bin_edges(mass))[0]
    assert float(found[1]) == pytest.approx(low, abs=1.05 * width)
    assert float(found[2]) == pytest.approx(high, abs=1.05 * width)
    bound, worst = re.fullmatch(r"errors (up|down) to (\S+) times sigma", found[3]).groups()
    assert bound == ("up" if scale < 1 else "down")
    assert float(worst) == pytest.approx(1 / scale, rel=0.3)


def test_wrong_both_ways(many):
    """Too small below the median mass, too large above: right on average, and both are said."""
    mass = many.final_state_mass
    middle = np.median(mass)
    sentences = words(*made_up(many, scale=np.where(mass < middle, 0.7, 1.45)))
    below, above = (re.search(rf"{w}confident {r} m\(a a g\) = (\S+) GeV", sentences) for w, r in
                    (("Over", "below"), ("Under", "above")))  # fmt: skip
    width = np.diff(bin_edges(mass))[0]
    assert float(below[1]) == pytest.approx(middle, abs=1.05 * width)
    assert float(above[1]) == pytest.approx(middle, abs=1.05 * width)


@pytest.mark.parametrize(("scale", "blamed"), [(0.95, False), (1.05, False), (1.25, True)])
def test_small_faults_are_no_faults_however_significant(flat_events, scale, blamed):
    """With 7,500 events a bin, five per cent are 4.5 standard errors of the core, and half of what is tolerated."""
    many = Events.concatenate([flat_events] * 5)
    heavy = many.final_state_mass > np.median(many.final_state_mass)
    verdict = judge(*made_up(many, scale=np.where(heavy, scale, 1.0)), bins=2).verdict
    assert any("of the events;" in sentence for sentence in verdict) == blamed


@pytest.mark.parametrize("few", [5, 12])
def test_a_bin_is_blamed_by_chance_as_often_as_allowed(monkeypatch, few):
    """Pulls of a unit Gaussian, some of them in a bin of their own, with no fault too small to be named."""
    monkeypatch.setattr(rooms, "LOCAL_TOLERANCE", 0.0)
    n, trials, allowed, blamed = 1000, 1500, 0.1, {"Over": 0, "Under": 0}
    rng, own = np.random.default_rng(0), Observable("x", "x", "", np.repeat([0.0, 1.0], [few, n - few]))
    for _ in range(trials):
        pull = rng.normal(size=n)
        core = binned(own.values, np.abs(pull), np.array([-0.5, 0.5, 1.5]), rooms._core, bootstrap=0)
        overall = np.quantile(np.abs(pull), 0.6826895)
        for sentence in rooms._local_in_words(own, core, pull, overall, allowed):
            word, confident = sentence.split("confident", 1)
            blamed[word] += confident.startswith(" below x = 0.5 ")
    error = np.sqrt(allowed * (1 - allowed) / trials)
    for count in blamed.values():
        assert 0.6 * allowed < count / trials < allowed + 3 * error


def test_no_range_is_blamed_for_what_chance_or_tolerance_allows():
    """Off by 20 %, but too few to tell; significant beyond doubt, but off by 5 % only."""
    counts, widths = [20, 100_000, 100_000], [1.2, 1.05, 0.95]
    pull = np.concatenate([w * stats.norm.ppf((np.arange(n) + 0.5) / n) for n, w in zip(counts, widths, strict=True)])
    own = Observable("x", "x", "", np.repeat([0.0, 1.0, 2.0], counts))
    core = binned(own.values, np.abs(pull), np.array([-0.5, 0.5, 1.5, 2.5]), rooms._core, bootstrap=0)
    assert core.value == pytest.approx(widths, rel=0.08)
    assert rooms._local_in_words(own, core, pull, 1.0, 1e-3) == []


def test_ranges_are_named_with_neighbours_that_are_off_too():
    """By more than a standard error, and in the same way; other bins, and those off by chance, are not in them."""
    widths = [1.5, 1.0, 1.0, 1.5, 1.2, 1.12]
    counts = np.array([400, 4000, 4000, 400, 200, 10])  # the last are far from one standard error
    parts = [w * stats.norm.ppf((np.arange(n) + 0.5) / n) for w, n in zip(widths, counts, strict=True)]
    pull, own = np.concatenate(parts), Observable("x", "x", "", np.repeat(np.arange(6) + 0.5, counts))
    core = binned(own.values, np.abs(pull), np.arange(7.0), rooms._core, bootstrap=0)
    (sentence,) = rooms._local_in_words(own, core, pull, 1.0, 1e-4)
    share = 100 * counts[[0, 3, 4]].sum() / counts.sum()
    worst = core.value[[0, 3]].max()
    assert sentence == (
        f"Overconfident below x = 1; for x from 3 to 5 ({share:.1f} % of the events; "
        f"errors up to {worst:.2f} times sigma)."
    )


@pytest.mark.parametrize(
    ("counts", "joined"),
    [
        ([30, 20, 49, 1, 50, 10], [0, 2, 4, 6]),
        ([10, 60, 5], [0, 3]),
        ([3, 4], [0, 2]),
        ([50, 50], [0, 1, 2]),
        ([0, 49, 50], [0, 3]),
    ],
)
def test_sparse_bins_are_joined(counts, joined):
    """Until 50 events are in each; what is left joins the last."""
    edges = np.arange(len(counts) + 1.0)
    own = Observable("x", "x", "", np.repeat(edges[:-1] + 0.5, counts))
    size = np.random.default_rng(0).uniform(size=len(own.values))
    part = rooms.ObservableJudgement(own, *[binned(own.values, size, edges)] * 2, {}, None)
    found = rooms._well_filled(part, size)
    assert found.edges.tolist() == joined
    assert found.count.tolist() == np.add.reduceat(counts, joined[:-1]).tolist()
    assert found.low.tolist() == found.value.tolist()  # nobody looks at bands


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("1000", ["below x = 1 u"]),
        ("0001", ["above x = 3 u"]),
        ("0111", ["above x = 1 u"]),
        ("0110", ["for x from 1 u to 3 u"]),
        ("1111", ["for x from 0 u to 4 u"]),
        ("1011", ["below x = 1 u", "above x = 2 u"]),
        ("101010", ["below x = 1 u", "for x from 2 u to 3 u", "for x from 4 u to 5 u"]),
    ],
)
def test_ranges_in_words(mask, said):
    bins = np.array([c == "1" for c in mask])
    edges = np.arange(len(mask) + 1.0)
    assert rooms._ranges(bins, edges, Observable("x", "x", "u", edges)) == said
    bare = [words.replace(" u", "") for words in said]
    assert rooms._ranges(bins, edges, Observable("x", "x", "", edges)) == bare


def test_heavy_and_light_tails(many):
    """The core is right by construction: scaled such that 68.27 % are within one sigma."""
    n, rng = len(many), np.random.default_rng(1)
    for law, tails in ((stats.t(3), "heavier"), (stats.uniform(-1, 2), "lighter")):
        draws = law.rvs(n, random_state=rng) / law.ppf(0.8413447)
        sentences = words(*made_up(many, draws=draws))
        assert re.match(rf"Calibrated within \d % in the core of the pull, but its tails are {tails}", sentences)
        assert ("rare errors are very large" in sentences) == (tails == "heavier")


def test_no_uncertainty(flat_events):
    prediction, events = made_up(flat_events)
    zero = np.zeros(len(events))
    found = judge(replace(prediction, sigma_syst=zero, sigma_stat=zero, sigma_tot=zero), events)
    assert found.verdict == ["There is no uncertainty to judge: this method gives none."]
    assert (found.pulls, found.coverage, found.crps, found.observables[0].core) == ({}, None, None, None)
    some = np.where(np.arange(len(events)) < 3, 0.0, prediction.sigma_tot)
    assert "zero for 3 of 3000 events" in words(replace(prediction, sigma_tot=some), events)
    assert list(judge(replace(prediction, sigma_stat=zero), events).pulls) == ["total", "systematic"]


@pytest.mark.parametrize(("offset", "word"), [(0.3, "too large"), (-0.3, "too small")])
def test_biased(flat_events, offset, word):
    assert f"Amplitudes are {word} by {abs(offset) * NOISE:.1e} on average." in words(
        *made_up(flat_events, offset=offset)
    )


def test_few_events_are_rarely_called_biased(flat_events):
    """Three standard errors of two events are less than they seem: Student's distribution decides."""
    spoken = [words(*made_up(flat_events[k : k + 2], seed=k)) for k in range(0, 200, 2)]
    assert sum("Amplitudes are" in sentences for sentences in spoken) <= 2  # one in 370 is allowed


def test_outside_the_domain(flat_events):
    prediction, events = made_up(flat_events)
    found = judge(replace(prediction, in_domain=np.zeros(len(events), bool)), events)
    assert found.outside == found.events == 3000
    assert found.verdict[-1] == "100.0 % of the test events are outside the domain of the training."
    for outside, said in ((30, False), (31, True)):  # more than one per cent
        inside = np.arange(len(events)) >= outside
        assert ("outside the domain" in words(replace(prediction, in_domain=inside), events)) == said


@pytest.mark.parametrize(("offset", "said"), [(0.09, False), (0.15, True)])
def test_a_bias_next_to_the_errors(flat_events, offset, said):
    """Significant or not: it is said if it is a tenth of the mean error."""
    prediction, events = made_up(replace(flat_events, truth=np.ones(len(flat_events))))
    size = np.abs(np.random.default_rng(1).normal(size=len(events) // 2))
    delta = np.concatenate([size, -size]) / size.mean()  # mean zero, mean size one
    found = judge(replace(prediction, amplitude=1 + 1e-3 * (delta + offset)), events)
    assert abs(found.accuracy.bias) > 3 * found.accuracy.bias_error
    assert any(s.startswith("Amplitudes are too large by") for s in found.verdict) == said


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20, 50])
def test_few_events_allow_no_hard_words(flat_events, n):
    """A small sample of a calibrated surrogate is not blamed, and not praised for what it cannot tell."""
    for seed in range(4):
        found = judge(*made_up(flat_events[seed * n : (seed + 1) * n], seed=seed))
        if n < 30:
            assert found.verdict[0].startswith(f"Too few to tell: {n} events")
        else:
            assert re.fullmatch(rf"Calibrated within \d+ % overall, as far as {n} events can tell\.", found.verdict[0])
        assert not any("of the events;" in sentence for sentence in found.verdict)
        json.dumps(as_json(found), allow_nan=False)


def test_events_all_alike(flat_events):
    found = judge(*made_up(flat_events[np.zeros(300, int)]))
    assert found.observables == []
    assert found.verdict[0].startswith("Calibrated")


def test_perfect_predictions(flat_events):
    """Not one error: as underconfident as can be, without a division by zero."""
    prediction, events = made_up(flat_events[:500], draws=np.zeros(500))
    (sentence,) = judge(replace(prediction, amplitude=events.truth.copy()), events).verdict
    assert sentence.startswith("Underconfident overall: errors are 0.00 times as large as sigma says, and 100.0 %")


def test_amplitudes_that_change_sign(flat_events):
    """Sigma is as right as for positive ones, and an exact zero is no reason for a warning."""
    sign = np.where(np.arange(len(flat_events)) % 3, 1.0, -1.0)
    signed = replace(flat_events, amplitude=sign * flat_events.amplitude, truth=sign * flat_events.truth)
    prediction, events = made_up(signed)
    found = judge(prediction, events)
    assert found.verdict[0].startswith("Calibrated within")
    assert found.pulls["total"].width == pytest.approx(1, abs=4 / np.sqrt(2 * len(flat_events)))
    positive = judge(*made_up(flat_events)).observables[1].sigma
    for name, curve in found.observables[1].sigma.items():
        np.testing.assert_allclose(curve.value, positive[name].value, rtol=0.02)
    events.truth[7] = prediction.amplitude[5] = 0.0
    json.dumps(as_json(judge(prediction, events)), allow_nan=False)


def test_predictions_that_are_not_finite(flat_events):
    prediction, events = made_up(flat_events)
    prediction.sigma_tot[3], prediction.amplitude[8] = np.inf, np.nan
    found = judge(prediction, events)
    assert found.events == 2998
    assert found.verdict[0] == "2 of the 3000 predictions are not finite: all else is about the others."
    assert np.isfinite([found.accuracy.mean, found.pulls["total"].width, found.nll, found.crps]).all()
    prediction.amplitude[:] = np.nan
    with pytest.raises(AmpsureError, match="None of the 3000 predictions"):
        judge(prediction, events)


def test_predictions_of_other_events(flat_events):
    prediction, events = made_up(flat_events)
    for wrong in (events[:1], events[:0], events[:17]):
        with pytest.raises(AmpsureError, match=f"3000 for {len(wrong)} events"):
            judge(prediction, wrong)
    with pytest.raises(AmpsureError, match="0 for 0"):
        judge(*made_up(events[:0]))


def test_weights_do_not_matter(flat_events):
    prediction, events = made_up(flat_events[:200])
    other = replace(events, weights=np.arange(200.0))
    assert as_json(judge(prediction, events)) == as_json(judge(prediction, other))


# --- as JSON ----------------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.text(), st.none(), st.floats().map(np.float64), st.just(np.int32(3)),
    st.just(np.bool_(True)), hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, min_side=0)),
)  # fmt: skip


@given(st.recursive(NUMBERS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner)))
def test_everything_becomes_valid_json(value):
    text = json.dumps(as_json(value), allow_nan=False)
    assert as_json(json.loads(text)) == as_json(value)


def test_a_judgement_in_json_is_complete(flat_events):
    prediction, events = made_up(flat_events[:300])
    found = judge(prediction, events)
    back = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert back["pulls"]["total"]["width"] == found.pulls["total"].width
    assert back["coverage"]["shares"] == found.coverage.shares.tolist()
    assert back["verdict"] == found.verdict
    curve = found.observables[0].deviation
    assert [v is None for v in back["observables"][0]["deviation"]["value"]] == np.isnan(curve.value).tolist()
