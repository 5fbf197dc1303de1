"""Likelihoods are the densities they claim to be, with gradients that survive float32."""

from __future__ import annotations

import math
from itertools import chain

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import logsumexp
from torch import Tensor

from ampsure import AmpsureError
from ampsure.likelihoods import (
    LIKELIHOODS,
    MSE,
    Distilled,
    Evidential,
    EvidentialMixture,
    Gaussian,
    Likelihood,
    Mixture,
    Natural,
    get_likelihood,
)
from ampsure.likelihoods.evidential import log_gamma_ratio
from ampsure.likelihoods.gaussian import AmplitudeMean
from ampsure.likelihoods.natural import natural_nll

EVERY = [
    MSE(variance=0.3),
    Gaussian(),
    Gaussian(beta=0.5),
    Gaussian(faithful=True),
    Natural(),
    Mixture(k=1),
    Mixture(k=3),
    Evidential(r=2.0),
    Evidential(variant="regularised"),
    EvidentialMixture(k=2, r=0.5),
]

few = settings(max_examples=40, deadline=None, derandomize=True)
location = st.floats(-3, 3)
log_variance = st.floats(-12, 3)
log_excess = st.floats(-4, 12)
ratio = st.sampled_from([0.1, 1.0, 7.0])


def tensor(*values: float) -> Tensor:
    """Outputs of one member at one point, (1, 1, n)."""
    return torch.tensor([[values]], dtype=torch.float64)


def random_outputs(likelihood: Likelihood, seed: int = 0, members: int = 3, points: int = 50) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(members, points, likelihood.n_outputs, generator=generator, dtype=torch.float64)
    return out, torch.randn(points, generator=generator, dtype=torch.float64)


@st.composite
def mixtures(draw, parameters: int) -> list[list[float]]:
    """Means, log variances and so on, logits: from needles to plateaus, apart or on top of each other."""
    k = draw(st.integers(1, 5))
    spread = draw(st.sampled_from([0.0, 1e-3, 0.3, 1.0, 3.0]))
    low, high = draw(st.sampled_from([(-20.0, 3.0), (-6.0, 1.0), (-1.0, 1.0), (-0.1, 0.1), (-20.0, -18.0)]))
    unit = st.lists(st.floats(-1, 1), min_size=k, max_size=k)
    means = [spread * u for u in draw(unit)]
    log_var = [low + (high - low) * (u + 1) / 2 for u in draw(unit)]
    logits = {
        "free": [3 * u for u in draw(unit)],
        "equal weights": [0.0] * k,
        "equal heights": [lv / 2 for lv in log_var],
    }[draw(st.sampled_from(["free", "equal weights", "equal heights"]))]
    excess = [[-4 + 6 * (u + 1) for u in draw(unit)] for _ in range(parameters - 3)]
    return [means, log_var, *excess, logits]


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", EVERY, ids=str)
def test_shapes_and_interface(likelihood):
    out, y = random_outputs(likelihood)
    assert len(likelihood.initial_bias()) == likelihood.n_outputs
    for result in (likelihood.nll(out, y), likelihood.loss(out, y), likelihood.nll(out, y.expand(3, -1))):
        assert result.shape == (3, 50)
    for name in ("mean", "variance_syst", "variance_stat", "prediction"):
        assert getattr(likelihood, name)(out).shape == (3, 50)
        assert getattr(likelihood, name)(out.float()).dtype == torch.float32
    assert (likelihood.variance_syst(out) > 0).all()
    evidential = isinstance(likelihood, Evidential | EvidentialMixture)
    assert ((likelihood.variance_stat(out) > 0) == evidential).all()
    again = get_likelihood(likelihood.name, **likelihood.options())
    assert again == likelihood
    assert (again.n_outputs, again.detached) == (likelihood.n_outputs, likelihood.detached)


@pytest.mark.parametrize("likelihood", EVERY, ids=str)
def test_density_integrates_to_one_and_has_the_stated_moments(likelihood):
    out, _ = random_outputs(likelihood, seed=5, members=1, points=10)
    mean, variance = likelihood.mean(out), likelihood.variance_syst(out) + likelihood.variance_stat(out)
    t = torch.linspace(
        -150, 150, 20_001, dtype=torch.float64
    )  # y = mean + sigma sinh(t): heavy tails become short ones
    pull = torch.sinh(t)
    density = torch.exp(-likelihood.nll(out[..., None, :], mean[..., None] + variance.sqrt()[..., None] * pull))
    measure = density * variance.sqrt()[..., None] * torch.cosh(t)
    zeroth, first, second = (torch.trapezoid(measure * pull**n, t) for n in range(3))
    torch.testing.assert_close(zeroth, torch.ones_like(zeroth), rtol=1e-8, atol=0)
    torch.testing.assert_close(first, torch.zeros_like(first), rtol=0, atol=1e-6)
    torch.testing.assert_close(second, torch.ones_like(second), rtol=1e-6, atol=0)


