"""Forward and backward pass of stacked members: plain PyTorch against the fused kernels, both in a CUDA graph."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ampsure.networks import StackedMLP

FLOAT32_RATE = 67e12
"""Operations a second on the general units of an H200; what plain float32 cannot beat."""


def _passes(network: StackedMLP, x: Tensor, grad_out: Tensor) -> list[Tensor]:
    """Outputs and gradients of all parameters."""
    out = network(x)
    return [out.detach(), *torch.autograd.grad(out, list(network.parameters()), grad_out)]


def _microseconds(function: Callable[[], object], repeats: int = 30) -> float:
    """Median time of a replay."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    times = []
    for _ in range(repeats + 3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return sorted(times[3:])[repeats // 2]


def _errors(values: list[Tensor], exact: list[Tensor]) -> str:
    """Relative errors of the outputs and of the worst gradient."""
    out, *grads = (float((a - b).norm() / b.norm()) for a, b in zip(values, exact, strict=True))
    return f"{out:.1e}, {max(grads):.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--inputs", type=int, default=30)
    parser.add_argument("--hidden", type=int, nargs="+", default=[128] * 6)
    parser.add_argument("--residual", action="store_true")
    arguments = parser.parse_args()
    title = f"{arguments.hidden}, batch {arguments.batch}, {torch.cuda.get_device_name()}"
    table = Table(
        "members", "plain, us", "fused, us", "ratio", "float32 floor, us", "plain errors", "fused errors", title=title
    )
    for members in arguments.members:
        options = {"hidden": arguments.hidden, "residual": arguments.residual, "members": members}
        network = StackedMLP(arguments.inputs, 2, **options).cuda()
        x = torch.randn(arguments.batch, arguments.inputs, device="cuda")
        grad_out = torch.randn(members, arguments.batch, 2, device="cuda") / arguments.batch
        times, results = [], []
        for fused in (False, True):
            network.fused = fused
            times.append(_microseconds(lambda n=network, x=x, g=grad_out: _passes(n, x, g)))
            results.append(_passes(network, x, grad_out))
        weights = sum(w.numel() for w in network.weights)
        floor = 2 * arguments.batch * (3 * weights - network.weights[0].numel()) / FLOAT32_RATE * 1e6
        exact = _passes(network.double(), x.double(), grad_out.double())
        table.add_row(
            str(members),
            *(f"{t:.0f}" for t in times),
            f"{times[0] / times[1]:.2f}",
            f"{floor:.0f}",
            *(_errors(r, exact) for r in results),
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
