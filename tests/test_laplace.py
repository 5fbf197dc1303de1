"""Laplace posteriors against dense matrices; what single networks and ensembles say where there were no events."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ampsure import AmpsureError, fit, load_surrogate
from ampsure.config import resolve
from ampsure.deploy import Library, export_onnx, export_umami
from ampsure.disturbances import Gap
from ampsure.likelihoods import get_likelihood
from ampsure.networks import StackedMLP
from ampsure.posteriors import Ensemble, laplace_covariance, neighbours, variance_of_neighbours
from ampsure.posteriors.laplace import _prior_precision
from ampsure.preprocessing import get_features

SMALL = {"network": {"hidden": (12, 12)}}


def _network(**options) -> StackedMLP:
    return StackedMLP(2, 2, **{"hidden": (5, 5), "seed": 3, "residual": True, "dtype": torch.float64, **options})


def _jacobian(network: StackedMLP, layer: int, x: torch.Tensor) -> torch.Tensor:
    """Derivatives (B, in + 1, out) of the mean of a single network by the weights of a layer, event by event."""
    rows = []
    for event in x:
        mean = network(event[None])[0, 0, 0]
        gradients = torch.autograd.grad(mean, (network.weights[layer], network.biases[layer]), allow_unused=True)
        rows.append(torch.cat(gradients, dim=1)[0])
    return torch.stack(rows)


def _exact(network: StackedMLP, layer: int, x: torch.Tensor, precision: float, new: torch.Tensor) -> torch.Tensor:
    """Variance (M,) of the mean at new points by the dense Gauss-Newton matrix of one layer."""
    weight = 1 / get_likelihood("gaussian").variance_syst(network(x))[0].detach()
    jacobian, at = _jacobian(network, layer, x).flatten(1), _jacobian(network, layer, new).flatten(1)
    matrix = jacobian.T @ (weight[:, None] * jacobian)
    matrix += precision * torch.eye(len(matrix), dtype=matrix.dtype)
    return (at * torch.linalg.solve(matrix, at.T).T).sum(1)


def _found(network: StackedMLP, layer: int, block: tuple[torch.Tensor, ...], new: torch.Tensor) -> torch.Tensor:
    """The same by the factors of a layer."""
    inputs, outputs, widths = block
    return ((inputs.mT @ _jacobian(network, layer, new) @ outputs) * widths).square().sum((1, 2))


def _points(*numbers: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in numbers]


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
def test_the_last_layer_is_exact(activation):
    network, likelihood = _network(activation=activation), get_likelihood("gaussian")
    x, new = _points(4, 6)  # fewer than weights
    [(layer, block)] = laplace_covariance(network, likelihood, x, "last-layer").items()
    exact = _exact(network, layer, x, float(block[2].max()) ** -2, new)  # no event says more than the prior there
    assert layer == 2
    torch.testing.assert_close(_found(network, layer, block, new), exact, rtol=1e-9, atol=0)
    drawn = neighbours(network, likelihood, x, samples=4000, seed=1)
    told = variance_of_neighbours(likelihood.prediction(drawn(new)))
    torch.testing.assert_close(told, exact, rtol=4 * np.sqrt(2 / 2000), atol=0)


def test_more_events_than_are_looked_at_at_once():
    """The same four events 1200 times."""
    network, likelihood = _network(), get_likelihood("gaussian")
    x, new = _points(4, 6)
    [(layer, block)] = laplace_covariance(network, likelihood, x.repeat(1200, 1), "last-layer").items()
    # 1200 times the precision of four events, next to the prior, is that of four next to a part of the prior
    exact = _exact(network, layer, x, float(block[2].max()) ** -2 / 1200, new) / 1200
    torch.testing.assert_close(_found(network, layer, block, new), exact, rtol=1e-8, atol=0)


def test_kronecker_factors_are_those_of_the_jacobian():
    """With one event nothing is averaged, and the product of the factors is the Gauss-Newton matrix of each layer."""
    network, likelihood = _network(), get_likelihood("gaussian")
    x, new = _points(1, 3)
    blocks = laplace_covariance(network, likelihood, x, "kfac")
    assert list(blocks) == [0, 1, 2]
    total = torch.zeros(3, dtype=torch.float64)
    for layer, block in blocks.items():
        exact = _exact(network, layer, x, float(block[2].max()) ** -2, new)
        torch.testing.assert_close(_found(network, layer, block, new), exact, rtol=1e-9, atol=0)
        total += exact
    drawn = neighbours(network, likelihood, x, structure="kfac", samples=4000, seed=2)
    told = variance_of_neighbours(likelihood.prediction(drawn(new)))
    torch.testing.assert_close(told, total.detach(), rtol=4 * np.sqrt(2 / 2000), atol=0)


def test_the_precision_of_the_prior_maximises_the_marginal_likelihood():
    generator = torch.Generator().manual_seed(1)
    curvature = 10 ** (4 * torch.rand(1, 6, 3, generator=generator, dtype=torch.float64) - 2)
    square = torch.tensor([7.0], dtype=torch.float64)

    def evidence(precision: torch.Tensor) -> torch.Tensor:
        return 0.5 * (18 * precision.log() - (curvature + precision).log().sum() - precision * square).sum()

    best = _prior_precision(curvature, square)
    assert all(evidence(best * factor) < evidence(best) for factor in (0.9, 1.1))
    both = _prior_precision(torch.cat([curvature, 3 * curvature]), torch.tensor([7.0, 2.0], dtype=torch.float64))
    alone = _prior_precision(3 * curvature, torch.tensor([2.0], dtype=torch.float64))
    torch.testing.assert_close(both, torch.cat([best, alone]))  # every network has its own


def test_neighbours_follow_from_the_seed():
    network, likelihood = _network(dtype=torch.float32), get_likelihood("gaussian")
    x = _points(9)[0]
    first, again, other = (neighbours(network, likelihood, x, samples=4, seed=seed).weights[-1] for seed in (1, 1, 2))
    assert first.dtype == torch.float64
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_every_network_of_an_ensemble_has_neighbours_of_its_own():
    likelihood, both = get_likelihood("gaussian"), _network(members=2)
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn = neighbours(both, likelihood, x, structure="kfac", samples=4)
    assert drawn.members == 8
    for k, weight in enumerate(drawn.weights):
        for side in weight.unflatten(0, (2, 2, 2)):  # sides, networks, pairs
            assert ((side - both.weights[k][:, None]).abs() > 0).any()
        torch.testing.assert_close(weight.unflatten(0, (2, 2, 2)).mean(0).mean(1), both.weights[k])


SETTINGS = {
    "laplace": {"posterior": {"name": "laplace", "structure": "kfac", "samples": 4}, "training": {"stages": 2}},
    "laplace of two": {"posterior": {"name": "laplace", "members": 2, "samples": 4}, "likelihood": {"name": "mse"}},
    "single": {"posterior": {"systematic": "held-out"}, "training": {"stages": 2}},
    "ensemble": {
        "posterior": {"name": "ensemble", "members": 3, "systematic": "held-out"},
        "training": {"stages": 2},
    },
    "randomized": {"posterior": {"name": "ensemble", "members": 2, "prior_scale": 2.0}, "network": {"residual": True}},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_saved_and_exported_surrogates_say_the_same_in_a_gap(setting, events, tmp_path):
    config = {k: {**SMALL.get(k, {}), **SETTINGS[setting].get(k, {})} for k in {*SMALL, *SETTINGS[setting]}}
    pierced = Gap(30.0)(events)
    surrogate = fit(pierced, "heteroscedastic", config=config, epochs=3, seed=1)
    gap = ~pierced.trainable
    p = surrogate.predict(events.momenta)
    assert (p.sigma_stat[gap] > 0).all()
    assert not p.in_domain[gap].any()
    assert bool(surrogate.neighbours) == (setting in ("laplace", "laplace of two", "single"))
    surrogate.save(tmp_path / "run")
    export_onnx(surrogate, tmp_path / "a.onnx", momenta=events.momenta[gap])  # compares by itself
    library = Library(export_umami(surrogate, tmp_path / "library", optimize="-O1"))
    for other, tolerance in ((load_surrogate(tmp_path / "run"), 0.0), (library, 1e-9)):
        found = other.predict(events.momenta)
        for name in ("amplitude", "sigma_syst", "sigma_stat", "sigma_tot"):
            np.testing.assert_allclose(
                getattr(found, name), getattr(p, name), rtol=tolerance, atol=1e-12 * p.amplitude.min()
            )


def test_outside_the_domain_a_sigma_is_that_of_one_network_of_every_stage(events):
    """Errors of an earlier stage are shared by all members of the next, which cannot differ by them."""
    surrogate = fit(Gap(30.0)(events), config={**SMALL, "posterior": {"members": 3}}, epochs=3, seed=1, batch_size=128)
    momenta = torch.from_numpy(events.momenta)
    _, _, stat, last = surrogate.standardised(momenta)
    inside = surrogate.predict(momenta).in_domain
    raw = get_features(surrogate.config.features.inputs)(momenta, surrogate.process)
    first = surrogate.earlier[0].network(surrogate.standardization(raw))[..., 0]
    alone = first.var(0) + last.var(0)
    expected = (1.3213**2 * alone).clamp_max(1.0)  # Student's t with two degrees of freedom
    torch.testing.assert_close(stat[~inside], torch.maximum(stat, expected)[~inside], rtol=1e-3, atol=0)
    ratio = (stat / expected)[~inside]
    assert ratio.min() > 1 - 1e-3
    assert (ratio < 1 + 1e-3).double().mean() > 0.5
    assert (stat < expected)[inside].double().mean() > 0.9


def test_randomized_priors_are_learned_away_and_kept():
    """A member and its random network are one network twice as wide."""
    network = _network(members=3, hidden=(5, 4, 4))
    posterior = Ensemble(network, prior_scale=2.0, seed=9)
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    random = network.reshaped(seed=9)
    expected = network(x) + 2 * random(x)
    torch.testing.assert_close(posterior(x), expected)
    torch.testing.assert_close(posterior.expected(x), expected)
    both = posterior.members()
    assert both.widths == (2, 10, 8, 8, 2)
    torch.testing.assert_close(both(x), expected)
    rows = torch.tensor([2, 0])
    torch.testing.assert_close(posterior.expected(x.expand(2, -1, -1), rows), expected[rows])
    assert len(list(posterior.parameters())) == len(list(network.parameters()))  # random networks do not learn


@pytest.mark.parametrize(
    ("posterior", "says"),
    [
        ({"name": "laplace", "samples": 3}, "pairs"),
        ({"name": "laplace", "systematic": "held-out"}, "averaged"),
        ({"name": "point", "prior_scale": 1.0}, "prior_scale"),
        ({"name": "laplace", "structure": "dense"}, "structure"),
    ],
)
def test_settings_that_do_not_go_together(posterior, says):
    with pytest.raises(AmpsureError, match=says):
        resolve("heteroscedastic", "accurate", {"posterior": posterior})
