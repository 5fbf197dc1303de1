"""Noise has the stated size where it should, gaps leave the truth alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ampsure import AmpsureError, Events
from ampsure.disturbances import BoxSmearing, Gap, PeakedSmearing, UniformSmearing, disturb

SMEARINGS = [UniformSmearing(0.05), BoxSmearing(0.1, width=20), BoxSmearing(0.001, width=1), PeakedSmearing(1e-4)]


@pytest.fixture(scope="module")
def many(events) -> Events:
    """20 000 events near the threshold: the same ones, ten times."""
    return Events.concatenate([events] * 10)


@pytest.mark.parametrize("smearing", SMEARINGS, ids=str)
def test_noise_is_gaussian_with_the_recorded_width(many, smearing):
    noisy = smearing(many, seed=1)
    expected = smearing.relative_sigma(many.final_state_mass) * many.truth
    np.testing.assert_array_equal(noisy.noise, expected)
    np.testing.assert_array_equal(noisy.truth, many.truth)
    touched = expected > 0
    np.testing.assert_array_equal(noisy.amplitude[~touched], many.amplitude[~touched])
    small = touched & (expected < 0.2 * many.truth)  # where no draw can have come out negative
    pull = (noisy.amplitude - noisy.truth)[small] / expected[small]
    assert small.sum() > 30
    assert stats.kstest(pull, "norm").pvalue > 1e-3


def test_box_is_as_wide_as_it_says(many):
    mass = many.final_state_mass
    noisy = BoxSmearing(0.1, width=20, threshold=200)(many, seed=2)
    np.testing.assert_array_equal(noisy.noise > 0, np.abs(mass - 200) < 20)


def test_peak_follows_its_formula(many):
    noisy = PeakedSmearing(1e-3, threshold=200)(many, seed=2)
    np.testing.assert_allclose(noisy.noise / noisy.truth, 1e-3 * 200 / np.abs(many.final_state_mass - 200), rtol=1e-12)


def test_negative_amplitudes_are_drawn_again_or_kept_and_counted(many):
    strong = UniformSmearing(1.0)  # every sixth draw is negative
    redrawn, kept = strong(many, seed=3), strong(many, seed=3, negative="keep")
    n_negative = int((kept.amplitude <= 0).sum())
    expected = len(many) * stats.norm.cdf(-1)
    assert abs(n_negative - expected) < 4 * np.sqrt(expected)
    assert (redrawn.amplitude > 0).all()
    for disturbed in (redrawn, kept):
        assert disturbed.provenance["disturbances"][-1]["negative_events"] == n_negative
    same = kept.amplitude > 0
    np.testing.assert_array_equal(redrawn.amplitude[same], kept.amplitude[same])
    truncated = stats.truncnorm(-1, np.inf)
    assert stats.kstest(redrawn.amplitude / redrawn.truth - 1, truncated.cdf).pvalue > 1e-3


def test_seeds_decide(events):
    smearing = UniformSmearing(0.05)
    np.testing.assert_array_equal(smearing(events, seed=1).amplitude, smearing(events, seed=1).amplitude)
    assert not np.array_equal(smearing(events, seed=1).amplitude, smearing(events, seed=2).amplitude)
    assert events.provenance.get("disturbances") is None


def test_disturbances_combine(many):
    twice = disturb(many, [UniformSmearing(0.03), UniformSmearing(0.04), Gap(40)], seed=4)
    np.testing.assert_allclose(twice.noise / twice.truth, 0.05, rtol=1e-12)
    spread = np.std(twice.amplitude / twice.truth - 1)
    assert abs(spread - 0.05) < 4 * 0.05 / np.sqrt(2 * len(many))
    assert [d["kind"] for d in twice.provenance["disturbances"]] == ["UniformSmearing", "UniformSmearing", "Gap"]
    inside = np.abs(many.final_state_mass - 200) < 40
    np.testing.assert_array_equal(twice.trainable, ~inside)


@pytest.mark.parametrize(
    "make",
    [
        lambda: UniformSmearing(0),
        lambda: BoxSmearing(-1),
        lambda: BoxSmearing(0.1, width=-5),
        lambda: Gap(0),
        lambda: Gap(40, threshold=np.nan),
        lambda: PeakedSmearing(0.1, threshold=np.inf),
    ],
)
def test_senseless_strengths(make):
    with pytest.raises(AmpsureError, match="positive"):
        make()


def test_noise_added_twice_with_one_seed_is_independent(many):
    once = UniformSmearing(0.01)(many, seed=0)
    twice = UniformSmearing(0.01)(once, seed=0)
    pull = (twice.amplitude - twice.truth) / twice.noise
    assert abs(pull.std() - 1) < 4 / np.sqrt(2 * len(many))


def test_unknown_policy(events):
    with pytest.raises(AmpsureError, match="redraw"):
        UniformSmearing(0.1)(events, negative="ignore")
