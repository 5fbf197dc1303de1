"""Features and targets: precision, statistics, and errors propagated as Monte Carlo says."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampsure import AmpsureError, Process, get_process
from ampsure.preprocessing import (
    AsinhTarget,
    LogTarget,
    Standardization,
    _mean_and_scale,
    describe,
    folded_invariants,
    get_features,
    get_target,
    invariants,
    register_features,
)
from tests.test_events import two_to_two


def test_invariants_are_the_logarithms_of_products(flat_events):
    momenta = torch.from_numpy(flat_events.momenta[:200])
    found = invariants(momenta, flat_events.process)
    assert found.shape == (200, 10)
    metric = torch.tensor([1.0, -1, -1, -1], dtype=torch.float64)
    products = torch.einsum("nia,nja,a->nij", momenta, momenta, metric)
    i, j = np.triu_indices(5, 1)
    np.testing.assert_allclose(found, products[:, i, j].log(), rtol=1e-10)


def test_invariants_of_massive_legs():
    momenta = torch.from_numpy(two_to_two(50))
    process = Process("tt", (21, 21, 6, -6), (0, 0, 173.0, 173.0))
    found = invariants(momenta, process)
    s = (2 * momenta[:, 0, 0]) ** 2
    np.testing.assert_allclose(found[:, 0].exp(), s / 2, rtol=1e-12)
    np.testing.assert_allclose(found[:, 5].exp(), (s - 2 * 173.0**2) / 2, rtol=1e-12)


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(beams=st.booleans(), photons=st.booleans())
def test_folded_invariants_do_not_see_exchanges(flat_events, beams, photons):
    """The exact amplitude does not change either, which is why they may be folded."""
    momenta = torch.from_numpy(flat_events.momenta[:500])
    order = [*((1, 0) if beams else (0, 1)), *((3, 2) if photons else (2, 3)), 4]
    process = flat_events.process
    folded = folded_invariants(momenta, process)
    torch.testing.assert_close(folded_invariants(momenta[:, order], process), folded, rtol=0, atol=0)
    np.testing.assert_allclose(process.amplitude(momenta[:, order]), flat_events.truth[:500], rtol=1e-10)
    # nothing is lost: the same numbers, in another order
    torch.testing.assert_close(folded.sort(1).values, invariants(momenta, process).sort(1).values)


def test_folded_legs_have_the_order_of_their_definition(flat_events):
    """Photons by energy in the rest frame; the first one is nearer to the second gluon. No frame is special."""
    momenta, process = torch.from_numpy(flat_events.momenta[:500]), flat_events.process
    beams, outgoing = momenta[:, :2], momenta[:, 2:]
    total = beams.sum(1, keepdim=True)
    energy = _products(outgoing, total)
    photons = outgoing[:, :2].take_along_dim(energy[:, :2].argsort(descending=True)[..., None], dim=1)
    gluons = beams.take_along_dim(_products(beams, photons[:, :1]).argsort(descending=True)[..., None], dim=1)
    expected = invariants(torch.cat([gluons, photons, outgoing[:, 2:]], dim=1), process)
    torch.testing.assert_close(folded_invariants(momenta, process), expected, rtol=0, atol=0)
    velocity = torch.tensor([0.3, -0.5, 0.6], dtype=torch.float64)
    gamma = (1 - velocity.square().sum()).rsqrt()
    boost = torch.eye(4, dtype=torch.float64)
    boost[0, 0], boost[0, 1:], boost[1:, 0] = gamma, -gamma * velocity, -gamma * velocity
    boost[1:, 1:] += (gamma - 1) * torch.outer(velocity, velocity) / velocity.square().sum()
    torch.testing.assert_close(folded_invariants(momenta @ boost, process), expected, rtol=1e-9, atol=1e-9)


def _products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b * torch.tensor([1.0, -1.0, -1.0, -1.0])).sum(-1)


def test_nothing_is_folded_that_is_not_identical():
    momenta = torch.from_numpy(two_to_two(50))
    for ids, symmetric in (((21, -21, 6, -6), True), ((0, 0, 0, 0), True), ((21, 21, 6, 6), False)):
        process = Process("other", ids, (0, 0, 173.0, 173.0), symmetric=symmetric)
        torch.testing.assert_close(folded_invariants(momenta, process), invariants(momenta, process), rtol=0, atol=0)


@pytest.mark.parametrize("angle", [1e-3, 1e-6, 1e-9])
def test_invariants_do_not_cancel_for_nearly_collinear_legs(angle):
    """p.q = E E' (1 - cos), where E E' - p.p' has no correct digit left below an angle of 1e-8."""
    legs = np.zeros((1, 3, 4))
    legs[0, 0] = [200, 0, 0, 200]
    legs[0, 1] = [100, 0, 100 * np.sin(0.3), 100 * np.cos(0.3)]
    legs[0, 2] = [100, 0, 100 * np.sin(0.3 + angle), 100 * np.cos(0.3 + angle)]
    process = Process("x", (1, 2, 3), (0, 0, 0), n_incoming=1)
    with mpmath.workdps(50):
        p, q = ([mpmath.mpf(float(v)) for v in legs[0, k]] for k in (1, 2))
        norms = [mpmath.sqrt(sum(v**2 for v in k[1:])) for k in (p, q)]
        exact = float(mpmath.log(norms[0] * norms[1] - sum(a * b for a, b in zip(p[1:], q[1:], strict=True))))
    found = float(invariants(torch.from_numpy(legs), process)[0, 2])
    assert found == pytest.approx(exact, rel=1e-6 if angle < 1e-8 else 1e-9)


