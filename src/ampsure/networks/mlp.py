"""Multilayer perceptrons, many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np
import torch
from torch import Tensor, nn

from ampsure.errors import AmpsureError

from .fused import fused_mlp, supported

__all__ = ["ACTIVATIONS", "Linear", "StackedMLP", "member_generator"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
    "relu": nn.functional.relu,
    "leaky_relu": nn.functional.leaky_relu,
    "softplus": nn.functional.softplus,
}

Linear = Callable[[int, Tensor], Tensor]
"""Applies the affine map of layer k: (k, (E, B, in)) -> (E, B, out)."""


def member_generator(seed: int, member: int) -> torch.Generator:
    """A random stream of its own for every member: the same alone as in a stack."""
    state = np.random.SeedSequence([seed, member]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) % 2**63)


class StackedMLP(nn.Module):
    """E perceptrons of one shape, evaluated together.

    Args:
        n_inputs, n_outputs: width of first and last layer.
        hidden: widths of the hidden layers.
        activation: one of `ACTIVATIONS`.
        residual: add the input of every hidden layer of equal width to its output.
        members: E.
        seed: of the initial weights; member e is the same in a stack of any size.
        output_bias: (n_outputs) initial bias of the last layer, added to the random one.
        fused: run on the kernels of `fused` where they can; the results differ by rounding only.

    >>> network = StackedMLP(3, 2, hidden=(8, 8), members=4, seed=1)
    >>> network(torch.zeros(5, 3)).shape
    torch.Size([4, 5, 2])
    """

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int,
        *,
        hidden: Sequence[int] = (128,) * 6,
        activation: str = "gelu",
        residual: bool = False,
        members: int = 1,
        seed: int = 0,
        output_bias: Sequence[float] | None = None,
        fused: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise AmpsureError(f"Unknown activation {activation!r}; known are {', '.join(ACTIVATIONS)}.")
        self.widths = (n_inputs, *hidden, n_outputs)
        self.activation, self.residual, self.members, self.fused = activation, residual, members, fused
        layers: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in self.widths[1:]]
        for member in range(members):
            generator = member_generator(seed, member)
            for (weights, biases), n_in, n_out in zip(layers, self.widths[:-1], self.widths[1:], strict=True):
                draw = torch.rand(n_in + 1, n_out, generator=generator, dtype=torch.float64)
                uniform = (2 * draw - 1) / sqrt(n_in)  # as torch.nn.Linear
                weights.append(uniform[:-1])
                biases.append(uniform[-1:])
        self.weights = nn.ParameterList(nn.Parameter(torch.stack(w).to(dtype)) for w, _ in layers)  # (E, in, out)
        self.biases = nn.ParameterList(nn.Parameter(torch.stack(b).to(dtype)) for _, b in layers)  # (E, 1, out)
        if output_bias is not None:
            with torch.no_grad():
                self.biases[-1] += torch.as_tensor(output_bias, dtype=dtype)

    def reshaped(
        self,
        *,
        hidden: Sequence[int] | None = None,
        n_outputs: int | None = None,
        members: int | None = None,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> StackedMLP:
        """A stack of the same kind with new weights, and another size where one is given."""
        like = self.weights[0]
        return StackedMLP(
            self.widths[0],
            n_outputs or self.widths[-1],
            hidden=hidden or self.widths[1:-1],
            activation=self.activation,
            residual=self.residual,
            members=members or self.members,
            seed=seed,
            fused=self.fused,
            dtype=dtype or like.dtype,
        ).to(like.device)

    def plus(self, other: StackedMLP) -> StackedMLP:
        """One stack whose outputs are the sums of those of two with equally many layers, as wide as both together."""
        total = self.reshaped(hidden=[a + b for a, b in zip(self.widths[1:-1], other.widths[1:-1], strict=True)])
        with torch.no_grad():
            for k, (weight, bias) in enumerate(zip(total.weights, total.biases, strict=True)):
                n_in, n_out = self.weights[k].shape[1:]
                row, column = 0 if k == 0 else n_in, 0 if k == len(self.weights) - 1 else n_out  # of the other's block
                for target, one, another, first in (
                    (weight, self.weights[k], other.weights[k], row),
                    (bias, self.biases[k], other.biases[k], 0),
                ):
                    target.zero_()
                    target[:, : one.shape[1], :n_out] += one
                    target[:, first:, column:] += another
        return total

    def first_outputs(self, n: int) -> StackedMLP:
        """The same without its later outputs."""
        narrow = self.reshaped(n_outputs=n)
        with torch.no_grad():
            for own, given in zip(narrow.parameters(), self.parameters(), strict=True):
                own.copy_(given[..., : own.shape[-1]])
        return narrow

    def linear(self, layer: int, x: Tensor) -> Tensor:
        """Affine map of a layer: (E, B, in) -> (E, B, out)."""
        return torch.baddbmm(self.biases[layer], x, self.weights[layer])

    def forward(self, x: Tensor, *, linear: Linear | None = None, detached: slice | None = None) -> Tensor:
        """Outputs (E, B, n_outputs) for inputs (B, n_inputs) shared by all members, or (E, B, n_inputs).

        Args:
            linear: affine maps to use instead of the members' own.
            detached: outputs whose gradients stop at the last layer.
        """
        weights, biases = list(self.weights), list(self.biases)
        if self.fused and linear is None and supported(x, weights, self.activation):
            return fused_mlp(x, weights, biases, residual=self.residual, detached=detached)
        linear = linear or self.linear
        activation = ACTIVATIONS[self.activation]
        h = x if x.ndim == 3 else x.expand(self.members, *x.shape)
        for k in range(len(self.weights) - 1):
            new = activation(linear(k, h))
            h = h + new if self.residual and new.shape == h.shape and k > 0 else new
        last = len(self.weights) - 1
        out = linear(last, h)
        if detached is None:
            return out
        stopped = linear(last, h.detach())
        return torch.cat([out[..., : detached.start], stopped[..., detached], out[..., detached.stop :]], dim=-1)