@pytest.mark.parametrize("likelihood", EVERY, ids=str)
def test_gradients_are_those_of_the_loss(likelihood):
    out, y = random_outputs(likelihood, points=5)
    if likelihood.loss(out, y).equal(likelihood.nll(out, y)):  # losses with parts cut off have tests of their own
        assert torch.autograd.gradcheck(lambda outputs: likelihood.loss(outputs, y), out.requires_grad_())


@pytest.mark.parametrize("likelihood", EVERY, ids=str)
@pytest.mark.parametrize("size", [30.0, 1e3, 1e6])
def test_outputs_that_run_away_keep_finite_gradients(likelihood, size):
    out, y = random_outputs(likelihood)
    out = (size * out).float()
    out[..., 0] = 2.0
    out.requires_grad_()
    loss = likelihood.loss(out, y.float())
    (gradient,) = torch.autograd.grad(loss.sum(), out)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


def test_a_log_variance_out_of_range_is_called_back():
    out = torch.tensor([[[0.0, -300.0], [0.0, 300.0]]], requires_grad=True)
    Gaussian().nll(out, torch.tensor([0.1, 0.1])).sum().backward()
    assert out.grad[0, 0, 1] < 0 < out.grad[0, 1, 1]


def test_logarithms_are_held_within_their_limits():
    """Variances within e^(+-50), alpha - 1 and a learned v within e^(+-25)."""
    for sign in (-1, 1):
        out = tensor(0.0, *(sign * 1e3,) * 3)
        big, half = math.exp(sign * 50), math.exp(sign * 25)
        assert Gaussian().variance_syst(out[..., :2]).item() == pytest.approx(big, rel=1e-12)
        assert Natural().variance_syst(out[..., :2]).item() == pytest.approx(1 / big, rel=1e-12)
        found = [p.item() for p in Evidential(variant="regularised").parameters(out)]
        assert found == pytest.approx([0, half, 1 + half, big * half], rel=1e-12)
        mixture = EvidentialMixture(k=1)
        for name in ("variance_syst", "variance_stat"):
            alone = getattr(Evidential(), name)(out[..., :3]).item()
            assert getattr(mixture, name)(out).item() == pytest.approx(alone, rel=1e-12)
        assert Distilled().variance_stat(out[..., :3]).item() == pytest.approx(big, rel=1e-12)
        assert Distilled().variance_syst(out[..., :3]).item() == pytest.approx(big, rel=1e-12)


@pytest.mark.parametrize("likelihood", EVERY, ids=str)
def test_epochs_are_ranked_by_what_does_not_change_between_them(likelihood):
    """The weights of beta-NLL do."""
    out, y = random_outputs(likelihood)
    expected = (likelihood.nll if getattr(likelihood, "beta", 0) else likelihood.loss)(out, y)
    torch.testing.assert_close(likelihood.validation_loss(out, y), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(), Gaussian(outliers=0.1), Natural(), Mixture(k=3), Evidential(weight=5.0), EvidentialMixture(k=2)],
    ids=str,
)
def test_training_minimises_the_likelihood(likelihood):
    """Without beta, a faithful mean or regularisation there is nothing besides it."""
    out, y = random_outputs(likelihood)
    torch.testing.assert_close(likelihood.loss(out, y), likelihood.nll(out, y), rtol=0, atol=0)


@pytest.mark.parametrize("likelihood", [MSE(), *EVERY[1:], Distilled()], ids=str)
def test_before_training_the_amplitude_is_a_standardised_one(likelihood):
    """Mean zero and variance one; that of a mixture is larger by the distance of its means."""
    start = tensor(*likelihood.initial_bias())
    assert likelihood.mean(start).item() == pytest.approx(0, abs=1e-15)
    means = likelihood.initial_bias()[: getattr(likelihood, "k", 1)]
    assert likelihood.variance_syst(start).item() == pytest.approx(1 + np.var(means))


