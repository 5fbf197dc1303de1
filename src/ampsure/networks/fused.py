"""The stacked perceptron in one kernel forward and one backward, for training on Hopper GPUs (H100, H200).

Plain PyTorch moves every activation through memory several times and multiplies in float32 on the general units. Here
all layers run in one launch, and products run on the tensor cores with the exactness of float32. See `kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["fused_mlp", "supported"]

BLOCK = 64
"""Rows a program works on at a time."""

WARPS = 8
"""Of a program: two groups of four, as the tensor cores want them."""

TRITON = "3.6."
"""The version that the kernels were verified with; the language they are written in still changes."""

WIDTHS = (64, 128)
"""Of the hidden layers: narrower ones do not fill the tensor cores, wider ones do not fit into shared memory."""


def supported(x: Tensor, weights: Sequence[Tensor], activation: str) -> bool:
    """Whether `fused_mlp` can take inputs x and weights (E, in, out): GELU, equal widths, float32, on a Hopper GPU."""
    *hidden, n_outputs = (w.shape[2] for w in weights)
    return (
        x.is_cuda
        and activation == "gelu"
        and hidden != []
        and set(hidden) <= {w for w in WIDTHS if w == hidden[0]}
        and x.shape[-1] <= 128
        and n_outputs <= 64
        and all(tensor.dtype == torch.float32 for tensor in (x, *weights))
        and not x.requires_grad  # data has no gradient
        and x.numel() > 0
        and _hopper(x.device)
    )


@cache
def _hopper(device: torch.device) -> bool:
    """Whether the kernels run on a device: they are written for Hopper's tensor cores."""
    try:
        import triton
    except ImportError:
        return False
    return triton.__version__.startswith(TRITON) and torch.cuda.get_device_capability(device)[0] == 9


def fused_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    residual: bool = False,
    detached: slice | None = None,
) -> Tensor:
    """Outputs (E, B, n_outputs) of E perceptrons.

    Args:
        x: (B, n_inputs) shared by all, or (E, B, n_inputs).
        weights, biases: (E, in, out) and (E, 1, out) of every layer.
        residual: add the input of every hidden layer but the first to its output.
        detached: outputs whose gradients stop at the last layer.
    """
    parameters = [*weights, *biases]
    if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
        out: Tensor = _FusedMLP.apply(x, residual, detached or slice(0, 0), *parameters)  # type: ignore[no-untyped-call]
        return out
    return _Shape(x, weights).forward(x, weights, biases, residual, keep=False)[0]


