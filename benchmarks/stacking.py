"""Training steps per second of stacked members against the same members one after the other in plain PyTorch."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ampsure.config import TrainingConfig
from ampsure.likelihoods import get_likelihood
from ampsure.networks import StackedMLP
from ampsure.posteriors import Ensemble
from ampsure.training import Engine, Training, TrainingData

BATCH, INPUTS, WIDTH, DEPTH = 1024, 10, 128, 6


def _rate(step: Callable[[], None], seconds: float) -> float:
    """Steps per second."""
    step()
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds or count < 3:
        step()
        count += 1
    return count / elapsed


def _separate(members: int, x: Tensor, y: Tensor) -> Callable[[], None]:
    """One step of every member, each an nn.Module with an Adam of its own."""
    models = []
    for _ in range(members):
        widths = [INPUTS, *[WIDTH] * DEPTH]
        layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.GELU())]
        model = nn.Sequential(*layers, nn.Linear(WIDTH, 2)).to(x.device)
        models.append((model, torch.optim.Adam(model.parameters(), lr=1e-3)))

    def step() -> None:
        for model, optimizer in models:
            index = torch.randint(len(x), (BATCH,), device=x.device)
            mean, log_variance = model(x[index]).unbind(-1)
            loss = (0.5 * (y[index] - mean).square() * torch.exp(-log_variance) + 0.5 * log_variance).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


def _stacked(members: int, x: Tensor, y: Tensor) -> Callable[[], None]:
    """One step of the engine."""
    network = StackedMLP(INPUTS, 2, hidden=(WIDTH,) * DEPTH, members=members).to(x.device)
    config = TrainingConfig(epochs=10**6, batch_size=BATCH, optimizer="adam", learning_rate=1e-3, graphs=False)
    data = TrainingData(x, y, x[:BATCH], y[:BATCH])
    engine = Engine(Training(Ensemble(network, beta=0.0), get_likelihood("gaussian"), data, config))
    return lambda: engine.advance()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="time for every measurement")
    seconds = parser.parse_args().seconds
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = torch.randn(100_000, INPUTS, device=device), torch.randn(100_000, device=device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} cores"
    table = Table(
        "members", "separate, steps/s", "stacked, steps/s", "ratio", title=f"{DEPTH}x{WIDTH}, batch {BATCH}, {where}"
    )
    for members in (1, 8, 32):
        rates = [_rate(make(members, x, y), seconds) for make in (_separate, _stacked)]
        table.add_row(str(members), f"{rates[0]:.2f}", f"{rates[1]:.2f}", f"{rates[1] / rates[0]:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
