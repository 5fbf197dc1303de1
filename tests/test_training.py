"""The engine: the right gradients, the right schedule, the same weights after any interruption."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

from ampsure import AmpsureError
from ampsure.config import TrainingConfig
from ampsure.likelihoods import get_likelihood
from ampsure.networks import StackedMLP
from ampsure.posteriors import Ensemble, Point, Variational
from ampsure.training import Engine, Training, TrainingData
from ampsure.training.batches import shuffled
from ampsure.training.checkpoint import read_checkpoint, write_checkpoint
from ampsure.training.engine import TrainingInterrupted
from ampsure.training.schedules import SCHEDULES, get_schedule


def _data(n=600, dtype=torch.float32) -> TrainingData:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n + 100, 3))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * rng.standard_normal(n + 100)
    x, y = torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)
    return TrainingData(x[:n], y[:n], x[n:], y[n:])


def _posterior(kind: str, dtype=torch.float32):
    members = 3 if kind == "ensemble" else 1
    network = StackedMLP(3, 2, hidden=(16, 16), members=members, seed=5, dtype=dtype)
    return {"point": Point, "ensemble": Ensemble, "variational": Variational}[kind](network)


def _engine(posterior, data, config, likelihood="gaussian", **options) -> Engine:
    return Engine(Training(posterior, get_likelihood(likelihood), data, config), **options)


def _config(**options) -> TrainingConfig:
    return TrainingConfig(**{"epochs": 4, "batch_size": 64, "seed": 1, **options})


@pytest.mark.parametrize("total", [10, 37, 1000])
def test_one_cycle_is_that_of_pytorch(total):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2.0, total_steps=total)
    for step in range(total):
        assert 2.0 * SCHEDULES["one-cycle"](step, total) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        if step < total - 1:
            schedule.step()


def test_unknown_schedule():
    with pytest.raises(AmpsureError, match="one-cycle"):
        get_schedule("triangle")


def test_engine_does_what_a_plain_loop_does():
    """One member, Adam, float64: the same weights as an ordinary PyTorch training."""
    data, posterior = _data(dtype=torch.float64), _posterior("point", torch.float64)
    config = _config(optimizer="adam", learning_rate=1e-2, epochs=3)
    network = posterior.network
    plain = []
    for weight, bias in zip(network.weights, network.biases, strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[2], dtype=torch.float64)
        layer.weight.data.copy_(weight[0].T)
        layer.bias.data.copy_(bias[0, 0])
        plain.append(layer)
    model = nn.Sequential(plain[0], nn.GELU(), plain[1], nn.GELU(), plain[2])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    per_epoch = 600 // 64
    for step in range(3 * per_epoch):
        epoch, k = divmod(step, per_epoch)
        order = shuffled(600, 1, 1, epoch)[k * 64 : (k + 1) * 64]
        optimizer.param_groups[0]["lr"] = 1e-2 * SCHEDULES["one-cycle"](step, 3 * per_epoch)
        mean, log_variance = model(data.x_train[order]).T
        loss = (0.5 * (data.y_train[order] - mean) ** 2 * torch.exp(-log_variance) + 0.5 * log_variance).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    engine = _engine(posterior, data, config)
    engine.run()
    assert np.argmin([h["validation_loss"] for h in engine.histories[0]]) == 2  # so the last weights are the best
    for layer, weight in zip(plain, posterior.network.weights, strict=True):
        np.testing.assert_allclose(weight[0].T.detach(), layer.weight.detach(), rtol=1e-9, atol=1e-11)


class _Stop(Exception):
    pass


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "soap"])
@pytest.mark.parametrize("kind", ["point", "ensemble", "variational"])
def test_interrupted_training_ends_with_the_same_bits(kind, optimizer, tmp_path):
    config = _config(optimizer=optimizer, shared_batches=kind == "ensemble")
    whole = _posterior(kind)
    _engine(whole, _data(), config).run()

    path = tmp_path / "state.safetensors"
    for stop_at in (3, 9, 20):  # in the first epoch, at its end, in the third
        part = _posterior(kind)
        engine = _engine(part, _data(), config, checkpoint=path, fingerprint="a")
        advance = engine.advance

        def stopping(advance=advance, engine=engine, stop_at=stop_at):
            due = advance()
            if engine.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM if stop_at == 9 else signal.SIGINT)  # a batch system, or Ctrl-C
            return due

        engine.advance = stopping
        with pytest.raises(TrainingInterrupted, match=f"step {stop_at} of 36.*same command"):
            engine.run()
    resumed = _posterior(kind)
    engine = _engine(resumed, _data(), config, checkpoint=path, fingerprint="a")
    engine.run()
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert len(engine.histories[0]) == 4
    other = _engine(_posterior(kind), _data(), config, checkpoint=path, fingerprint="b")
    with pytest.raises(AmpsureError, match="other data or settings"):
        other.run()


def test_a_finished_stage_is_not_repeated(tmp_path):
    path = tmp_path / "state.safetensors"
    runs = []
    for _ in range(2):
        posterior = _posterior("point")
        engine = _engine(posterior, _data(), _config(), checkpoint=path, fingerprint="a")
        steps = engine.step
        engine.run()
        runs.append(
            (engine.step - steps, [p.detach().clone() for p in posterior.parameters()], len(engine.histories[0]))
        )
    assert runs[0][2] == runs[1][2] == 4
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))


def test_every_member_keeps_its_own_best_weights():
    posterior = _posterior("ensemble")
    engine = _engine(posterior, _data(), _config(epochs=6, learning_rate=0.03))
    losses = []
    validation = engine._validation_loss

    def recorded(due):
        losses.append(validation(due))
        return losses[-1]

    engine._validation_loss = recorded
    engine.run()
    best = torch.stack(losses).min(0).values
    torch.testing.assert_close(validation(engine._courses), best)


@pytest.mark.parametrize("optimizer", ["adam", "soap"])
@pytest.mark.parametrize("bad", [slice(100, 101), slice(None)], ids=["one", "all"])  # at some step, or at the first
def test_a_loss_that_turns_nan_stops_with_step_and_rate(optimizer, bad):
    data = _data()
    data.y_train[bad] = float("nan")
    with pytest.raises(AmpsureError, match=r"not finite at step \d \(learning rate .*last good checkpoint: none"):
        _engine(_posterior("point"), data, _config(optimizer=optimizer)).run()


def test_early_stopping():
    config = _config(epochs=200, early_stopping=2, learning_rate=0.1, optimizer="adam", schedule="constant")
    engine = _engine(_posterior("point"), _data(), config)
    engine.run()
    assert len(engine.histories[0]) < 200


def test_gradients_are_clipped_member_by_member():
    posterior = _posterior("ensemble")
    config = _config(gradient_clip=1e-3, epochs=1)
    engine = _engine(posterior, _data(), config)
    engine.run()
    norms = engine._stacks[0].weights.grad.norm(dim=1)
    assert (norms <= 1e-3 * (1 + 1e-5)).all()


def test_checkpoints_hold_nested_state_and_refuse_damage(tmp_path):
    state = {"a": [1, 2.5, {"b": torch.arange(3)}], 4: None, "c": (torch.ones(2, dtype=torch.float64), "text")}
    path = tmp_path / "state.safetensors"
    write_checkpoint(path, state)
    back = read_checkpoint(path)
    assert back[4] is None
    assert torch.equal(back["a"][2]["b"], torch.arange(3))
    assert back["c"][0].dtype == torch.float64
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(AmpsureError, match="damaged"):
        read_checkpoint(path)
