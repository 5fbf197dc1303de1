"""Time of a training step of stacked members: the engine against plain PyTorch, eager, compiled and as a CUDA graph."""

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
from ampsure.posteriors import Point
from ampsure.training import Engine, Training, TrainingData

BATCH, INPUTS, WIDTH, DEPTH = 1024, 30, 128, 6
EVENTS, EPOCHS = 770_000, 1000
H200_FLOPS = 67e12  # float32, by the datasheet

Steps = Callable[[], int]
"""Takes one or more steps and says how many."""


def seconds_per_step(steps: Steps, seconds: float, device: torch.device) -> float:
    """Median of five measurements of so many seconds in all, after a warm-up."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(4):
        steps()
    wait()
    found = []
    for _ in range(5):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds / 5:
            for _ in range(4 if device.type == "cuda" else 1):
                count += steps()
            wait()
        found.append((time.perf_counter() - start) / count)
    return sorted(found)[2]


def engine(members: int, x: Tensor, y: Tensor, optimizer: str) -> Steps:
    """Our steps."""
    network = StackedMLP(INPUTS, 2, hidden=(WIDTH,) * DEPTH, members=members).to(x.device)
    config = TrainingConfig(epochs=EPOCHS, batch_size=BATCH, optimizer=optimizer, learning_rate=1e-3)
    found = Engine(
        Training(Point(network), get_likelihood("gaussian"), TrainingData(x, y, x[:BATCH], y[:BATCH]), config)
    )

    def steps() -> int:
        before = found.step
        found.advance()
        return found.step - before

    return steps


def plain(members: int, x: Tensor, y: Tensor, how: str) -> Steps:
    """The same steps as one would write them, with `torch.baddbmm` for all members and `torch.optim.Adam`."""
    shapes = list(itertools.pairwise([INPUTS, *[WIDTH] * DEPTH, 2]))
    weights = [nn.Parameter(torch.randn(members, a, b, device=x.device) / a**0.5) for a, b in shapes]
    biases = [nn.Parameter(torch.zeros(members, 1, b, device=x.device)) for _, b in shapes]
    graph = how == "CUDA graph"
    optimizer = torch.optim.Adam([*weights, *biases], lr=1e-3, capturable=graph, fused=graph or None)
    index = torch.zeros(BATCH, dtype=torch.int64, device=x.device)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        h = x.expand(members, *x.shape)
        for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            h = torch.baddbmm(bias, nn.functional.gelu(h) if k else h, weight)
        mean, log_variance = h.unbind(-1)
        return (0.5 * (y - mean).square() * torch.exp(-log_variance) + 0.5 * log_variance).mean(1).sum()

    objective = torch.compile(loss) if how == "torch.compile" else loss

    def step() -> None:
        optimizer.zero_grad()
        objective(x[index], y[index]).backward()
        optimizer.step()

    replay = step
    if graph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.zero_grad()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            step()
        replay = recorded.replay

    def steps() -> int:
        index.copy_(torch.randint(len(x), (BATCH,), device=x.device))
        replay()
        return 1

    return steps


def flops(members: int) -> float:
    """Multiplications and additions of one step: forward, and twice backward, but for the inputs."""
    products = [a * b for a, b in itertools.pairwise([INPUTS, *[WIDTH] * DEPTH, 2])]
    return 2.0 * BATCH * members * (3 * sum(products) - products[0])


def sgemm_rate() -> float:
    """Operations per second of a large float32 product on this CPU."""
    a = torch.randn(2048, 2048)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for every measurement")
    parser.add_argument("--members", type=int, nargs="*", help="numbers of members")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    where = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} CPU cores"
    rate = H200_FLOPS if cuda else sgemm_rate()
    n = EVENTS if cuda else 50_000
    x, y = torch.randn(n, INPUTS, device=device), torch.randn(n, device=device)
    title = f"{DEPTH}x{WIDTH}, {INPUTS} inputs, batch {BATCH}, {where}, {rate / 1e12:.3g} TFLOP/s in float32"
    projected = f"{EPOCHS} epochs of {EVENTS // 1000}k"
    table = Table("members", "steps by", "us a step", "times faster than eager", "of the floor", projected, title=title)
    for members in options.members or ((1, 32, 128) if cuda else (1, 8)):
        floor = flops(members) / rate
        table.add_row(str(members), "arithmetic alone", f"{floor * 1e6:.0f}", "", "100 %", "")
        eager = None
        for name in ("eager", "torch.compile", *(["CUDA graph"] if cuda else []), "engine, adam", "engine, soap"):
            try:
                ours = name.startswith("engine")
                steps = engine(members, x, y, name[8:]) if ours else plain(members, x, y, name)
                found = seconds_per_step(steps, options.seconds, device)
            except Exception as error:  # what it lacks here (a compiler, memory) is the answer
                table.add_row("", name, f"fails: {str(error).strip().splitlines()[0][:60]}")
                continue
            eager = eager or found
            total = found * EPOCHS * (EVENTS // BATCH + 1)
            cells = f"{found * 1e6:.0f}", f"{eager / found:.1f}", f"{100 * floor / found:.0f} %", f"{total:.0f} s"
            table.add_row("", name, *cells, end_section=name == "engine, soap")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