@pytest.mark.parametrize("likelihood", EVERY, ids=str)
def test_without_outliers_no_amplitude_is_wrong(likelihood):
    assert likelihood.wrong(torch.tensor([0.0, 1e9]), torch.ones(2)).tolist() == [0, 0]


# --- one Gaussian -----------------------------------------------------------------------------------------------------


@few
@given(location, location, st.floats(1e-6, 1e3))
def test_mse_nll(y, mean, variance):
    expected = -stats.norm(mean, math.sqrt(variance)).logpdf(y)
    out, target = tensor(mean), tensor(y)[0]
    assert MSE(variance=variance).nll(out, target).item() == pytest.approx(expected, rel=1e-10, abs=1e-10)
    assert MSE(variance=variance).loss(out, target).item() == pytest.approx((y - mean) ** 2 / 2, abs=1e-15)
    assert MSE(variance=variance).variance_syst(out).item() == variance


@few
@given(location, location, log_variance)
def test_gaussian_and_natural_nll(y, mean, log_var):
    expected = -stats.norm(mean, math.exp(log_var / 2)).logpdf(y)
    for likelihood, out in [
        (Gaussian(), tensor(mean, log_var)),
        (Natural(), tensor(mean * math.exp(-log_var), -log_var)),
    ]:
        assert likelihood.nll(out, tensor(y)[0]).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert likelihood.mean(out).item() == pytest.approx(mean, rel=1e-12)
        assert likelihood.variance_syst(out).item() == pytest.approx(math.exp(log_var), rel=1e-12)


@few
@given(location, location, log_variance)
def test_gaussian_gradients_are_the_paper_s(y, mean, log_var):
    out = tensor(mean, log_var).requires_grad_()
    Gaussian().nll(out, tensor(y)[0]).backward()
    variance = math.exp(log_var)
    by_mean, by_log_var = out.grad[0, 0].tolist()
    assert by_mean == pytest.approx((mean - y) / variance, rel=1e-12)
    expected = (variance - (y - mean) ** 2) / (2 * variance**2) * variance  # by log variance instead of variance
    assert by_log_var == pytest.approx(expected, rel=1e-9, abs=1e-9)


@few
@given(location, st.floats(-20, 20), st.floats(-50, -1e-2))
def test_natural_gradients_are_the_paper_s(y, eta1, eta2):
    parameters = torch.tensor([eta1, eta2], dtype=torch.float64, requires_grad=True)
    natural_nll(parameters[0], parameters[1], torch.tensor(y, dtype=torch.float64)).backward()
    mean, variance = -eta1 / (2 * eta2), -1 / (2 * eta2)
    by_eta1, by_eta2 = parameters.grad.tolist()
    scale = variance + y**2 + mean**2
    assert by_eta1 == pytest.approx(mean - y, abs=1e-12 * (1 + abs(mean)))
    assert by_eta2 == pytest.approx(variance - (y**2 - mean**2), abs=1e-12 * scale)