def test_own_features_are_found_by_name(flat_events):
    register_features("log_energies", lambda momenta, process: momenta[..., 0].log())
    momenta = torch.from_numpy(flat_events.momenta[:5])
    np.testing.assert_allclose(get_features("log_energies")(momenta, flat_events.process), momenta[..., 0].log())
    with pytest.raises(AmpsureError, match="built in"):
        register_features("invariants", invariants)
    with pytest.raises(AmpsureError, match="did you mean 'invariants'"):
        get_features("invariant")
    with pytest.raises(AmpsureError, match=r"known are invariants, folded, .*energies$"):
        get_features("xyz")


def test_inputs_of_the_paper(flat_events):
    momenta, process = torch.from_numpy(flat_events.momenta[:5]), flat_events.process
    found = get_features("momenta+invariants")(momenta, process)
    np.testing.assert_array_equal(found[:, :20].reshape(5, 5, 4), momenta)
    np.testing.assert_array_equal(found[:, 20:], invariants(momenta, process))


def test_constant_columns_are_left_out(flat_events):
    raw = get_features("momenta")(torch.from_numpy(flat_events.momenta), flat_events.process)
    standardization = Standardization.fit(raw)
    assert not {1, 2, 5, 6} & set(standardization.columns.tolist())  # the beams have no transverse momentum
    x = standardization(raw)
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(x.std(0, correction=0), 1, rtol=1e-9)
    assert standardization.inside(raw).all()
    assert not standardization.inside(2 * raw).all()
    moved = raw.clone()
    moved[:, 1] += 1.0  # a column that was constant in training
    assert not standardization.inside(moved).any()


def test_inside_but_for_rounding():
    """Edges of the range and of a hole belong to the domain, also if the last digits differ."""
    x = torch.cat(
        [torch.linspace(-20, -10, 300, dtype=torch.float64), torch.linspace(10, 30, 300, dtype=torch.float64)]
    )
    standardization = Standardization.fit(torch.stack([x, x.sin()], dim=1))
    np.testing.assert_allclose(standardization.holes, [[0, -10, 10]])
    np.testing.assert_array_equal(
        [standardization.low, standardization.high], [[-20, x.sin().min()], [30, x.sin().max()]]
    )
    edges = torch.tensor([[-20.0], [-10.0], [10.0], [30.0]], dtype=torch.float64)
    outwards = torch.tensor([[-1.0], [1.0], [-1.0], [1.0]], dtype=torch.float64)
    points = edges + outwards * torch.cat([edges.abs() * torch.tensor([0.0, 0.5e-9, 1e-8]), torch.ones(4, 1)], dim=1)
    inside = standardization.inside(torch.stack([points, 0 * points], dim=-1).flatten(0, 1)).reshape(4, 4)
    assert inside.tolist() == [[True, True, False, False]] * 4
    moved = standardization.to(torch.device("cpu"))
    for name, values in standardization.tensors().items():
        assert torch.equal(getattr(moved, name), values)


