"""Members of several trainings side by side in one tensor."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from ampsure.networks import StackedMLP

__all__ = ["SideBySide", "part"]

_ALIGNMENT = 16  # elements: what matrix products and kernels like

Module = TypeVar("Module", bound=nn.Module)


def part(module: Module, members: range) -> Module:
    """Some of the members, as a module of its own."""
    result = copy.deepcopy(module)
    everyone = len(next(module.parameters()))
    for values in (*result.parameters(), *result.buffers()):
        if len(values) == everyone:  # not one for all of a training
            values.data = values.data[members.start : members.stop].clone()
    for network in result.modules():
        if isinstance(network, StackedMLP):
            network.members = len(members)
    return result


class SideBySide:
    """Modules of one kind, of G trainings with E members each, joined to one; its weights, gradients and best weights.

    The weights are one tensor (G E, P), and all parameters, those of the joined module and those of every single one,
    are windows on it: what is elementwise is then a single call, and nothing has to be copied back. Parameters have a
    leading member axis, buffers one for the member or the training they belong to.
    """

    def __init__(self, modules: Sequence[Module]) -> None:
        first = modules[0]
        self.joined: nn.Module = first if len(modules) == 1 else copy.deepcopy(first)
        self._shapes = [p.shape[1:] for p in first.parameters()]
        self._sizes = [-(-shape.numel() // _ALIGNMENT) * _ALIGNMENT for shape in self._shapes]
        blocks = [list(module.parameters()) for module in modules]
        members = [len(block[0]) for block in blocks]
        self.weights = blocks[0][0].detach().new_zeros(sum(members), sum(self._sizes))  # (G E, P)
        self.weights.grad = torch.zeros_like(self.weights)
        self._gap = torch.zeros_like(self.weights[:, :_ALIGNMENT])
        for module, rows in zip(modules, self.weights.split(members), strict=True):
            for parameter, window in zip(module.parameters(), self._windows(rows), strict=True):
                parameter.data = window.copy_(parameter.detach())
        if len(modules) > 1:
            for (name, buffer), *others in zip(*(m.named_buffers() for m in modules), strict=True):
                owner, _, last = name.rpartition(".")
                setattr(self.joined.get_submodule(owner), last, torch.cat([buffer, *(other for _, other in others)]))
            for network in self.joined.modules():
                if isinstance(network, StackedMLP):
                    network.members *= len(modules)
        self.parameters = list(self.joined.parameters())
        places = zip(self.parameters, self._windows(self.weights), self._windows(self.weights.grad), strict=True)
        for parameter, window, gradient in places:
            parameter.data, parameter.grad = window, gradient
        self.best = self.weights.clone()

    def _windows(self, flat: Tensor) -> list[Tensor]:
        """(E, P) -> the parameters, each (E, ...)."""
        parts = flat.split(self._sizes, dim=1)
        return [part[:, : shape.numel()].unflatten(1, shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def finish(self) -> None:
        """The best weights become the weights; gradients are forgotten."""
        self.weights.copy_(self.best)
        for parameter in self.parameters:
            parameter.grad = None

    def fill(self, modules: Sequence[nn.Module], weights: Tensor) -> None:
        """Give modules of this kind, with any number of members E, the weights (G E, P)."""
        for module, rows in zip(modules, weights.chunk(len(modules)), strict=True):
            for parameter, window in zip(module.parameters(), self._windows(rows), strict=True):
                parameter.data.copy_(window)

    def gather(self, gradients: Sequence[Tensor]) -> Tensor:
        """Gradients of all parameters, each (G E, ...), written into `weights.grad` (G E, P)."""
        parts = []
        for gradient, size in zip(gradients, self._sizes, strict=True):
            parts.append(gradient.flatten(1))
            if gap := size - parts[-1].shape[1]:
                parts.append(self._gap[:, :gap])
        assert self.weights.grad is not None
        return torch.cat(parts, dim=1, out=self.weights.grad)
