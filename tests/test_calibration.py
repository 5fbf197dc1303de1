"""Uncertainties from held-out events, and stages that keep within what they have seen."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from crepes import ConformalRegressor
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special, stats

import ampsure
from ampsure import AmpsureError, audit, fit, fitting, load_surrogate
from ampsure.calibration import Calibration, Pulls, VarianceCorrection
from ampsure.config import resolve
from ampsure.disturbances import BoxSmearing, Gap, UniformSmearing
from ampsure.evaluation import BinnedReach, pulls_of
from ampsure.learning import _calibrate, _residual_and_variance, _wrong
from ampsure.likelihoods import get_likelihood
from ampsure.likelihoods.base import LARGEST_NOISE, lift
from ampsure.networks import StackedMLP
from ampsure.noise import NoiseProfile, find_noise
from ampsure.preprocessing import Standardization
from ampsure.surrogate import combine
from ampsure.training import TrainingInterrupted

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


def test_intervals_hold_what_they_promise(calibrated, events):
    """Split-conformal: the share inside is at least the level, but for chance among scores and test events."""
    test = events.split(1)[2]
    p = calibrated.predict(test.momenta)
    count = calibrated.calibration.count
    for level in (0.5, 0.6827, 0.9):
        low, high = p.interval(level)
        assert (low < p.amplitude).all()
        assert (p.amplitude < high).all()
        share = np.mean((low <= test.truth) & (test.truth <= high))
        assert abs(share - level) < 3.5 * np.sqrt(level * (1 - level) * (1 / count + 1 / len(test)))
    low, high = p.interval(1 - 0.5 / count)  # more than so few events can promise
    assert (low == 0).all()
    assert np.isinf(high).all()


def test_ranks_of_scores():
    """Of n scores, the interval of level k/(n + 1) reaches the k-th smallest, or a larger one if it was not kept."""
    calibration = Calibration(None, None)
    few = calibration.settled(torch.arange(-9.0, 10.0))
    assert few.shift == 0
    sizes = np.sort(np.abs(np.arange(-9.0, 10.0))) / few.scale
    assert [few.reach(k / 20) for k in range(1, 20)] == pytest.approx(sizes)
    assert few.reach(0.96) == float("inf")
    rng = np.random.default_rng(1)
    pull = torch.from_numpy(rng.standard_normal(50_000))
    many = calibration.settled(pull)
    sizes = np.sort(np.abs(pull.numpy() - many.shift)) / many.scale
    for level in (0.1, 0.5, 0.683, 0.95, 0.999):
        exact = sizes[int(np.ceil(50_001 * level)) - 1]
        assert exact <= many.reach(level) <= sizes[min(int(np.ceil(50_001 * level)) + 20, 49_999)]


def test_pulls_of_networks_alone_are_wider_than_those_of_all_together():
    """A scale from both kinds is that of all together, and scatters less than the few of these say by themselves."""
    rng = np.random.default_rng(1)

    def pulls(count):  # five networks with errors of their own in log sigma, and their harmonic mean
        residual, log_variance = rng.standard_normal(count), 0.8 * rng.standard_normal((5, count))
        together, alone = np.exp(-log_variance).mean(0), np.exp(-log_variance)
        return torch.from_numpy(residual * together**0.5), torch.from_numpy(residual * alone**0.5)

    scales = []
    for _ in range(200):
        (pull, alone), (_, crossed) = pulls(1000), pulls(3000)
        together = Calibration(None, None).settled(pull).scale
        both = Calibration(None, None).settled(pull, Pulls(crossed[0], alone, torch.ones(4000))).scale
        scales.append((together, both))
    (few, mean), (wide, narrow) = np.mean(scales, axis=0), np.std(scales, axis=0)
    assert mean == pytest.approx(few, abs=4 * wide / np.sqrt(len(scales)))
    assert narrow < 0.8 * wide


def test_gaussian_intervals_without_calibration(events):
    p = fit(events, "heteroscedastic", config={"network": {"hidden": (16,)}}, epochs=1, seed=1).predict(
        events.momenta[:50]
    )
    low, high = p.interval(0.6826894921)
    variance = np.log1p((p.sigma_tot / p.amplitude) ** 2)
    np.testing.assert_allclose(np.log(high / low), 2 * np.sqrt(variance), rtol=1e-9)
    np.testing.assert_allclose(np.log(low * high) / 2, np.log(p.amplitude) - variance / 2, rtol=1e-9, atol=1e-9)
    with pytest.raises(AmpsureError, match="between 0 and 1"):
        p.interval(1.0)


def test_holes_are_outside_the_domain():
    rng = np.random.default_rng(1)
    raw = rng.uniform(0, 10, (20_000, 3))
    raw[:, 1] = rng.integers(0, 5, len(raw))  # repeats itself: no holes
    raw = raw[(raw[:, 0] < 4) | (raw[:, 0] > 5)]
    holes = Standardization.fit(torch.from_numpy(raw)).holes
    assert holes.shape == (1, 3)
    assert holes[0].tolist() == pytest.approx([0, 4, 5], abs=0.01)
    inside = Standardization.fit(torch.from_numpy(raw)).inside(torch.tensor([[4.5, 1.0, 3.0], [3.5, 1.0, 3.0]]))
    assert inside.tolist() == [False, True]


def test_a_gap_is_seen_and_its_error_is_that_of_one_member(events):
    gapped = Gap(half_width=15.0)(events)
    surrogate = fit(gapped, "repulsive", config=CONFIG, epochs=10, batch_size=64, seed=1)
    inside = np.abs(gapped.final_state_mass - 200) < 14
    p = surrogate.predict(gapped.momenta, members=True)
    if not len(surrogate.standardization.holes):
        pytest.fail("the gap was not found")
    assert not p.in_domain[inside].any()
    one = p.members.var(0, ddof=1) * surrogate.target.scale**2
    assert (np.log1p((p.sigma_stat / p.amplitude) ** 2)[inside] >= one[inside] * (1 - 1e-6)).all()
    assert surrogate.standardization.holes[0, 0] == 0


def test_outliers_hardly_disturb(events):
    """One amplitude in fifty is wrong, by factors up to e^30: it matters only if no share of outliers is allowed."""
    rng = np.random.default_rng(1)
    wrong = rng.random(len(events)) < 0.02
    seen = replace(
        events, amplitude=np.where(wrong, events.truth * np.exp(rng.uniform(1, 30, len(events))), events.truth)
    )

    def trained(data, share):
        config = {"network": {"hidden": (24, 24)}, "likelihood": {"beta": 0.25, "outliers": share}}
        surrogate = fit(data, "recommended", config=config, epochs=20, batch_size=64, seed=1, stages=1)
        test = events.split(1)[2]
        return surrogate, np.median(np.abs(surrogate.predict(test.momenta).amplitude / test.truth - 1))

    (_, clean), (surrogate, robust), (_, disturbed) = (trained(*a) for a in ((events, 0.01), (seen, 0.01), (seen, 0.0)))
    assert robust < 1.1 * clean
    assert disturbed > 2 * robust
    found = surrogate.provenance["data"]["wrong"]
    known = int(wrong[np.concatenate(events.split_indices(1)[:2])].sum())
    assert found == pytest.approx(known, abs=4 * np.sqrt(known))


def test_audit_finds_wrong_amplitudes(events):
    rng = np.random.default_rng(2)
    wrong = rng.random(len(events)) < 0.02
    factor = np.exp(rng.choice([-1.0, 1.0], len(events)) * rng.uniform(1.5, 20, len(events)))
    seen = replace(events, amplitude=np.where(wrong, events.truth * factor, events.truth))
    settings = {"network": {"hidden": (24, 24)}, "posterior": {"members": 2}}
    config = resolve("recommended", "accurate", settings, epochs=40, batch_size=64, seed=1, stages=1)
    found = audit(seen, config, folds=2)
    suspects = np.zeros(len(events), bool)
    suspects[found.suspects] = True
    n = wrong.sum()
    assert (suspects & wrong).sum() > n - 3 * np.sqrt(0.05 * n)
    assert (suspects & ~wrong).sum() < 0.05 * n + 3 * np.sqrt(0.05 * n)
    assert found.share == pytest.approx(wrong.mean(), rel=4 / np.sqrt(n))
    with pytest.raises(AmpsureError, match="outliers"):
        audit(seen, resolve("repulsive"))
    with pytest.raises(AmpsureError, match="two parts"):
        audit(seen, config, folds=1)


def test_noise_in_a_narrow_range_is_told_from_wrong_amplitudes():
    rng = np.random.default_rng(1)
    n, sigma = 40_000, 0.1
    x = torch.from_numpy(rng.standard_normal((n, 3)))
    box = (x[:, 1] > 0.5) & (x[:, 1] < 0.53)
    isolated = torch.from_numpy(rng.random(n) < 0.01)
    residual = torch.from_numpy(rng.standard_normal(n)) * torch.where(box, sigma, 1e-5)
    residual[isolated] = 3.0
    wrong = residual.abs() > 1e-3
    profile = find_noise(x, wrong, residual.square())
    assert (profile.ranges[:, 0] == 1).all()
    window = 32 / (n * 0.35)  # a wrong amplitude may stand next to the box
    assert profile.ranges[0, 1].item() == pytest.approx(0.5, abs=window)
    assert profile.ranges[-1, 2].item() == pytest.approx(0.53, abs=window)
    variance = profile(x)
    assert (variance[box] > 0).all()
    assert (variance[~box] > 0).sum() <= 64
    # the median of the squares of m events gives sigma^2 within 1.65/sqrt(m)/0.45, one standard deviation
    assert variance[box].mean().item() == pytest.approx(sigma**2, rel=4 * 1.2 * 1.65 / np.sqrt(int(box.sum())))
    residual[box] *= 1e-4
    assert not len(find_noise(x, isolated, residual.square()).ranges)


@pytest.mark.parametrize("width", [0.03, 0.1, 0.4])
def test_noise_between_two_edges_is_found_where_nothing_is_called_wrong(width):
    """A smooth sigma hides a box; errors that change smoothly, by more than the noise does, are none."""
    rng = np.random.default_rng(2)
    n = 60_000
    x = torch.from_numpy(rng.standard_normal((n, 3)))
    box = (x[:, 1] > 0.5) & (x[:, 1] < 0.5 + width)
    error = torch.exp(1.5 * x[:, 0] - 0.5 * x[:, 1].square())  # from 1e-2 to 1e2
    residual = torch.from_numpy(rng.standard_normal(n)) * error
    right = torch.zeros(n, dtype=torch.bool)
    assert not len(find_noise(x, right, residual.square()).ranges)
    noise = 12.0
    residual += noise * box * torch.from_numpy(rng.standard_normal(n))
    profile = find_noise(x, right, residual.square())
    assert (profile.ranges[:, 0] == 1).all()
    found = profile(x) > 0
    assert (found & box).sum() > 0.9 * box.sum()
    assert (found & ~box).sum() < 128
    assert profile(x)[found & box].mean().sqrt().item() == pytest.approx(noise, rel=0.15)


def test_a_noisy_box_is_found_and_saved(events, tmp_path):
    """Noise of 10 % in a box of a few GeV: sigma says so, and nothing of it is called wrong."""
    many = ampsure.generate("gg_yyg", 12_000, preset="benchmark", seed=5)
    noisy = BoxSmearing(0.1, width=3.0)(many, seed=1)
    config = {"network": {"hidden": (32, 32)}, "posterior": {"members": 2}}
    surrogate = fit(noisy, "recommended", config=config, epochs=30, batch_size=128, seed=1, stages=1)
    surrogate.save(tmp_path / "run")
    inside = noisy.noise > 0
    for s in (surrogate, load_surrogate(tmp_path / "run")):
        p = s.predict(noisy.momenta)
        sigma = p.sigma_syst / p.amplitude
        assert np.median(sigma[inside]) == pytest.approx(0.1, rel=4 * 1.2 * 1.65 / np.sqrt(0.7 * inside.sum()))
        assert np.median(sigma[~inside]) < 0.02
    assert surrogate.provenance["data"]["wrong"] < 0.1 * inside.sum()


def test_what_is_known_of_noise_leaves_the_amplitude_as_it_is(events):
    """The mean of a log-normal amplitude grows with its noise, if what is known is the mean of the logarithm."""
    surrogate = fit(events, "recommended", config=CONFIG, epochs=3, batch_size=64, seed=1)
    assert surrogate.unbiased
    assert not fit(events, "repulsive", epochs=1, seed=1).unbiased
    first = surrogate.predict(events.momenta)
    column = torch.tensor([[0.0, -np.inf, np.inf, 0.04 / surrogate.target.scale**2]], dtype=torch.float64)
    second = replace(surrogate, noise=NoiseProfile(column)).predict(events.momenta)
    known = np.log1p((second.sigma_tot / second.amplitude) ** 2) < LARGEST_NOISE
    assert known.sum() > 500
    np.testing.assert_allclose(second.amplitude[known], first.amplitude[known], rtol=1e-12)
    assert (second.sigma_syst > 0.2 * second.amplitude).all()


def test_what_an_earlier_revision_began_is_not_resumed(events, tmp_path, monkeypatch):
    def begin() -> ampsure.Surrogate:
        return fit(events, "recommended", config=CONFIG, epochs=1, batch_size=64, seed=1, checkpoint=tmp_path)

    monkeypatch.setattr(fitting, "REVISION", -1)
    begin()
    begin()
    monkeypatch.undo()
    with pytest.raises(AmpsureError, match="other data or settings, or of another version"):
        begin()


@pytest.mark.parametrize("noise", [UniformSmearing(0.2), BoxSmearing(0.3, width=35.0), BoxSmearing(0.3, width=5.0)])
def test_noise_gives_no_bias(noise):
    many = ampsure.generate("gg_yyg", 12_000, preset="benchmark", seed=5)
    noisy = noise(many, seed=1)
    config = {"network": {"hidden": (32, 32)}, "posterior": {"members": 2}}
    p = fit(noisy, "recommended", config=config, epochs=30, batch_size=128, seed=1).predict(many.momenta)
    inside = noisy.noise > 0
    bias = np.mean((p.amplitude / many.amplitude)[inside]) - 1
    error = np.hypot(noise.epsilon / np.sqrt(0.7 * inside.sum()), 0.002)  # of noise, and of this small network
    assert abs(bias) < 4 * error
    assert inside.sum() < 1000 or noise.epsilon**2 / 2 > 4 * error  # the mean of the logarithm is lower by this


@given(st.floats(0.3, 3), st.floats(0.01, 3), st.sampled_from([0.5, 0.683, 0.9]))
def test_intervals_hold_the_events_they_come_from(width, exponent, level):
    """Centre and sigma as `predict` makes them of a calibration that knows a scale, a shift and a lift."""
    rng = np.random.default_rng(1)
    residual, sigma = torch.from_numpy(width * rng.standard_normal(400)), torch.linspace(0.5, 2, 400).double()
    networks, standardization = StackedMLP(1, 1, hidden=(2,)), Standardization.fit(torch.randn(20, 1))
    pull = (residual * sigma + lift(sigma**2, torch.tensor(exponent))) / sigma
    c = Calibration(networks, standardization).settled(pull, exponent=exponent * sigma)
    centre = c.shift * sigma - lift((c.scale * sigma) ** 2, exponent)
    inside = (residual * sigma - centre).abs() <= c.reach(level) * c.scale * sigma * (1 + 1e-12)
    assert inside.double().mean() >= level


@pytest.mark.parametrize("n", [20, 40, 70])
def test_few_events_have_an_uncertainty(n, events):
    """With 40 to 79 events, one is left for the scale: it is no measure of its own distance."""
    surrogate = fit(events[:n], "recommended", config=CONFIG, epochs=5, batch_size=16, seed=1)
    p = surrogate.predict(events.momenta)
    assert (p.sigma_tot > 0).all()
    assert np.isfinite(p.sigma_tot).all()
    assert not any(np.isnan(end).any() for level in (0.3, 0.9) for end in p.interval(level))


def test_a_single_validation_event_is_too_few(events):
    settings = {**CONFIG, "data": {"fractions": (0.7, 0.03, 0.27)}}
    with pytest.raises(AmpsureError, match="single validation event"):
        fit(events[:30], "recommended", config=settings, epochs=1, seed=1)


def test_few_scores_hold_what_they_promise():
    """Whatever the number of pulls that fix shift and scale, over many repetitions."""
    rng = np.random.default_rng(1)
    for count in (4, 20, 25):
        held = []
        for _ in range(4000):
            learned = Calibration(None, None).settled(torch.from_numpy(rng.standard_normal(count)))
            to_come = (rng.standard_normal() - learned.shift) / learned.scale
            held.append(abs(to_come) <= learned.reach(0.75))
        promised = np.ceil((count + 1) * 0.75) / (count + 1)
        assert np.mean(held) == pytest.approx(promised, abs=3.5 * np.sqrt(promised * (1 - promised) / len(held)))


def test_members_too_sure_of_themselves_make_no_amplitude_wrong():
    """Pulls of width four are no outliers, but one of a thousand standard deviations is."""
    network = StackedMLP(1, 2, hidden=(4,), members=2, seed=1)
    with torch.no_grad():
        network.weights[-1].zero_()
        network.biases[-1].copy_(torch.tensor([0.0, -9.0]).expand_as(network.biases[-1]))
    y = 4 * np.exp(-4.5) * torch.randn(2000, generator=torch.Generator().manual_seed(1))
    y[7] = 1000 * np.exp(-4.5)
    likelihood = get_likelihood("gaussian", outliers=1e-3)
    missed = _residual_and_variance(network, likelihood, torch.zeros(2000, 1), y, "held-out")
    assert _wrong(likelihood, missed).nonzero().flatten().tolist() == [7]
    assert not _wrong(likelihood, missed[6:8]).any()


def test_networks_of_a_calibration_see_nothing_of_the_last_events(calibrated):
    """Not even where they start."""
    x, y = torch.randn(40, calibrated.network.widths[0], dtype=torch.float64), torch.randn(40, dtype=torch.float64)
    starts = []
    for last in (y[30:], 100 * y[30:]):
        _, trainings = next(_calibrate(replace(calibrated), x, torch.cat([y[:30], last])))
        starts.append(trainings[0].posterior.network.biases[-1])
    torch.testing.assert_close(*starts, rtol=0, atol=0)


def test_rounded_values_have_no_holes():
    """Fifty events at each of a hundred values: all of them repeat."""
    raw = np.random.default_rng(1).integers(0, 100, (5000, 1)).astype(float)
    assert len(Standardization.fit(torch.from_numpy(raw)).holes) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("events.h5", "-o", "x.h5"), ".npz"),
        (("events.h5", "-o", "x.npz", "--clean", "x.root"), "unknown suffix"),
        (("events.h5", "-o", "missing/x.npz"), "no folder"),
        (("missing.h5",), "no file missing.h5"),
        (("few.h5", "--clean", "x.h5"), "at least two parts"),
        (("events.h5", "--folds", "1"), "at least two parts"),
        (("events.h5", "--process", "gg_hh"), "Unknown process"),
        (("events.h5", "--set", "likelihood.outliers=0"), "likelihood.outliers"),
        (("signed.h5",), "not positive"),
    ],
)
def test_bad_audits_are_one_sentence_and_code_2(run, events, tmp_path, arguments, words):
    ampsure.save(events[:200], tmp_path / "events.h5")
    ampsure.save(events[:79], tmp_path / "few.h5")
    ampsure.save(replace(events[:200], amplitude=-events.amplitude[:200]), tmp_path / "signed.h5")
    before = sorted(os.listdir(tmp_path))
    settings = "--set", "training.epochs=1", "--set", "network.hidden=[8]"
    code, out, err = run("audit", *arguments, *settings)
    assert code == 2
    assert words in err
    assert "Traceback" not in out + err
    assert sorted(os.listdir(tmp_path)) == before


def test_audit_of_signed_and_invalid_amplitudes(run, events, tmp_path):
    """What the error about such amplitudes advises."""
    amplitude = events.amplitude[:200] * np.where(np.arange(200) < 3, -1, 1)
    ampsure.save(replace(events[:200], amplitude=amplitude), tmp_path / "signed.h5")
    settings = "--folds", 2, "--set", "training.epochs=1", "--set", "network.hidden=[8]"
    for option, left in ((("--signed",), 200), (("--invalid", "drop"), 197)):
        assert run("audit", "signed.h5", "-o", "x.npz", *option, *settings)[0] == 0
        with np.load(tmp_path / "x.npz") as found:
            assert found["probability"].shape == (left,)
            assert np.isfinite(found["probability"]).all()


def test_an_interrupted_audit_is_no_error(run, events, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise TrainingInterrupted("Interrupted at step 1 of 2; nothing was saved.")

    ampsure.save(events[:200], tmp_path / "events.h5")
    monkeypatch.setattr(ampsure.cli.surrogates, "audit", stopped)
    code, out, err = run("audit", "events.h5")
    assert code == 130
    assert "nothing was saved" in out
    assert not err


@given(st.integers(20, 3000), st.floats(0.01, 0.999), st.integers(0, 2**32 - 1))
def test_reach_is_that_of_another_program(count, level, seed):
    """Of crepes, with and without bins, for any number of events and any level."""
    rng = np.random.default_rng(seed)
    pull, observable = rng.standard_t(3, count), rng.uniform(0, 3, count)
    none = Calibration(StackedMLP(3, 1, hidden=(2,)), Standardization.fit(torch.randn(9, 3)))
    settled = none.settled(torch.from_numpy(pull))
    size = np.abs(pull - pull.mean()) * count / (count - 1) / settled.scale
    assert settled.reach(level) == pytest.approx(_crepes(size, level)[0])
    found = BinnedReach.of(pull, observable, np.array([1.0, 2.0]))(np.array([0.5, 1.5, 2.5]), level)
    np.testing.assert_allclose(found, _crepes(pull, level, np.floor(observable), np.arange(3.0)), rtol=1e-12)


def _crepes(residuals, level, bins=None, asked=None):
    """Half-widths of the intervals for predictions with sigma 1, one or one a bin asked for."""
    at = np.zeros(1 if asked is None else len(asked))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells where events are too few
        model = ConformalRegressor().fit(residuals, sigmas=np.ones(len(residuals)), bins=bins)
        return model.predict_int(at, sigmas=at + 1, bins=asked, confidence=level)[:, 1]


def test_reach_by_bin_holds_its_promise():
    """Where one reach for all is too short for a bin with heavier tails, one for each bin is not."""
    rng = np.random.default_rng(2)
    where = rng.uniform(size=(2, 40_000))
    pull = np.where(where > 0.9, 3.0, 1.0) * rng.standard_normal(where.shape)
    reaches = [BinnedReach.of(pull[0], where[0], np.array(edges))(where[1], 0.683) for edges in ([], [0.5, 0.9])]
    shares = [np.mean((np.abs(pull[1]) < reach)[where[1] > 0.9]) for reach in reaches]
    assert shares[0] < 0.5
    assert abs(shares[1] - 0.683) < 4 * np.sqrt(2 * 0.683 * 0.317 / 4000)  # events of both samples


@given(
    st.floats(-9, 9),
    st.floats(0.1, 10),
    st.floats(0, 3),
    st.floats(-3, 3),
    st.floats(-12, 3),
    st.just(0.0) | st.floats(0.01, 2),
)
def test_residuals_of_the_correction_are_right_or_wrong(residual, variance, besides, log_factor, odds, exponent):
    y = torch.tensor([[residual, variance, besides, exponent]], dtype=torch.float64)
    out = torch.tensor([[[log_factor, odds]]], dtype=torch.float64)
    width = np.sqrt(np.exp(log_factor) * variance + besides)
    share = special.expit(np.clip(odds, -9, 0))
    if exponent:
        residual += exponent * min(width**2, 0.25 * exponent**-2.0) / 2  # the logarithm of the mean is higher
    right = (1 - share) * stats.norm.pdf(residual, scale=width)
    wrong = share / (2 * np.log(21) * (width + abs(residual)))  # log-uniform in 1 + |pull| up to 21
    assert VarianceCorrection().nll(out, y).item() == pytest.approx(-np.log(right + wrong), rel=1e-9, abs=1e-9)
    assert VarianceCorrection().right(out, y).item() == pytest.approx(right / (right + wrong), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_amplitudes_that_are_a_little_wrong_leave_the_variance_as_it_is(share):
    rng = np.random.default_rng(1)
    n = 40_000
    size = np.where(rng.random(n) < share, np.exp(rng.uniform(0, np.log(20), n)), 0.0)
    residual = torch.from_numpy(rng.standard_normal(n) + size * rng.choice([-1, 1], n))
    y = torch.stack([residual, torch.ones(n), torch.zeros(n), torch.zeros(n)], dim=1)

    def loss(theta):
        return VarianceCorrection().nll(torch.from_numpy(theta).expand(1, n, 2), y).mean().item()

    log_factor, odds = optimize.minimize(loss, np.array([1.0, -3.0]), method="Nelder-Mead").x
    assert abs(log_factor) < 4 * np.sqrt(2 / n) + 0.5 * share  # sizes near one standard deviation look right
    assert special.expit(odds) == pytest.approx(share, abs=0.03)  # some of them have no size
    plain = np.log(np.mean(residual.numpy() ** 2))
    assert share == 0 or plain > 1.5