@pytest.mark.parametrize(("gap", "holes"), [(39.9, 0), (40.1, 1), (119.0, 1), (121.0, 2)])
def test_holes_are_forty_times_as_wide_as_distances_around_them(gap, holes):
    """On both sides of it: events at distances of 1, of 1 and of 3, with a gap between each."""
    steps = torch.ones(600, dtype=torch.float64)
    steps[400:] = 3.0
    steps[[200, 400]] = gap
    x = steps.cumsum(0)
    found = Standardization.fit(torch.stack([x.sin(), x], dim=1)).holes
    expected = [[1, x[k - 1], x[k]] for k in (200, 400)][:holes]
    np.testing.assert_array_equal(found, np.reshape(expected, (-1, 3)))


def test_sparse_ends_have_no_holes():
    """A hole has 64 distances on either side that it can be compared with."""
    for n, holes in ((64, 0), (65, 1)):
        for order in (1, -1):
            steps = torch.ones(400, dtype=torch.float64)
            steps[n] = 100.0
            x = order * steps.cumsum(0)
            assert len(Standardization.fit(x[:, None]).holes) == holes
    for n, holes in ((256, 0), (257, 1)):  # too few values altogether, or just enough
        steps = torch.ones(n, dtype=torch.float64)
        steps[n // 2] = 100.0
        assert len(Standardization.fit(steps.cumsum(0)[:, None]).holes) == holes


def test_statistics_of_parts_are_those_of_the_whole():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, scale = _mean_and_scale([x[:7], x[7:30], x[30:]], 50)
    torch.testing.assert_close(mean, x.mean(0))
    torch.testing.assert_close(scale, x.std(0, correction=0))


def test_constant_is_what_does_not_change_by_a_billionth():
    """Of its size, whatever the unit."""
    x = torch.randn(100, generator=torch.Generator().manual_seed(1), dtype=torch.float64).clamp(-3, 3)
    raw = torch.stack([unit * (1 + change * x) for unit in (1e6, 1e-6) for change in (1e-10, 1e-7)], dim=1)
    assert Standardization.fit(raw).columns.tolist() == [1, 3]


def test_senseless_data_are_refused():
    with pytest.raises(AmpsureError, match="constant"):
        Standardization.fit(torch.ones(10, 3, dtype=torch.float64))
    with pytest.raises(AmpsureError, match="not finite"):
        Standardization.fit(torch.tensor([[1.0, float("inf")], [2.0, 3.0]]))
    with pytest.raises(AmpsureError, match="asinh"):
        LogTarget.fit(torch.tensor([1.0, -1.0]))
    with pytest.raises(AmpsureError, match="asinh"):
        LogTarget.fit(torch.tensor([1.0, 0.0]))
    with pytest.raises(AmpsureError, match="equal"):
        LogTarget.fit(torch.ones(5))
    with pytest.raises(AmpsureError, match="equal"):
        LogTarget.fit(torch.full((7,), 1e-300, dtype=torch.float64))  # the mean of equal logarithms is off by rounding
    with pytest.raises(AmpsureError, match="zero"):
        AsinhTarget.fit(torch.tensor([0.0, 0.0, 0.0, 1.0]))


TARGETS = [LogTarget(mean=-13.5, scale=1.3), AsinhTarget(mean=0.2, scale=1.1, unit=2.5)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@settings(max_examples=25, deadline=None)
@given(y=st.floats(-2, 2), syst=st.floats(0.01, 0.3), stat=st.floats(0.01, 0.3), seed=st.integers(0, 1000))
def test_exact_moments_agree_with_monte_carlo(target, y, syst, stat, seed):
    """A member's mean is drawn with sigma_stat, an amplitude around it with sigma_syst."""
    rng = np.random.default_rng(seed)
    n = 100_000
    members = y + stat * rng.standard_normal(n)
    z = target.mean + target.scale * (members + syst * rng.standard_normal(n))
    sample = np.exp(z) if target.name == "log" else target.unit * np.sinh(z)
    t = [torch.tensor([v], dtype=torch.float64) for v in (y, syst**2, stat**2)]
    found = target.moments(*t)
    spread = sample.std() / np.sqrt(n)
    assert abs(found.amplitude.item() - sample.mean()) < 5 * spread
    kurtosis = np.mean((sample - sample.mean()) ** 4) / sample.var() ** 2
    assert abs(found.sigma_tot.item() ** 2 / sample.var() - 1) < 6 * np.sqrt((kurtosis - 1) / n)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("variances", [(0.04, 0.09), (0.2, 0.0), (0.0, 0.3)])
@pytest.mark.parametrize("y", [-1.3, 0.0, 0.8])
def test_exact_moments_are_integrals(target, variances, y):
    """Gauss-Hermite quadrature over y; a part of a log-normal uncertainty is relative to the amplitude of the whole."""
    x, weights = np.polynomial.hermite_e.hermegauss(60)
    weights /= weights.sum()

    def mean_and_width(variance):
        amplitude = target.inverse(torch.from_numpy(y + np.sqrt(variance) * x)).numpy()
        mean = weights @ amplitude
        return mean, np.sqrt(weights @ (amplitude - mean) ** 2)

    found = target.moments(*(torch.tensor([v], dtype=torch.float64) for v in (y, *variances)))
    mean, total = mean_and_width(sum(variances))
    parts = [mean_and_width(v) for v in variances]
    widths = [mean / m * width if target.name == "log" else width for m, width in parts]
    assert [m.item() for m in found] == pytest.approx([mean, *widths, total], rel=1e-10, abs=1e-12 * total)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_linear_moments_follow_the_slope(target):
    y = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    amplitude = target.inverse(y)
    (slope,) = torch.autograd.grad(amplitude.sum(), y)
    torch.testing.assert_close(target.transform(amplitude), y)
    torch.testing.assert_close(target.slope(amplitude), slope)
    syst, stat = torch.full_like(y, 0.3), torch.full_like(y, 0.5)
    found = target.moments(y, syst, stat, linear=True)
    torch.testing.assert_close(found.amplitude, amplitude)
    for sigma, variance in zip(found[1:], (0.3, 0.5, 0.8), strict=True):
        torch.testing.assert_close(sigma, slope.abs() * np.sqrt(variance))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_targets_are_found_by_what_is_saved(target):
    saved = describe(target)
    assert get_target(saved.pop("name"))(**saved) == target
    with pytest.raises(AmpsureError, match="'lgo'; known are log, asinh"):
        get_target("lgo")


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_exact_and_linear_propagation_agree_at_the_papers_precision(target):
    """Claim A1: at relative variances of 1e-10 the exact formulas change nothing that matters."""
    y = torch.linspace(-2, 2, 101, dtype=torch.float64)
    v = torch.full_like(y, 1e-10)
    exact, linear = target.moments(y, v, v / 2), target.moments(y, v, v / 2, linear=True)
    for a, b in zip(exact, linear, strict=True):
        size = b.abs() + target.scale * 1e-3 * b.abs().max()
        assert ((a - b).abs() / size).max() < 1e-8


def test_log_normal_split_has_the_interaction_term():
    target = TARGETS[0]
    y, a, b = (torch.tensor([v], dtype=torch.float64) for v in (0.3, 0.04, 0.09))
    m = target.moments(y, a, b)
    interaction = m.sigma_syst**2 * m.sigma_stat**2 / m.amplitude**2
    np.testing.assert_allclose(m.sigma_tot**2, m.sigma_syst**2 + m.sigma_stat**2 + interaction, rtol=1e-12)
    v = target.scale**2 * (a + b)
    np.testing.assert_allclose(m.sigma_tot**2, m.amplitude**2 * torch.expm1(v), rtol=1e-12)


@pytest.mark.parametrize("kind", [LogTarget, AsinhTarget])
def test_targets_are_standardised_and_invertible(kind, flat_events):
    amplitude = torch.from_numpy(flat_events.amplitude)
    target = kind.fit(amplitude)
    y = target.transform(amplitude)
    assert y.mean().item() == pytest.approx(0, abs=1e-9)
    assert y.std(correction=0).item() == pytest.approx(1, rel=1e-9)
    zero = torch.zeros_like(y)
    np.testing.assert_allclose(target.moments(y, zero, zero).amplitude, amplitude, rtol=1e-12)
    assert get_process("gg_yyg") is flat_events.process
