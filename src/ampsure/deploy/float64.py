"""Float64 functions written in what onnxruntime computes in float64 on the CPU: it has no kernels for the others.

Tensors of another precision keep an operation of their own where ONNX has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

__all__ = ["DECOMPOSITIONS", "asinh", "cosh", "erf", "expm1", "gelu", "leaky_relu", "log1p", "silu", "sinh", "softplus"]

# artanh(erf(x/sqrt 2)) = x N(x^2)/D(x^2), fitted such that x erf(x/sqrt 2) is right to 3e-15 for all x
_NUMERATOR = (
    0.79788456080299834, 0.17202312101364695, 0.025409002722468152, 0.0023084105145969546, 0.00015092452302275892,
    6.4499710119520448e-6, 1.7043683646355599e-7, 2.0091326672043702e-9, 2.8795270816187588e-12,
)  # fmt: skip
_DENOMINATOR = (
    1.0, 0.17005908539104047, 0.024147332954531843, 0.0018667506866701256, 0.00011280695875026264,
    3.9073890658670119e-6, 8.3426645813608008e-8, 4.5252391458044943e-10,
)  # fmt: skip


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    result = coefficients[-1] * x + coefficients[-2]
    for c in coefficients[-3::-1]:
        result = result * x + c
    return result


def _erf_scaled(x: Tensor) -> Tensor:
    """erf(x/sqrt 2), any shape."""
    square = x * x
    return torch.tanh(x * _polynomial(_NUMERATOR, square) / _polynomial(_DENOMINATOR, square))


def erf(x: Tensor) -> Tensor:
    """Error function, any shape."""
    return _erf_scaled(x * sqrt(2))


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """x Phi(x), any shape."""
    if approximate != "none":
        return NotImplemented
    half = 0.5 * x
    return half + half * _erf_scaled(x)


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
        return function(x, *args, **options) if x.dtype == torch.float64 else NotImplemented

    return decomposition


_ATEN = torch.ops.aten
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    _ATEN.erf.default: _only_float64(erf),
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
