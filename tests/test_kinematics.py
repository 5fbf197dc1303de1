"""Observables and checks, alike for numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampsure import kinematics

numbers = st.floats(-500, 500).filter(lambda x: abs(x) > 1e-3)


def _massless(x, y, z):
    return np.array([np.sqrt(x * x + y * y + z * z), x, y, z])


@given(numbers, numbers, numbers)
def test_observables_of_a_direction(x, y, z):
    p = _massless(x, y, z)
    pt, eta, phi = kinematics.transverse_momentum(p), kinematics.pseudorapidity(p), kinematics.azimuth(p)
    np.testing.assert_allclose([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], [x, y, z], rtol=1e-9, atol=1e-9)
    theta = np.arccos(z / p[0])
    assert eta == pytest.approx(-np.log(np.tan(theta / 2)), rel=1e-5, abs=1e-5)


@given(st.lists(numbers, min_size=6, max_size=6), st.floats(-np.pi, np.pi), st.floats(-2, 2))
def test_delta_r_ignores_rotations_about_and_boosts_along_the_beam(values, angle, rapidity):
    p, q = _massless(*values[:3]), _massless(*values[3:])
    c, s, ch, sh = np.cos(angle), np.sin(angle), np.cosh(rapidity), np.sinh(rapidity)
    turn = np.array([[ch, 0, 0, sh], [0, c, -s, 0], [0, s, c, 0], [sh, 0, 0, ch]])
    assert kinematics.delta_r(turn @ p, turn @ q) == pytest.approx(kinematics.delta_r(p, q), rel=1e-6, abs=1e-6)


def test_delta_r_wraps_around():
    p, q = _massless(-1, 0.01, 0.5), _massless(-1, -0.01, 0.5)
    assert kinematics.delta_r(p, q) < 0.03


@pytest.mark.parametrize("radius", [0.0, 0.4, 1.5, 3.5])
def test_separated_says_what_delta_r_says(flat_events, radius):
    p = flat_events.momenta[:, 2:]
    apart = [kinematics.delta_r(p[:, i], p[:, j]) > radius for i, j in ((0, 1), (0, 2), (1, 2))]
    np.testing.assert_array_equal(kinematics.separated(p, radius), np.all(apart, axis=0))


def test_pseudorapidity_is_infinite_along_the_beam():
    assert kinematics.pseudorapidity(np.array([5.0, 0, 0, -5])) == -np.inf


def test_invariant_mass_of_rounded_massless_momenta_is_not_nan():
    p = np.array([[[1 / 3, 0, 0, 1 / 3], [2 / 3 * (1 - 1e-16), 0, 0, 2 / 3]]])
    assert kinematics.invariant_mass(p) >= 0


def test_torch_and_numpy_agree(flat_events):
    p = flat_events.momenta
    t = torch.from_numpy(p)
    for name in ("transverse_momentum", "azimuth", "invariant_mass"):
        function = getattr(kinematics, name)
        np.testing.assert_allclose(function(t).numpy(), function(p), rtol=1e-12)
    np.testing.assert_allclose(kinematics.delta_r(t[:, 2], t[:, 3]).numpy(), kinematics.delta_r(p[:, 2], p[:, 3]))
    bad, reasons = kinematics.find_invalid(t, [0.0] * 5, beams_along_z=True)
    assert not bad.any()
    assert len(reasons) == 5


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_reasons_name_what_is_wrong(flat_events, kind):
    p = flat_events.momenta[:6].copy()
    p[0, 3, 2] = np.inf
    p[1, 2, 0] *= -1
    p[2, 4, 0] *= 1.001
    p[3, 4, 1:] *= -1
    p[4] = p[4] @ _rotation_about_x(0.1)
    bad, reasons = kinematics.find_invalid(kind(p), [0.0] * 5, beams_along_z=True)
    assert [bool(b) for b in bad] == [True] * 5 + [False]
    assert [int(np.flatnonzero(np.asarray(mask))[0]) for mask, _ in reasons] == [0, 1, 1, 1, 4]
    assert bool(reasons[2][0][2])
    assert bool(reasons[3][0][3])


def _rotation_about_x(angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, c, s], [0, 0, -s, c]])


def test_tolerance_scales_with_energy(flat_events):
    p = flat_events.momenta[:10] * (1 + 1e-9 * np.random.default_rng(1).standard_normal((10, 5, 1)))
    for scale in (1e-6, 1.0, 1e6):
        assert not kinematics.find_invalid(scale * p, [0.0] * 5)[0].any()
        assert kinematics.find_invalid(scale * p, [0.0] * 5, tolerance=1e-12)[0].all()
