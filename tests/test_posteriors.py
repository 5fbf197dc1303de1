"""Repulsion, prior and variational posterior against direct evaluations."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from ampsure.networks import StackedMLP
from ampsure.posteriors import Ensemble, Point, Variational, repulsion


def _direct_repulsion(f: torch.Tensor) -> torch.Tensor:
    """Eq. (loss_re) by explicit differences."""
    fixed = f.detach()
    distance = (fixed[:, None] - fixed[None]).square().sum(-1)
    n = len(f)
    bandwidth = distance[np.triu_indices(n, 1)].median() / log(n + 1)
    moving = (f[:, None] - fixed[None]).square().sum(-1)
    return torch.exp(-moving / bandwidth).sum(1) / torch.exp(-distance / bandwidth).sum(1)


@pytest.mark.parametrize(("dtype", "spread", "tolerance"), [(torch.float64, 1.0, 1e-9), (torch.float32, 3e-5, 1e-3)])
def test_repulsion_and_its_gradient(dtype, spread, tolerance):
    """Also where members agree to five digits: the kernel is centred, so float32 does not cancel."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal(200) + spread * rng.standard_normal((6, 200))
    f = torch.tensor(values, dtype=dtype, requires_grad=True)
    repulsion(f).sum().backward()
    reference = torch.tensor(f.detach().double().numpy(), requires_grad=True)
    value = _direct_repulsion(reference)
    value.sum().backward()
    np.testing.assert_allclose(repulsion(f).detach(), value.detach(), rtol=1e-4)
    error = (f.grad.double() - reference.grad).norm() / reference.grad.norm()
    assert error < tolerance


