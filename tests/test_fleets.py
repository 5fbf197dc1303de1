"""Trainings side by side: every one ends as it would alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ampsure import AmpsureError, fit, fit_many
from ampsure.config import TrainingConfig, resolve
from ampsure.likelihoods import get_likelihood
from ampsure.networks import StackedMLP
from ampsure.posteriors import Ensemble, Point, Variational
from ampsure.training import Adam, Engine, Training, TrainingData
from ampsure.training.batches import shuffled
from ampsure.training.sigma import SigmaCompanion

JOBS = [{"n": 300, "seed": 1, "beta": 0.5}, {"n": 500, "seed": 2, "beta": 1.0}, {"n": 410, "seed": 3, "beta": 20.0}]


DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
    ),
]


def _training(
    kind: str, n: int, seed: int, beta: float, joint: bool = False, device: str = "cpu", **options
) -> Training:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n + 20 * seed + 50, 3))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * seed * rng.standard_normal(len(x))
    x, y = torch.tensor(x, device=device), torch.tensor(y, device=device)
    likelihood = get_likelihood("evidential" if kind == "evidential" else "gaussian")
    members = 3 if kind in ("ensemble", "randomized") else 1
    network = StackedMLP(
        3, likelihood.n_outputs, hidden=(8, 8), members=members, seed=seed, dtype=torch.float64, residual=True
    )
    posterior = {
        "ensemble": lambda: Ensemble(network, beta=beta, prior_width=seed),
        "randomized": lambda: Ensemble(network, beta=beta, prior_scale=2.0, seed=seed + 10),
        "variational": lambda: Variational(network, prior_width=seed, initial_width=0.05),
        "evidential": lambda: Point(network),
    }[kind]()
    config = TrainingConfig(**{"epochs": 3, "batch_size": 64, "seed": seed, "learning_rate": 1e-2, **options})
    companion = SigmaCompanion(StackedMLP(3, 1, hidden=(8,), seed=seed, dtype=torch.float64), 3.0) if joint else None
    data = TrainingData(x[:n], y[:n], x[n:], y[n:])
    return Training(posterior.to(device), likelihood, data, config, companion and companion.to(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ensemble", {"optimizer": "adam"}),
        ("ensemble", {"optimizer": "soap"}),
        ("ensemble", {"optimizer": "adamw", "weight_decay": 0.1, "gradient_clip": 0.1}),
        ("ensemble", {"optimizer": "adam", "joint": True}),
        ("randomized", {"optimizer": "adam"}),
        ("variational", {"optimizer": "adam"}),
        ("variational", {"optimizer": "soap", "shared_batches": False}),
        ("evidential", {"optimizer": "soap", "early_stopping": 1, "epochs": 6}),
    ],
    ids=str,
)
def test_every_training_of_a_fleet_ends_as_it_would_alone(kind, options, device):
    options = {**options, "device": device}
    fleet = [_training(kind, **job, **options) for job in JOBS]
    engine = Engine(*fleet)
    engine.run()
    for together, history, job in zip(fleet, engine.histories, JOBS, strict=True):
        alone = _training(kind, **job, **options)
        single = Engine(alone)
        single.run()
        assert len(history) == len(single.histories[0])
        for a, b in zip(history, single.histories[0], strict=True):
            assert a == pytest.approx(b, rel=1e-7)
        for modules in ((together.posterior, alone.posterior), (together.companion, alone.companion)):
            if modules[0] is not None:
                for a, b in zip(*(m.parameters() for m in modules), strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    assert len({tuple(h[-1].values()) for h in engine.histories}) == 3


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("optimizer", ["adam", "soap"])
def test_graphs_change_nothing(optimizer, device):
    ends = []
    for graphs in (True, False):
        training = _training("ensemble", **JOBS[1], device=device, optimizer=optimizer, graphs=graphs)
        Engine(training).run()
        ends.append(list(training.posterior.parameters()))
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_an_interrupted_fleet_ends_with_the_same_bits(tmp_path):
    whole = [_training("ensemble", **job, optimizer="soap") for job in JOBS]
    Engine(*whole).run()
    engine = Engine(*(_training("ensemble", **job, optimizer="soap") for job in JOBS))
    while engine.step < 15:  # one training has ended, the others are within an epoch
        due = engine.advance()
        if due:
            engine._end_epoch(due)
    engine._checkpoint = tmp_path / "state.safetensors"
    engine._save()
    resumed = [_training("ensemble", **job, optimizer="soap") for job in JOBS]
    Engine(*resumed, checkpoint=tmp_path / "state.safetensors").run()
    for a, b in zip(whole, resumed, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a.posterior.parameters(), b.posterior.parameters(), strict=True))


def test_only_trainings_of_one_kind_run_side_by_side():
    for other in ({"batch_size": 32}, {"beta": 0.0}, {"epochs": 2}):
        with pytest.raises(AmpsureError, match="only with the same"):
            Engine(_training("ensemble", **JOBS[0]), _training("ensemble", **{**JOBS[1], **other}))


@pytest.mark.parametrize(("weight_decay", "decoupled"), [(0.0, False), (0.1, False), (0.1, True)])
def test_adam_is_that_of_pytorch_for_every_member_at_its_own_rate(weight_decay, decoupled):
    rng = torch.Generator().manual_seed(0)
    start, rates = torch.randn(3, 7, generator=rng, dtype=torch.float64), torch.tensor([1e-3, 1e-2, 0.0]).double()
    weights = start.clone()
    weights.grad = torch.zeros_like(weights)
    optimizer = Adam(weights, weight_decay=weight_decay, decoupled=decoupled)
    theirs = [torch.nn.Parameter(row.clone()) for row in start]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    single = [kind([p], lr=float(r), weight_decay=weight_decay) for p, r in zip(theirs, rates, strict=True)]
    for _ in range(50):
        gradient = torch.randn(start.shape, generator=rng, dtype=torch.float64)
        weights.grad.copy_(gradient)
        optimizer.update(rates)
        for p, g, o in zip(theirs, gradient, single, strict=True):
            p.grad = g
            o.step()
    torch.testing.assert_close(weights, torch.stack([p.detach() for p in theirs]), rtol=1e-12, atol=1e-14)
    assert torch.equal(weights[2], start[2])


def test_orders_are_permutations_that_follow_from_their_keys():
    order = shuffled(1000, 1, 2)
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert torch.equal(order, shuffled(1000, 1, 2))
    assert not torch.equal(order, shuffled(1000, 1, 3))
    places = torch.stack([shuffled(10, seed).argsort() for seed in range(2000)]).double()
    assert (places.mean(0) - 4.5).abs().max() < 5 * (99 / 12 / 2000) ** 0.5


def test_many_fits_are_the_single_ones(events, tmp_path):
    """Two fleets, one of them with a second stage, and a training that fits to no other."""
    small = {"network": {"hidden": (8, 8), "precision": "float64"}, "posterior": {"members": 2}}
    settings = [
        (2000, "repulsive-global", {"seed": 1}),
        (1500, "repulsive-global", {"seed": 2}),
        (2000, "heteroscedastic", {"seed": 1}),
        (1800, "heteroscedastic", {"seed": 3}),
        (2000, "heteroscedastic", {"seed": 1, "batch_size": 128}),
    ]
    jobs = []
    for n, method, training in settings:
        config = {"network": small["network"]} if method == "heteroscedastic" else small
        jobs.append((events[:n], resolve(method, "accurate", config, **{"epochs": 2, "batch_size": 64, **training})))
    told = []
    many = fit_many(jobs, checkpoint=tmp_path, report=lambda job, stage, progress: told.append((job, stage)))
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        f"{stage}.safetensors" for stage in ("members-0", "members-2", "members-4", "sigma-0")
    ]
    assert sorted(told) == sorted(
        (job, stage) for job in range(5) for stage in ("members", "sigma")[: 2 if job < 2 else 1] for _ in range(2)
    )
    for surrogate, (data, config) in zip(many, jobs, strict=True):
        a, b = surrogate.predict(events.momenta[:50]), fit(data, config=config).predict(events.momenta[:50])
        for name in ("amplitude", "sigma_syst", "sigma_stat"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-6)
