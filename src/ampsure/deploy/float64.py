"""Float64 functions written in what onnxruntime computes in float64 on the CPU: it has no kernels for the others.

Tensors of another precision keep an operation of their own where ONNX has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["DECOMPOSITIONS", "asinh", "cosh", "expm1", "gelu", "leaky_relu", "log1p", "silu", "sinh", "softplus"]

# Phi(-x) = exp(-x^2/2) N(x)/D(x) for x >= 0, fitted such that x Phi(-x) is right to 5e-15; N from x^5, D from x^6 down
_NUMERATOR = (
    0.39891390574568725, 6.158267168768355, 42.84411898160524, 168.15590667427298, 375.4443411094054,
    419.92879978886253,
)  # fmt: skip
_DENOMINATOR = (
    1.0, 15.434006965171877, 108.43631557003755, 436.4777714825047, 1050.175454452056, 1420.9980941515907,
    839.857599578772,
)  # fmt: skip


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    first, second, *rest = coefficients
    result = (x if first == 1 else first * x) + second
    for c in rest:
        result = result * x + c
    return result


def gelu(x: Tensor) -> Tensor:
    """x Phi(x), any shape."""
    size = x.abs()
    tail = torch.exp(-0.5 * (x * x)) * (_polynomial(_NUMERATOR, size) / _polynomial(_DENOMINATOR, size))
    return torch.relu(x) - size * tail


def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + exp(beta x))/beta, any shape."""
    scaled = beta * x
    return (torch.relu(scaled) + torch.log(1 + torch.exp(-scaled.abs()))) / beta


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x, times a slope where it is negative, any shape."""
    return torch.where(x > 0, x, negative_slope * x)


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, any shape: of tanh(x/2) where the difference would cancel."""
    t = torch.tanh(0.5 * x)
    return torch.where(x < 1, 2 * t / (1 - t), torch.exp(x) - 1)


def log1p(x: Tensor) -> Tensor:
    """log(1 + x), any shape: the error of the sum cancels in the ratio."""
    u = 1 + x
    return torch.where(u == 1, x, torch.log(u) * x / (u - 1))


def asinh(x: Tensor) -> Tensor:
    """Inverse hyperbolic sine, any shape; absolute precision."""
    return torch.sign(x) * torch.log(x.abs() + torch.sqrt(x * x + 1))


def sinh(x: Tensor) -> Tensor:
    """Hyperbolic sine, any shape."""
    e = expm1(x.abs())
    return torch.sign(x) * 0.5 * (e + e / (e + 1))


def cosh(x: Tensor) -> Tensor:
    """Hyperbolic cosine, any shape."""
    return 0.5 * (torch.exp(x) + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x), any shape."""
    return x * torch.sigmoid(x)


def _log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """log(sigmoid(x)), any shape, and what only its derivative needs."""
    return torch.clamp_max(x, 0) - torch.log(1 + torch.exp(-x.abs())), x


def _only_float64(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def decomposition(x: Tensor, *args: Any, **options: Any) -> Tensor:
        return function(x, *args) if x.dtype == torch.float64 and not options else NotImplemented

    return decomposition


_ATEN = torch.ops.aten
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    _ATEN.gelu.default: _only_float64(gelu),
    _ATEN.silu.default: silu,
    _ATEN.softplus.default: softplus,
    _ATEN.leaky_relu.default: leaky_relu,
    _ATEN.expm1.default: expm1,
    _ATEN.asinh.default: _only_float64(asinh),
    _ATEN.log1p.default: log1p,
    _ATEN.sinh.default: _only_float64(sinh),
    _ATEN.cosh.default: _only_float64(cosh),
    _ATEN.log_sigmoid_forward.default: _log_sigmoid_forward,
}
"""Operation -> the same in others, or `NotImplemented` to keep it."""
