"""The kernels of the stacked perceptron compute what PyTorch computes, and as exactly."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from torch import Tensor

from ampsure.networks import StackedMLP
from ampsure.networks.fused import _hopper, _run, supported

pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # PyTorch's, in the plain path


def gpu(test):
    """Needs a GPU that has the kernels."""
    missing = not (torch.cuda.is_available() and _hopper(torch.device("cuda")))
    return pytest.mark.gpu(pytest.mark.skipif(missing, reason="needs a Hopper GPU")(test))


SHAPES = {
    "benchmark": {"hidden": (128,) * 6, "n_inputs": 30, "n_outputs": 2, "rows": 1024},
    "narrow, ragged": {"hidden": (64,) * 3, "n_inputs": 10, "n_outputs": 1, "rows": 200},
    "one layer": {"hidden": (128,), "n_inputs": 3, "n_outputs": 8, "rows": 70},
    "many rows": {"hidden": (128,) * 2, "n_inputs": 100, "n_outputs": 5, "rows": 4100},
}


def _case(
    members: int = 3,
    *,
    n_inputs: int,
    n_outputs: int,
    hidden: tuple[int, ...],
    rows: int,
    shared: bool = True,
    **options,
) -> tuple[StackedMLP, Tensor, Tensor]:
    """A network, inputs and the gradient of the outputs."""
    network = StackedMLP(n_inputs, n_outputs, hidden=hidden, members=members, seed=1, **options).cuda()
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(*(() if shared else (members,)), rows, n_inputs, generator=generator).cuda()
    return network, x, torch.randn(members, rows, n_outputs, generator=generator).cuda() / rows


def _results(network: StackedMLP, x: Tensor, grad_out: Tensor, *, fused: bool, **options) -> list[Tensor]:
    """Outputs and gradients of all parameters."""
    network.fused = fused
    out = network(x, **options)
    return [out.detach(), *torch.autograd.grad(out, list(network.parameters()), grad_out)]


def _error(value: Tensor, exact: Tensor) -> float:
    return float((value - exact).norm() / exact.norm())


def test_elsewhere_the_plain_path_is_taken():
    network = StackedMLP(3, 2, hidden=(64, 64), members=2)
    assert not supported(torch.zeros(5, 3), list(network.weights), "gelu")
    assert network(torch.zeros(5, 3)).shape == (2, 5, 2)


@pytest.mark.parametrize(
    ("members", "rows", "programs"), [(1, 1024, 16), (8, 1024, 128), (20, 1024, 120), (128, 1024, 128), (1, 1, 1)]
)
def test_programs_fill_an_h200(members, rows, programs):
    blocks = ceil(rows / 64)
    assert members * ceil(blocks / _run(members, blocks, 132)) == programs


@gpu
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_as_exact_as_float32(shape, residual, shared):
    case = _case(residual=residual, shared=shared, **SHAPES[shape])
    network, x, grad_out = case
    assert supported(x, list(network.weights), "gelu")
    plain, fused = _results(*case, fused=False), _results(*case, fused=True)
    exact = _results(network.double(), x.double(), grad_out.double(), fused=False)
    for a, b, c in zip(plain, fused, exact, strict=True):
        assert _error(b, c) < max(2.5 * _error(a, c), 5e-7)


@gpu
def test_gradients_of_detached_outputs_stop_at_the_last_layer():
    case = _case(**SHAPES["many rows"])
    for a, b in zip(*(_results(*case, fused=fused, detached=slice(1, 3)) for fused in (False, True)), strict=True):
        assert _error(b, a) < 3e-6


@gpu
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e25])
def test_any_scale_of_gradients(scale):
    network, x, grad_out = _case(**SHAPES["benchmark"])
    _, *ones = _results(network, x, grad_out, fused=True)
    _, *scaled = _results(network, x, grad_out * scale, fused=True)
    assert all(_error(b / scale, a) < 2e-6 for a, b in zip(ones, scaled, strict=True))


@gpu
def test_large_inputs_do_not_overflow():
    network, x, grad_out = _case(**SHAPES["benchmark"])
    x[::7] *= 1e3
    plain, fused = (_results(network, x, grad_out, fused=fused) for fused in (False, True))
    assert all(_error(b, a) < 1e-5 for a, b in zip(plain, fused, strict=True))


@gpu
def test_without_gradients_and_again_the_same():
    case = _case(7, **SHAPES["benchmark"])
    first, second = (_results(*case, fused=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with torch.no_grad():
        torch.testing.assert_close(case[0](case[1]), first[0], rtol=0, atol=0)


@gpu
def test_in_a_cuda_graph():
    case = _case(**SHAPES["benchmark"])
    eager = _results(*case, fused=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = _results(*case, fused=True)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(eager, captured, strict=True))