def test_beta_nll_goes_from_likelihood_to_squared_error():
    out, y = random_outputs(Gaussian())
    out.requires_grad_()
    torch.testing.assert_close(Gaussian(beta=0.0).loss(out, y), Gaussian().nll(out, y), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(Gaussian(beta=1.0).loss(out, y).sum(), out)
    torch.testing.assert_close(gradient[..., 0], out[..., 0] - y)
    variance = out[..., 1].exp()
    torch.testing.assert_close(gradient[..., 1], (variance - (y - out[..., 0]).square()) / 2)
    (gradient,) = torch.autograd.grad(Gaussian(beta=0.5).loss(out, y).sum(), out)
    torch.testing.assert_close(gradient[..., 0], (out[..., 0] - y) / variance.sqrt())


def test_faithful_trains_the_mean_by_squared_error_and_the_variance_by_likelihood():
    out, y = random_outputs(Gaussian())
    out.requires_grad_()
    faithful, plain, squared = (
        torch.autograd.grad(loss.sum(), out)[0]
        for loss in (Gaussian(faithful=True).loss(out, y), Gaussian().loss(out, y), MSE().loss(out[..., :1], y))
    )
    torch.testing.assert_close(faithful[..., 0], squared[..., 0], rtol=0, atol=0)
    torch.testing.assert_close(faithful[..., 1], plain[..., 1], rtol=0, atol=0)
    assert Gaussian(faithful=True).detached == slice(1, 2)
    assert Gaussian().detached is None


@few
@given(location, location, log_variance, st.floats(1e-4, 0.4))
def test_outliers_are_a_wider_cauchy_density(y, mean, log_var, share):
    """And the probability to be one of them is Bayes' theorem."""
    sigma = math.exp(log_var / 2)
    right = (1 - share) * stats.norm(mean, sigma).pdf(y)
    wrong = share * stats.cauchy(mean, 10 * sigma).pdf(y)
    likelihood, out = Gaussian(outliers=share), tensor(mean, log_var)
    assert likelihood.nll(out, tensor(y)[0]).item() == pytest.approx(-math.log(right + wrong), rel=1e-9, abs=1e-9)
    residual, variance = (torch.tensor([v], dtype=torch.float64) for v in (y - mean, sigma**2))
    assert likelihood.wrong(residual, variance).item() == pytest.approx(wrong / (right + wrong), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pull", [30.0, 300.0, 1e6])
def test_outliers_pull_the_less_the_further_off_they_are(pull, dtype):
    """Only the Cauchy density is left of the gradient: (x^2 - 1)/(x^2 + 1)/2 votes for a larger sigma, x = pull/10."""
    out = torch.tensor([[[0.0, -4.0]]], dtype=dtype, requires_grad=True)
    d, sigma = pull * math.exp(-2), math.exp(-2)
    Gaussian(outliers=1e-3).nll(out, torch.tensor([d], dtype=dtype)).backward()
    by_mean, by_log_var = out.grad[0, 0].tolist()
    assert by_mean == pytest.approx(-2 * d / (100 * sigma**2 + d**2), rel=1e-5)
    x2 = (pull / 10) ** 2
    assert by_log_var == pytest.approx(0.5 - x2 / (1 + x2), rel=1e-5)


# --- mixtures ---------------------------------------------------------------------------------------------------------


@few
@given(mixtures(3), location)
def test_mixture_nll_and_moments(parameters, y):
    means, log_var, logits = (np.array(values) for values in parameters)
    likelihood, out = Mixture(k=len(means)), tensor(*means, *log_var, *logits)
    log_weights = logits - logsumexp(logits)
    expected = -logsumexp(log_weights + stats.norm(means, np.exp(log_var / 2)).logpdf(y))
    assert likelihood.nll(out, tensor(y)[0]).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    weights = np.exp(log_weights)
    mean = (weights * means).sum()
    assert likelihood.mean(out).item() == pytest.approx(mean, rel=1e-12, abs=1e-14)
    variance = (weights * (np.exp(log_var) + means**2)).sum() - mean**2  # eq. gmm_mean_and_variance
    assert likelihood.variance_syst(out).item() == pytest.approx(variance, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("mixture", "single"), [(Mixture(k=1), Gaussian()), (EvidentialMixture(k=1), Evidential())])
def test_one_component_is_no_mixture(mixture, single, dtype):
    out, y = random_outputs(mixture)
    out, y = (3 * out).to(dtype), y.to(dtype)
    alone = out[..., : single.n_outputs]
    for name in ("mean", "variance_syst", "variance_stat", "prediction"):
        torch.testing.assert_close(getattr(mixture, name)(out), getattr(single, name)(alone), rtol=0, atol=0)
    torch.testing.assert_close(mixture.nll(out, y), single.nll(alone, y), rtol=0, atol=0)
    torch.testing.assert_close(mixture.map(out), single.mean(alone), rtol=0, atol=0)


def assert_no_grid_point_is_higher(likelihood: Mixture, out: Tensor, means: list[float], widths: Tensor) -> None:
    position = likelihood.map(out)
    reach = max(max(means) - min(means), widths.max().item())
    grids = [np.linspace(min(means) - 0.1 * reach, max(means) + 0.1 * reach, 20_001)]
    grids += [np.linspace(m - 4 * w, m + 4 * w, 401) for m, w in zip(means, widths.tolist(), strict=True)]
    grid = torch.tensor(np.concatenate(grids))
    on_grid = -likelihood.nll(out, grid).min()
    assert -likelihood.nll(out, position).item() >= on_grid.item() - 1e-12 * (1 + abs(on_grid.item()))


many = settings(max_examples=120, deadline=None, derandomize=True)


@many
@given(mixtures(3))
def test_no_grid_finds_a_higher_mode_of_a_gaussian_mixture(parameters):
    likelihood, out = Mixture(k=len(parameters[0])), tensor(*chain(*parameters))
    assert_no_grid_point_is_higher(likelihood, out, parameters[0], likelihood.component_scale(out)[0, 0])


@many
@given(mixtures(4), ratio)
def test_no_grid_finds_a_higher_mode_of_a_student_mixture(parameters, r):
    likelihood, out = EvidentialMixture(k=len(parameters[0]), r=r), tensor(*chain(*parameters))
    assert_no_grid_point_is_higher(likelihood, out, parameters[0], likelihood.component_scale(out)[0, 0])


@pytest.mark.parametrize("likelihood", [Mixture(k=3), EvidentialMixture(k=3, r=0.5)], ids=str)
def test_slopes_of_components_are_derivatives(likelihood):
    out, y = random_outputs(likelihood)
    y = y.expand(3, -1).clone().requires_grad_()
    slope = likelihood.component_slope(out, y)
    for k in range(3):
        (expected,) = torch.autograd.grad(-likelihood.component_nll(out, y)[..., k].sum(), y)
        torch.testing.assert_close(slope[..., k], expected)


@pytest.mark.parametrize("likelihood", [Mixture(k=1), EvidentialMixture(k=1, r=0.5)], ids=str)
def test_no_component_is_concave_beyond_its_scale(likelihood):
    """Which the search for modes relies on."""
    out, _ = random_outputs(likelihood)
    for distance, concave in ((0.5, True), (-0.5, True), (1.01, False), (-1.01, False)):
        y = (out[..., 0] + distance * likelihood.component_scale(out)[..., 0]).requires_grad_()
        slope = likelihood.component_slope(out, y)[..., 0]
        (change,) = torch.autograd.grad(slope.sum(), y)
        assert ((slope.square() + change < 0) == concave).all()  # the second derivative over the density


def test_map_is_batched_and_stationary():
    likelihood = Mixture(k=3)
    out, _ = random_outputs(likelihood, members=4, points=500)
    x = likelihood.map(out).requires_grad_()
    likelihood.nll(out, x).sum().backward()
    assert x.grad.abs().max() < 1e-7
    torch.testing.assert_close(likelihood.map(out[2:3, 7:8]), x.detach()[2:3, 7:8], rtol=0, atol=0)


def test_map_leaves_the_mean_between_two_peaks():
    out = tensor(-1.0, 1.0, -6.0, -6.0, 0.0, 0.1)
    assert Mixture(k=2).mean(out).item() == pytest.approx(0.05, abs=1e-3)
    assert Mixture(k=2).prediction(out).item() == pytest.approx(1, abs=1e-9)


def test_components_start_apart():
    assert Mixture(k=2).initial_bias() == (-0.25, 0.25, 0.0, 0.0, 0.0, 0.0)
    assert EvidentialMixture(k=1).initial_bias() == (0.0, 0.0, 0.0, 0.0)


# --- evidential -------------------------------------------------------------------------------------------------------


@few
@given(location, location, log_variance, log_excess, ratio)
def test_constrained_nll(y, gamma, log_var, excess, r):
    alpha = 1 + math.exp(excess)
    v, beta = 2 * alpha / r, math.exp(log_var + excess)
    scale = math.sqrt(beta * (1 + v) / (v * alpha))
    out = tensor(gamma, log_var, excess)
    likelihood = Evidential(r=r)
    nll = likelihood.nll(out, tensor(y)[0]).item()
    assert nll == pytest.approx(-stats.t(2 * alpha, gamma, scale).logpdf(y), rel=1e-8, abs=1e-8)
    assert [p.item() for p in likelihood.parameters(out)] == pytest.approx([gamma, v, alpha, beta], rel=1e-12)
    assert likelihood.variance_syst(out).item() == pytest.approx(beta / (alpha - 1), rel=1e-12)
    assert likelihood.variance_stat(out).item() == pytest.approx(beta / (v * (alpha - 1)), rel=1e-12)


@few
@given(location, location, log_variance, log_excess, st.floats(-8, 8))
def test_regularised_nll_and_loss_are_the_paper_s(y, gamma, log_var, excess, log_v):
    out, target = tensor(gamma, log_var, excess, log_v), tensor(y)[0]
    with mpmath.workdps(30):
        alpha, v, beta = 1 + mpmath.exp(excess), mpmath.exp(log_v), mpmath.exp(mpmath.mpf(log_var) + excess)
        omega = 2 * beta * (1 + v)
        loss = (alpha + 0.5) * mpmath.log(v * (mpmath.mpf(y) - gamma) ** 2 + omega)
        loss += mpmath.loggamma(alpha) - mpmath.loggamma(alpha + 0.5) + mpmath.log(mpmath.pi / v) / 2
        loss -= alpha * mpmath.log(omega)  # eq. loss_evi_nll
        penalty = float(abs(mpmath.mpf(y) - gamma) * (2 * v + alpha))
    likelihood = Evidential(variant="regularised", weight=0.03)
    assert likelihood.nll(out, target).item() == pytest.approx(float(loss), rel=1e-10, abs=1e-10)
    assert likelihood.loss(out, target).item() == pytest.approx(float(loss) + 0.03 * penalty, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("out", [(0.3, 0.0, 0.0, 0.0), (-1.0, -1.0, 2.0, 1.5), (0.5, 0.7, -0.5, -1.0)])
@pytest.mark.parametrize("y", [0.4, -2.0])
def test_predictive_density_is_the_integral_over_the_prior(out, y):
    likelihood = Evidential(variant="regularised")
    gamma, v, alpha, beta = (p.item() for p in likelihood.parameters(tensor(*out)))

    # mean = gamma + sigma z/sqrt(v) and sigma^2 = exp(s): trapezoids converge exponentially
    z, s = np.linspace(-9, 9, 241), np.linspace(-14, 30, 1501)
    sigma = np.exp(s / 2)
    inner = stats.norm.pdf(y, gamma + sigma[:, None] * z / math.sqrt(v), sigma[:, None]) * stats.norm.pdf(z)
    prior = stats.invgamma.pdf(sigma**2, alpha, scale=beta) * sigma**2
    expected = integrate.trapezoid(integrate.trapezoid(inner, z, axis=1) * prior, s)
    density = math.exp(-likelihood.nll(tensor(*out), tensor(y)[0]).item())
    assert density == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("out", [(0.3, 0.0, 0.5, 0.0), (-1.0, -1.0, 2.0, 1.5)])
def test_variances_are_those_of_the_prior(out):
    likelihood = Evidential(variant="regularised")
    _, v, alpha, beta = (p.item() for p in likelihood.parameters(tensor(*out)))
    mean_variance = stats.invgamma(alpha, scale=beta).expect(lambda x: x)
    assert likelihood.variance_syst(tensor(*out)).item() == pytest.approx(mean_variance, rel=1e-6)
    assert likelihood.variance_stat(tensor(*out)).item() == pytest.approx(mean_variance / v, rel=1e-6)


@few
@given(mixtures(4), location, ratio)
def test_evidential_mixture_nll_and_moments(parameters, y, r):
    gamma, log_var, excess, logits = (np.array(values) for values in parameters)
    likelihood, out = EvidentialMixture(k=len(gamma), r=r), tensor(*chain(*parameters))
    alpha = 1 + np.exp(excess)
    v, beta = 2 * alpha / r, np.exp(log_var + excess)
    log_weights = logits - logsumexp(logits)
    parts = stats.t(2 * alpha, gamma, np.sqrt(beta * (1 + v) / (v * alpha))).logpdf(y)
    assert likelihood.nll(out, tensor(y)[0]).item() == pytest.approx(-logsumexp(log_weights + parts), rel=1e-7)
    weights = np.exp(log_weights)
    mean = (weights * gamma).sum()
    syst, stat = (weights * (np.exp(log_var) + (gamma - mean) ** 2)).sum(), (weights * np.exp(log_var) / v).sum()
    assert likelihood.mean(out).item() == pytest.approx(mean, rel=1e-12, abs=1e-14)
    assert likelihood.variance_syst(out).item() == pytest.approx(syst, rel=1e-10)
    assert likelihood.variance_stat(out).item() == pytest.approx(stat, rel=1e-10)


def exact_student(y: float, gamma: float, log_var: float, excess: float) -> tuple[float, list[float], list[float]]:
    """Value, gradient and size of the gradient's parts for Evidential(r=1), with 60 digits."""
    with mpmath.workdps(60):
        d, s, a = mpmath.mpf(y) - mpmath.mpf(gamma), mpmath.mpf(log_var), mpmath.mpf(excess)
        alpha = 1 + mpmath.exp(a)
        scale2 = mpmath.exp(s + a) * (1 + 2 * alpha) / (2 * alpha**2)
        u = d**2 / (2 * alpha * scale2)
        gammas = mpmath.loggamma(alpha) - mpmath.loggamma(alpha + 0.5)
        value = gammas + mpmath.log(2 * mpmath.pi * alpha * scale2) / 2 + (alpha + 0.5) * mpmath.log1p(u)
        pull = (2 * alpha + 1) * u / (1 + u) / 2  # minus the derivative of the last term by log scale2
        by_alpha = [
            mpmath.psi(0, alpha) - mpmath.psi(0, alpha + 0.5) + 1 / (2 * alpha),
            mpmath.log1p(u) - (alpha + 0.5) * u / (1 + u) / alpha,
            (0.5 - pull) * (1 / (alpha - 1) + 2 / (1 + 2 * alpha) - 2 / alpha),
        ]
        by_gamma = -(2 * alpha + 1) * u / (1 + u) / d if d else mpmath.mpf(0)
        gradient = [by_gamma, 0.5 - pull, sum(by_alpha) * (alpha - 1)]
        sizes = [abs(by_gamma), 0.5 + pull, max(abs(part) for part in by_alpha) * (alpha - 1)]
        return float(value), [float(g) for g in gradient], [float(size) for size in sizes]


@pytest.mark.parametrize("alpha", [1.001, 1.5, 3.0, 29.0, 31.0, 1e3, 3e4, 1e6, 1e8])
@pytest.mark.parametrize("pull", [0.0, 1e-6, 1e-2, 0.7, 3.0, 30.0])
@pytest.mark.parametrize("log_var", [-25.0, 0.0])
def test_float32_values_and_gradients(alpha, pull, log_var):
    gamma, y, log_var, excess = (
        np.float32(x) for x in (0.8, 0.8 + pull * math.exp(log_var / 2), log_var, math.log(alpha - 1))
    )
    out = torch.tensor([[[gamma, log_var, excess]]], requires_grad=True)
    nll = Evidential().nll(out, torch.tensor([y]))
    nll.backward()
    value, gradient, sizes = exact_student(float(y), float(gamma), float(log_var), float(excess))
    assert nll.item() == pytest.approx(value, rel=2e-6, abs=5e-6)
    np.testing.assert_array_less(np.abs(out.grad[0, 0].numpy() - gradient), 1e-5 * np.array(sizes) + 1e-30)


def test_log_gamma_ratio():
    alpha = torch.logspace(0, 10, 201, dtype=torch.float64)
    with mpmath.workdps(40):
        exact = [
            mpmath.loggamma(a + 0.5) - mpmath.loggamma(a) - mpmath.log(a) / 2 for a in map(mpmath.mpf, alpha.tolist())
        ]
        slopes = [mpmath.psi(0, a + 0.5) - mpmath.psi(0, a) - 1 / (2 * a) for a in map(mpmath.mpf, alpha.tolist())]
    expected = torch.tensor([[float(x) for x in exact], [float(x) for x in slopes]], dtype=torch.float64)
    for dtype, tolerance in [(torch.float64, 3e-12), (torch.float32, 2e-6)]:
        argument = alpha.to(dtype).requires_grad_()
        value = log_gamma_ratio(argument)
        (slope,) = torch.autograd.grad(value.sum(), argument)
        torch.testing.assert_close(torch.stack([value, slope]).detach().double(), expected, rtol=tolerance, atol=0)


def test_evidential_becomes_gaussian():
    out, y = random_outputs(Gaussian())
    sure = torch.cat([out, torch.full_like(out[..., :1], 20.0)], dim=-1)
    torch.testing.assert_close(Evidential().nll(sure, y), Gaussian().nll(out, y), rtol=1e-6, atol=1e-6)


# --- registry ---------------------------------------------------------------------------------------------------------


def test_the_loss_of_a_student_is_a_cross_entropy():
    """Of the teacher's Gaussians relative to its own, by Gauss-Hermite quadrature, exact for polynomials."""
    rng = np.random.default_rng(1)
    out, y = rng.normal(size=(2, 5, 3)), rng.normal(size=(5, 3))
    y[:, 1:] = np.exp(y[:, 1:])
    x, weights = np.polynomial.hermite_e.hermegauss(5)
    weights /= weights.sum()
    mean, syst, stat = out[..., 0], *np.exp(out[..., 1:] / 2).transpose(2, 0, 1)
    t, s = y[:, :1] + np.sqrt(y[:, 1:2]) * x, np.sqrt(y[:, 2:]) * x
    expected = -stats.norm.logpdf(t, mean[..., None], syst[..., None]) - stats.norm.logpdf(s, 0, stat[..., None])
    found = Distilled().nll(torch.from_numpy(out), torch.from_numpy(y))
    np.testing.assert_allclose(found, expected @ weights, rtol=1e-12)
    np.testing.assert_array_equal(Distilled().mean(torch.from_numpy(out)), mean)
    for wrong in (torch.zeros(5), torch.zeros(5, 2), torch.zeros(3)):
        with pytest.raises(AmpsureError, match="learns from a surrogate"):
            Distilled().nll(torch.from_numpy(out), wrong)


def test_names():
    names = ["mse", "gaussian", "natural", "mixture", "evidential", "evidential_mixture", "distilled"]
    assert list(LIKELIHOODS) == names
    assert get_likelihood("mixture", k=4).n_outputs == 12
    assert get_likelihood("evidential", weight=0.0).options()["weight"] == 0
    assert get_likelihood("gaussian", beta=1) == Gaussian(beta=1.0)
    assert get_likelihood("evidential", variant="regularised").options() == {
        "variant": "regularised",
        "r": 1.0,
        "weight": 0.01,
    }


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gauss", {}, "did you mean 'gaussian'"),
        ("evidental", {}, "did you mean 'evidential'"),
        ("gaussian", {"betta": 1}, "no option 'betta'; did you mean 'beta'"),
        ("natural", {"beta": 1}, "it has none"),
        ("mixture", {"k": 0}, "1 or more"),
        ("mixture", {"k": 2.5}, "type int"),
        ("mixture", {"n_outputs": 3}, "no option"),
        ("mse", {"variance": 0.0}, "positive"),
        ("gaussian", {"beta": 2.0}, "between 0 and 1"),
        ("gaussian", {"beta": 0.5, "faithful": True}, "choose it"),
        ("gaussian", {"beta": "much"}, "type float"),
        ("gaussian", {"beta": True}, "type float"),
        ("gaussian", {"outliers": 0.5}, "below one half"),
        ("gaussian", {"outliers": 0.1, "faithful": True}, "choose it"),
        ("evidential", {"variant": "free"}, "'constrained' or 'regularised'"),
        ("mse", {"variance": math.inf}, "positive"),
        ("evidential", {"r": 0.0}, "positive"),
        ("evidential", {"r": math.inf}, "positive"),
        ("evidential", {"weight": math.inf}, "negative"),
        ("evidential_mixture", {"r": math.inf}, "positive"),
        ("evidential", {"weight": math.nan}, "negative"),
        ("evidential_mixture", {"r": 0.0}, "positive"),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises(AmpsureError, match=message):
        get_likelihood(name, **options)


@few
@given(location, st.floats(-12, 0), st.floats(0.1, 0.5))
def test_the_mean_can_be_that_of_the_amplitude(mean, log_var, exponent):
    out = torch.tensor([[[mean, log_var]]], dtype=torch.float64)
    likelihood, width = AmplitudeMean(Gaussian()), math.exp(log_var / 2)

    def density(y: float) -> float:
        return math.exp(-likelihood.nll(out, torch.tensor([[y, exponent]], dtype=torch.float64)).item())

    centre = mean - exponent * width**2 / 2
    total, amplitude = (
        integrate.quad(lambda y, k=k: math.exp(k * y) * density(y), centre - 12 * width, centre + 12 * width)[0]
        for k in (0.0, exponent)
    )
    assert total == pytest.approx(1, rel=1e-7)
    assert amplitude == pytest.approx(math.exp(exponent * mean), rel=1e-7)


@pytest.mark.parametrize("options", [{}, {"beta": 0.5}, {"faithful": True}, {"outliers": 1e-3}])
def test_without_an_exponent_it_is_the_gaussian(options):
    out, y = torch.randn(2, 8, 2, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    plain, columns = Gaussian(**options), torch.stack([y, torch.zeros(8, dtype=torch.float64)], dim=1)
    for name in ("nll", "loss", "validation_loss"):
        torch.testing.assert_close(getattr(AmplitudeMean(plain), name)(out, columns), getattr(plain, name)(out, y))
    assert AmplitudeMean(plain).detached == plain.detached