def test_repulsion_pushes_members_apart():
    f = torch.tensor([[0.0, 0.1], [0.2, -0.1], [1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    repulsion(f).sum().backward()
    moved = (f - 0.01 * f.grad).detach()  # a step down the loss
    assert torch.pdist(moved).sum() > torch.pdist(f.detach()).sum()


def test_single_members_and_equal_members_give_finite_terms():
    assert torch.isfinite(repulsion(torch.randn(1, 5))).all()
    same = torch.ones(3, 5, requires_grad=True)
    repulsion(same).sum().backward()
    assert torch.isfinite(same.grad).all()


def test_repulsion_of_some_members_is_that_of_all():
    """Where members are shared among processes, and of two ensembles at once."""
    f = torch.randn(2, 5, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole, share, alone = (f[part].clone().requires_grad_() for part in (slice(2), (slice(2), [3, 1]), 1))
    repulsion(whole).sum().backward()
    repulsion(share, f).sum().backward()
    repulsion(alone).sum().backward()
    torch.testing.assert_close(share.grad, whole.grad[:, [3, 1]])
    torch.testing.assert_close(alone.grad, whole.grad[1])


@pytest.mark.parametrize("kind", [Point, Ensemble])
def test_expected_outputs_of_some_members(kind):
    network, rows = StackedMLP(3, 2, hidden=(4,), members=3, seed=0), torch.tensor([2, 0])
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(kind(network).expected(x), network(x), rtol=0, atol=0)
    torch.testing.assert_close(kind(network).expected(x.expand(2, -1, -1), rows), network(x)[rows])


def test_posteriors_that_can_be_trained_side_by_side_have_equal_terms():
    network = StackedMLP(3, 1, hidden=(4,), members=2, seed=0)
    settings = [{}, {"beta": 0.0}, {"prior_width": float("inf")}, {"prior_scale": 1.0}]
    assert len({Ensemble(network, **options).terms() for options in settings}) == 4
    assert Ensemble(network, beta=2.0, prior_width=3.0).terms() == Ensemble(network).terms()


def test_ensemble_penalty_is_repulsion_and_prior():
    network = StackedMLP(3, 1, hidden=(4,), members=3, seed=0, dtype=torch.float64)
    prediction, n = network(torch.randn(10, 3, dtype=torch.float64))[..., 0], torch.tensor([1000])
    posterior = Ensemble(network, beta=2.0, prior_width=0.5)
    torch.testing.assert_close(posterior.penalty(prediction, n), 2.0 / 1000 * repulsion(prediction))
    prior = sum(Normal(0.0, 0.5).log_prob(p).sum() for p in network.parameters()) / -1000
    prior.backward()
    for p in network.parameters():
        torch.testing.assert_close(p.grad, posterior.decay(n).view(3, 1, 1) * p)
    free = Ensemble(network, beta=0.0, prior_width=float("inf"))
    assert free.penalty(prediction, n) is None
    assert free.decay(n) is None
    assert Point(network).penalty(prediction, n) is None
    assert (Point(network).is_repulsive, free.is_repulsive, posterior.is_repulsive) == (False, False, True)


def test_ensembles_side_by_side_repel_their_own_members_only():
    network = StackedMLP(3, 1, hidden=(4,), members=6, seed=0, dtype=torch.float64)
    both = Ensemble(network)
    both.beta, both.precision = torch.tensor([2.0, 0.5]), torch.tensor([1.0, 4.0])
    f, n = torch.randn(6, 10, dtype=torch.float64), torch.tensor([1000, 100])
    torch.testing.assert_close(
        both.penalty(f, n), torch.cat([2.0 / 1000 * repulsion(f[:3]), 0.5 / 100 * repulsion(f[3:])])
    )
    torch.testing.assert_close(both.decay(n), torch.tensor([1e-3] * 3 + [4e-2] * 3))


def test_two_members_repel_each_other():
    """Their distance is the median of all distances."""
    f = torch.randn(2, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, direct = (f.clone().requires_grad_() for _ in range(2))
    repulsion(found).sum().backward()
    _direct_repulsion(direct).sum().backward()
    torch.testing.assert_close(found.grad, direct.grad)


def test_penalties_push_as_repulsion_does():
    """Its value is one: what counts is the gradient."""
    f = torch.randn(3, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    posterior, n = Ensemble(StackedMLP(3, 1, hidden=(4,), members=3, dtype=torch.float64), beta=2.0), torch.tensor([50])
    whole, share, direct = (f[part].clone().requires_grad_() for part in (slice(3), slice(1), slice(3)))
    posterior.penalty(whole, n).sum().backward()
    posterior.penalty(share, n, f).sum().backward()
    _direct_repulsion(direct).sum().backward()
    torch.testing.assert_close(whole.grad, 2.0 / 50 * direct.grad)
    torch.testing.assert_close(share.grad, 2.0 / 50 * direct.grad[:1])


@pytest.mark.parametrize("kind", [Point, Ensemble, Variational])
def test_detached_outputs_leave_the_features_alone(kind):
    posterior = kind(StackedMLP(3, 2, hidden=(4,), seed=0))
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    for detached, moved in ((None, True), (slice(1, 2), False)):
        posterior.zero_grad()
        posterior(x, detached)[..., 1].sum().backward()
        features, last = posterior.network.weights
        assert last.grad.any()
        assert (features.grad is not None and bool(features.grad.any())) == moved


def test_variational_penalty_is_the_divergence_from_the_prior():
    network = StackedMLP(3, 2, hidden=(4,), seed=0, dtype=torch.float64)
    posterior = Variational(network, prior_width=0.7, initial_width=0.02)
    expected = sum(
        kl_divergence(Normal(mean, log_sigma.exp()), Normal(torch.zeros_like(mean), 0.7)).sum()
        for mean, log_sigma in zip((*network.weights, *network.biases), posterior.log_sigma, strict=True)
    )
    penalty = posterior.penalty(torch.zeros(1, 5, dtype=torch.float64), torch.tensor([50]))
    torch.testing.assert_close(penalty[0], expected / 50)


def _two_variational_trainings() -> tuple[Variational, list[Variational]]:
    """Side by side, and each alone, with widths of their own for every weight."""
    network, generator = StackedMLP(3, 2, hidden=(4,), members=2, seed=0, dtype=torch.float64), torch.Generator()
    both, alone = Variational(network), [Variational(network.reshaped(members=1), prior_width=w) for w in (0.7, 2.0)]
    both.prior_width = torch.tensor([0.7, 2.0], dtype=torch.float64)
    both.generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
    with torch.no_grad():
        for width in both.log_sigma:
            width.copy_(torch.randn(width.shape, generator=generator.manual_seed(3), dtype=torch.float64) - 2)
        for k, one in enumerate(alone):
            one.generators = [torch.Generator().manual_seed(k)]
            for mine, theirs in zip(one.parameters(), both.parameters(), strict=True):
                mine.copy_(theirs[k : k + 1])
    return both, alone


def test_variational_trainings_side_by_side_are_those_alone():
    both, alone = _two_variational_trainings()
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    out, n = both(x), torch.tensor([50, 100])
    torch.testing.assert_close(out, torch.cat([one(x) for one in alone]))
    penalties = [one.penalty(out[:1, :, 0], n[k : k + 1]) for k, one in enumerate(alone)]
    torch.testing.assert_close(both.penalty(out[..., 0], n), torch.cat(penalties))


def test_variational_members_are_drawn_with_the_width_of_every_weight():
    _, (posterior, _) = _two_variational_trainings()
    drawn, n = posterior.members(4000, seed=1), 4000
    means = (*posterior.network.weights, *posterior.network.biases)
    for found, mean, log_sigma in zip((*drawn.weights, *drawn.biases), means, posterior.log_sigma, strict=True):
        pull = ((found - mean) / log_sigma.exp()).detach()
        assert (pull.mean(0).abs() < 5 / n**0.5).all()
        assert ((pull.square().mean(0) - 1).abs() < 5 * (2 / n) ** 0.5).all()
    few = Variational(posterior.network, samples=3, seed=7)
    assert few.members().members == 3
    for a, b in zip(few.members().parameters(), few.members(3, 7).parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(few.members(3, 8).weights[0], few.members(3, 7).weights[0])


def test_local_reparametrisation_has_the_moments_of_sampled_weights():
    network = StackedMLP(3, 1, hidden=(), seed=0, dtype=torch.float64)  # one layer: moments are known exactly
    posterior = Variational(network, initial_width=0.3)
    posterior.generators = [torch.Generator().manual_seed(1)]
    x = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64).expand(200_000, 3)
    out = posterior(x)[0, :, 0]
    mean = network(x[:1])[0, 0, 0]
    sigma = 0.3 * (1 + x[0].square().sum()).sqrt()
    assert abs(out.mean() - mean) < 5 * sigma / np.sqrt(len(x))
    assert abs(out.std() / sigma - 1) < 5 / np.sqrt(2 * len(x))


def test_posterior_samples_are_reproducible_and_spread():
    network = StackedMLP(3, 1, hidden=(8,), seed=0)
    first, again, other = (Variational(network, initial_width=0.1, samples=500, seed=s).members() for s in (1, 1, 2))
    assert torch.equal(first.weights[0], again.weights[0])
    assert not torch.equal(first.weights[0], other.weights[0])
    spread = (first.weights[0] - network.weights[0]).std().item()
    assert spread == pytest.approx(0.1, rel=0.03)