class _FusedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: bool, detached: slice, *parameters: Tensor) -> Tensor:
        ctx.residual, ctx.detached = residual, detached
        depth = len(parameters) // 2
        weights, biases = parameters[:depth], parameters[depth:]
        out, *kept = _Shape(x, weights).forward(x, weights, biases, residual, keep=True)
        ctx.save_for_backward(x, *kept, *weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, z, peaks, *weights = ctx.saved_tensors
        shape = _Shape(x, weights)
        grads = shape.backward(x, weights, hidden, z, peaks, grad_out.contiguous(), ctx.residual, ctx.detached)
        return None, None, None, *grads


class _Shape:
    """Sizes of a problem, and the launches of its kernels."""

    def __init__(self, x: Tensor, weights: Sequence[Tensor]) -> None:
        self.depth = len(weights) - 1
        self.members, self.n_inputs, self.width = weights[0].shape
        self.n_outputs = weights[-1].shape[2]
        self.rows = x.shape[-2]
        self.blocks = ceil(self.rows / BLOCK)
        self.padded = self.blocks * BLOCK
        self.run = BLOCK * _run(self.members, self.blocks, _processors(x.device))
        self.device = x.device
        self.constants = {
            "n_inputs": self.n_inputs,
            "n_outputs": self.n_outputs,
            "INPUTS": _padded(self.n_inputs),
            "OUTPUTS": _padded(self.n_outputs),
            "WIDTH": self.width,
            "DEPTH": self.depth,
            "BLOCK": BLOCK,
        }

    def forward(
        self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], residual: bool, *, keep: bool
    ) -> tuple[Tensor, ...]:
        """Outputs (E, B, n_outputs), and what `backward` needs of the hidden layers, (depth, E, padded, width)."""
        from .kernels import forward_kernel

        (weights, biases), stride = _side_by_side(weights, biases)
        layer = (self.members, self.padded, self.width)
        hidden = x.new_empty(self.depth if keep else 1, *layer)
        z = torch.empty_like(hidden) if keep and residual else hidden
        out = x.new_empty(self.members, self.rows, self.n_outputs)
        peaks = x.new_zeros(self.depth, self.members, dtype=torch.int32)
        with torch.cuda.device(self.device):
            forward_kernel[ceil(self.padded / self.run), self.members](
                x.contiguous(),
                x.shape[-2] * x.shape[-1] if x.ndim == 3 else 0,
                tuple(weights),
                tuple(biases),
                stride or 0,
                hidden,
                z,
                hidden[0].numel() if keep else 0,
                peaks,
                out,
                self.rows,
                self.padded,
                self.run,
                **self.constants,
                RESIDUAL=residual,
                KEEP=keep,
                SIDE_BY_SIDE=stride is not None,
                num_warps=WARPS,
            )
        return out, hidden, z, peaks

    def backward(
        self,
        x: Tensor,
        weights: Sequence[Tensor],
        hidden: Tensor,
        z: Tensor,
        peaks: Tensor,
        grad_out: Tensor,
        residual: bool,
        detached: slice,
    ) -> list[Tensor]:
        """Gradients of all weights and biases."""
        from .kernels import backward_kernel

        (weights,), stride = _side_by_side(weights)
        # One memory for all gradients, so that one sum adds the parts of the programs, in a fixed order.
        shapes = [w.shape for w in weights] + [torch.Size((self.members, 1, w.shape[2])) for w in weights]
        sizes = [ceil(shape.numel() / 4) * 4 for shape in shapes]  # for vectors of 16 bytes
        programs = ceil(self.padded / self.run)
        parts = x.new_empty(programs, sum(sizes))
        pointers = parts[0].split(sizes)
        with torch.cuda.device(self.device):
            backward_kernel[programs, self.members](
                x.contiguous(),
                x.shape[-2] * x.shape[-1] if x.ndim == 3 else 0,
                tuple(weights),
                stride or 0,
                hidden,
                z,
                hidden[0].numel(),
                peaks,
                grad_out,
                torch.empty_like(hidden[0]),
                pointers[: len(weights)],
                pointers[len(weights) :],
                parts.shape[1],
                self.rows,
                self.padded,
                self.run,
                detached.start,
                detached.stop,
                **self.constants,
                RESIDUAL=residual,
                SIDE_BY_SIDE=stride is not None,
                num_warps=WARPS,
            )
        total = parts[0] if programs == 1 else parts.sum(0)
        return [part[: shape.numel()].view(shape) for part, shape in zip(total.split(sizes), shapes, strict=True)]


def _side_by_side(*parameters: Sequence[Tensor]) -> tuple[list[list[Tensor]], int | None]:
    """Parameters as the kernels take them: windows on one memory, and the step between members there; or contiguous."""
    strides = {p.stride(0) for group in parameters for p in group}
    if len(strides) == 1 and all(p[0].is_contiguous() for group in parameters for p in group):
        return [list(group) for group in parameters], strides.pop()
    return [[p.contiguous() for p in group] for group in parameters], None


@cache
def _run(members: int, blocks: int, processors: int) -> int:
    """Blocks of a program: those with which the programs, one on a processor at a time, are done first."""

    def time(run: int) -> int:
        waves = ceil(members * ceil(blocks / run) / processors)
        return waves * (run + 2)  # loading the weights takes about as long as two blocks

    return min(range(min(blocks, 128), 0, -1), key=time)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _padded(n: int) -> int:
    """Width of a matrix on the tensor cores: a power of two."""
    return max(16, 1 << (n - 1).bit_length())
